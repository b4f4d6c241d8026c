"""A store that looks at a folder beside its owner: right bytes or misses, and not a byte written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.payload import TIMEOUT_SECONDS, block_hash, get, namespace, num_pins, rows, small_store
from tests.processes import open_files, program
from tierstore.errors import ConfigError, FolderBusyError, FolderError, FolderFormatError, ReadOnlyError
from tierstore.store import NamespaceHandle, Store
from tierstore.types import Outcome, Presence

FILE_BLOCKS = 7


def hashes_of(numbers: range) -> list[bytes]:
    return [block_hash(number) for number in numbers]


def put(handle: NamespaceHandle, numbers: range) -> None:
    assert handle.put(hashes_of(numbers), rows(numbers, 8192), durable=True).result(TIMEOUT_SECONDS).ok


def known(handle: NamespaceHandle, numbers: range) -> list[int]:
    """The blocks that are there, each with its own bytes; what was in the way of the others is a miss."""
    found = []
    for number in numbers:
        result = get(handle, [block_hash(number)], rows([number], 8192))
        assert set(result.outcomes) <= {Outcome.OK, Outcome.MISS}
        found += [number] * result.leading
    return found


def hits(handle: NamespaceHandle, stop: int) -> set[int]:
    """Which blocks of numbers below this are there."""
    return {number for number, found in enumerate(handle.presence(hashes_of(range(stop)))) if found is Presence.HIT}


def open_beside(folder: Path) -> Store:
    return small_store(ssd_dir=folder, ssd_read_only=True)


def snapshot(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): (path.stat().st_ino, path.stat().st_mtime_ns, path.read_bytes()) for path in paths}


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Store]:
    with small_store(ssd_dir=tmp_path) as store:
        yield store


def test_it_sees_what_the_owner_has_made_durable_and_changes_nothing(tmp_path: Path, owner: Store) -> None:
    put(owner.namespace(namespace()), range(20))
    before = snapshot(tmp_path)
    for _ in range(2):
        with open_beside(tmp_path) as store, open_beside(tmp_path) as another:
            for beside in (store, another):
                handle = beside.namespace(namespace())
                assert handle.lookup(hashes_of(range(20))) == 20
                assert known(handle, range(24)) == list(range(20))
                assert handle.prefetch(hashes_of(range(20))).result(TIMEOUT_SECONDS).ok
                beside.check()
                assert beside.metrics()["tierstore_ssd_used_bytes"] > 0
    assert snapshot(tmp_path) == before
    with pytest.raises(FolderBusyError):
        small_store(ssd_dir=tmp_path)


def test_puts_stay_in_host_memory_and_a_durable_one_is_rejected(tmp_path: Path, owner: Store) -> None:
    put(owner.namespace(namespace()), range(3))
    before = snapshot(tmp_path)
    with open_beside(tmp_path) as store:
        handle = store.namespace(namespace())
        assert handle.put(hashes_of(range(10, 14)), rows(range(10, 14), 8192)).result(TIMEOUT_SECONDS).ok
        assert known(handle, range(10, 14)) == list(range(10, 14))
        refused = handle.put(hashes_of(range(20, 24)), rows(range(20, 24), 8192), durable=True)
        assert refused.result(TIMEOUT_SECONDS).outcomes == [Outcome.REJECTED] * 4
        assert store.flush().result(TIMEOUT_SECONDS).ok
        with pytest.raises(ReadOnlyError, match=r"delete is refused.*another may own"):
            handle.delete(hashes_of(range(1)))
        with pytest.raises(ReadOnlyError, match="clear is refused"):
            handle.clear()
        assert known(handle, range(3)) == [0, 1, 2]
        assert known(store.namespace(namespace(model="unknown to the folder")), range(3)) == []
        store.check()
    assert num_pins(store) == 0
    assert snapshot(tmp_path) == before


def test_what_the_owner_does_later_is_seen_by_the_next_to_open(tmp_path: Path, owner: Store) -> None:
    handle = owner.namespace(namespace())
    put(handle, range(3))
    with open_beside(tmp_path) as store:
        put(handle, range(3, 5))
        assert handle.delete(hashes_of(range(1))).result(TIMEOUT_SECONDS).ok
        assert known(store.namespace(namespace()), range(5)) == [0, 1, 2]
    with open_beside(tmp_path) as store:
        assert known(store.namespace(namespace()), range(5)) == [1, 2, 3, 4]
    handle.clear()
    with open_beside(tmp_path) as store:
        assert known(store.namespace(namespace()), range(5)) == []


@pytest.mark.parametrize("codec", ["raw", "lz4"])
def test_a_file_that_is_sealed_meanwhile_is_followed(tmp_path: Path, codec: str) -> None:
    with small_store(ssd_dir=tmp_path, codec_name=codec) as owner:
        handle = owner.namespace(namespace())
        put(handle, range(3))
        with open_beside(tmp_path) as store:
            put(handle, range(3, 3 + 3 * FILE_BLOCKS))
            assert list(tmp_path.glob("arrays/*/c.0.*")), "the file seen open is sealed"
            assert known(store.namespace(namespace()), range(3)) == [0, 1, 2]


def test_a_file_given_back_underneath_is_a_miss_for_good(tmp_path: Path, owner: Store) -> None:
    handle = owner.namespace(namespace())
    put(handle, range(2 * FILE_BLOCKS))
    with open_beside(tmp_path) as store:
        beside = store.namespace(namespace())
        for first in range(100, 200, FILE_BLOCKS):
            put(handle, range(first, first + FILE_BLOCKS))
        assert owner.metrics()["tierstore_reclaimed_files_total"] >= 2
        assert known(beside, range(2 * FILE_BLOCKS)) == []
        assert beside.presence(hashes_of(range(2 * FILE_BLOCKS))) == [Presence.MISS] * 2 * FILE_BLOCKS
        assert beside.put(hashes_of(range(1)), rows([0], 8192)).result(TIMEOUT_SECONDS).ok
        store.check()
        assert not [path for path in open_files() if str(tmp_path) in path and "(deleted)" in path], (
            "it keeps none alive"
        )


def test_bytes_that_are_spoilt_are_no_miss(tmp_path: Path, owner: Store) -> None:
    put(owner.namespace(namespace()), range(3))
    with open_beside(tmp_path) as store:
        (path,) = tmp_path.glob("arrays/*/open-*")
        with path.open("r+b") as file:
            file.seek(4096 + 17)
            file.write(b"spoilt")
        assert get(store.namespace(namespace()), [block_hash(0)], rows([0], 8192)).outcomes == [Outcome.CORRUPT]


def test_a_folder_of_no_store_is_refused_and_none_is_made(tmp_path: Path) -> None:
    with pytest.raises(FolderError, match="there is no folder"):
        open_beside(tmp_path / "missing")
    with pytest.raises(FolderFormatError, match=r"holds no store\.json"):
        open_beside(tmp_path)
    with pytest.raises(ConfigError, match=r"ssd\.read_only looks at a folder, and there is none"):
        small_store(ssd_read_only=True)
    assert list(tmp_path.iterdir()) == []


OWNER = """
from itertools import count
from random import Random
rng, numbers = Random(7), count()
with small_store(ssd_dir=folder, ssd_size="4 MiB") as store:
    handle = store.namespace(namespace())
    for line in sys.stdin:
        for _ in range(6):
            chosen = [next(numbers) for _ in range(rng.randrange(1, 7))]
            assert handle.put([block_hash(n) for n in chosen], rows(chosen, 8192), durable=True).result(120).ok
            print("put", *chosen, flush=True)
            if rng.random() < 0.3:
                assert handle.delete([block_hash(chosen[-1])]).result(120).ok
                print("gone", chosen[-1], flush=True)
        print("done", flush=True)
"""


@pytest.mark.slow  # a second process that writes and reclaims all the time
def test_beside_a_busy_owner_no_byte_is_wrong_and_nothing_durable_is_missing(tmp_path: Path) -> None:
    durable: set[int] = set()
    deleted: set[int] = set()
    num_known = num_beyond = 0
    with program(OWNER, tmp_path) as (process, output):
        assert process.stdin is not None
        for _ in range(40):
            newest, known_durable = max(durable | deleted, default=-1), durable
            process.stdin.write("go\n")
            process.stdin.flush()
            there: set[int] = set()
            if newest >= 0:
                with open_beside(tmp_path) as store:  # while the owner writes, deletes, seals and reclaims
                    handle = store.namespace(namespace())
                    there = hits(handle, newest + 40)
                    assert not deleted & there, "deleted before it was opened"
                    num_known += len(known(handle, range(max(0, newest - 100), newest + 40)))
                    num_beyond += len(there - set(range(newest + 1)))
                    store.check()
            while (line := output.readline().split()) != ["done"]:
                numbers = set(map(int, line[1:]))
                durable = durable | numbers if line[0] == "put" else durable - numbers
                deleted |= numbers if line[0] == "gone" else set()
            if newest >= 0:
                with open_beside(tmp_path) as store:
                    kept = hits(store.namespace(namespace()), newest + 1)
                    assert not known_durable & kept - there, "durable before it was opened, and not reclaimed since"
        assert process.poll() is None
    assert newest > 2 * 224, "every file was reclaimed more than once"
    assert num_known > 1000
    assert num_beyond > 0, "it was opened in the midst of the owner's work"
