"""One worker of LMCache 0.5.6: LocalCPUBackend and LocalDiskBackend, by their public constructors.

Steps, each over all objects: ``host.put`` allocates, copies from the caller's tensor and submits;
``host.get`` gets and copies into the caller's tensor; ``disk.write`` allocates, copies, submits and waits
for every completion; ``disk.write_synced`` also syncs every file, which LMCache itself never does;
``disk.read`` gets one batch from disk into LMCache's pool, the page cache dropped. Every object is
compared after every read, outside the time.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

os.environ.update(LMCACHE_TRACK_USAGE="false", LMCACHE_LOG_LEVEL="ERROR")

import torch
from lmcache.utils import CacheEngineKey
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.memory_management import MemoryFormat
from lmcache.v1.metadata import LMCacheMetadata
from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend
from lmcache.v1.storage_backend.local_disk_backend import LocalDiskBackend

from bench.peers.turns import serve

_TOKENS, _HIDDEN = 64, 1024
_DTYPE = torch.bfloat16


class Worker:
    """Both backends over the same caller's tensors."""

    def __init__(self, *, object_nbytes: int, count: int, folder: Path, direct: bool) -> None:
        torch.set_num_threads(1)
        layers = object_nbytes // (2 * _TOKENS * _HIDDEN * _DTYPE.itemsize)
        self.shape = torch.Size([2, layers, _TOKENS, _HIDDEN])
        self.count, self.folder = count, folder
        generator = torch.Generator().manual_seed(0)
        raw = torch.randint(-30000, 30000, (count, self.shape.numel()), dtype=torch.int16, generator=generator)
        self.src = raw.view(_DTYPE).view(count, *self.shape)
        self.dst = torch.zeros_like(self.src)
        config = LMCacheEngineConfig.from_defaults(
            chunk_size=_TOKENS,
            local_cpu=True,
            max_local_cpu_size=2.5 * count * object_nbytes / (1 << 30) + 0.1,
            local_disk=str(folder),
            max_local_disk_size=64.0,
            lmcache_instance_id="bench",
        )
        config.extra_config = {"use_odirect": direct, "disk_io_threads": 4}
        metadata = LMCacheMetadata(
            model_name="bench",
            world_size=1,
            local_world_size=1,
            worker_id=0,
            local_worker_id=0,
            kv_dtype=_DTYPE,
            kv_shape=(layers, 2, _TOKENS, 8, _HIDDEN // 8),
            chunk_size=_TOKENS,
        )
        self.cpu = LocalCPUBackend(config, metadata=metadata, dst_device="cpu")
        loop = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, daemon=True).start()
        self.disk = LocalDiskBackend(config, loop, self.cpu, dst_device="cpu", metadata=metadata)
        self.keys = [CacheEngineKey("bench", 1, 0, index, _DTYPE) for index in range(count)]

    def host_put(self) -> float:
        """Caller's tensors into the pool."""
        for key in self.keys:
            self.cpu.remove(key)
        started = time.perf_counter()
        for key, block in zip(self.keys, self.src, strict=True):
            memory = self.cpu.allocate(self.shape, _DTYPE, fmt=MemoryFormat.KV_2LTD)
            memory.tensor.copy_(block)
            self.cpu.submit_put_task(key, memory)
            memory.ref_count_down()
        return time.perf_counter() - started

    def host_get(self) -> float:
        """The pool into the caller's tensors."""
        self.dst.zero_()
        started = time.perf_counter()
        for key, block in zip(self.keys, self.dst, strict=True):
            memory = self.cpu.get_blocking(key)
            block.copy_(memory.tensor)
            memory.ref_count_down()
        seconds = time.perf_counter() - started
        assert torch.equal(self.dst.view(torch.int16), self.src.view(torch.int16)), "wrong bytes"
        return seconds

    def disk_write(self, *, synced: bool = False) -> float:
        """Caller's tensors into the pool and on to files."""
        for key in self.keys:
            self.cpu.remove(key)
            if self.disk.contains(key):
                self.disk.remove(key)
        written = threading.Semaphore(0)
        held = []
        started = time.perf_counter()
        for key, block in zip(self.keys, self.src, strict=True):
            memory = self.cpu.allocate(self.shape, _DTYPE, fmt=MemoryFormat.KV_2LTD)
            memory.tensor.copy_(block)
            held.append(memory)
            self.disk.submit_put_task(key, memory, on_complete_callback=lambda _: written.release())
        for _ in self.keys:
            written.acquire()
        if synced:
            self._each_file(os.fsync)
        seconds = time.perf_counter() - started
        for memory in held:
            memory.ref_count_down()
        return seconds

    def disk_read(self) -> float:
        """Files into the pool, one batch, the page cache dropped."""
        self._each_file(os.fsync)  # dirty pages cannot be dropped
        self._each_file(lambda descriptor: os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED))
        started = time.perf_counter()
        got = self.disk.batched_get_blocking(self.keys)
        seconds = time.perf_counter() - started
        for memory, block in zip(got, self.src, strict=True):
            assert memory is not None, "an object was missed"
            assert torch.equal(memory.tensor.view(torch.int16), block.view(torch.int16)), "wrong bytes"
            memory.ref_count_down()
        return seconds

    def _each_file(self, call: Callable[[int], None]) -> None:
        for path in self.folder.iterdir():
            descriptor = os.open(path, os.O_RDONLY)
            call(descriptor)
            os.close(descriptor)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--object-nbytes", type=int, required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--direct", action="store_true")
    worker = Worker(**vars(parser.parse_args()))
    serve(
        {
            "host.put": worker.host_put,
            "host.get": worker.host_get,
            "disk.write": worker.disk_write,
            "disk.write_synced": functools.partial(worker.disk_write, synced=True),
            "disk.read": worker.disk_read,
        }
    )
    os._exit(0)  # LMCache leaves threads behind
