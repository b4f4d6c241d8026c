"""What one life does with a store: open, find what must be there, work from several threads, compare the ledger.

Called in the process that is to die, or in the parent over a simulated disk. Every fact goes into the journal. A
life may end at any disk call: from then on errors of the disk are expected, wrong bytes are not.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final

import numpy as np

from bench.torture.blocks import NUMBERS, SPACES, Block, block_hash, block_nbytes
from bench.torture.caller import SENTINEL, TIMEOUT_SECONDS, Caller
from bench.torture.journal import Journal
from bench.torture.knowledge import Fault, judge
from bench.torture.witness import used_nbytes
from tierstore.config import StoreConfig
from tierstore.disk.base import Disk
from tierstore.errors import TierstoreError
from tierstore.store import NamespaceHandle, Store
from tierstore.types import Presence
from tierstore.worker import Worker

__all__ = ["Life", "live"]

_RAISED: Final = (
    *(TierstoreError, AssertionError, OSError, RuntimeError),
    *(AttributeError, LookupError, TypeError, ValueError),
)
"""What a store that is broken may raise."""

_GROUP: Final = 8
"""Blocks of one get when a start is verified."""

_REMOVALS_MAX: Final = 16
"""Files that may be on their way out one after another."""


@dataclass(frozen=True, slots=True)
class Life:
    """What one life is given.

    Attributes:
        settings: Of the store, by argument name.
        disk: Where the store lives.
        folder: The same without traps, to be looked at.
        seed: Of everything that is drawn.
        runs: How often the store is opened.
        steps: Of each caller in each run.
        threads: Callers at once; at most as many as there are spaces of their own.
        durable_shared: Whether blocks that all callers put may be durable: not where files are reclaimed.
        spoil: Damages the folder; called now and then while the store is open. None: nobody does.
        ended: Whether the life has ended, for callers to stop.
        answered: Called behind every answer that promises something for good; may end the life.
        end: Ends the life in place of the last close; None: it is closed.
    """

    settings: Mapping[str, object]
    disk: Disk
    folder: Disk
    seed: str
    runs: int
    steps: int
    threads: int
    durable_shared: bool
    spoil: Callable[[Random], None] | None
    ended: Callable[[], bool]
    answered: Callable[[], None]
    end: Callable[[], None] | None


def live(life: Life, journal: Journal) -> None:
    """Live one life to its end, and say what went wrong; blocks. Raises nothing."""
    with _failures_said(life, journal):
        for run in range(life.runs):
            if life.ended():
                return
            store = Store(StoreConfig.load(overrides=dict(life.settings)), disk=life.disk)
            try:
                _use(life, journal, store, Random(f"{life.seed}/{run}"))
                if life.end is not None and run == life.runs - 1:
                    life.end()
            finally:
                store.close()


@contextmanager
def _failures_said(life: Life, journal: Journal) -> Iterator[None]:
    """Turn whatever is raised here or on a thread into a fault, unless the life has ended and the disk said so."""

    def say(error: BaseException) -> None:
        if not (life.ended() and isinstance(error, TierstoreError)):
            kind = Fault.ACCOUNTING if isinstance(error, LedgerError) else Fault.BROKEN
            journal.say("fault", kind, "".join(traceback.format_exception(error)[-6:]))

    def say_of_thread(told: threading.ExceptHookArgs) -> None:
        if told.exc_value is not None:
            say(told.exc_value)

    before, threading.excepthook = threading.excepthook, say_of_thread
    try:
        yield
    except _RAISED as error:
        say(error)
    finally:
        threading.excepthook = before


class LedgerError(AssertionError):
    """An invariant of the store's mind does not hold."""


def _use(life: Life, journal: Journal, store: Store, rng: Random) -> None:
    """One run of a store."""
    journal.say("opened")
    handles = [store.namespace(space) for space in SPACES]
    spoilt = False
    _compare(life, journal, store)
    for space, handle in enumerate(handles):
        _verify(life, journal, handle, space)
    callers = [
        Caller(
            journal,
            store,
            handles,
            space,
            Random(rng.random()),
            ended=life.ended,
            answered=life.answered,
            durable_shared=life.durable_shared,
        )
        for space in range(life.threads)
    ]
    workers = [Worker(f"caller-{space}", capacity=1) for space in range(life.threads)]
    for worker, caller in zip(workers, callers, strict=True):
        worker.submit(partial(caller.work, life.steps))
    if life.spoil is not None and life.steps and rng.random() < 0.5:
        life.spoil(rng)
        spoilt = True
    for worker in workers:
        worker.close()
    if life.steps and not life.ended():
        store.flush().result(TIMEOUT_SECONDS)
        if not spoilt:
            _compare(life, journal, store)


def _compare(life: Life, journal: Journal, store: Store) -> None:
    """The ledger of bytes against the disk, and the mind against itself. Nothing but a removal may be under way."""
    try:
        store.check()
    except AssertionError as error:
        raise LedgerError(*error.args) from error
    told = found = -1.0
    for _ in range(_REMOVALS_MAX):
        told, found = store.metrics()["tierstore_ssd_used_bytes"], used_nbytes(life.folder)
        if told == found or life.ended():
            break
        store.flush().result(TIMEOUT_SECONDS)  # behind a file that was on its way out
    if told != found and not life.ended():
        journal.say("fault", Fault.ACCOUNTING, f"the ledger says {told:.0f} bytes, chunk files have {found:.0f}")
    journal.say("count", "ledgers_compared")


def _verify(life: Life, journal: Journal, handle: NamespaceHandle, space: int) -> None:
    """Get every block that a start has found, and say which of those that must be there are not."""
    numbers = range(NUMBERS)
    presence = handle.presence([block_hash(number) for number in numbers])
    here = [number for number, found in zip(numbers, presence, strict=True) if found is not Presence.MISS]
    served: set[int] = set()
    for first in range(0, len(here), _GROUP):
        group = here[first : first + _GROUP]
        got = _get(life, journal, handle, space, group)
        served |= got
        for number in () if len(got) == len(group) else group:  # behind one that cannot be had
            served |= _get(life, journal, handle, space, [number])
    if life.ended():
        return
    fates = journal.fates(space, numbers)
    lost = [number for number, fate in zip(numbers, fates, strict=True) if fate.must and number not in served]
    for number in lost:
        journal.say("fault", Fault.LOST, f"{Block(space, number)} is durable and not there: {fates[number]}")
    journal.say("absent", space, [number for number in numbers if number not in served])
    journal.say("count", "blocks_verified", len(served))


def _get(life: Life, journal: Journal, handle: NamespaceHandle, space: int, numbers: list[int]) -> set[int]:
    """Get blocks and judge them; those that were served. A single one is asked for until slabs have settled."""
    buffer = np.full((len(numbers), block_nbytes(space)), SENTINEL, np.uint8)
    fates = journal.fates(space, numbers)
    leading = 0
    for _ in range(3 if len(numbers) == 1 else 1):
        if not life.ended():
            leading = handle.get([block_hash(n) for n in numbers], buffer).result(TIMEOUT_SECONDS).leading
        if leading:
            break
    for number, fate, row in zip(numbers[:leading], fates, buffer, strict=False):
        wrong = judge(Block(space, number), fate, row)
        if wrong is not None:
            journal.say("fault", *wrong)
    return set(numbers[:leading])
