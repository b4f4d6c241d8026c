"""A store and an engine's cache bound as it lies: whole blocks, in the right place, in the right dtype, or nothing."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.payload import SENTINEL, TIMEOUT_SECONDS, block_hash, num_pins, payload, small_store
from tierstore.device import cpu
from tierstore.device.axes import PagedTensor
from tierstore.device.paged_kv import PagedKV
from tierstore.errors import DeviceError, LayoutError
from tierstore.keys import Namespace
from tierstore.layout import KVLayout, PageKind, PageSpec
from tierstore.store import NamespaceHandle, Store
from tierstore.testing.caches import ARRANGEMENTS
from tierstore.testing.contracts.device import Gate
from tierstore.transfer import engine
from tierstore.types import Outcome, Presence

BLOCKS = 6
LAYOUT = KVLayout.attention(layers=2, kv_heads=2, head_size=32, block_tokens=16, dtype="float8_e4m3")
HASHES = [block_hash(number) for number in range(4)]


def store() -> Store:
    return small_store(ssd_size=0)


def of(made: Store, layout: KVLayout) -> NamespaceHandle:
    return made.namespace(Namespace("model", layout))


def guarded(shape: tuple[int, ...], axis: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Memory of fp8 full of a sentinel, and a tensor in it with a guard before and behind, and around each block."""
    whole = torch.full((3, *(extent + (4 if index == axis else 0) for index, extent in enumerate(shape))), SENTINEL)
    memory = whole.to(torch.uint8)
    return memory, memory[1].narrow(axis, 2, shape[axis]).view(torch.float8_e4m3fn)


CACHES = {
    "block first": ((BLOCKS, 2, 16, 2, 32), "block plane token head element"),
    "K and V first": ((2, BLOCKS, 16, 2, 32), "plane block token head element"),
}


@pytest.mark.parametrize("name", CACHES)
def test_fp8_blocks_come_back_whole_and_leave_the_guards_around_them_alone(name: str) -> None:
    shape, axes = CACHES[name]
    memories, tensors = zip(*(guarded(shape, axes.split().index("block")) for _ in range(2)), strict=True)
    kv = PagedKV.bind(LAYOUT, [PagedTensor(tensor, axes, f"layers.{at}") for at, tensor in enumerate(tensors)])
    blocks = np.stack([payload(number, LAYOUT.block_nbytes) for number in range(4)])
    ids = [5, 0, 3, 2]
    with store() as made:
        handle = of(made, LAYOUT)
        assert handle.put(HASHES, blocks).result(TIMEOUT_SECONDS).ok
        assert handle.get(HASHES, kv, block_ids=ids).result(TIMEOUT_SECONDS).ok
        for block, block_id in zip(blocks, ids, strict=True):
            pages = [tensor.view(torch.uint8).select(axes.split().index("block"), block_id) for tensor in tensors]
            assert np.array_equal(torch.cat([page.reshape(-1) for page in pages]).numpy(), block)
            for page in pages:
                page.fill_(SENTINEL)
        assert all((memory == SENTINEL).all() for memory in memories)


def test_a_get_writes_no_token_but_those_of_its_blocks() -> None:
    """An engine whose blocks hold fewer tokens than the store's names those that it wants, and keeps the others."""
    halves = ARRANGEMENTS["blocks of half the tokens"]
    memories = halves.memories(1)
    kv = halves.bind(memories)
    with store() as made:
        handle = of(made, halves.layout)
        assert handle.put(HASHES[:1], kv, block_ids=[[0], [1]]).result(TIMEOUT_SECONDS).ok
        expected = [memory.copy() for memory in memories]
        for memory in expected:
            memory[:, [6, 3]] = memory[:, [0, 1]]
        assert handle.get(HASHES, kv, block_ids=[[6, 7, 5, 4], [3, 2, 0, 1]]).result(TIMEOUT_SECONDS).leading == 1
        assert all(map(np.array_equal, memories, expected))


def test_a_get_needs_a_place_of_its_own_for_every_part_of_a_block() -> None:
    halves = ARRANGEMENTS["blocks of half the tokens"]
    kv = halves.bind(halves.memories(1))
    hashes = [block_hash(number) for number in range(kv.num_blocks[0])]
    with store() as made:
        handle = of(made, halves.layout)
        assert handle.put(hashes, kv).result(TIMEOUT_SECONDS).ok
        with pytest.raises(LayoutError, match="block id 0 is named twice"):
            handle.get(hashes, kv)
        with pytest.raises(LayoutError, match="block id 3 is named twice"):
            handle.get(hashes[:2], kv, block_ids=[[1, 3], [3, 5]])


def test_a_block_without_one_of_its_parts_is_refused_whole() -> None:
    hybrid = ARRANGEMENTS["hybrid"]
    memories = hybrid.memories(2)
    kv = hybrid.bind(memories)
    before = [memory.copy() for memory in memories]
    with store() as made:
        handle = of(made, hybrid.layout)
        for ids in ([[0], [1], [-1]], [[0], [99], [1]], [[0], [1]], [0]):
            for verb in (handle.put, handle.get):
                with pytest.raises(LayoutError, match=r"block id|in 3 rows"):
                    verb(HASHES[:1], kv, block_ids=ids)
        assert handle.presence(HASHES[:1]) == [Presence.MISS]
        assert num_pins(made) == 0
        assert all(map(np.array_equal, memories, before))


def test_every_part_of_a_hybrid_block_comes_back() -> None:
    hybrid = ARRANGEMENTS["hybrid"]
    memories = hybrid.memories(3)
    kv = hybrid.bind(memories)
    with store() as made:
        handle = of(made, hybrid.layout)
        block = hybrid.read(memories, np.array([1, 2, 3]))
        assert handle.put(HASHES[:1], kv, block_ids=[[1], [2], [3]]).result(TIMEOUT_SECONDS).ok
        assert handle.get(HASHES[:1], kv, block_ids=[[4], [9], [0]]).result(TIMEOUT_SECONDS).ok
        assert np.array_equal(hybrid.read(memories, np.array([4, 9, 0])), block)


def test_layers_of_blocks_that_come_from_ssd_are_ready_one_after_another(tmp_path: Path) -> None:
    arrangement = ARRANGEMENTS["one tensor, layer first"]
    memories = arrangement.memories(4)
    kv = arrangement.bind(memories, pages_per_group=1)
    share = kv.block_nbytes // len(kv.groups)
    blocks = np.stack([arrangement.read(memories, np.array([block_id])) for block_id in range(4)])
    with small_store(ssd_dir=tmp_path) as made:
        handle = of(made, arrangement.layout)
        assert handle.put(HASHES, kv, block_ids=range(4), durable=True).result(TIMEOUT_SECONDS).ok
    with small_store(ssd_dir=tmp_path) as made:
        transfer = of(made, arrangement.layout).get(HASHES, kv, block_ids=[7, 5, 4, 6])
        for layer in range(len(kv.groups)):
            assert transfer.layer_ready(layer).wait(TIMEOUT_SECONDS)
            for block, block_id in zip(blocks, [7, 5, 4, 6], strict=True):
                found = arrangement.read(memories, np.array([block_id]))
                assert np.array_equal(found[layer * share :][:share], block[layer * share :][:share])
        assert transfer.result(TIMEOUT_SECONDS).ok


def bound(dtype: str, tensor_dtype: torch.dtype | None = None) -> PagedKV:
    """A cache of one layer for a layout of one dtype, in a tensor of it or of another."""
    layout = KVLayout((PageSpec("layer", PageKind.MLA, 1, 64, 1),), 16, dtype)
    tensor = torch.zeros((BLOCKS, 16, 64), dtype=tensor_dtype or getattr(torch, dtype))
    return PagedKV.bind(layout, [PagedTensor(tensor, "block token element", "layer")])


def test_bits_of_one_dtype_are_not_taken_for_another_of_its_size() -> None:
    with pytest.raises(LayoutError, match=r"float16.*bfloat16"):
        bound("bfloat16", torch.float16)
    with pytest.raises(LayoutError, match=r"float8_e4m3fnuz, for a layout of float8_e4m3"):
        bound("float8_e4m3", torch.float8_e4m3fnuz)
    kv = bound("float16")
    assert kv.layout is not None
    with store() as made:
        handle = of(made, bound("bfloat16").layout or kv.layout)
        with pytest.raises(LayoutError, match="dtype float16, the namespace has bfloat16"):
            handle.get(HASHES[:1], kv, block_ids=[0])
        with pytest.raises(LayoutError, match="float16, for a layout of bfloat16"):
            handle.get(HASHES[:1], torch.zeros((1, 16, 64), dtype=torch.float16))


def test_the_source_of_a_copy_lives_until_the_copy_has_ended() -> None:
    """Temporary blocks, dropped by their owner at once, their memory offered to others while copies still wait."""
    nbytes, gate = 8192, Gate()
    with store() as made:
        handle = of(made, KVLayout.opaque(block_nbytes=nbytes))
        puts = [
            handle.put([block_hash(number)], torch.from_numpy(payload(number, nbytes)[np.newaxis].copy()), after=gate)
            for number in range(16)
        ]
        gc.collect()
        others = [np.full((1, nbytes), SENTINEL, np.uint8) for _ in range(64)]
        gate.open()
        assert all(put.result(TIMEOUT_SECONDS).ok for put in puts)
        found = np.zeros((16, nbytes), np.uint8)
        assert handle.get([block_hash(number) for number in range(16)], found).result(TIMEOUT_SECONDS).ok
        assert np.array_equal(found, [payload(number, nbytes) for number in range(16)])
        assert all((other == SENTINEL).all() for other in others)


def test_a_store_closes_though_an_engine_that_has_gone_never_reached_its_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_CLOSE_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(cpu, "_PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(cpu, "_LOOK_SECONDS", 0.01)
    with store() as made:
        handle = of(made, KVLayout.opaque(block_nbytes=8192))
        transfer = handle.put(HASHES[:1], payload(0, 8192)[np.newaxis], after=Gate())
    assert transfer.result(0).outcomes == [Outcome.IO_ERROR]


def freed() -> PagedKV:
    kv = bound("bfloat16")
    owner: Any = kv.tensors[0].owner
    owner.untyped_storage().resize_(0)
    return kv


def elsewhere() -> PagedKV:
    tensor = torch.zeros((BLOCKS, 16, 64), dtype=torch.bfloat16, device="meta")
    layout = KVLayout((PageSpec("layer", PageKind.MLA, 1, 64, 1),), 16, "bfloat16")
    return PagedKV.bind(layout, [PagedTensor(tensor, "block token element", "layer")])


@pytest.mark.parametrize(
    ("kv", "options", "kind", "named"),
    [
        (freed, {"block_ids": [0]}, DeviceError, "freed or moved"),
        (elsewhere, {"block_ids": [0]}, DeviceError, "on meta; the store's device copies memory of cpu"),
        (lambda: bound("bfloat16"), {"block_ids": [6]}, LayoutError, "block id 6 lies outside buffers of 6 blocks"),
        (lambda: bound("bfloat16"), {"block_ids": ["x"]}, LayoutError, "no whole numbers"),
        (lambda: bound("bfloat16"), {"block_ids": [[0], [1]]}, LayoutError, r"block_ids of shape \(2, 1\)"),
        (lambda: bound("bfloat16"), {}, LayoutError, "1 hashes but buffers of 6 blocks"),
        (lambda: bound("bfloat16"), {"block_ids": [0], "after": [Gate(), Gate()]}, LayoutError, "2 events for 1 page"),
        (lambda: bound("bfloat16"), {"block_ids": [0], "after": 7}, LayoutError, "after is of type int"),
    ],
    ids=["freed", "elsewhere", "outside", "no numbers", "too many rows", "no ids", "too many events", "no event"],
)
def test_a_cache_that_cannot_be_copied_is_refused_before_anything_happens(
    kv: Any, options: dict[str, Any], kind: type[Exception], named: str
) -> None:
    with store() as made:
        handle = of(made, bound("bfloat16").layout or LAYOUT)
        for verb in (handle.put, handle.get):
            with pytest.raises(kind, match=named):
                verb(HASHES[:1], kv(), **options)
        assert handle.presence(HASHES[:1]) == [Presence.MISS]
        assert num_pins(made) == 0
