"""Real requests through every floor at once: whatever hits has its own bytes, and no limit is passed."""

from __future__ import annotations

import gzip
import json
import sys
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from threading import Lock

import numpy as np
import pytest

from tests.payload import TIMEOUT_SECONDS, block_hash, chunk_nbytes, get, namespace, num_pins, rows
from tierstore.control.entry import State
from tierstore.store import NamespaceHandle, Store
from tierstore.types import Outcome
from tierstore.worker import Worker

TRACE = Path(__file__).parents[1] / "data/mooncake_conversation.jsonl.gz"
NUM_REQUESTS = 500
BLOCK_NBYTES = 64 << 10
SSD_NBYTES, FILE_NBYTES = 416 << 20, 16 << 20
"""Half of the 11,879 blocks that the requests name; the host pool below holds a tenth of them."""


def read_requests() -> list[list[int]]:
    """Block ids of each request, in prefix order."""
    with gzip.open(TRACE, "rt") as lines:
        return [json.loads(line)["hash_ids"] for line in islice(lines, NUM_REQUESTS)]


def open_store(folder: Path) -> Store:
    return Store(
        host_size="76 MiB",
        host_slab_size="4 MiB",
        ssd_dir=folder,
        ssd_size=SSD_NBYTES,
        ssd_file_size=FILE_NBYTES,
        ssd_free_floor="64 MiB",
    )


@dataclass
class Service:
    """Serves requests as an engine does, from several threads at once, and checks every byte that comes back."""

    folder: Path
    store: Store
    handle: NamespaceHandle
    num_served: int = 0
    num_asked: int = 0
    num_hits: int = 0
    lock: Lock = field(default_factory=Lock)

    def serve(self, ids: list[int], *, durable: bool) -> None:
        """Load what there is, store the rest, and sometimes load again."""
        hashes, expected = [block_hash(number) for number in ids], rows(ids, BLOCK_NBYTES)
        promised = self.handle.lookup(hashes)
        leading = get(self.handle, hashes, expected).leading if promised else 0
        if leading < len(ids):
            parent = hashes[leading - 1] if leading else bytes(32)
            put = self.handle.put(hashes[leading:], expected[leading:], parent=parent, durable=durable)
            assert set(put.result(TIMEOUT_SECONDS).outcomes) <= {Outcome.OK, Outcome.REJECTED}
        with self.lock:
            self.num_served += 1
            self.num_asked += len(ids)
            self.num_hits += leading
            turn = self.num_served
        if turn % 8 == 0:
            get(self.handle, hashes, expected)
        if turn % 50 == 0:
            self.check()

    def check(self) -> None:
        """What must hold at any moment."""
        self.store.check()
        assert chunk_nbytes(self.folder) <= SSD_NBYTES + FILE_NBYTES  # one may go and one come while they are counted


def serve_all(service: Service, requests: list[list[int]]) -> None:
    """Serve every request on eight threads; what one of them lets escape is raised here."""
    worker = Worker("requests", capacity=len(requests), threads=8)
    for turn, ids in enumerate(requests):

        def serve(ids: list[int] = ids, durable: bool = turn % 4 == 0) -> None:
            service.serve(ids, durable=durable)

        assert worker.submit(serve)
    worker.close()
    if worker.failure is not None:
        raise worker.failure


def num_on_ssd(store: Store) -> int:
    """Blocks that outlive the process."""
    with store.engine.planning() as planner:
        return int(np.count_nonzero(planner.directory.ssd.state == State.READY))


@pytest.mark.slow  # a gigabyte through every tier
def test_a_trace_of_conversations_gets_its_own_bytes(tmp_path: Path) -> None:
    requests = read_requests()
    with open_store(tmp_path / "kv") as store:
        first = Service(tmp_path / "kv", store, store.namespace(namespace(BLOCK_NBYTES)))
        serve_all(first, requests)
        assert store.flush().result(TIMEOUT_SECONDS).ok
        first.check()
        metrics = store.metrics()
    assert num_pins(store) == 0  # closed, and so with no reclaim under way
    kept = num_on_ssd(store)
    hits = {tier: metrics[f'tierstore_hit_blocks_total{{tier="{tier}"}}'] for tier in ("host", "ssd")}
    sys.stdout.write(f"{first.num_hits} hits of {first.num_asked} blocks; {hits}, with second gets\n")
    assert first.num_served == NUM_REQUESTS
    assert first.num_hits > 0
    assert min(hits.values()) > 0
    assert metrics['tierstore_evicted_blocks_total{tier="host"}'] > 0
    assert metrics["tierstore_reclaimed_files_total"] > 0
    assert metrics['tierstore_link_blocks_total{link="ssd-read",outcome="corrupt"}'] == 0

    with open_store(tmp_path / "kv") as store:
        second = Service(tmp_path / "kv", store, store.namespace(namespace(BLOCK_NBYTES)))
        unique = {number for ids in requests for number in ids}
        presence = second.handle.presence([block_hash(number) for number in unique])
        assert np.count_nonzero(presence) == kept > 0
        serve_all(second, requests)
        second.check()
    sys.stdout.write(f"{second.num_hits} hits of {second.num_asked} blocks after a restart that kept {kept}\n")
    assert second.num_hits > 0
