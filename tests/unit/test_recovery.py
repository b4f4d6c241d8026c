"""What the SSD tier makes of a folder when it starts."""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from tierstore.disk.base import Buffer, File
from tierstore.testing.block_user import BlockUser
from tierstore.testing.ssd_world import SsdWorld
from tierstore.tiers.chunkfile import ChunkFile, ChunkName, slots_per_file
from tierstore.tiers.footer import Keys
from tierstore.tiers.frame import aligned_buffer
from tierstore.tiers.manifest import Manifest
from tierstore.tiers.progress import logged_progress
from tierstore.tiers.record import KEY, RecordShape
from tierstore.tiers.scan import Scanner
from tierstore.types import PAGE_NBYTES, Outcome

OK, REJECTED, IO_ERROR = Outcome.OK, Outcome.REJECTED, Outcome.IO_ERROR
PER_FILE = slots_per_file(64 << 10, RecordShape(100))
"""Blocks of 100 bytes in one of the world's files."""


@pytest.fixture
def world() -> Iterator[SsdWorld]:
    world = SsdWorld()
    yield world
    world.kill()


class CountingFile:
    """A file that notes how much each read took."""

    def __init__(self, file: File) -> None:
        self._file = file
        self.read_nbytes: list[int] = []
        self.write_from, self.sync, self.close = file.write_from, file.sync, file.close
        self.nbytes, self.direct = file.nbytes, file.direct

    def read_into(self, buffers: Sequence[Buffer], offset: int) -> None:
        self.read_nbytes.append(sum(buffer.nbytes for buffer in buffers))
        self._file.read_into(buffers, offset)


def test_the_newest_file_is_continued(world: SsdWorld) -> None:
    tier, user = world.begin()
    user.write(tier, [1, 2])
    tier = world.start()
    user.recover(tier.recover())
    user.write(tier, [3])
    assert len(world.files()) == 1
    assert [user.where[name][1] for name in (1, 2, 3)] == [0, 2, 4]


def test_what_is_continued_is_durable_first(world: SsdWorld) -> None:
    tier, user = world.begin()
    user.write(tier, [1, 2])
    list(world.start().recover())
    world.crash()
    assert user.recover(world.start().recover()) == [1, 2]


def test_a_namespace_that_was_cleared_does_not_come_back(world: SsdWorld) -> None:
    tier, user = world.begin()
    other = BlockUser(world.pool, world.generation(tenant="other"))
    user.write(tier, range(PER_FILE))
    other.write(tier, [1])
    assert world.manifest is not None
    world.manifest.advance(user.generation.fingerprint)
    tier = world.start()
    (batch,) = tier.recover()
    assert other.recover([batch]) == [1]
    assert len(world.files()) == 1


def test_blocks_of_an_unknown_namespace_are_dropped_with_their_files(world: SsdWorld) -> None:
    tier, user = world.begin()
    user.write(tier, [1])
    world.close()
    stranger = SsdWorld()
    Manifest.open(stranger.disk).close()
    world.sim.replace("store.json", stranger.sim.contents("store.json"))
    assert list(world.start().recover()) == []
    assert world.files() == {}


def test_a_spoiled_header_costs_its_own_block_alone(world: SsdWorld) -> None:
    tier, user = world.begin()
    user.write(tier, range(5))
    (path,) = world.files()
    world.sim.flip(path, bit=8 * 2 * (2 * PAGE_NBYTES))
    tier = world.start()
    assert user.recover(tier.recover()) == [0, 1, 3, 4]
    user.write(tier, [5])
    assert user.where[5][1] == 10


def test_a_spoiled_payload_in_the_newest_file_is_not_found(world: SsdWorld) -> None:
    tier, user = world.begin()
    user.write(tier, range(5))
    (path,) = world.files()
    for record in (1, 4):
        world.sim.flip(path, bit=8 * (record * 2 * PAGE_NBYTES + PAGE_NBYTES + 50))
    tier = world.start()
    assert user.recover(tier.recover()) == [0, 2, 3]
    user.write(tier, [6])
    assert user.where[6][1] == 8


def test_records_that_changed_places_are_found_where_they_are(world: SsdWorld) -> None:
    tier, user = world.begin()
    user.write(tier, [1, 2, 3])
    (path,) = world.files()
    whole, pitch = world.sim.contents(path), RecordShape(100).pitch_nbytes
    swapped = whole[pitch : 2 * pitch] + whole[:pitch] + whole[2 * pitch :]
    world.sim.replace(path, swapped)
    assert user.read(tier, [1, 2, 3]) == [Outcome.CORRUPT, Outcome.CORRUPT, OK]
    tier = world.start()
    assert user.recover(tier.recover()) == [2, 1, 3]
    assert user.read(tier, [1, 2, 3]) == [OK] * 3


@pytest.mark.parametrize("nbytes", [0, 1, 4096, 8192, 12_288, 3 * 8192 + 5])
def test_a_truncated_file_keeps_its_whole_records(world: SsdWorld, nbytes: int) -> None:
    tier, user = world.begin()
    user.write(tier, range(5))
    (path,) = world.files()
    world.kill()
    world.sim.truncate(path, nbytes)
    tier = world.start()
    assert user.recover(tier.recover()) == list(range(nbytes // 8192))
    assert user.write(tier, [7]).outcomes.tolist() == [OK]
    assert set(user.read(tier, list(user.where))) == {OK}


def test_a_record_of_another_file_is_not_believed(world: SsdWorld) -> None:
    tier, user = world.begin()
    user.write(tier, range(PER_FILE + 1))
    old, new = sorted(world.files(), key=lambda path: world.sim.contents(path).count(b"TIERSTOR"), reverse=True)
    world.kill()
    world.sim.replace(new, world.sim.contents(new)[:8192] + world.sim.contents(old)[8192:])
    assert user.recover(world.start().recover()) == list(range(PER_FILE + 1))


def test_a_header_inside_a_payload_is_not_believed(world: SsdWorld) -> None:
    tier, user = world.begin()
    user.write(tier, [1])
    (path,) = world.files()
    forged = world.sim.contents(path)[: 2 * PAGE_NBYTES]
    outer = BlockUser(world.pool, world.generation(3 * PAGE_NBYTES))
    job = outer.write_job([2])
    world.pool[PAGE_NBYTES : 3 * PAGE_NBYTES] = np.frombuffer(forged, np.uint8)
    outer.remember([2], tier.write([job])[0])
    inner = next(other for other in world.files() if other != path)
    world.sim.flip(inner, bit=0)
    tier = world.start()
    assert user.recover(tier.recover()) == [1]
    assert len(world.files()) == 1


@pytest.mark.parametrize(("step_seconds", "said"), [(0.001, ["100 %"]), (0.5, ["9 %", "11 %", "75 %", "100 %"])])
def test_a_long_start_says_how_far_it_is_once_a_second_and_at_its_end(
    caplog: pytest.LogCaptureFixture, step_seconds: float, said: list[str]
) -> None:
    """Ten lines in a tenth of a second told nobody anything."""
    total, now = 100 << 30, 0.0
    long, short = logged_progress(lambda: now), logged_progress(lambda: now)
    with caplog.at_level(logging.INFO):
        for percent in (1, 9, 10, 11, 35, 75, 99, 100, 100):
            now += step_seconds
            long(total * percent // 100, total)
            short(1000 * percent, 100_000)
        short(0, 0)
    assert [message.partition(" of ")[0] for message in caplog.messages] == said


def test_names_of_others_are_left_alone_and_reported(world: SsdWorld, caplog: pytest.LogCaptureFixture) -> None:
    tier, user = world.begin()
    user.write(tier, [1])
    (path,) = world.files()
    array = path.rpartition("/")[0]
    world.close()
    for junk in (f"{array}/notes", f"{array}/open-x", "arrays/stray", "arrays/else-raw/open-0-" + "0" * 32):
        world.sim.create(junk, PAGE_NBYTES)
    world.sim.create(f"{array}/zarr.json.new", PAGE_NBYTES)
    with caplog.at_level(logging.WARNING):
        assert user.recover(world.start().recover()) == [1]
    (message,) = caplog.messages
    assert message.startswith("4 names under arrays/ are no chunk files")
    assert "open-x" in message
    assert world.sim.contents("arrays/stray") == bytes(PAGE_NBYTES)


def test_a_file_that_cannot_be_opened_is_skipped_and_counts(world: SsdWorld, caplog: pytest.LogCaptureFixture) -> None:
    tier, user = world.begin()
    user.write(tier, range(4 * PER_FILE))
    world.kill()
    world.capacity_nbytes = 5 * world.file_nbytes
    world.start()
    world.sim.fail_call(2, errno=errno.EMFILE, only="open")
    assert world.tier is not None
    with caplog.at_level(logging.WARNING):
        assert len(user.recover(world.tier.recover())) == 3 * PER_FILE
    assert "chunk file skipped" in caplog.text
    assert user.write(world.tier, [99]).outcomes.tolist() == [REJECTED]
    assert len(user.recover(world.start().recover())) == 4 * PER_FILE


def test_a_file_that_cannot_be_read_whole_is_neither_continued_nor_given_back(world: SsdWorld) -> None:
    tier, user = world.begin()
    user.write(tier, range(3))
    tier = world.start()
    world.sim.fail_from(1, errno=errno.EIO, only="read")
    assert list(tier.recover()) == []
    world.sim.heal()
    user.write(tier, [3])
    assert len(world.files()) == 2
    assert user.recover(world.start().recover()) == [0, 1, 2, 3]


def test_nothing_is_written_to_a_folder_that_cannot_be_listed(world: SsdWorld) -> None:
    tier, user = world.begin()
    user.write(tier, [1])
    tier = world.start()
    world.sim.fail_call(1, errno=errno.EIO, only="look")
    assert list(tier.recover()) == []
    assert user.write(tier, [2]).outcomes.tolist() == [IO_ERROR]
    assert tier.sync().outcome is OK
    assert user.recover(world.start().recover()) == [1]


@pytest.mark.parametrize(
    ("block_nbytes", "count", "reads_max", "read_nbytes_max"),
    [(512 << 10, 14, 16, 5 << 20), (100, 900, 4, (8 << 20) + PAGE_NBYTES)],
)
def test_large_payloads_are_skipped_and_small_records_come_in_large_pieces(
    block_nbytes: int, count: int, reads_max: int, read_nbytes_max: int
) -> None:
    world = SsdWorld(capacity_nbytes=32 << 20, file_nbytes=8 << 20)
    world.pool = aligned_buffer(8 << 20)
    tier, user = world.begin(block_nbytes)
    user.write(tier, range(count))
    world.close()
    ((path, nbytes),) = world.files().items()
    _, array, name = path.split("/")
    parsed = ChunkName.parse(array, name)
    assert parsed is not None
    file = CountingFile(world.sim.open(path))
    keys, readable = Scanner().records(ChunkFile(0, parsed, file, nbytes=nbytes))
    assert readable
    assert keys.rows["slot"].tolist() == list(range(count))
    assert len(file.read_nbytes) <= reads_max
    assert sum(file.read_nbytes) <= read_nbytes_max


def test_keys_that_are_picked_keep_their_reserved_bytes() -> None:
    used = np.arange(64 * KEY.itemsize, dtype=np.uint32).astype(np.uint8)
    keys = Keys(used.view(KEY), np.arange(64, dtype=np.uint32), bytes(16))
    chosen = np.arange(64) % 3 == 0
    picked = keys.only(chosen)
    assert picked.rows.tobytes() == used.reshape(64, -1)[chosen].tobytes()
    assert picked.pages.tolist() == list(range(0, 64, 3))


def test_blocks_of_a_codec_that_is_not_installed_take_space_and_are_not_served(
    world: SsdWorld, caplog: pytest.LogCaptureFixture
) -> None:
    tier, user = world.begin()
    user.write(tier, range(15 * PER_FILE))
    world.close()
    unknown = {path: path.replace("-raw/", "-other/") for path in world.files()}
    for path, other in unknown.items():
        world.sim.create(other, len(world.sim.contents(path))).close()
        world.sim.rename(path, other)
    tier = world.start()
    with caplog.at_level(logging.WARNING):
        assert list(tier.recover()) == []
    assert "codecs ['other'] are not installed" in caplog.text
    assert user.write(tier, [1]).outcomes.tolist() == [REJECTED]
    assert set(world.files()) == set(unknown.values())
