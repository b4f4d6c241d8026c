"""Every arrangement of an engine's cache, by every engine, both ways, against numpy's indexing on the CPU.

Part of ``python -m bench.gpu``. The arrangements and their oracle are those of the contract that every device keeps.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import torch

from tierstore.device.calibration import ROWS_NBYTES, Choices
from tierstore.device.copy_engines import engine_names
from tierstore.device.cuda_device import CudaDevice
from tierstore.device.paging import slot_nbytes
from tierstore.device.quantization import dequantize, kernel_name, quantize, quantize_tables
from tierstore.device.segments import SEGMENT
from tierstore.quantized import SCHEMES, QuantizedBlock
from tierstore.testing.caches import ARRANGEMENTS, Arrangement
from tierstore.tiers.host_pool import HostPool
from tierstore.types import PAGE_NBYTES

if TYPE_CHECKING:
    from tierstore.device.cuda_runtime import CudaRuntime

BLOCKS = 4
SPARE = 2
WAIT_SECONDS = 60.0


def device_by(runtime: CudaRuntime, engine: str) -> CudaDevice:
    """A device that copies by one engine whatever is asked."""
    rates = {(store, nbytes, engine): 1.0 for store in (True, False) for nbytes in ROWS_NBYTES}
    return CudaDevice(runtime, Choices(runtime.facts, rates))


def check_arrangements(runtime: CudaRuntime) -> Iterator[tuple[str, str]]:
    """(what was checked, what was wrong with it, empty where nothing) of every combination."""
    for engine in engine_names(runtime.facts):
        device = device_by(runtime, engine)
        for (name, arrangement), per_group in product(ARRANGEMENTS.items(), (None, 1)):
            checked = f"{name}, {'one group' if per_group is None else 'a group a page'}, {engine}"
            yield checked, _check(device, arrangement, per_group)


def check_quantization(runtime: CudaRuntime) -> Iterator[tuple[str, str]]:
    """The same of the quantizing kernels, against their arithmetic in numpy, bit for bit."""
    runtime.enter()
    stream = runtime.new_stream(high_priority=False)
    for scheme, group in product(SCHEMES, (64, 128, 576)):
        block = QuantizedBlock(scheme, "float32", group, 8 * group)
        values = np.random.default_rng(group).standard_normal((BLOCKS, 8, group)).astype(np.float32)
        cache, slots = torch.from_numpy(values).cuda(), torch.zeros((BLOCKS, block.nbytes), dtype=torch.uint8).cuda()
        row_nbytes = values[0].nbytes
        segments = np.array([(cache.data_ptr(), row_nbytes, 1, row_nbytes, row_nbytes, 0)], SEGMENT)
        addresses = slots.data_ptr() + np.arange(BLOCKS, dtype=np.int64) * block.nbytes
        wrong = []
        codes, scales = quantize(values.reshape(-1, group), scheme)
        for store in (True, False):
            for table in quantize_tables(block, segments, addresses, np.arange(BLOCKS, dtype=np.int64)):
                runtime.launch(kernel_name(block, store=store), 16, table, stream)
            runtime.finish(runtime.record(stream))
            if store:
                stored = slots.cpu().numpy()
                found = stored[:, : 8 * group].reshape(-1, group)
                found_scales = stored[:, block.scales_offset_nbytes :].copy().view(np.float32).ravel()
                if not (np.array_equal(found, codes) and np.array_equal(found_scales, scales)):
                    wrong.append("quantize")
            elif not np.array_equal(cache.cpu().numpy().reshape(-1, group), dequantize(codes, scales, scheme)):
                wrong.append("dequantize")
        yield f"{scheme}, groups of {group}", " and ".join(wrong)
    runtime.drop_stream(stream)


def _check(device: CudaDevice, arrangement: Arrangement, per_group: int | None) -> str:
    generator = np.random.default_rng(7)
    memories = arrangement.memories(7)
    tensors = [torch.from_numpy(memory.copy()).to(device.memory) for memory in memories]
    kv = arrangement.bind(tensors, pages_per_group=per_group)
    pitch = slot_nbytes(kv.block_nbytes)
    order = generator.permutation(min(kv.num_blocks))
    block_ids = np.stack([np.roll(order, -BLOCKS * row)[:BLOCKS] for row in range(len(kv.num_blocks))]).astype(np.int64)
    slots = (generator.permutation(BLOCKS + SPARE)[:BLOCKS] * (pitch // PAGE_NBYTES)).astype(np.int32)
    with closing(HostPool((BLOCKS + SPARE) * pitch)) as pool, closing(device.new_stream("store")) as stream:
        pool.view[:] = generator.integers(0, 256, len(pool.view), np.uint8)
        unpin = device.pin(pool.view)
        expected = pool.view.copy()
        for slot, ids in zip(slots.tolist(), block_ids.T, strict=True):
            expected[slot * PAGE_NBYTES :][: kv.block_nbytes] = arrangement.read(memories, ids)
        device.store(pool.view, slots, kv, block_ids, stream)
        stored = stream.record().wait(WAIT_SECONDS)
        store_wrong = not np.array_equal(pool.view, expected)
        pool.view[:] = generator.integers(0, 256, len(pool.view), np.uint8)
        for slot, ids in zip(slots.tolist(), block_ids.T, strict=True):
            start = slot * PAGE_NBYTES
            arrangement.write(memories, ids, pool.view[start : start + kv.block_nbytes])
        events = device.load(pool.view, slots, kv, block_ids, stream)
        loaded = all(event.wait(WAIT_SECONDS) for event in events)
        load_wrong = not all(
            np.array_equal(tensor.cpu().numpy(), memory) for tensor, memory in zip(tensors, memories, strict=True)
        )
        failure = stream.failure
        unpin()
    if failure is not None:
        return f"the stream failed: {failure}"
    if not (stored and loaded):
        return "a copy did not end"
    return " and ".join(way for way, wrong in (("store", store_wrong), ("load", load_wrong)) if wrong)
