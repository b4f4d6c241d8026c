"""Runs lives: over a simulated disk in this process, over a real folder in a process that is killed.

Called by the command and by tests/crash. A world is one folder with the lives over it and what is known of it; after
its last life comes one that only looks. Forks: to be called while this process has no other thread.
"""

from __future__ import annotations

import logging
import os
import select
import signal
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Final

from bench.torture.damage import befall, scan
from bench.torture.grounds import Ground, RealGround, SimGround
from bench.torture.journal import Journal
from bench.torture.knowledge import Fault, Knowledge
from bench.torture.load import Life, live
from bench.torture.plans import FILE_NBYTES, KINDS, LIVES_PER_WORLD, Kind, Plan, plan_life
from bench.torture.witness import Trap, Witness
from tierstore.disk.base import Disk
from tierstore.disk.posix import PosixDisk
from tierstore.testing.sim_disk import SimDisk

__all__ = ["Finding", "Verdict", "torture"]

_HANG_SECONDS: Final = 300.0
"""A process that lives longer hangs."""

Lie = Callable[[Disk], Disk]
"""Puts a disk that lies in place of an honest one, to prove that lies are found."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault, and how to see it again.

    Attributes:
        kind: Name of the kind of world.
        life: Number of the life, counted over all of this kind.
        fault: What was done.
        text: In words.
    """

    kind: str
    life: int
    fault: Fault
    text: str


@dataclass(slots=True)
class Verdict:
    """What came of some lives.

    Attributes:
        lives: Lived, by kind.
        counts: Of what happened in them.
        findings: Every fault.
    """

    lives: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)

    def num(self, fault: Fault) -> int:
        """How often a fault was found."""
        return sum(finding.fault is fault for finding in self.findings)


def torture(
    kind: str,
    lives: range,
    *,
    seed: int,
    verdict: Verdict,
    folder: Path | None = None,
    lie: Lie | None = None,
) -> Generator[None]:
    """Live some lives of one kind, one for each step of the iterator.

    Args:
        kind: Name of a kind of world.
        lives: Their numbers; worlds that begin before the first are lived from their beginning.
        seed: Of everything.
        verdict: Told what comes of them.
        folder: Where real folders are made; a temporary one where None.
        lie: Wraps the disk of every life.
    """
    for world in range(lives.start // LIVES_PER_WORLD, -(-lives.stop // LIVES_PER_WORLD)):
        first = world * LIVES_PER_WORLD
        own = range(first, min(lives.stop, first + LIVES_PER_WORLD))
        with _world(KINDS[kind], f"{seed}/{kind}/{world}", folder, lie) as living:
            for life in own:
                living.live(life - first)
                _take(living.knowledge, kind, life, verdict)
                verdict.lives[kind] += life in lives
                if life in lives:
                    yield
            living.look(len(own))
            _take(living.knowledge, kind, own[-1], verdict)


def _take(knowledge: Knowledge, kind: str, life: int, verdict: Verdict) -> None:
    """Move what a life has found and counted into the verdict."""
    verdict.findings += [Finding(kind, life, fault, text) for fault, text in knowledge.faults]
    verdict.counts.update(knowledge.counts)
    knowledge.faults.clear()
    knowledge.counts.clear()


@contextmanager
def _world(kind: Kind, seed: str, folder: Path | None, lie: Lie | None) -> Iterator[World]:
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)  # disks fail by intent
    try:
        if not kind.real:
            yield SimWorld(kind, seed, lie or _honest)
            return
        with TemporaryDirectory(dir=folder, prefix="torture-") as name:
            yield RealWorld(kind, seed, lie or _honest, Path(name))
    finally:
        logging.disable(before)


def _honest(disk: Disk) -> Disk:
    return disk


class World:
    """One folder and what is known of it. Made anew for `LIVES_PER_WORLD` lives.

    Attributes:
        knowledge: Of every life so far.
    """

    def __init__(self, kind: Kind, seed: str, lie: Lie, ground: Ground) -> None:
        self.knowledge = Knowledge(FILE_NBYTES)
        self._kind = kind
        self._seed = seed
        self._lie = lie
        self._ground = ground

    def live(self, index: int) -> None:
        """Live one life."""
        plan = plan_life(self._kind, self._seed, index)
        self.knowledge.found(scan(self._ground), capacity_nbytes=plan.capacity_nbytes)
        rng, journal = Random(f"{plan.seed}/damage"), Journal(self.knowledge)
        for kind in plan.damages:
            befall(kind, self._ground, journal, rng)
        self._run(plan)
        self._ground.reveal()

    def look(self, index: int) -> None:
        """Live one more life that only looks at what is there, and closes."""
        plan = plan_life(self._kind, self._seed, index)
        self.knowledge.found(scan(self._ground), capacity_nbytes=plan.capacity_nbytes)
        self._run(
            replace(
                plan, runs=1, steps=0, trap_call=0, last_answer=0, kill_seconds=float("inf"), closes=True, damages=()
            )
        )

    def _run(self, plan: Plan) -> None:
        raise NotImplementedError

    def _life(self, plan: Plan, witness: Witness, journal: Journal) -> Life:
        spoil = partial(self._spoil, journal) if plan.spoilt_while_open else None
        return Life(
            settings=plan.settings,
            disk=self._lie(witness),
            folder=witness.disk,
            seed=plan.seed,
            runs=plan.runs,
            steps=plan.steps,
            threads=plan.threads,
            durable_shared=not self._kind.reclaims,
            spoil=spoil,
            ended=lambda: witness.ended,
            answered=partial(_end_behind, count(1), plan.last_answer, witness),
            end=None if plan.closes else witness.end,
        )

    def _spoil(self, journal: Journal, rng: Random) -> None:
        """Something befalls the folder under the store; a file that goes meanwhile is left alone."""
        with suppress(FileNotFoundError, KeyError):
            befall(
                rng.choice(("flip", "overwrite", "truncate", "remove", "folder")),
                self._ground,
                journal,
                rng,
                sealed_only=True,
            )


class SimWorld(World):
    """A simulated disk, whose power fails."""

    def __init__(self, kind: Kind, seed: str, lie: Lie) -> None:
        self._disk = SimDisk()
        self._sim_ground = SimGround(self._disk)
        super().__init__(kind, seed, lie, self._sim_ground)

    def _run(self, plan: Plan) -> None:
        rng = Random(f"{plan.seed}/power")
        fall = partial(self._disk.crash, rng, torn=plan.torn) if rng.random() < 0.9 else self._disk.kill
        journal = Journal(self.knowledge)
        trap = Trap(plan.trap_call, plan.trap_moment, fall)
        witness = Witness(self._disk, journal, trap, hidden=self._sim_ground.hidden, alone=True)
        live(self._life(plan, witness, journal), journal)


class RealWorld(World):
    """A folder on a real disk, whose owner is killed."""

    def __init__(self, kind: Kind, seed: str, lie: Lie, place: Path) -> None:
        self._root = place / "folder"
        self._root.mkdir(mode=0o700)
        self._journal_path = place / "journal"
        super().__init__(kind, seed, lie, RealGround(self._root))

    def _run(self, plan: Plan) -> None:
        self._journal_path.write_bytes(b"")
        pid = os.fork()
        if pid == 0:
            self._be(plan)
        killed, status = _await(pid, plan.kill_seconds)
        for line in self._journal_path.read_bytes().split(b"\n")[:-1]:
            self.knowledge.learn(line.decode())
        signalled = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        if status != 0 and not (signalled and (killed or plan.trap_call or plan.last_answer or not plan.closes)):
            self.knowledge.fault(Fault.BROKEN, f"the process ended with {os.waitstatus_to_exitcode(status)}")
        elif killed and plan.kill_seconds > _HANG_SECONDS:
            self.knowledge.fault(Fault.BROKEN, f"the process did not end within {_HANG_SECONDS:.0f} s")

    def _be(self, plan: Plan) -> None:
        """Be the process that may be killed; never returns."""
        code = 1
        try:
            descriptor = os.open(self._journal_path, os.O_WRONLY | os.O_APPEND)
            journal = Journal(self.knowledge, descriptor)
            trap = Trap(plan.trap_call, plan.trap_moment, partial(os.kill, os.getpid(), signal.SIGKILL))
            witness = Witness(PosixDisk(str(self._root)), journal, trap)
            live(self._life(plan, witness, journal), journal)
            code = 0
        finally:
            os._exit(code)


def _end_behind(answers: Iterator[int], last: int, witness: Witness) -> None:
    """Count an answer, and end the life if it is the last one."""
    if next(answers) == last:
        witness.end()


def _await(pid: int, kill_seconds: float) -> tuple[bool, int]:
    """Wait for a process, and kill it once its time has come: whether it was, and its wait status."""
    descriptor = os.pidfd_open(pid)
    try:
        ended, _, _ = select.select([descriptor], [], [], min(kill_seconds, _HANG_SECONDS))
        if not ended:
            os.kill(pid, signal.SIGKILL)
        return not ended, os.waitpid(pid, 0)[1]
    except KeyboardInterrupt:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
    finally:
        os.close(descriptor)
