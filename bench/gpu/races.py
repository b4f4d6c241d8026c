"""Slow kernels on the compute stream, and copies that must neither overtake them nor be overtaken.

Part of ``python -m bench.gpu``. Each round fills pages behind a kernel that takes a random while, stores them behind
that work's event, loads other bytes into them behind a slow reader, and reads those behind each layer's own event.
Nobody waits on the host within a round, so an event that is not honoured shows as bytes of another round.
"""

from __future__ import annotations

import random
from contextlib import closing
from typing import TYPE_CHECKING

import numpy as np
import torch

from bench.gpu.correctness import device_by
from tierstore.device.axes import PagedTensor
from tierstore.device.cuda_stream import AdoptedEvent
from tierstore.device.paged_kv import PagedKV
from tierstore.device.paging import slot_nbytes
from tierstore.layout import KVLayout
from tierstore.tiers.host_pool import HostPool
from tierstore.types import PAGE_NBYTES

if TYPE_CHECKING:
    from tierstore.device.cuda_runtime import CudaRuntime

LAYERS = 4
BLOCKS = 8
TOKENS = 16
ROW_NBYTES = 16 << 10
CYCLES_MAX = 200_000
WAIT_SECONDS = 60.0


def count_races(runtime: CudaRuntime, engine: str, rounds: int) -> int:
    """Rounds in which some byte was read too early or written too soon."""
    device = device_by(runtime, engine)
    shape = (2, BLOCKS, TOKENS, 1, ROW_NBYTES // TOKENS // 2)  # K and V apart, so that a layer is two rows of a block
    pages = [torch.zeros(shape, dtype=torch.uint8, device=device.memory) for _ in range(LAYERS)]
    layout = KVLayout.attention(layers=LAYERS, kv_heads=1, head_size=shape[-1], block_tokens=TOKENS, dtype="uint8")
    named = zip(pages, layout.pages, strict=True)
    tensors = [PagedTensor(tensor, "plane block token head element", page.name) for tensor, page in named]
    kv = PagedKV.bind(layout, tensors, pages_per_group=1)
    pitch = slot_nbytes(kv.block_nbytes)
    slots = np.arange(BLOCKS, dtype=np.int32) * np.int32(pitch // PAGE_NBYTES)
    incoming = slots + np.int32(BLOCKS * pitch // PAGE_NBYTES)
    block_ids = np.arange(BLOCKS, dtype=np.int64)[None]
    compute = torch.cuda.Stream()
    dice = random.Random(5)
    wrong = 0
    with (
        closing(HostPool(2 * BLOCKS * pitch)) as pool,
        closing(device.new_stream("store")) as store,
        closing(device.new_stream("load")) as load,
    ):
        unpin = device.pin(pool.view)
        stored, filled = pool.view[: BLOCKS * pitch], pool.view[BLOCKS * pitch :]
        for round_index in range(rounds):
            mine, theirs = round_index % 251, (round_index + 100) % 251
            filled.fill(theirs)
            with torch.cuda.stream(compute):
                for page in pages:  # a step that computes its KV slowly
                    torch.cuda._sleep(dice.randrange(CYCLES_MAX))
                    page.fill_(mine)
                computed = compute.record_event()
            device.store(pool.view, slots, kv, block_ids, store, after=[AdoptedEvent(computed)])
            done = store.record()
            with torch.cuda.stream(compute):
                torch.cuda._sleep(dice.randrange(CYCLES_MAX))
                before = [page.max() for page in pages] + [page.min() for page in pages]  # a step that still reads
                read = compute.record_event()
            load.wait(done)
            events = device.load(pool.view, incoming, kv, block_ids, load, after=[AdoptedEvent(read)])
            after = []
            with torch.cuda.stream(compute):
                for page, event in zip(pages, events, strict=True):  # the next step, layer by layer
                    device.hold(compute, event)
                    after += [page.max(), page.min()]
                seen = torch.stack([*before, *after]).cpu().numpy()
            ended = done.wait(WAIT_SECONDS)
            right = np.array([mine] * 2 * LAYERS + [theirs] * 2 * LAYERS)
            wrong += not (ended and np.array_equal(seen, right) and bool((stored == mine).all()))
        for stream in (store, load):
            if stream.failure is not None:
                raise stream.failure
        unpin()
    return wrong
