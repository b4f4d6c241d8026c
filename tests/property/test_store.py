"""Whatever is asked of a store in whatever order, it answers with the block's own bytes or with a miss."""

from __future__ import annotations

import tempfile
from random import Random
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.payload import SENTINEL, TIMEOUT_SECONDS, block_hash, namespace, num_pins, quiet, rows, small_store
from tierstore.disk.base import Disk
from tierstore.disk.posix import PosixDisk
from tierstore.store import NamespaceHandle
from tierstore.testing.sim_disk import SimDisk, SimFile
from tierstore.types import Outcome, Presence

if TYPE_CHECKING:
    from tierstore.types import UInt8Array

NAMESPACES = (namespace(8192, "even"), namespace(3000, "odd"))
CHAINS = st.lists(st.integers(0, 47), min_size=1, max_size=12, unique=True)
WHICH = st.sampled_from(range(len(NAMESPACES)))
EVICTED = 'tierstore_evicted_blocks_total{tier="ssd"}'


class StoreHistory(RuleBasedStateMachine):
    """One store over one disk, against sets of what may and what must be there.

    A block's bytes follow from its namespace, the number of clears before it, and its number: old bytes of a
    block that was cleared are not the bytes that it has now.
    """

    def new_disk(self) -> Disk:
        raise NotImplementedError

    @initialize()
    def open_first(self) -> None:
        self.disk = self.new_disk()
        self.clears = [0] * len(NAMESPACES)
        self.possible: set[tuple[int, int]] = set()
        """Put since the last clear, and not deleted in this run."""
        self.deleted: set[tuple[int, int]] = set()
        """Deleted in this run, in memory only: a restart may find them again."""
        self.durable: set[tuple[int, int]] = set()
        """Acknowledged as durable, and no block has left the SSD since."""
        self.open()

    def open(self) -> None:
        self.store = small_store(self.disk)
        self.handles: dict[int, NamespaceHandle] = {}
        self.num_evicted = 0.0

    def handle(self, which: int) -> NamespaceHandle:
        if which not in self.handles:
            self.handles[which] = self.store.namespace(NAMESPACES[which])
        return self.handles[which]

    def bytes_of(self, which: int, chain: list[int]) -> UInt8Array:
        owners = [(which, self.clears[which], number) for number in chain]
        return rows(owners, NAMESPACES[which].layout.block_nbytes)

    @rule(which=WHICH, chain=CHAINS, durable=st.booleans())
    def put(self, which: int, chain: list[int], durable: bool) -> None:
        handle, hashes = self.handle(which), [block_hash(number) for number in chain]
        result = handle.put(hashes, self.bytes_of(which, chain), durable=durable).result(TIMEOUT_SECONDS)
        self.possible |= {(which, number) for number in chain}
        stored = [number for number, outcome in zip(chain, result.outcomes, strict=True) if outcome is Outcome.OK]
        assert set(result.outcomes) <= {Outcome.OK, Outcome.REJECTED}
        assert set(handle.presence([block_hash(number) for number in stored])) <= {Presence.HIT}
        if durable:
            self.durable |= {(which, number) for number in stored}

    @rule(which=WHICH, chain=CHAINS, deadline_seconds=st.sampled_from([None, None, 0.0, 0.001]), cancel=st.booleans())
    def get(self, which: int, chain: list[int], deadline_seconds: float | None, cancel: bool) -> None:
        handle, hashes, expected = self.handle(which), [block_hash(n) for n in chain], self.bytes_of(which, chain)
        presence = [*handle.presence(hashes), Presence.MISS]  # PENDING: a read that its request did not wait for
        buffer = np.full_like(expected, SENTINEL)
        transfer = handle.get(hashes, buffer, deadline_seconds=deadline_seconds)
        if cancel:
            transfer.cancel()
        leading = transfer.result(TIMEOUT_SECONDS).leading
        assert leading <= presence.index(Presence.MISS)
        assert np.array_equal(buffer[:leading], expected[:leading])
        assert (buffer[leading:] == SENTINEL).all()
        assert {(which, number) for number in chain[:leading]} <= self.possible

    @rule(which=WHICH, number=st.integers(0, 47))
    def get_what_lookup_promises(self, which: int, number: int) -> None:
        handle, expected = self.handle(which), self.bytes_of(which, [number])
        self.store.flush().result(TIMEOUT_SECONDS)
        promised = handle.presence([block_hash(number)]) != [Presence.MISS]
        buffer = np.full_like(expected, SENTINEL)
        for _ in range(3):  # refused while a slab that the other block size holds is on its way
            if handle.get([block_hash(number)], buffer).result(TIMEOUT_SECONDS).leading == promised:
                break
        else:
            pytest.fail("lookup said that the block is there, and nothing pins the pool; get never found it")
        assert np.array_equal(buffer, expected) if promised else (buffer == SENTINEL).all()

    @rule(which=WHICH, chain=CHAINS, cancel=st.booleans())
    def prefetch(self, which: int, chain: list[int], cancel: bool) -> None:
        transfer = self.handle(which).prefetch([block_hash(number) for number in chain])
        if cancel:
            transfer.cancel()
        result = transfer.result(TIMEOUT_SECONDS)
        assert {(which, number) for number in chain[: result.leading]} <= self.possible

    @rule(which=WHICH)
    def ask_what_is_there(self, which: int) -> None:
        chain = list(range(48))
        presence = self.handle(which).presence([block_hash(number) for number in chain])
        assert {(which, n) for n, found in zip(chain, presence, strict=True) if found} <= self.possible

    @rule(which=WHICH, chain=CHAINS)
    def delete(self, which: int, chain: list[int]) -> None:
        handle, hashes = self.handle(which), [block_hash(number) for number in chain]
        known = sum(found is not Presence.MISS for found in handle.presence(hashes))
        assert handle.delete(hashes).result(TIMEOUT_SECONDS).num_ok == known
        assert set(handle.presence(hashes)) == {Presence.MISS}
        gone = {(which, number) for number in chain}
        self.deleted |= self.possible & gone
        self.possible -= gone
        self.durable -= gone

    @rule(which=WHICH)
    def clear(self, which: int) -> None:
        handle = self.handle(which)
        handle.clear()
        self.clears[which] += 1
        assert set(handle.presence([block_hash(number) for number in range(48)])) == {Presence.MISS}
        for known in (self.possible, self.deleted, self.durable):
            known -= {(which, number) for number in range(48)}

    @rule()
    def flush(self) -> None:
        assert self.store.flush().result(TIMEOUT_SECONDS).ok

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.settle()
        self.open()

    def settle(self) -> None:
        """What the run that has ended leaves to the next one."""
        assert num_pins(self.store) == 0
        with self.store.engine.planning() as planner:
            assert planner.directory.num_entries <= len(self.possible), "blocks that no verb can find are still held"
        self.forget_reclaimed()
        self.possible |= self.deleted
        self.deleted.clear()

    def forget_reclaimed(self) -> None:
        num_evicted = self.store.metrics()[EVICTED]
        if num_evicted != self.num_evicted:
            self.num_evicted = num_evicted
            self.durable.clear()

    @invariant()
    def every_durable_block_is_there(self) -> None:
        for which in range(len(NAMESPACES)):
            hashes = [block_hash(number) for owner, number in sorted(self.durable) if owner == which]
            presence = self.handle(which).presence(hashes) if hashes else []
            if self.store.metrics()[EVICTED] == self.num_evicted:
                assert Presence.MISS not in presence
        self.forget_reclaimed()

    @invariant()
    def the_mind_is_consistent(self) -> None:
        self.store.check()

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()


class MeasuredDisk(SimDisk):
    """Remembers how much chunk files ever took."""

    most_nbytes = 0

    def create(self, path: str, nbytes: int) -> SimFile:
        file = super().create(path, nbytes)
        chunks = [name for name in self._inodes if name.startswith("arrays/")]
        self.most_nbytes = max(self.most_nbytes, sum(len(self.contents(name)) for name in chunks))
        return file


class SimulatedHistory(StoreHistory):
    """Over a disk that may lose power."""

    def new_disk(self) -> Disk:
        self.simulated = MeasuredDisk()
        return self.simulated

    @precondition(lambda self: hasattr(self, "simulated"))
    @invariant()
    def the_ssd_keeps_its_limit(self) -> None:
        assert self.simulated.most_nbytes <= 1 << 20

    @rule(seed=st.integers(0, 1 << 16), torn=st.booleans())
    def lose_power(self, seed: int, torn: bool) -> None:
        with quiet():
            self.simulated.crash(Random(seed), torn=torn)
            self.store.close()
        self.settle()
        self.open()


class LocalHistory(StoreHistory):
    """Over a folder of the local file system."""

    def new_disk(self) -> Disk:
        self.folder = tempfile.TemporaryDirectory()
        return PosixDisk(self.folder.name)

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "folder"):
            self.folder.cleanup()


TestSimulated = SimulatedHistory.TestCase
TestSimulated.settings = settings(max_examples=60, stateful_step_count=50, deadline=None, derandomize=True)
TestLocal = LocalHistory.TestCase
TestLocal.settings = settings(max_examples=15, stateful_step_count=50, deadline=None, derandomize=True)
