"""What a soak asks of its store: every verb at random, for half as much again as the store holds.

Called by `bench.soak`. Blocks say whose they are, so that a get compares what came with what was put.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import numpy as np

from tierstore.keys import Namespace, chain_hashes
from tierstore.layout import KVLayout
from tierstore.store import NamespaceHandle, Store, Transfer

__all__ = ["HOST_NBYTES", "SPACES", "Counts", "Load"]

_BLOCK_NBYTES = 16 << 10
HOST_NBYTES = 16 << 20
"""The pool of the store."""

_SSD_NBYTES = 48 << 20
_CHAIN_BLOCKS = 24
_DEMAND_CHAINS = 3 * _SSD_NBYTES // (2 * _BLOCK_NBYTES * _CHAIN_BLOCKS)
SPACES = [Namespace(f"soak {number}", KVLayout.opaque(block_nbytes=_BLOCK_NBYTES)) for number in range(2)]
_UNDER_WAY_MAX = 64


@dataclass(slots=True)
class Counts:
    """What was asked for."""

    puts: int = 0
    gets: int = 0
    absent_keys: int = 0
    cancels: int = 0
    deadlines: int = 0
    prefetches: int = 0
    deletes: int = 0
    clears: int = 0
    handles: int = 0
    reopenings: int = 0
    wrong_blocks: int = 0


@dataclass
class Load:
    """The random caller of one store after another."""

    folder: Path
    random: Random
    counts: Counts = field(default_factory=Counts)
    under_way: list[Transfer] = field(default_factory=list)

    def open(self) -> None:
        """Open the store."""
        self.store = Store(
            host_size=HOST_NBYTES, ssd_dir=self.folder, ssd_size=_SSD_NBYTES, ssd_file_size="2 MiB",
            ssd_free_floor="64 MiB", prefetch_cold_seconds=0,
        )  # fmt: skip
        self.handles = [self.store.namespace(space) for space in SPACES]

    def fill(self) -> None:
        """Put the demand once, so that the store is as full as it gets before anything is measured."""
        for number in range(_DEMAND_CHAINS):
            chain = _chain(number)
            for handle in self.handles:
                handle.put(chain, np.repeat(chain[:, :1], _BLOCK_NBYTES, axis=1)).result()

    def reopen(self) -> None:
        """Close it and open it again."""
        self.drain()
        self.store.close()
        self.open()
        self.counts.reopenings += 1

    def step(self) -> None:
        """One verb, or a few."""
        verbs: list[tuple[Callable[[], None], int]] = [
            (self.put, 30), (self.get, 30), (self.ask_for_absent_keys, 10), (self.cancel, 12),
            (self.meet_a_deadline, 8), (self.prefetch, 8), (self.delete, 4), (self.take_a_handle, 4), (self.clear, 1),
        ]  # fmt: skip
        verb = self.random.choices([verb for verb, _ in verbs], [weight for _, weight in verbs])[0]
        verb()
        if len(self.under_way) > _UNDER_WAY_MAX:
            self.drain()

    def drain(self) -> None:
        """Let everything under way end."""
        for transfer in self.under_way:
            transfer.result()
        self.under_way.clear()

    def put(self) -> None:
        """Put the leading part of a chain, now and then durably."""
        chain, handle = self.chain(), self.handle()
        blocks = np.repeat(chain[:, :1], _BLOCK_NBYTES, axis=1)
        self.under_way.append(handle.put(chain, blocks, durable=self.random.random() < 0.1))
        self.counts.puts += 1

    def get(self) -> None:
        """Get a chain and compare what came with what was put."""
        chain, handle = self.chain(), self.handle()
        buffer = np.empty((len(chain), _BLOCK_NBYTES), np.uint8)
        leading = handle.get(chain, buffer).result().leading
        self.counts.wrong_blocks += int((buffer[:leading] != chain[:leading, :1]).any(axis=1).sum())
        self.counts.gets += 1

    def ask_for_absent_keys(self) -> None:
        """Get and look up what nobody put."""
        keys = np.frombuffer(self.random.randbytes(32 * 100), np.uint8).reshape(100, 32)
        buffer = np.empty((1, _BLOCK_NBYTES), np.uint8)
        handle = self.handle()
        for key in keys:
            handle.get(key[None], buffer).result()
        handle.presence(keys)
        self.counts.absent_keys += len(keys)

    def cancel(self) -> None:
        """Begin and cancel."""
        chain, handle = self.chain(), self.handle()
        buffer = np.empty((len(chain), _BLOCK_NBYTES), np.uint8)
        transfer = handle.prefetch(chain) if self.random.random() < 0.5 else handle.get(chain, buffer)
        transfer.cancel()
        self.under_way.append(transfer)
        self.counts.cancels += 1

    def meet_a_deadline(self) -> None:
        """Get with a deadline that is near, past or an hour away."""
        chain, seconds = self.chain(), self.random.choice([0.0, 0.001, 3600.0])
        buffer = np.empty((len(chain), _BLOCK_NBYTES), np.uint8)
        self.under_way.append(self.handle().get(chain, buffer, deadline_seconds=seconds))
        self.counts.deadlines += 1

    def prefetch(self) -> None:
        """Prefetch, and do not wait."""
        self.under_way.append(self.handle().prefetch(self.chain(), deadline_seconds=5.0))
        self.counts.prefetches += 1

    def delete(self) -> None:
        """Delete the end of a chain."""
        self.under_way.append(self.handle().delete(self.chain()[-4:]))
        self.counts.deletes += 1

    def clear(self) -> None:
        """Clear a namespace, seldom enough for the folder to fill between."""
        if self.random.random() < 0.1:
            self.handle().clear()
            self.counts.clears += 1

    def take_a_handle(self) -> None:
        """Ask for the handle of a namespace many times."""
        for _ in range(50):
            self.store.namespace(self.random.choice(SPACES))
        self.counts.handles += 50

    def handle(self) -> NamespaceHandle:
        """One of the namespaces."""
        return self.random.choice(self.handles)

    def chain(self) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
        """uint8[n, 32]: the leading part of a chain of the demand, nearer ones more often."""
        number = int(_DEMAND_CHAINS * self.random.random() ** 1.5)
        return _chain(number)[: self.random.randrange(4, _CHAIN_BLOCKS + 1)]


def _chain(number: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    hashes = chain_hashes([number] * _CHAIN_BLOCKS, block_tokens=1)
    return np.frombuffer(b"".join(hashes), np.uint8).reshape(-1, 32)
