"""A store that compresses: blocks come back exactly, through restarts, faults and every flipped bit."""

from __future__ import annotations

import errno
from collections.abc import Sequence

import numpy as np
import pytest

from tests.gaussian import GaussianUser, namespace
from tests.payload import SENTINEL, TIMEOUT_SECONDS, block_hash, quiet, small_store
from tierstore.codec.lz4 import Lz4Codec
from tierstore.keys import Namespace
from tierstore.layout import KVLayout
from tierstore.store import NamespaceHandle, Store
from tierstore.testing.sim_disk import SimDisk
from tierstore.testing.ssd_world import SsdWorld
from tierstore.tiers.manifest import Manifest
from tierstore.tiers.record import HEADER_NBYTES
from tierstore.types import PAGE_NBYTES, Generation, Outcome

OK, CORRUPT, IO_ERROR = Outcome.OK, Outcome.CORRUPT, Outcome.IO_ERROR
SPACE = namespace()
BLOCK_NBYTES = SPACE.layout.block_nbytes
READ_BLOCKS = 'tierstore_link_blocks_total{link="ssd-read",outcome="%s"}'


def rows(numbers: Sequence[int]) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """The blocks of these numbers; every eighth does not compress."""
    user = GaussianUser(np.zeros(0, np.uint8), Generation(0, SPACE.fingerprint, 0, SPACE.layout))
    return np.stack([np.frombuffer(user.payload(number), np.uint8) for number in numbers])


def put(handle: NamespaceHandle, numbers: Sequence[int]) -> None:
    """Put blocks durably, again and again where room must be won first."""
    hashes = [block_hash(number) for number in numbers]
    for _ in range(100):
        result = handle.put(hashes, rows(numbers), durable=True).result(TIMEOUT_SECONDS)
        if result.ok:
            return
        assert set(result.outcomes) <= {Outcome.OK, Outcome.REJECTED}
    pytest.fail("no room is won")


def num_leading(handle: NamespaceHandle, numbers: Sequence[int]) -> int:
    """Get blocks, compare every byte of the leading ones, and count those."""
    buffer = np.full((len(numbers), BLOCK_NBYTES), SENTINEL, np.uint8)
    leading = handle.get([block_hash(number) for number in numbers], buffer).result(TIMEOUT_SECONDS).leading
    assert np.array_equal(buffer[:leading], rows(numbers)[:leading]), "bytes of another block"
    assert (buffer[leading:] == SENTINEL).all(), "a row behind the leading ones was written"
    return leading


def lz4_store(disk: SimDisk, **changed: object) -> Store:
    return small_store(disk, **{"codec_name": "lz4"} | changed)


def chunk_files(disk: SimDisk) -> list[str]:
    """Paths of all chunk files."""
    folders = [entry.name for entry in disk.look("arrays").entries if entry.is_folder]
    names = [(folder, entry.name) for folder in folders for entry in disk.look(f"arrays/{folder}").entries]
    return [f"arrays/{folder}/{name}" for folder, name in names if name.startswith(("open-", "c."))]


class TestThroughTheStore:
    def test_blocks_evicted_from_memory_come_back_from_ssd(self) -> None:
        with lz4_store(SimDisk()) as store:
            handle = store.namespace(SPACE)
            for first in range(0, 40, 8):
                put(handle, range(first, first + 8))
            assert num_leading(handle, range(8)) == 8
            assert store.metrics()[READ_BLOCKS % "ok"] >= 8
            store.check()

    def test_blocks_outlive_a_restart_and_a_power_loss(self) -> None:
        disk = SimDisk()
        with lz4_store(disk) as store:
            put(store.namespace(SPACE), range(20))
        with lz4_store(disk) as store:
            assert num_leading(store.namespace(SPACE), range(20)) == 20
            put(store.namespace(SPACE), range(20, 30))
            disk.kill()
        with lz4_store(disk) as store:
            assert num_leading(store.namespace(SPACE), range(30)) == 30

    def test_ratio_and_speed_follow_from_the_metrics(self) -> None:
        for codec in ("raw", "lz4"):
            with small_store(SimDisk(), codec_name=codec) as store:
                handle = store.namespace(SPACE)
                for first in range(0, 40, 8):
                    put(handle, range(first, first + 8))
                assert num_leading(handle, range(8)) == 8
                store.metrics()
                metrics = store.metrics()
            seconds = [metrics[f'tierstore_codec_seconds_total{{verb="{verb}"}}'] for verb in ("encode", "decode")]
            written = metrics['tierstore_link_bytes_total{link="ssd-write"}']
            ratio = written / metrics['tierstore_ssd_encoded_bytes_total{written="first"}']
            if codec == "raw":
                assert (seconds, ratio) == ([0, 0], 1)
            else:
                assert min(seconds) > 0
                assert 1.1 < ratio < 1.3

    def test_more_blocks_fit_than_would_raw(self) -> None:
        kept = {}
        for codec in ("raw", "lz4"):
            disk = SimDisk()
            with small_store(disk, codec_name=codec) as store:
                for first in range(0, 200, 8):
                    put(store.namespace(SPACE), range(first, first + 8))
            with small_store(disk, codec_name=codec) as store:
                presence = store.namespace(SPACE).presence([block_hash(number) for number in range(200)])
                kept[codec] = int(np.count_nonzero(presence))
        assert 0 < kept["raw"] < kept["lz4"]

    def test_a_corrupt_block_is_a_miss_until_it_is_put_again(self) -> None:
        disk = SimDisk()
        with lz4_store(disk) as store:
            put(store.namespace(SPACE), range(3))
        (path,) = chunk_files(disk)
        disk.flip(path, 8 * (PAGE_NBYTES + 100))
        with lz4_store(disk) as store, quiet():
            handle = store.namespace(SPACE)
            assert num_leading(handle, range(3)) == 0
            put(handle, [0])
            assert num_leading(handle, range(3)) == 3
        with lz4_store(disk) as store:
            assert num_leading(store.namespace(SPACE), range(3)) == 3

    def test_blocks_of_either_codec_are_read_after_the_codec_was_changed(self) -> None:
        disk = SimDisk()
        for turn, codec in enumerate(["raw", "lz4", "raw", "lz4"]):
            with small_store(disk, codec_name=codec) as store:
                handle = store.namespace(SPACE)
                assert num_leading(handle, range(6 * turn)) == 6 * turn if turn else True
                put(handle, range(6 * turn, 6 * turn + 6))
        with small_store(disk, codec_name="raw") as store:
            assert num_leading(store.namespace(SPACE), range(24)) == 24

    @pytest.mark.parametrize(("before", "after"), [("raw", "lz4"), ("lz4", "raw")])
    def test_hot_blocks_of_the_codec_before_are_kept_when_their_file_goes(self, before: str, after: str) -> None:
        disk = SimDisk()
        with small_store(disk, codec_name=before) as store:
            put(store.namespace(SPACE), range(6))
        with small_store(disk, codec_name=after) as store:
            handle = store.namespace(SPACE)
            for first in range(100, 340, 8):
                assert num_leading(handle, range(3)) == 3
                put(handle, range(first, first + 8))
            metrics = store.metrics()
            assert metrics["tierstore_reclaimed_files_total"] > 0
            assert metrics[READ_BLOCKS % "corrupt"] == 0
            store.check()
        with small_store(disk, codec_name=after) as store:
            assert num_leading(store.namespace(SPACE), range(3)) == 3


TINY = Namespace("model", KVLayout.attention(layers=1, kv_heads=1, head_size=16, block_tokens=4))
"""Blocks of 256 bytes."""


class TinyUser(GaussianUser):
    """A user whose blocks repeat themselves, since few normal numbers do not compress."""

    def payload(self, name: int) -> bytes:
        """The bytes of a block."""
        return super().payload(name)[:64] * 4


def tiny_world() -> tuple[SsdWorld, TinyUser]:
    """A tier that compresses, with three tiny blocks on SSD."""
    world = SsdWorld(codec=Lz4Codec())
    manifest = Manifest.open(world.disk)
    manifest.register(TINY)
    manifest.close()
    tier = world.start()
    assert list(tier.recover()) == []
    user = TinyUser(world.pool, Generation(0, TINY.fingerprint, 0, TINY.layout))
    user.write(tier, [1, 2, 3])
    assert tier.sync().outcome is OK
    return world, user


class TestEveryBit:
    def test_any_flipped_bit_that_means_something_makes_a_block_corrupt(self) -> None:
        world, user = tiny_world()
        tier = world.tier
        assert tier is not None
        (path,) = world.files()
        nbytes = user.where[1][2]
        assert nbytes < 128
        used = [*range(8 * HEADER_NBYTES), *range(8 * PAGE_NBYTES, 8 * (PAGE_NBYTES + nbytes + 4))]
        for bit in used:
            world.sim.flip(path, bit)
            assert user.read(tier, [1, 2]) == [CORRUPT, OK], f"bit {bit}"
            world.sim.flip(path, bit)
        assert user.read(tier, [1, 2, 3]) == [OK] * 3
        world.kill()

    def test_any_flipped_bit_before_a_start_makes_a_block_corrupt_or_a_miss(self) -> None:
        world, user = tiny_world()
        (path,) = world.files()
        whole, nbytes = world.sim.contents(path), user.where[2][2]
        used = [*range(8 * HEADER_NBYTES), *range(8 * PAGE_NBYTES, 8 * (PAGE_NBYTES + nbytes + 4))]
        for bit in used[::31]:
            world.kill()
            for old in world.files():
                world.sim.remove(old)
            world.sim.create(path, len(whole)).close()
            world.sim.replace(path, whole)
            world.sim.flip(path, 2 * 8 * PAGE_NBYTES + bit)
            tier = world.start()
            found = user.recover(tier.recover())
            assert set(found) - {2} == {1, 3}
            assert user.read(tier, found) == [OK if name != 2 else CORRUPT for name in found]
        world.kill()


class TestFaults:
    @pytest.mark.parametrize("end_life", ["close", "kill", "crash"])
    @pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, 0])
    def test_any_one_call_may_fail(self, code: int, end_life: str) -> None:
        call, calls = 0, 1
        while call < calls:
            call += 1
            world, user = tiny_world()
            durable, before = {1, 2, 3}, world.sim.calls
            world.sim.fail_call(call, errno=code)
            with quiet():
                tier = world.tier
                assert tier is not None
                user.write(tier, range(4, 9))
                user.rewrite(tier, [1, 2])
                durable |= set(range(4, 9)) & set(user.where) if tier.sync().outcome is OK else set()
                assert set(user.read(tier, list(user.where))) <= {OK, IO_ERROR}
                calls = max(calls, world.sim.calls - before)
                getattr(world, end_life)()
                world.sim.heal()
                tier = world.start()
                found = user.recover(tier.recover())
                assert durable <= set(found)
                assert set(user.read(tier, found)) == {OK}
            world.kill()

    def test_a_rewritten_block_is_found_where_it_is_now_and_after_a_start(self) -> None:
        world, user = tiny_world()
        tier = world.tier
        assert tier is not None
        before = dict(user.where)
        assert user.rewrite(tier, [1, 3]).outcomes.tolist() == [OK, OK]
        assert user.where[1] != before[1]
        assert user.read(tier, [1, 2, 3]) == [OK] * 3
        assert tier.sync().outcome is OK
        where = dict(user.where)
        world.crash()
        tier = world.start()
        user.recover(tier.recover())
        assert {name: extent[1:] for name, extent in user.where.items()} == {n: e[1:] for n, e in where.items()}
        world.kill()
