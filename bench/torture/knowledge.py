"""What must be in the folder, what may be, and what must not: told by what was asked, answered, written and damaged.

A life says every fact before it acts or after it was answered; the parent of a life that was killed says the same
facts again from its journal. Pure: no files, no threads, no clock. It only believes what a caller was told, what
the disk itself was asked to do, and what whoever damages the folder knows.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final, TypeAlias

from bench.torture.blocks import NUMBERS, SPACES, Block, owner_of

if TYPE_CHECKING:
    from bench.torture.blocks import Record
    from tierstore.types import UInt8Array

__all__ = ["FACTS", "Fact", "Fate", "Fault", "Knowledge", "blocks_in", "judge"]

Fact: TypeAlias = str
"""A fact as a line of JSON: its name and what it is told with."""

FACTS: Final = (
    *("opened", "put", "kept", "delete", "deleted", "clear", "cleared", "absent"),
    *("wrote", "moved", "left", "spoilt", "fault", "count"),
)
"""Names of the methods that a journal may call."""


class Fault(StrEnum):
    """What a store must never do."""

    LOST = "lost"
    """A block that was acknowledged as durable is not there."""
    WRONG = "wrong"
    """Bytes of another block, or of none."""
    RESURRECTED = "resurrected"
    """A block whose deletion was acknowledged is there."""
    ACCOUNTING = "accounting_mismatches"
    """The ledger differs from the disk, or is not consistent in itself."""
    BROKEN = "broken"
    """It raised what it must not, hung, or refused to open."""


@dataclass(slots=True)
class Fate:
    """What is known of one block.

    Attributes:
        incarnation: Of the bytes that the next put has.
        floor: The lowest incarnation whose bytes may come back.
        base: No damage lowers the floor below it: a clear has ended what was before.
        alive: It was put, and no delete was called since: this run may hold it.
        possible: It was put since the last acknowledged delete: the next run may find it.
        must: It is durable, and has not left since.
        deletes: Deletes and clears called so far: the ticket of a delete.
        leavings: How often its newest record has left the disk.
        newest: Sequence of its newest record.
        gone: That record has left the disk.
    """

    incarnation: int = 0
    floor: int = 0
    base: int = 0
    alive: bool = False
    possible: bool = False
    must: bool = False
    deletes: int = 0
    leavings: int = 0
    newest: int = -1
    gone: bool = False

    @property
    def ticket(self) -> int:
        """Of a put: no answer counts for a block that was deleted, or has left, since it was asked for."""
        return self.deletes + self.leavings

    def leave(self) -> None:
        """Its newest record has left, or is damaged."""
        self.must, self.gone = False, True
        self.leavings += 1

    def forget(self) -> None:
        """A delete or clear has been called."""
        self.alive = self.must = False
        self.deletes += 1

    def end(self) -> None:
        """The last delete or clear has been acknowledged; a put called since lives on."""
        self.incarnation += not self.alive
        self.floor = self.incarnation
        self.possible = self.alive


@dataclass(slots=True)
class Knowledge:
    """Of one folder, over all its lives.

    Args:
        file_nbytes: Of one chunk file.

    Attributes:
        capacity_nbytes: What all chunk files may take in the life at hand.
        fates: By block.
        counts: Of what happened, by name.
        faults: What was found, in words.
    """

    file_nbytes: int
    capacity_nbytes: int = 0
    fates: dict[Block, Fate] = field(
        default_factory=lambda: {Block(s, n): Fate() for s in range(len(SPACES)) for n in range(NUMBERS)}
    )
    counts: Counter[str] = field(default_factory=Counter)
    faults: list[tuple[Fault, str]] = field(default_factory=list)
    _files: dict[str, dict[Block, int]] = field(default_factory=dict)
    _unseen_nbytes: int = 0

    def learn(self, fact: Fact) -> None:
        """Take a fact from a journal."""
        name, *told = json.loads(fact)
        assert name in FACTS, f"{name!r} is no fact"
        getattr(self, name)(*told)

    # What the callers ask and are told.

    def opened(self) -> None:
        """A run begins: what a delete has only called may be there again."""
        for fate in self.fates.values():
            fate.alive = fate.possible

    def put(self, space: int, numbers: Sequence[int]) -> None:
        """Blocks are about to be put."""
        for fate in self._of(space, numbers):
            fate.alive = fate.possible = True

    def kept(self, space: int, numbers: Sequence[int], tickets: Sequence[int]) -> None:
        """Blocks were acknowledged as durable; what has left meanwhile is none of them."""
        self.counts["durable_acknowledged"] += len(numbers)
        for fate, ticket in zip(self._of(space, numbers), tickets, strict=True):
            if fate.ticket == ticket and not fate.gone:
                fate.must = True

    def delete(self, space: int, numbers: Sequence[int]) -> None:
        """Blocks are about to be deleted."""
        for fate in self._of(space, numbers):
            fate.forget()

    def deleted(self, space: int, numbers: Sequence[int], tickets: Sequence[int]) -> None:
        """A deletion was acknowledged."""
        self.counts["deletes_acknowledged"] += len(numbers)
        for fate, ticket in zip(self._of(space, numbers), tickets, strict=True):
            if fate.deletes == ticket:
                fate.end()

    def clear(self, space: int) -> None:
        """A space is about to be cleared."""
        self.delete(space, range(NUMBERS))

    def cleared(self, space: int) -> None:
        """It was."""
        self.counts["clears_acknowledged"] += 1
        for fate in self._of(space, range(NUMBERS)):
            fate.end()
            fate.base = fate.floor

    def absent(self, space: int, numbers: Sequence[int]) -> None:
        """A start did not find blocks; said once of each that was lost."""
        for fate in self._of(space, numbers):
            fate.must = False

    # What the disk was asked to do.

    def found(self, files: Mapping[str, Sequence[Record]], *, capacity_nbytes: int) -> None:
        """What lies in the folder's files before a life, and what that life lets them take."""
        self.capacity_nbytes = capacity_nbytes
        self._files, self._unseen_nbytes = {}, 0
        for fate in self.fates.values():
            fate.newest, fate.gone = -1, False
        for path, records in files.items():
            self.wrote(path, blocks_in(records))

    def wrote(self, path: str, records: Iterable[Sequence[int]]) -> None:
        """Blocks were appended to a file: space, number and sequence of each."""
        held = self._files.setdefault(path, {})
        for space, number, sequence in records:
            block = Block(space, number)
            held[block] = max(sequence, held.get(block, -1))
            if sequence > self.fates[block].newest:
                self.fates[block].newest, self.fates[block].gone = sequence, False

    def moved(self, src: str, dst: str) -> None:
        """A file has another name."""
        self._files[dst] = self._files.pop(src, {})

    def left(self, path: str, used_nbytes: int) -> None:
        """A file is about to be removed by the store; all chunk files together take `used_nbytes`."""
        held = self._files.pop(path, {})
        leaving = self._musts(held)
        if leaving and used_nbytes + self._unseen_nbytes <= self.capacity_nbytes - 3 * self.file_nbytes:
            self.fault(Fault.LOST, f"{path} went with {len(leaving)} durable blocks, at {used_nbytes} bytes in use")
        self.counts["files_reclaimed"] += bool(leaving)
        self.counts["durable_reclaimed"] += len(leaving)
        for block, sequence in held.items():
            if sequence == self.fates[block].newest:
                self.fates[block].leave()

    def _musts(self, held: Mapping[Block, int]) -> list[Block]:
        fates = ((self.fates[block], sequence, block) for block, sequence in held.items())
        return [block for fate, sequence, block in fates if fate.must and fate.newest == sequence]

    # What befell the folder.

    def spoilt(self, blocks: Iterable[Sequence[int]], deleted: Iterable[Sequence[int]], unseen_nbytes: int) -> None:
        """Records are damaged: of blocks, with their sequences; and deletions of which no record is left.

        A store that is open may believe of `unseen_nbytes` that they are in use.
        """
        self._unseen_nbytes += unseen_nbytes
        for space, number, sequence in blocks:
            fate = self.fates[Block(space, number)]
            if sequence >= fate.newest:
                fate.leave()
        for space, number in deleted:
            fate = self.fates[Block(space, number)]
            fate.floor, fate.possible = fate.base, True

    # What was found.

    def fault(self, kind: str, text: str) -> None:
        """The store did what it must not."""
        self.faults.append((Fault(kind), text))

    def count(self, name: str, number: int = 1) -> None:
        """Something happened."""
        self.counts[name] += number

    def _of(self, space: int, numbers: Iterable[int]) -> list[Fate]:
        return [self.fates[Block(space, number)] for number in numbers]


def blocks_in(records: Iterable[Record]) -> list[tuple[int, int, int]]:
    """What `Knowledge.wrote` is told of records."""
    return [(*record.block, record.sequence) for record in records if record.block is not None]


def judge(block: Block, fate: Fate, row: UInt8Array) -> tuple[Fault, str] | None:
    """What is wrong with bytes that came back for a block, by what was known when they were asked for; or None."""
    owner = owner_of(row)
    if owner is None or owner[0] != block:
        return Fault.WRONG, f"{block} came back with bytes of {owner or 'no block'}"
    if owner[1] > fate.incarnation:
        return Fault.WRONG, f"{block} came back in incarnation {owner[1]}, which is still to come: {fate}"
    if owner[1] < fate.floor or not fate.alive:
        return Fault.RESURRECTED, f"{block} came back in incarnation {owner[1]}: {fate}"
    return None
