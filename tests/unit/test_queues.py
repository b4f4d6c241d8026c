"""Queues against lists: whatever moves in runs of neighbours, the order and the oldest evictable entry are the same."""

from __future__ import annotations

import random
from itertools import chain

import pytest

from tierstore.policy.queues import NOBODY, Holding, Queues
from tierstore.testing.contracts.policy import pack

CAPACITY = 24


def order_of(queues: Queues, queue: int) -> list[int]:
    found: list[int] = []
    entry = queues.newer(CAPACITY + queue)
    while entry != NOBODY:
        found.append(entry)
        entry = queues.newer(entry)
    return found


@pytest.mark.parametrize("seed", range(8))
def test_queues_agree_with_lists_whatever_moves_together(seed: int) -> None:
    choose = random.Random(seed)
    holding = Holding(CAPACITY)
    queues = Queues(holding, 2)
    queues.append(0, holding.add(pack(range(CAPACITY))))
    model, shielded = [list(range(CAPACITY)), []], set[int]()
    for _step in range(300):
        first = choose.randrange(CAPACITY)
        flat = list(chain(*model))
        batch = flat[first : first + choose.randrange(9)]  # neighbours, in runs that a swap may cut
        if len(batch) > 1 and choose.random() < 0.5:
            one, other = choose.sample(range(len(batch)), 2)
            batch[one], batch[other] = batch[other], batch[one]
        if choose.random() < 0.5:
            exposed = choose.random() < 0.5
            queues.set_evictable(pack(batch), exposed)
            shielded = shielded - set(batch) if exposed else shielded | set(batch)
        else:
            queue = choose.randrange(2)
            queues.move(queue, batch)
            model = [[entry for entry in own if entry not in batch] for own in model]
            model[queue] += batch
        assert [order_of(queues, queue) for queue in range(2)] == model
        assert queues.lengths == [len(own) for own in model]
        assert queues.queues_of(flat) == [0 if entry in model[0] else 1 for entry in flat]
        for queue in range(2):
            assert queues.first(queue) == next((entry for entry in model[queue] if entry not in shielded), NOBODY)
