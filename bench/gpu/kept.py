"""Blocks that are kept otherwise than byte for byte in host memory: quantized, in the device pool, and both at once.

Part of ``python -m bench.gpu``, against the arithmetic in numpy, bit for bit; and checksums of what the device pool
holds, against the crc32c package.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import torch
from crc32c import crc32c

from bench.gpu.correctness import device_by
from tierstore.device.copy_engines import PieceEngine
from tierstore.device.paging import bind_rows, slot_nbytes
from tierstore.device.quantization import as_elements, as_float32, dequantize, quantize
from tierstore.quantized import SCHEMES, QuantizedBlock
from tierstore.testing.caches import ARRANGEMENTS, Arrangement
from tierstore.tiers.host_pool import HostPool
from tierstore.types import PAGE_NBYTES

if TYPE_CHECKING:
    from tierstore.device.cuda_runtime import CudaRuntime
    from tierstore.types import UInt8Array

BLOCKS = 4
WAIT_SECONDS = 60.0


def check_kept(runtime: CudaRuntime) -> Iterator[tuple[str, str]]:
    """(what was checked, what was wrong with it, empty where nothing) of every arrangement and way to keep it."""
    for (name, arrangement), scheme, on_device in product(ARRANGEMENTS.items(), (None, *SCHEMES), (False, True)):
        if (scheme is None and not on_device) or (scheme is not None and name == "hybrid"):
            continue
        checked = f"{name}, {scheme or 'byte for byte'}, {'device' if on_device else 'host'} pool"
        yield checked, _check(runtime, arrangement, scheme, on_device=on_device)


def _check(runtime: CudaRuntime, arrangement: Arrangement, scheme: str | None, *, on_device: bool) -> str:
    """Store blocks, load them into others, and compare."""
    device = device_by(runtime, PieceEngine.name)
    memories = arrangement.memories(11)
    tensors = [torch.from_numpy(memory.copy()).to(device.memory) for memory in memories]
    block = None if scheme is None else QuantizedBlock.of(arrangement.layout, scheme)
    kv = arrangement.bind(tensors).stored(block)
    ids = np.random.default_rng(11).permutation(min(kv.num_blocks))
    rows = len(kv.num_blocks)
    there = np.stack([np.roll(ids, -BLOCKS * row)[:BLOCKS] for row in range(rows)]).astype(np.int64)
    back = np.roll(there, 1, axis=1)
    pitch = slot_nbytes(kv.stored_nbytes)
    slots = np.arange(BLOCKS, dtype=np.int32)[::-1] * np.int32(pitch // PAGE_NBYTES)
    blocks = [_as_it_comes_back(arrangement.read(memories, column), block) for column in there.T]
    for column, bytes_back in zip(back.T, blocks, strict=True):
        arrangement.write(memories, column, bytes_back)
    with closing(HostPool(BLOCKS * pitch)) as host, closing(device.new_stream("store")) as stream:
        undo = [device.pin(host.view)]
        pool: UInt8Array = host.view
        if on_device:
            pool, free = device.allocate(BLOCKS * pitch)
            undo.append(free)
        device.store(pool, slots, kv, there, stream)
        events = device.load(pool, slots, kv, back, stream)
        ended, failure = all(event.wait(WAIT_SECONDS) for event in events), stream.failure
        for call in undo[::-1]:
            call()
    if failure is not None or not ended:
        return f"the copies did not end: {failure}"
    found = [tensor.cpu().numpy() for tensor in tensors]
    return "" if all(map(np.array_equal, found, memories)) else "bytes"


def check_checksums(runtime: CudaRuntime) -> Iterator[tuple[str, str]]:
    """The same of checksums, for blocks of sizes that end anywhere."""
    device = device_by(runtime, PieceEngine.name)
    for nbytes in (1, 17, 1152, 4096, 65537, 2 << 20):
        rows = np.random.default_rng(nbytes).integers(0, 256, (3, nbytes), np.uint8)
        kv = bind_rows(torch.from_numpy(rows.copy()).to(device.memory), nbytes)
        slots = np.array([2, 0, 1], np.int32) * np.int32(slot_nbytes(nbytes) // PAGE_NBYTES)
        pool, free = device.allocate(3 * slot_nbytes(nbytes))
        with closing(device.new_stream("store")) as stream:
            device.store(pool, slots, kv, np.arange(3, dtype=np.int64)[np.newaxis], stream)
            stored = stream.record().wait(WAIT_SECONDS) and stream.failure is None
        right = stored and device.checksums(pool, slots, nbytes).tolist() == [crc32c(row.data) for row in rows]
        free()
        yield f"checksums of {nbytes} bytes", "" if right else "checksums"


def _as_it_comes_back(stored: UInt8Array, block: QuantizedBlock | None) -> UInt8Array:
    if block is None:
        return stored
    values = as_float32(stored, block.dtype).reshape(-1, block.group)
    return as_elements(dequantize(*quantize(values, block.scheme), block.scheme), block.dtype).ravel()
