"""Any cache that can be described is bound so that its blocks are what indexing says they are."""

from __future__ import annotations

from contextlib import closing

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tierstore.device.cpu import CpuDevice
from tierstore.device.paging import slot_nbytes
from tierstore.layout import KVLayout, MemoryOrder, PageKind, PageSpec
from tierstore.testing.caches import Arrangement, Part
from tierstore.types import PAGE_NBYTES

WAIT_SECONDS = 30.0
NUM_BLOCKS = 7
COUNT = 3


@st.composite
def _parts(draw: st.DrawFn, spec: PageSpec, pages: tuple[str, ...], num_tokens: int, id_row: int) -> Part:
    """A tensor for some pages: axes in any order, with gaps before, behind and between, some of them backwards."""
    extents = {
        "block": NUM_BLOCKS,
        "layer": len(pages),
        "plane": spec.planes,
        "token": num_tokens,
        "head": spec.kv_heads,
    }
    left_out = draw(st.sets(st.sampled_from([role for role, extent in extents.items() if extent == 1] or ["block"])))
    roles = [*draw(st.permutations([role for role in extents if role not in left_out - {"block"}])), "element"]
    sizes, index = [], []
    for role in roles:
        extent = extents.get(role, spec.head_size)
        step = 1 if role == "element" else draw(st.sampled_from([1, 1, 1, 2, -1]))
        before, behind = draw(st.integers(0, 2)), draw(st.integers(0, 2))
        end = before + (extent - 1) * abs(step) + 1
        sizes.append(end + behind)
        index.append((slice(before, end, abs(step)), slice(None, None, -1 if step < 0 else 1)))

    def view(
        memory: np.ndarray[tuple[int, ...], np.dtype[np.uint16]],
    ) -> np.ndarray[tuple[int, ...], np.dtype[np.uint16]]:
        return memory[tuple(chosen for chosen, _ in index)][tuple(order for _, order in index)]

    return Part(tuple(sizes), " ".join(roles), pages, view, id_rows=(id_row,))


@st.composite
def _arrangements(draw: st.DrawFn) -> Arrangement:
    """One or two groups of layers, each in one tensor for all or in one for each layer."""
    num_tokens = draw(st.sampled_from([1, 2, 5]))
    pages: list[PageSpec] = []
    parts: list[Part] = []
    for group in range(draw(st.integers(1, 2))):
        heads, size, planes = (draw(st.integers(1, most)) for most in (3, 4, 2))
        specs = [PageSpec(f"{group}.{n}", PageKind.FULL, heads, size, planes) for n in range(draw(st.integers(1, 3)))]
        names = tuple(spec.name for spec in specs)
        pages += specs
        tensors = [names] if draw(st.booleans()) else [(name,) for name in names]
        parts += [draw(_parts(specs[0], held, num_tokens, group)) for held in tensors]
    layout = KVLayout(tuple(pages), num_tokens, "bfloat16", draw(st.sampled_from(list(MemoryOrder))))
    return Arrangement(layout, tuple(parts))


@given(arrangement=_arrangements(), pages_per_group=st.sampled_from([None, 1, 2]), seed=st.integers(0, 2**32 - 1))
def test_blocks_of_any_cache_are_stored_and_loaded_as_indexing_says(
    arrangement: Arrangement, pages_per_group: int | None, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    memories = arrangement.memories(seed)
    kv = arrangement.bind(memories, pages_per_group=pages_per_group)
    slots = np.arange(COUNT, dtype=np.int32) * np.int32(slot_nbytes(kv.block_nbytes) // PAGE_NBYTES)
    host = generator.integers(0, 256, COUNT * slot_nbytes(kv.block_nbytes), np.uint8)
    block_ids = np.stack([generator.permutation(NUM_BLOCKS)[: 2 * COUNT] for _ in kv.num_blocks])
    with closing(CpuDevice().new_stream("property")) as stream:
        CpuDevice().store(host, slots, kv, block_ids[:, :COUNT].astype(np.int64), stream)
        assert stream.record().wait(WAIT_SECONDS)
        blocks = host.reshape(COUNT, -1)[:, : kv.block_nbytes]
        assert np.array_equal(blocks, [arrangement.read(memories, ids) for ids in block_ids[:, :COUNT].T])
        expected = [memory.copy() for memory in memories]
        for ids, block in zip(block_ids[:, COUNT:].T, blocks, strict=True):
            arrangement.write(expected, ids, block)
        CpuDevice().load(host, slots, kv, block_ids[:, COUNT:].astype(np.int64), stream)
        assert stream.record().wait(WAIT_SECONDS)
        assert all(map(np.array_equal, memories, expected))
