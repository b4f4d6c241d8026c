"""One worker of tierstore, for the same steps as its peers' workers.

Steps, each over all blocks: ``host.put`` and ``host.get`` between the caller's buffer and the host pool;
``disk.write`` and ``disk.write_synced`` are one and the same durable put, from the caller's buffer to
synced files; ``disk.read`` prefetches from SSD into the pool of a store that has just been opened, and so
holds nothing. Every block is compared after every read, outside the time.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from bench.peers.turns import serve
from tierstore import KVLayout, Namespace, Store, chain_hashes
from tierstore.config import StoreConfig
from tierstore.store import Transfer

_CALL_NBYTES = 32 << 20
"""Bytes that one call moves: what a long prompt brings at once."""


class Worker:
    """A store for the host steps, one with an SSD tier for the others, and the caller's buffers."""

    def __init__(self, *, object_nbytes: int, count: int, folder: Path, rounds: int) -> None:
        data_nbytes = object_nbytes * count
        self.src = np.random.default_rng(0).integers(0, 256, (count, object_nbytes), dtype=np.uint8)
        self.dst = np.zeros_like(self.src)
        self.batch = max(1, _CALL_NBYTES // object_nbytes)
        self.namespace = Namespace(model="bench", layout=KVLayout.opaque(block_nbytes=object_nbytes))
        self.hashes = chain_hashes(range(16 * count), 16)
        slab_nbytes = max(64 << 20, 8 * object_nbytes)
        host_nbytes = max(4, -(-data_nbytes * 3 // 2 // slab_nbytes)) * slab_nbytes
        both: dict[str, object] = {"host_size": host_nbytes, "host_slab_size": slab_nbytes, "host_populate": True}
        both |= {"prefetch_inflight": data_nbytes, "prefetch_cold_seconds": 0.0}
        ssd_nbytes = (2 * rounds + 2) * data_nbytes * 5 // 4
        self.config = StoreConfig.load(overrides=both | {"ssd_dir": folder, "ssd_size": ssd_nbytes})
        self.host_store = Store(StoreConfig.load(overrides=both | {"ssd_size": 0}))
        self.host = self.host_store.namespace(self.namespace)
        self.ssd_store = Store(self.config)

    def host_put(self) -> float:
        """The caller's buffer into the pool."""
        self.host.clear()
        return self._timed(lambda part: self.host.put(self.hashes[part], self.src[part]))

    def host_get(self) -> float:
        """The pool into the caller's buffer."""
        self.dst.fill(0)
        seconds = self._timed(lambda part: self.host.get(self.hashes[part], self.dst[part]))
        assert np.array_equal(self.dst, self.src), "wrong bytes"
        return seconds

    def disk_write(self) -> float:
        """The caller's buffer to synced files."""
        handle = self.ssd_store.namespace(self.namespace)
        handle.clear()
        return self._timed(lambda part: handle.put(self.hashes[part], self.src[part], durable=True))

    def disk_read(self) -> float:
        """Files into the pool of a store that holds nothing."""
        self.ssd_store.close()
        self.ssd_store = Store(self.config)
        handle = self.ssd_store.namespace(self.namespace)
        seconds = self._timed(lambda part: handle.prefetch(self.hashes[part]))
        self.dst.fill(0)
        handle.get(self.hashes, self.dst).result()
        assert np.array_equal(self.dst, self.src), "wrong bytes"
        return seconds

    def close(self) -> None:
        """Close both stores."""
        self.host_store.close()
        self.ssd_store.close()

    def _timed(self, begin: Callable[[slice], Transfer]) -> float:
        """All calls in flight at once, as an engine has them, and as LMCache is given all its objects at once."""
        started = time.perf_counter()
        transfers = [begin(part) for part in self._parts()]
        results = [transfer.result() for transfer in transfers]
        seconds = time.perf_counter() - started
        assert all(result.ok for result in results), "a block was refused or missed"
        return seconds

    def _parts(self) -> list[slice]:
        return [slice(first, first + self.batch) for first in range(0, len(self.src), self.batch)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--object-nbytes", type=int, required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    worker = Worker(**vars(parser.parse_args()))
    serve(
        {
            "host.put": worker.host_put,
            "host.get": worker.host_get,
            "disk.write": worker.disk_write,
            "disk.write_synced": worker.disk_write,
            "disk.read": worker.disk_read,
        }
    )
    worker.close()
