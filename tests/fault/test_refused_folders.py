"""Real folders that may be read and not written, or neither: read-only file systems and modes that forbid."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from tests.payload import TIMEOUT_SECONDS, block_hash, get, namespace, num_pins, rows, small_store
from tests.volume import bound_by_modes, read_only, told
from tierstore.errors import FolderError
from tierstore.health import Service
from tierstore.store import NamespaceHandle, Store
from tierstore.types import Outcome

OK, MISS, REJECTED, CORRUPT, IO_ERROR, CANCELLED = Outcome
BLOCK_NBYTES = 8192
FILE_BLOCKS = 7
"""As many as fill one chunk file of `tests.payload.SMALL`."""


@contextmanager
def forbidden(folder: Path) -> Iterator[None]:
    """Let nobody look into a folder."""
    with bound_by_modes():
        folder.chmod(0)
        try:
            yield
        finally:
            folder.chmod(0o700)


REFUSALS = [pytest.param(read_only, "EROFS", id="read-only"), pytest.param(forbidden, "EACCES", id="forbidden")]


def put(handle: NamespaceHandle, numbers: range) -> list[Outcome]:
    """Put blocks durably."""
    transfer = handle.put([block_hash(n) for n in numbers], rows(numbers, BLOCK_NBYTES), durable=True)
    return transfer.result(TIMEOUT_SECONDS).outcomes


def ask(handle: NamespaceHandle, numbers: range) -> list[Outcome]:
    """How a get of each block by itself ends; every byte that comes is compared."""
    return [get(handle, [block_hash(n)], rows([n], BLOCK_NBYTES)).outcomes[0] for n in numbers]


def put_until_off(store: Store, handle: NamespaceHandle, first: int) -> int:
    """Put blocks durably until writes are off; returns the number of the next one."""
    for start in range(first, first + 100 * FILE_BLOCKS, FILE_BLOCKS):
        put(handle, range(start, start + FILE_BLOCKS))
        if store.health()["ssd"].service is not Service.SERVING:
            return start + FILE_BLOCKS
    pytest.fail("the folder takes everything")


@pytest.mark.parametrize(("refuse", "code"), REFUSALS)
def test_a_folder_that_takes_no_file_turns_writes_off_and_comes_back_by_itself(
    tmp_path: Path, refuse: Callable[[Path], AbstractContextManager[None]], code: str
) -> None:
    with bound_by_modes(), small_store(ssd_dir=tmp_path, ssd_size="8 MiB") as store:
        handle = store.namespace(namespace())
        assert put(handle, range(FILE_BLOCKS)) == [OK] * FILE_BLOCKS
        (array,) = tmp_path.glob("arrays/*-raw")
        with told("the SSD is well again") as well:
            with refuse(array):
                following = put_until_off(store, handle, FILE_BLOCKS)
                health = store.health()["ssd"]
                assert health.service is Service.WRITES_OFF
                assert code in health.why
                assert ask(handle, range(FILE_BLOCKS)) == [OK] * FILE_BLOCKS
                assert put(handle, range(following, following + 3)) == [REJECTED] * 3
            assert well.wait(TIMEOUT_SECONDS)
        assert put(handle, range(following, following + 3)) == [OK] * 3
        store.check()
        assert num_pins(store) == 0
    with small_store(ssd_dir=tmp_path, ssd_size="8 MiB") as store:
        assert ask(store.namespace(namespace()), range(FILE_BLOCKS)) == [OK] * FILE_BLOCKS


def test_a_read_only_file_system_is_refused_by_name_and_can_be_looked_at(tmp_path: Path) -> None:
    with small_store(ssd_dir=tmp_path) as store:
        assert put(store.namespace(namespace()), range(3)) == [OK] * 3
    with read_only(tmp_path):
        with pytest.raises(FolderError, match="is mounted read-only; remount it"):
            small_store(ssd_dir=tmp_path)
        with small_store(ssd_dir=tmp_path, ssd_read_only=True) as store:
            assert ask(store.namespace(namespace()), range(3)) == [OK] * 3


def test_a_folder_that_may_not_be_entered_is_refused_by_name(tmp_path: Path) -> None:
    folder = tmp_path / "kv"
    with small_store(ssd_dir=folder) as store:
        assert put(store.namespace(namespace()), range(3)) == [OK] * 3
    with forbidden(folder), pytest.raises(FolderError, match=r"may not write there .*Permission denied"):
        small_store(ssd_dir=folder)
    with small_store(ssd_dir=folder) as store:
        assert ask(store.namespace(namespace()), range(3)) == [OK] * 3


def test_the_blocks_of_a_file_that_may_not_be_read_are_misses_until_it_may(tmp_path: Path) -> None:
    everything = range(2 * FILE_BLOCKS)
    with small_store(ssd_dir=tmp_path) as store:
        assert put(store.namespace(namespace()), everything) == [OK] * len(everything)
    (path,) = tmp_path.glob("arrays/*/c.0.*")
    path.chmod(0)
    with bound_by_modes(), small_store(ssd_dir=tmp_path) as store:
        handle = store.namespace(namespace())
        assert ask(handle, everything) == [MISS] * FILE_BLOCKS + [OK] * FILE_BLOCKS
        assert store.metrics()["tierstore_ssd_used_bytes"] == 2 * (128 << 10), "its bytes count all the same"
        assert put(handle, range(50, 53)) == [OK] * 3
    path.chmod(0o600)
    with small_store(ssd_dir=tmp_path) as store:
        assert ask(store.namespace(namespace()), everything) == [OK] * len(everything)
