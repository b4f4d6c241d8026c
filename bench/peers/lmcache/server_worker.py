"""One worker of LMCache 0.5.6's multiprocess server: engine-driven transfer over shared memory, by its own client.

Starts the server on loopback and registers a KV cache in ordinary memory. Steps, each over all chunks: ``put`` stores,
``get`` retrieves what was looked up before, outside the time, as its protocol wants it; ``lookup`` submits a look-up
and waits for its result; ``ping`` is a call without work. ``put`` and ``get`` gather from and scatter to the KV cache
by LMCache's own context; with ``--rows`` the same calls surround a plain copy between shared memory and rows that lie
as the chunks do. Every byte is compared after every get, outside the time.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import time
from pathlib import Path

os.environ.update(LMCACHE_TRACK_USAGE="false", LMCACHE_LOG_LEVEL="WARNING")

import torch
from lmcache.v1.multiprocess.custom_types import IPCCacheServerKey
from lmcache.v1.multiprocess.transfer_context.shm import EngineDrivenContextShm
from lmcache.v1.multiprocess.transfer_context.worker_transfer import create_transfer_context
from lmcache.v1.multiprocess.transport.factory import RequestClientFactory

from bench.peers.turns import running, serve

_BLOCK_TOKENS, _HEADS, _HEAD_SIZE = 16, 8, 128
_DTYPE = torch.bfloat16
_START_SECONDS, _CALL_SECONDS = 120.0, 60.0
_PINGS, _LOOKUPS = 200, 5


class Worker:
    """A client of the server, and the engine's memory."""

    def __init__(self, port: int, *, object_nbytes: int, chunk_tokens: int, count: int, rows: bool) -> None:
        self.count, self.rows, self.calls = count, rows, 0
        token_nbytes = 2 * _HEADS * _HEAD_SIZE * _DTYPE.itemsize
        layers = object_nbytes // (token_nbytes * chunk_tokens)
        self.chunk_blocks = chunk_tokens // _BLOCK_TOKENS
        self.tokens = tuple(range(count * chunk_tokens))
        self.client = RequestClientFactory.create(f"tcp://127.0.0.1:{port}")
        self.client.ping(os.getpid()).result(timeout=_START_SECONDS)
        num_blocks = count * self.chunk_blocks
        shape = (2, 1 + 2 * num_blocks, _BLOCK_TOKENS, _HEADS, _HEAD_SIZE)  # block 0 is the engine's null block
        self.caches = {f"layer.{index}": torch.zeros(shape, dtype=_DTYPE) for index in range(layers)}
        self.src_ids = list(range(1, 1 + num_blocks))
        self.dst_ids = list(range(1 + num_blocks, 1 + 2 * num_blocks))
        generator = torch.Generator().manual_seed(0)
        for cache in self.caches.values():
            cache.view(torch.int16)[:, self.src_ids] = torch.randint(
                -30000, 30000, (2, num_blocks, *shape[2:]), dtype=torch.int16, generator=generator
            )
        self.context = create_transfer_context(
            self.caches, instance_id=os.getpid(), req_client=self.client, mode="engine_driven"
        )
        self.context.register(
            self.caches, "bench", 1, self.chunk_blocks, _CALL_SECONDS, layout_hints={"kv_layout": "NHD"}
        )
        self.shared = self.context.engine_driven_context
        assert isinstance(self.shared, EngineDrivenContextShm), "the server's memory is not shared"
        row = (count, 2, layers, chunk_tokens, _HEADS * _HEAD_SIZE)
        if rows:
            drawn = torch.randint(-30000, 30000, row, dtype=torch.int16, generator=generator)
            self.src_rows, self.dst_rows = drawn.view(_DTYPE), torch.zeros(row, dtype=_DTYPE)

    def put(self) -> float:
        """The engine's memory into the server's."""
        self.client.clear(True).result(timeout=_CALL_SECONDS)
        key = self._key()
        started = time.perf_counter()
        if self.rows:
            slots, indices = self.shared.prepare_store(key, os.getpid())
            assert indices == list(range(self.count)), "not every chunk was given room"
            for slot, row in zip(slots, self.src_rows, strict=True):
                slot.copy_(row)
            stored = self.shared.commit_store(key, os.getpid(), slots)
        else:
            future = self.context.submit_store(
                key.request_id, key, self.caches, [self.src_ids], None, self.chunk_blocks
            )
            stored = future.result(timeout=_CALL_SECONDS)
        seconds = time.perf_counter() - started
        assert stored, "not stored"
        self._end(key)
        return seconds

    def get(self) -> float:
        """The server's memory into the engine's."""
        for cache in self.caches.values():
            cache[:, self.dst_ids] = 0
        if self.rows:
            self.dst_rows.zero_()
        key = self._key()
        self._look_up(key)
        started = time.perf_counter()
        if self.rows:
            slots = self.shared.prepare_retrieve(key, os.getpid())
            assert slots is not None, "a chunk was missed"
            for slot, row in zip(slots, self.dst_rows, strict=True):
                row.copy_(slot)
            got = self.shared.commit_retrieve(key, os.getpid())
        else:
            future = self.context.submit_retrieve(
                key.request_id, key, self.caches, [self.dst_ids], None, self.chunk_blocks
            )
            got = future.result(timeout=_CALL_SECONDS)
        seconds = time.perf_counter() - started
        assert got, "not retrieved"
        self._end(key)
        if self.rows:
            pairs = [(self.src_rows, self.dst_rows)]
        else:
            pairs = [(cache[:, self.src_ids], cache[:, self.dst_ids]) for cache in self.caches.values()]
        assert all(torch.equal(src.view(torch.int16), dst.view(torch.int16)) for src, dst in pairs), "wrong bytes"
        return seconds

    def lookup(self) -> float:
        """Which chunks are there; each look-up pins them, and they are given back outside the time."""
        seconds = 0.0
        for _ in range(_LOOKUPS):
            key = self._key()
            started = time.perf_counter()
            self._look_up(key)
            seconds += time.perf_counter() - started
            self.client.free_lookup_locks(key.no_worker_id_version(), 1).result(timeout=_CALL_SECONDS)
            self._end(key)
        return seconds / _LOOKUPS

    def ping(self) -> float:
        """A call without work."""
        started = time.perf_counter()
        for _ in range(_PINGS):
            assert self.client.noop().result(timeout=_CALL_SECONDS), "no answer"
        return (time.perf_counter() - started) / _PINGS

    def _look_up(self, key: IPCCacheServerKey) -> None:
        self.client.lookup(key.no_worker_id_version(), 1).result(timeout=_CALL_SECONDS)
        found = self.client.wait_prefetch_status(key.request_id, _CALL_SECONDS).result(timeout=_CALL_SECONDS)
        assert found == self.count, f"{found} of {self.count} chunks were found"

    def _key(self) -> IPCCacheServerKey:
        self.calls += 1
        return IPCCacheServerKey(
            model_name="bench",
            world_size=1,
            worker_id=0,
            token_ids=self.tokens,
            start=0,
            end=len(self.tokens),
            request_id=f"request {self.calls}",
            num_kv_readers=1,
        )

    def _end(self, key: IPCCacheServerKey) -> None:
        self.client.end_session(key.request_id).result(timeout=_CALL_SECONDS)


def free_port() -> int:
    """One of the loopback's that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def command_of(port: int, *, chunk_tokens: int, data_nbytes: int) -> list[str]:
    """LMCache's server with a pool in shared memory that is there from the start."""
    options = {
        "host": "127.0.0.1",
        "port": port,
        "chunk-size": chunk_tokens,
        "supported-transfer-mode": "engine_driven",
        "shm-name": f"bench-{os.getpid()}",
        "l1-size-gb": 2 * data_nbytes / (1 << 30),
        "eviction-policy": "LRU",
    }
    command = [sys.executable, "-m", "lmcache.v1.multiprocess.server", "--no-l1-use-lazy", "--disable-observability"]
    return command + [f"--{name}={value}" for name, value in options.items()]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--object-nbytes", type=int, required=True)
    parser.add_argument("--chunk-tokens", type=int, required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--rows", action="store_true")
    sizes = vars(parser.parse_args())
    folder, port = sizes.pop("folder"), free_port()
    data_nbytes = sizes["object_nbytes"] * sizes["count"]
    command = command_of(port, chunk_tokens=sizes["chunk_tokens"], data_nbytes=data_nbytes)
    with running(command, log=f"{folder}/server.log"):
        worker = Worker(port, **sizes)
        serve({"put": worker.put, "get": worker.get, "lookup": worker.lookup, "ping": worker.ping})
    os._exit(0)  # LMCache leaves threads behind
