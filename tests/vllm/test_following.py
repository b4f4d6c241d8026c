"""Who follows blocks knows where they are, however they move, and however late the store answers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.payload import block_hash
from tierstore.advice import Place
from tierstore.connectors.vllm.following import Followed

if TYPE_CHECKING:
    from tierstore.types import UInt8Array

KEYS = [block_hash(number) for number in range(600)]


class World:
    """Shards that have blocks, and answer some steps late.

    Attributes:
        places: Of each block on each shard.
        known: Where a follower has been told that each block is.
    """

    def __init__(self, *, num_shards: int = 1) -> None:
        self.places = [dict.fromkeys(KEYS, Place.NOWHERE) for _ in range(num_shards)]
        self.known: dict[bytes, Place] = {}
        self.followed: Followed[bytes] = Followed(self._ask, num_shards=num_shards)
        self._asked: list[tuple[Sequence[bytes], list[UInt8Array]]] = []

    def _ask(self, keys: Sequence[bytes], answers: list[UInt8Array]) -> None:
        self._asked.append((list(keys), answers))

    def answer(self) -> None:
        """Answer what has been asked, as it is now."""
        for keys, answers in self._asked:
            answers.extend(np.array([shard[key] for key in keys], np.uint8) for shard in self.places)
        self._asked.clear()

    def step(self, *, answered: bool = True) -> None:
        for key, was, now in self.followed.changes():
            assert self.known.pop(key, Place.NOWHERE) is was, "from where it was told to be"
            if now is not Place.NOWHERE:
                self.known[key] = now
        if answered:
            self.answer()

    def truth(self) -> dict[bytes, Place]:
        """Where every block is that all shards have."""
        found = {key: [shard[key] for shard in self.places] for key in KEYS}
        return {key: max(places) for key, places in found.items() if Place.NOWHERE not in places}


@pytest.mark.parametrize("num_shards", [1, 2])
def test_it_knows_where_every_block_is_once_they_rest(num_shards: int) -> None:
    chance, world = random.Random(5), World(num_shards=num_shards)
    for key in KEYS:
        world.followed.add(key, key)
    for _step in range(300):
        for shard in world.places:
            shard[chance.choice(KEYS)] = chance.choice(list(Place))
        world.step(answered=chance.random() < 0.5)
    for key in KEYS:
        world.followed.add(key, key)  # what was nowhere when it was asked for is followed no more
        for shard in world.places:
            if shard[key] is Place.UNDER_WAY:
                shard[key] = Place.HOST
    for _step in range(2 * len(KEYS) // 32):
        world.step()
    assert world.known == world.truth()


def test_a_block_on_its_way_is_asked_about_again() -> None:
    world = World()
    world.places[0][KEYS[0]] = Place.UNDER_WAY
    world.followed.add(KEYS[0], KEYS[0])
    for _step in range(6):
        world.step()
        assert world.known == {}
    world.places[0][KEYS[0]] = Place.HOST
    for _step in range(4):
        world.step()
    assert world.known == {KEYS[0]: Place.HOST}


def test_blocks_that_are_forgotten_are_gone_at_once_and_never_again() -> None:
    """One that was found gone later took back what had been told of the same block under another key."""
    world = World()
    for key in KEYS[:2]:
        world.places[0][key] = Place.HOST
        world.followed.add(key, key)
    for _step in range(2):
        world.step()
    assert set(world.known) == set(KEYS[:2])
    world.step(answered=False)
    world.followed.forget()
    world.step()
    assert world.known == {}
    assert world.followed.changes() == []
    assert KEYS[0] not in world.followed


def test_an_answer_that_never_comes_is_given_up() -> None:
    world = World()
    world.places[0][KEYS[0]] = Place.SSD
    world.followed.add(KEYS[0], KEYS[0])
    for _step in range(1002):
        world.step(answered=False)
    for _step in range(2):
        world.step()
    assert world.known == {KEYS[0]: Place.SSD}


def test_blocks_that_are_too_many_to_follow_are_taken_back() -> None:
    world = World()
    world.places[0] = dict.fromkeys(KEYS, Place.HOST)
    followed: Followed[bytes] = Followed(world._ask, num_shards=1, fresh_max=100, told_max=50)
    for key in KEYS[:120]:
        followed.add(key, key)
    told = []
    for _step in range(10):
        told += followed.changes()
        world.answer()
    assert [key for key, _, now in told if now is Place.HOST] == KEYS[20:120], "the oldest were given up"
    assert {key for key, _, now in told if now is Place.NOWHERE} == set(KEYS[20:70])
