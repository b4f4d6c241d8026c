"""What every device must do with caches as engines lay them out, as tests to subclass.

For those who write a device, beside `tierstore.testing.contracts.device`. The arrangements and their oracle are
those of `tierstore.testing.caches`. Never imported by the store.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pytest
from crc32c import crc32c

from tierstore.device.base import Device, Stream
from tierstore.device.paging import slot_nbytes
from tierstore.device.quantization import as_elements, as_float32, dequantize, quantize
from tierstore.errors import LayoutError, TierstoreError
from tierstore.quantized import SCHEMES, QuantizedBlock
from tierstore.testing.caches import ARRANGEMENTS
from tierstore.testing.contracts.device import Gate
from tierstore.tiers.host_pool import HostPool
from tierstore.types import PAGE_NBYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tierstore.device.paged_kv import PagedKV
    from tierstore.testing.caches import Arrangement
    from tierstore.types import Int32Array, Int64Array, UInt8Array

__all__ = ["PagedCacheContract"]

_WAIT_SECONDS = 30.0
_COUNT = 4
_SPARE = 2


@dataclass(frozen=True, slots=True)
class _World:
    """A cache of one arrangement, a pool, and four blocks of each that belong together."""

    arrangement: Arrangement
    memories: list[NDArray[np.uint16]]
    kv: PagedKV
    host: UInt8Array
    slots: Int32Array
    block_ids: Int64Array
    stream: Stream

    def blocks_in_host(self) -> UInt8Array:
        """uint8[4, block_nbytes]."""
        starts = [int(slot) * PAGE_NBYTES for slot in self.slots]
        return np.stack([self.host[start : start + self.kv.block_nbytes] for start in starts])

    def columns(self) -> list[Int64Array]:
        """The block ids of each block."""
        return list(self.block_ids.T)


class PagedCacheContract:
    """Every device, over every arrangement. Subclass it beside a module fixture ``device``.

    A device whose memory numpy cannot see overrides `place_cache` and `fetch_cache`.
    """

    def place_cache(self, memory: NDArray[np.uint16]) -> NDArray[np.uint16]:
        """The device's memory with these contents; whatever it is, it is sliced and transposed as an array is."""
        return memory

    def fetch_cache(self, memory: NDArray[np.uint16]) -> NDArray[np.uint16]:
        """What the device's memory holds now."""
        return memory

    @pytest.mark.parametrize("pages_per_group", [None, 1])
    @pytest.mark.parametrize("name", ARRANGEMENTS)
    def test_stores_every_block_as_the_layout_has_it_and_nothing_else(
        self, device: Device, name: str, pages_per_group: int | None
    ) -> None:
        with self._world(device, name, pages_per_group) as world:
            before, expected = self._fetch(world), world.host.copy()
            for slot, ids in zip(world.slots, world.columns(), strict=True):
                expected[int(slot) * PAGE_NBYTES :][: world.kv.block_nbytes] = world.arrangement.read(before, ids)
            device.store(world.host, world.slots, world.kv, world.block_ids, world.stream)
            assert world.stream.record().wait(_WAIT_SECONDS)
            assert np.array_equal(world.host, expected)
            assert all(map(np.array_equal, self._fetch(world), before))

    @pytest.mark.parametrize("pages_per_group", [None, 1])
    @pytest.mark.parametrize("name", ARRANGEMENTS)
    def test_loads_every_block_where_the_engine_has_it_and_nothing_else(
        self, device: Device, name: str, pages_per_group: int | None
    ) -> None:
        with self._world(device, name, pages_per_group) as world:
            expected = self._fetch(world)
            for block, ids in zip(world.blocks_in_host(), world.columns(), strict=True):
                world.arrangement.write(expected, ids, block)
            events = device.load(world.host, world.slots, world.kv, world.block_ids, world.stream)
            assert len(events) == len(world.kv.groups)
            assert all(event.wait(_WAIT_SECONDS) for event in events)
            assert all(map(np.array_equal, self._fetch(world), expected))

    @pytest.mark.parametrize("lent", [False, True])
    @pytest.mark.parametrize("name", ["padded", "latent"])
    def test_keeps_blocks_in_memory_of_its_own_as_in_a_pool(self, device: Device, name: str, *, lent: bool) -> None:
        with self._world(device, name, None) as world, closing(device.new_stream("other")) as other:
            before, expected = self._fetch(world), self._fetch(world)
            for ids, moved in zip(world.columns(), np.roll(world.block_ids, 1, axis=1).T, strict=True):
                world.arrangement.write(expected, moved, world.arrangement.read(before, ids))
            pool, free = device.allocate(world.host.nbytes + PAGE_NBYTES * lent)
            assert pool.nbytes == world.host.nbytes + PAGE_NBYTES * lent
            pool, let_go = (pool[PAGE_NBYTES:], device.adopt(pool[PAGE_NBYTES:])) if lent else (pool, lambda: None)
            device.store(pool, world.slots, world.kv, world.block_ids, world.stream)
            moved_ids, stored = np.roll(world.block_ids, 1, axis=1), world.stream.record()
            events = device.load(pool, world.slots, world.kv, moved_ids, other, after=[stored])
            assert all(event.wait(_WAIT_SECONDS) for event in events)
            found = device.checksums(pool, world.slots, world.kv.block_nbytes)
            assert found.tolist() == [crc32c(world.arrangement.read(before, ids).data) for ids in world.columns()]
            let_go()
            free()
            assert all(map(np.array_equal, self._fetch(world), expected))

    @pytest.mark.parametrize("scheme", SCHEMES)
    @pytest.mark.parametrize("name", [name for name in ARRANGEMENTS if name != "hybrid"])
    def test_keeps_a_byte_an_element_where_that_is_asked_for(self, device: Device, name: str, scheme: str) -> None:
        with self._world(device, name, 1) as world:
            block = QuantizedBlock.of(world.arrangement.layout, scheme)
            kv, before, expected = world.kv.stored(block), self._fetch(world), world.host.copy()
            for slot, ids in zip(world.slots, world.columns(), strict=True):
                own = expected[int(slot) * PAGE_NBYTES :]
                values = as_float32(world.arrangement.read(before, ids), block.dtype).reshape(-1, block.group)
                codes, scales = quantize(values, scheme)
                own[: block.num_elements] = codes.ravel()
                own[block.scales_offset_nbytes : block.nbytes] = scales.view(np.uint8)
                back = as_elements(dequantize(codes, scales, scheme), block.dtype).ravel()
                world.arrangement.write(before, ids, back)
            device.store(world.host, world.slots, kv, world.block_ids, world.stream)
            assert world.stream.record().wait(_WAIT_SECONDS)
            assert np.array_equal(world.host, expected)
            events = device.load(world.host, world.slots, kv, world.block_ids, world.stream)
            assert [event.wait(_WAIT_SECONDS) for event in events] == [True] * len(kv.groups)
            assert all(map(np.array_equal, self._fetch(world), before))
            assert np.array_equal(world.host, expected)

    def test_copies_no_page_group_but_those_asked_for(self, device: Device) -> None:
        with self._world(device, "planes apart", 1) as world:
            before = self._fetch(world)
            events = device.load(world.host, world.slots, world.kv, world.block_ids, world.stream, groups=range(1, 2))
            assert [event.wait(_WAIT_SECONDS) for event in events] == [True]
            changed = [not np.array_equal(new, old) for new, old in zip(self._fetch(world), before, strict=True)]
            assert changed == [False, True, False]
            with pytest.raises(LayoutError, match=r"range\(2, 4\)"):
                device.store(world.host, world.slots, world.kv, world.block_ids, world.stream, groups=range(2, 4))

    def test_begins_each_page_group_behind_its_own_event(self, device: Device) -> None:
        with self._world(device, "one tensor, layer first", 1) as world:
            gates = [Gate() for _ in world.kv.groups]
            events = device.load(world.host, world.slots, world.kv, world.block_ids, world.stream, after=gates)
            for index, gate in enumerate(gates):
                assert not events[index].wait(0.0)
                gate.open()
                assert events[index].wait(_WAIT_SECONDS)

    def test_a_copy_of_no_page_group_still_waits_for_its_event(self, device: Device) -> None:
        with self._world(device, "planes apart", 1) as world:
            gate, before = Gate(), self._fetch(world)
            events = device.load(
                world.host, world.slots, world.kv, world.block_ids, world.stream, groups=range(1, 1), after=[gate]
            )
            assert events == []
            behind = world.stream.record()
            assert not behind.wait(0.0)
            gate.open()
            assert behind.wait(_WAIT_SECONDS)
            assert all(map(np.array_equal, self._fetch(world), before))

    def test_holds_the_whole_copy_behind_one_event(self, device: Device) -> None:
        with self._world(device, "planes together", 1) as world:
            gate = Gate()
            device.store(world.host, world.slots, world.kv, world.block_ids, world.stream, after=[gate])
            stored = world.stream.record()
            assert not stored.wait(0.0)
            gate.open()
            assert stored.wait(_WAIT_SECONDS)

    def test_refuses_what_does_not_belong_to_the_cache_before_a_byte_moves(self, device: Device) -> None:
        with self._world(device, "hybrid", None) as world:
            before, host = self._fetch(world), world.host.copy()
            bad = world.block_ids.copy()
            bad[2, 1] = world.kv.num_blocks[2]
            for ids, named in ((bad, "block id 9 at position 1"), (world.block_ids[:2], r"\(2, 4\).*3 rows")):
                with pytest.raises(TierstoreError, match=named):
                    device.load(world.host, world.slots, world.kv, ids, world.stream)
                with pytest.raises(TierstoreError, match=named):
                    device.store(world.host, world.slots, world.kv, ids, world.stream)
            with pytest.raises(LayoutError, match="2 events"):
                device.load(world.host, world.slots, world.kv, world.block_ids, world.stream, after=[Gate(), Gate()])
            assert world.stream.record().wait(_WAIT_SECONDS)
            assert np.array_equal(world.host, host)
            assert all(map(np.array_equal, self._fetch(world), before))

    def _fetch(self, world: _World) -> list[NDArray[np.uint16]]:
        return [self.fetch_cache(memory).copy() for memory in world.memories]

    @contextmanager
    def _world(self, device: Device, name: str, pages_per_group: int | None) -> Iterator[_World]:
        arrangement = ARRANGEMENTS[name]
        seed = sorted(ARRANGEMENTS).index(name)
        memories = [self.place_cache(memory) for memory in arrangement.memories(seed)]
        kv = arrangement.bind(memories, pages_per_group=pages_per_group)
        generator = np.random.default_rng(seed)
        slot_pages = slot_nbytes(kv.block_nbytes) // PAGE_NBYTES
        slots = generator.permutation(_COUNT + _SPARE)[:_COUNT].astype(np.int32) * np.int32(slot_pages)
        order = generator.permutation(min(kv.num_blocks))  # rows of ids may name blocks of one tensor
        block_ids = np.stack([np.roll(order, -_COUNT * row)[:_COUNT] for row in range(len(kv.num_blocks))])
        with (
            closing(HostPool((_COUNT + _SPARE) * slot_nbytes(kv.block_nbytes))) as pool,
            closing(device.new_stream("contract")) as stream,
        ):
            pool.view[:] = generator.integers(0, 256, len(pool.view), np.uint8)
            unpin = device.pin(pool.view)
            yield _World(arrangement, memories, kv, pool.view, slots, block_ids.astype(np.int64), stream)
            unpin()
