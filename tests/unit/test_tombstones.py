"""Deletions on SSD: the record, how long it is kept, and what it may take."""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator

import numpy as np
import pytest
from crc32c import crc32c

from tierstore.testing.block_user import BlockUser
from tierstore.testing.ssd_world import SsdWorld
from tierstore.tiers.chunkfile import ChunkFile, ChunkName, slots_per_file
from tierstore.tiers.record import HEADER, KIND_TOMBSTONE, RecordShape, valid_headers
from tierstore.tiers.scan import Scanner
from tierstore.tiers.ssd import SsdTier
from tierstore.tiers.tombstone import HASHES_MAX, Tombstone, read_tombstone
from tierstore.types import PAGE_NBYTES, Outcome

OK, REJECTED, IO_ERROR = Outcome.OK, Outcome.REJECTED, Outcome.IO_ERROR
PER_FILE = slots_per_file(64 << 10, RecordShape(100))
"""Blocks of 100 bytes in one of the world's files."""


@pytest.fixture
def world() -> Iterator[SsdWorld]:
    world = SsdWorld()
    yield world
    world.kill()


def tombstones(world: SsdWorld) -> list[Tombstone]:
    """Every tombstone in the folder, by path and place."""
    found = []
    for path, nbytes in sorted(world.files().items()):
        _, array, name = path.split("/")
        parsed = ChunkName.parse(array, name)
        assert parsed is not None
        chunk = ChunkFile(0, parsed, world.sim.open(path), nbytes=nbytes)
        keys, readable = Scanner().records(chunk)
        assert readable
        chunk.know(keys)
        found += [tombstone for page in chunk.tombstone_pages if (tombstone := read_tombstone(chunk, page))]
    return found


def deleted(world: SsdWorld) -> list[bytes]:
    return [row.tobytes() for tombstone in tombstones(world) for row in tombstone.hashes]


def buried(world: SsdWorld) -> tuple[SsdTier, BlockUser]:
    """Blocks 0 to 6 in a first file, of which a second one says that 0 and 1 are deleted; 12 and 13 begin a third."""
    tier, user = world.begin()
    user.write(tier, range(PER_FILE + 1))
    assert user.delete(tier, [0, 1]).outcomes.tolist() == [OK, OK]
    user.write(tier, range(PER_FILE + 1, 2 * PER_FILE))
    assert len(world.files()) == 3
    assert sorted(extent[0] for extent in user.where.values()) == [0] * 7 + [1] * 5 + [2] * 2
    assert tier.sync().outcome is OK
    return tier, user


def found_without_the_second_file() -> list[int]:
    """Names of `buried` once that file has gone."""
    return [*range(2, PER_FILE), 2 * PER_FILE - 2, 2 * PER_FILE - 1]


def test_a_tombstone_is_a_header_page_and_a_page_of_hashes_with_their_checksum_and_written_twice(
    world: SsdWorld,
) -> None:
    tier, user = world.begin()
    names = range(HASHES_MAX + 1)
    user.delete(tier, names)
    (path,) = world.files()
    pages = np.frombuffer(world.sim.contents(path)[: 8 * PAGE_NBYTES], np.uint8).reshape(4, 2, PAGE_NBYTES)
    headers = np.ascontiguousarray(pages[:, 0]).reshape(-1).view(HEADER)
    hashes = b"".join(map(user.block_hash, names))
    assert valid_headers(headers).tolist() == [True] * 4
    assert headers["kind"].tolist() == [KIND_TOMBSTONE] * 4
    assert headers["slot"].tolist() == [0xFFFF_FFFF] * 4
    assert np.diff(headers["sequence"]).tolist() == [1, 1, 1]
    for record, payload in enumerate((hashes[:3200], hashes[:3200], hashes[3200:], hashes[3200:])):
        page = pages[record, 1].tobytes()
        assert headers["encoded_nbytes"][record] == headers["raw_nbytes"][record] == len(payload)
        assert headers["payload_checksum"][record] == crc32c(payload)
        assert page == (payload + crc32c(payload).to_bytes(4, "little")).ljust(PAGE_NBYTES, b"\0")


def test_tombstones_take_no_slot_of_the_zarr_array(world: SsdWorld) -> None:
    tier, user = world.begin()
    for name in range(PER_FILE - 1):
        user.write(tier, [name])
    user.delete(tier, [0])
    user.write(tier, range(PER_FILE, PER_FILE + 2))
    tier.close()
    tier = world.start()
    assert user.recover(tier.recover()) == [*range(1, PER_FILE - 1), PER_FILE, PER_FILE + 1]
    assert set(user.read(tier, list(user.where))) == {OK}


def test_a_tombstone_outlives_its_file_while_an_older_block_may_be_there(world: SsdWorld) -> None:
    tier, user = buried(world)
    tier.discard(user.where[PER_FILE][0])
    world.crash()
    tier = world.start()
    assert user.recover(tier.recover()) == found_without_the_second_file()
    assert deleted(world) == [user.block_hash(0), user.block_hash(1)] * 2


def test_a_tombstone_goes_with_its_file_when_every_older_block_is_gone(world: SsdWorld) -> None:
    tier, user = buried(world)
    tier.discard(user.where[2][0])
    tier.discard(user.where[PER_FILE][0])
    assert deleted(world) == []


def test_a_tombstone_that_was_moved_does_not_outdo_a_later_write(world: SsdWorld) -> None:
    tier, user = world.begin()
    user.write(tier, range(PER_FILE + 1))
    user.delete(tier, [0, 1])
    user.write(tier, [*range(PER_FILE + 1, 2 * PER_FILE - 1), 0])
    assert user.where[0][0] != user.where[PER_FILE][0]
    before = [tombstone.sequence for tombstone in tombstones(world)]
    tier.discard(user.where[PER_FILE][0])
    assert [tombstone.sequence for tombstone in tombstones(world)] == before
    assert tier.sync().outcome is OK
    assert user.recover(world.start().recover()) == [*range(2, PER_FILE), 2 * PER_FILE - 2, 0]


def test_tombstones_of_a_cleared_namespace_are_not_kept(world: SsdWorld) -> None:
    tier, user = buried(world)
    assert world.manifest is not None
    world.manifest.advance(user.generation.fingerprint)
    tier.discard(user.where[PER_FILE][0])
    assert deleted(world) == []


@pytest.mark.parametrize("only", ["read", "write", "sync"])
def test_a_file_stays_until_its_tombstones_are_durable_elsewhere(world: SsdWorld, only: str) -> None:
    tier, user = buried(world)
    files = world.files()
    world.sim.fail_from(1, errno=errno.EIO, only=only)
    tier.discard(user.where[PER_FILE][0])
    assert set(world.files()) >= set(files), "a file went before its tombstones were safe"
    world.sim.heal()
    tier.discard(user.where[2 * PER_FILE - 1][0])
    assert len(set(files) & set(world.files())) == 1
    world.crash()
    assert user.recover(world.start().recover()) == [*range(2, PER_FILE)]


@pytest.mark.parametrize("failing", range(1, 6))
def test_a_file_stays_where_the_one_that_its_tombstones_filled_could_not_be_synced(
    world: SsdWorld, failing: int
) -> None:
    tier, user = world.begin()
    user.write(tier, range(PER_FILE))
    user.delete(tier, [0])
    user.delete(tier, [1])
    user.write(tier, range(PER_FILE, 2 * PER_FILE))  # the newest file has room for one of the tombstones and its copy
    assert tier.sync().outcome is OK
    world.sim.fail_call(failing, errno=errno.EIO, only="sync")
    tier.discard(user.where[PER_FILE][0])
    world.crash()
    assert user.recover(world.start().recover())[0] == 2


@pytest.mark.parametrize("copies", [(0,), (1,), (0, 1)])
def test_one_damaged_copy_of_a_tombstone_undoes_nothing_and_both_are_said(
    world: SsdWorld, copies: tuple[int, ...], caplog: pytest.LogCaptureFixture
) -> None:
    tier, user = buried(world)
    (path,) = [path for path in world.files() if path.rpartition("/")[2].startswith("c.1.")]
    for copy in copies:
        world.sim.flip(path, bit=8 * ((3 + 2 * copy) * PAGE_NBYTES + 5))
    with caplog.at_level(logging.WARNING):
        tier.discard(user.where[PER_FILE][0])
    assert caplog.text.count("a tombstone does not verify") == len(copies)
    assert deleted(world) == [user.block_hash(0), user.block_hash(1)] * (2 - len(copies))
    found = user.recover(world.start().recover())
    assert {0, 1} & set(found) == ({0, 1} if len(copies) == 2 else set())


def test_deletes_go_to_another_array_rather_than_into_the_reserve(world: SsdWorld) -> None:
    tier, user = world.begin()
    other = BlockUser(world.pool, world.generation(block_nbytes=5000, tenant="other"))
    other.write(tier, [1])
    written = 0
    while user.write(tier, [written]).outcomes[0] == OK:
        written += 1
    nbytes = sum(world.files().values())
    assert user.delete(tier, [0]).outcomes.tolist() == [OK]
    assert sum(world.files().values()) == nbytes
    assert tier.sync().outcome is OK
    assert 0 not in user.recover(world.start().recover())


def test_deletes_take_the_reserve_and_a_discard_brings_it_back(world: SsdWorld) -> None:
    tier, user = world.begin()
    written = 0
    while user.write(tier, [written]).outcomes[0] == OK:
        written += 1
    assert user.delete(tier, [0]).outcomes.tolist() == [OK]
    assert sum(world.files().values()) == world.capacity_nbytes
    assert user.write(tier, [written]).outcomes.tolist() == [REJECTED], "the reserve is for what lets files go"
    assert user.delete(tier, range(1, 30)).outcomes.tolist() == [OK] * 29
    tier.discard(user.where[written - 1][0])
    assert user.write(tier, [written]).outcomes.tolist() == [OK]


def test_deletes_beyond_all_room_are_rejected_row_by_row(world: SsdWorld) -> None:
    tier, user = world.begin()
    while user.write(tier, [len(user.where)]).outcomes[0] == OK:
        pass
    outcomes = user.delete(tier, range(10_000)).outcomes.tolist()
    kept = outcomes.index(REJECTED)
    assert kept > 0
    assert kept % HASHES_MAX == 0
    assert outcomes == [OK] * kept + [REJECTED] * (10_000 - kept)


def test_a_failed_delete_is_an_io_error_and_the_next_one_goes_elsewhere(world: SsdWorld) -> None:
    tier, user = world.begin()
    user.write(tier, [1, 2])
    world.sim.fail_call(1, errno=errno.EIO, only="write")
    assert user.delete(tier, [1, 2]).outcomes.tolist() == [IO_ERROR, IO_ERROR]
    assert user.delete(tier, [1]).outcomes.tolist() == [OK]
    assert len(world.files()) == 2
    assert tier.sync().outcome is OK
    world.crash()
    assert user.recover(world.start().recover()) == [2]


def test_a_file_that_a_start_could_not_give_back_goes_once_another_takes_its_tombstones(world: SsdWorld) -> None:
    tier, user = buried(world)
    user.delete(tier, range(PER_FILE, 2 * PER_FILE - 2))
    tier.close()
    (metadata,) = {f"{path.rpartition('/')[0]}/zarr.json" for path in world.files()}
    world.sim.replace(metadata, b"{}".ljust(PAGE_NBYTES))
    tier = world.start()
    left = [*range(2, PER_FILE), 2 * PER_FILE - 2, 2 * PER_FILE - 1]
    assert user.recover(tier.recover()) == left
    before = set(world.files())
    assert len(before) == 3, "the second one has no block that lives, and no file is there that takes its tombstones"
    user.write(tier, [100])
    assert len(before - set(world.files())) == 1
    assert user.recover(world.start().recover()) == [*left, 100]


def test_a_start_gives_a_file_of_tombstones_alone_back_unless_it_is_continued(world: SsdWorld) -> None:
    tier, user = world.begin()
    user.delete(tier, range(200))
    user.write(tier, [1])
    tier.close()
    (path,) = world.files()
    tier = world.start()
    user.recover(tier.recover())
    assert list(world.files()) == [path]
    assert user.delete(tier, [1]).outcomes.tolist() == [OK]
    tier.close()
    tier = world.start()
    assert list(tier.recover()) == []
    assert list(world.files()) == [path]
    user.write(tier, range(PER_FILE))
    assert len(world.files()) == 2
    tier.close()
    assert len(user.recover(world.start().recover())) == PER_FILE


def test_one_failing_read_of_a_tombstone_brings_no_deleted_block_back(world: SsdWorld) -> None:
    _tier, user = buried(world)
    world.kill()
    for call in range(1, 24):
        tier = world.start()
        world.sim.fail_call(call, errno=errno.EIO, only="read")
        found = user.recover(tier.recover())
        assert not {0, 1} & set(found), f"read {call} failed and a deleted block is back"
        world.kill()
        world.sim.heal()
