"""The look-ahead window beside the plainest model of it: for each block, a list of who waits for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tierstore.control.directory import Directory
from tierstore.control.entry import State
from tierstore.control.index import as_keys
from tierstore.control.requests import UNASKED, Life, new_request
from tierstore.layout import KVLayout
from tierstore.testing.engine_world import chain
from tierstore.types import NO_REQUEST, Generation, Priority, TierName

if TYPE_CHECKING:
    from tierstore.control.entry import Places
    from tierstore.control.window import Hint
    from tierstore.types import Int64Array

HASHES = chain("window", 12)
LIVES = [
    Life(Generation(number, bytes(32), 0, KVLayout.opaque(block_nbytes=4096)), number, 4096, number + 5)
    for number in (0, 1)
]


@dataclass
class Model:
    """A directory and its window, with what they ought to say of blocks in one of the pools.

    Attributes:
        pool: Where blocks are held.
        waiting: Hints in the order in which a block counts with them, by (generation, row of `HASHES`).
        hints: What each hint names.
    """

    pool: TierName = TierName.HOST
    directory: Directory = field(default_factory=lambda: Directory(16))
    waiting: dict[tuple[int, int], list[Hint]] = field(default_factory=dict)
    hints: dict[Hint, list[int]] = field(default_factory=dict)

    @property
    def places(self) -> Places:
        return self.directory.host if self.pool is TierName.HOST else self.directory.device

    def entry(self, life: int, row: int) -> int:
        return int(self.directory.find(life, as_keys(HASHES[row : row + 1]))[0])

    def add(self, life: int, rows: list[int], turn: int) -> Hint:
        request = new_request(NO_REQUEST, UNASKED, LIVES[life], HASHES[rows], priority=Priority.PREFETCH)
        entries = self.directory.find(life, request.keys)
        before = self.directory.next_use.copy()
        hint, fresh = self.directory.window.add(request, turn, entries, None)
        held = entries[entries >= 0]
        assert sorted(fresh.tolist()) == sorted(held[before[held] == 0].tolist())
        self.hints[hint] = rows
        for row in rows:
            waiting = self.waiting.setdefault((life, row), [])
            waiting.insert(0 if waiting and waiting[0].turn > turn else len(waiting), hint)
        return hint

    def remove(self, hint: Hint) -> None:
        released = self.directory.window.remove(hint)
        life, expected = hint.request.life.number, []
        for row in self.hints.pop(hint):
            waiting = self.waiting[life, row]
            waiting.remove(hint)
            if not waiting:
                del self.waiting[life, row]
                expected.append(self.entry(life, row))
        assert sorted(released.tolist()) == sorted(entry for entry in expected if entry >= 0)

    def hold(self, life: int, row: int) -> None:
        """READY in the pool."""
        if self.entry(life, row) < 0:
            entry = self.directory.add(life, as_keys(HASHES[row : row + 1]))
            self.places.reserve(entry)
            self.places.filled(entry)
            self.directory.window.offer(entry, self.pool)

    def drop(self, entries: Int64Array) -> None:
        """Evicted from the pool, where nothing else holds them."""
        self.places.evict(entries)
        self.directory.release(entries)

    def pin(self, life: int, row: int) -> None:
        entry = self.directory.find(life, as_keys(HASHES[row : row + 1]))
        if entry[0] >= 0 and not self.places.pins[entry[0]]:
            self.places.pin(entry)

    def unpin(self) -> None:
        entries = self.places.pins.nonzero()[0].astype(np.int64)
        self.places.unpin(entries)
        self.directory.window.offer(entries, self.pool)

    def victims(self, life: int, after_turn: int) -> list[int]:
        """Every victim there is, furthest and tail first."""
        found = []
        for hint in sorted(self.hints, key=lambda hint: (-hint.turn, -hint.number)):
            if hint.request.life.number != life or hint.turn <= after_turn:
                continue
            for row in reversed(self.hints[hint]):
                entry = self.entry(life, row)
                loose = entry >= 0 and not self.places.pins[entry]
                if loose and self.waiting[life, row][0] is hint:
                    found.append(entry)
        return found

    def check(self) -> None:
        self.directory.check()
        window = self.directory.window
        assert window.num_blocks == len(self.waiting)
        held = [self.directory.find(life, as_keys(HASHES)) for life in (0, 1)]
        for life, entries in enumerate(held):
            for row in (entries >= 0).nonzero()[0].tolist():
                waiting = self.waiting.get((life, row))
                assert self.directory.next_use[entries[row]] == (waiting[0].number if waiting else 0)
        for hint, rows in self.hints.items():
            assert window.entries(hint).tolist() == held[hint.request.life.number][rows].tolist()


@pytest.mark.parametrize("seed", range(15))
@pytest.mark.parametrize("pool", [TierName.HOST, TierName.DEVICE_POOL])
def test_the_window_says_what_its_model_says(pool: TierName, seed: int) -> None:
    random, model, turn = Random(seed), Model(pool), 0
    for _step in range(120):
        life, row = random.randrange(2), random.randrange(len(HASHES))
        match random.randrange(8):
            case 0 | 1:
                turn += 1
                first = random.randrange(6)
                rows = list(range(first, random.randint(first, len(HASHES))))
                model.add(life, rows, max(1, turn - random.choice([0, 0, 0, 3])))
            case 2 if model.hints:
                leaving = list(model.hints)
                model.remove(leaving[0] if random.random() < 0.7 else random.choice(leaving))
            case 3 | 4:
                if model.directory.room:
                    model.hold(life, row)
            case 5:
                model.pin(life, row)
            case 6:
                model.unpin()
            case 7:
                after_turn, count = random.choice([0, 0, turn - 2]), random.randint(1, 5)
                expected = model.victims(life, after_turn)
                slot_class = LIVES[life].class_in(pool)
                victims = model.directory.window.victims(slot_class, count, after_turn=after_turn, pool=pool)
                assert victims.tolist() == expected[:count]
                model.drop(victims)
        model.check()
    for hint in list(model.hints):
        model.remove(hint)
    model.check()
    assert model.directory.window.num_blocks == 0
    assert model.directory.window.room == Directory(16).window.room
    assert not model.directory.next_use.any()


def test_a_deleted_block_waits_in_the_window_until_it_is_put_again() -> None:
    model = Model()
    hint = model.add(0, [0, 1], turn=1)
    model.hold(0, 0)
    entry = model.directory.find(0, as_keys(HASHES[:1]))
    model.directory.host.pin(entry)
    model.directory.detach(entry)
    model.directory.host.discard(entry)
    model.check()
    assert model.directory.host.state[entry[0]] == State.GONE
    model.hold(0, 0)
    model.check()
    assert model.directory.window.entries(hint)[0] != entry[0]


def test_lists_of_hints_that_have_left_do_not_grow_without_end() -> None:
    model = Model()
    model.hold(0, 0)
    last = model.add(0, [0], turn=1)
    for turn in range(2, 500):
        hint = model.add(0, [0], turn)
        model.remove(last)
        last = hint
    window = model.directory.window
    assert sum(len(heap) for heap in (*window._furthest.values(), window._nearest)) < 10


def damage_next_use(model: Model) -> None:
    model.directory.next_use[0] = 0


def damage_listing(model: Model) -> None:
    for hint in model.hints:
        hint.offered.clear()


def damage_order(model: Model) -> None:
    model.directory.window._first[:] = 0


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (damage_next_use, "next_use"),
        (damage_listing, "is not listed"),
        (damage_order, "nobody waits for it"),
    ],
)
def test_its_check_fails_when_it_should(damage: object, complaint: str) -> None:
    model = Model()
    model.hold(0, 0)
    model.add(0, [0, 1], turn=1)
    model.check()
    assert callable(damage)
    damage(model)
    with pytest.raises(AssertionError, match=complaint):
        model.directory.check()
