"""One worker of tierstore's service, for the same steps as its peers' servers.

Starts ``tierstore serve`` and attaches to its pool. Steps, each over all blocks: ``put`` and ``get`` between the
caller's rows and the pool, in place; ``lookup``; ``ping``, a look-up of one block, as no call does less. Each but
``ping`` starts from token ids, as the peers' do. Every block is compared after every get, outside the time.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np

from bench.peers.turns import running, serve
from tierstore import KVLayout, Namespace, chain_hashes
from tierstore.client import Client

_SLAB_NBYTES = 64 << 20
_START_SECONDS, _CALL_SECONDS = 120.0, 60.0
_PINGS, _LOOKUPS = 200, 5


class Worker:
    """A client of the service, and the caller's rows."""

    def __init__(self, address: str, *, object_nbytes: int, chunk_tokens: int, count: int) -> None:
        self.src = np.random.default_rng(0).integers(0, 256, (count, object_nbytes), dtype=np.uint8)
        self.dst = np.zeros_like(self.src)
        self.chunk_tokens, self.tokens = chunk_tokens, tuple(range(count * chunk_tokens))
        self.client = Client(address, transfer_seconds=_CALL_SECONDS)
        assert self.client.wait(_START_SECONDS), "the service does not start"
        assert self.client.attached, "the pool is not mapped"
        layout = KVLayout.opaque(block_nbytes=object_nbytes)
        self.handle = self.client.namespace(Namespace(model="bench", layout=layout))

    def put(self) -> float:
        """The caller's rows into the pool."""
        self.handle.clear()
        started = time.perf_counter()
        result = self.handle.put(self._hashes(), self.src).result()
        seconds = time.perf_counter() - started
        assert result.ok, "a block was refused"
        return seconds

    def get(self) -> float:
        """The pool into the caller's rows."""
        self.dst.fill(0)
        started = time.perf_counter()
        result = self.handle.get(self._hashes(), self.dst).result()
        seconds = time.perf_counter() - started
        assert result.ok, "a block was missed"
        assert np.array_equal(self.dst, self.src), "wrong bytes"
        return seconds

    def lookup(self) -> float:
        """Which blocks are there."""
        started = time.perf_counter()
        for _ in range(_LOOKUPS):
            assert self.handle.lookup(self._hashes()) == len(self.src), "a block was missed"
        return (time.perf_counter() - started) / _LOOKUPS

    def ping(self) -> float:
        """The smallest call."""
        first = self._hashes()[:1]
        started = time.perf_counter()
        for _ in range(_PINGS):
            assert self.handle.lookup(first) == 1, "no answer"
        return (time.perf_counter() - started) / _PINGS

    def close(self) -> None:
        """End the client."""
        self.client.close()

    def _hashes(self) -> list[bytes]:
        return chain_hashes(self.tokens, self.chunk_tokens)


def command_of(address: str, *, data_nbytes: int) -> list[str]:
    """The service with a pool that is there from the start, and no SSD."""
    settings = {
        "service.listen": address,
        "host.size": (2 + 2 * -(-data_nbytes // _SLAB_NBYTES)) * _SLAB_NBYTES,
        "host.slab_size": _SLAB_NBYTES,
        "host.populate": "true",
    }
    options = [f"--{key}={value}" for key, value in settings.items()]
    return [sys.executable, "-m", "tierstore", "serve", *options]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--object-nbytes", type=int, required=True)
    parser.add_argument("--chunk-tokens", type=int, required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    sizes = vars(parser.parse_args())
    folder: Path = sizes.pop("folder")
    address = f"unix:{folder}/service.sock"
    command = command_of(address, data_nbytes=sizes["object_nbytes"] * sizes["count"])
    with running(command, log=f"{folder}/server.log"):
        worker = Worker(address, **sizes)
        serve({"put": worker.put, "get": worker.get, "lookup": worker.lookup, "ping": worker.ping})
        worker.close()
