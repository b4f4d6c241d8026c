"""The events of a get's page groups: which copies they wait for, and when nothing more will come."""

from __future__ import annotations

from contextlib import closing

import pytest

from tierstore.device.cpu import CpuEvent
from tierstore.transfer.layers import Layers
from tierstore.worker import Worker

WAIT_SECONDS = 30.0


def copy() -> list[CpuEvent]:
    """The events of one copy of two groups."""
    return [CpuEvent(), CpuEvent()]


def test_a_group_waits_for_every_copy_and_for_no_other_group() -> None:
    layers, first, second = Layers(2), copy(), copy()
    layers.complete(5)
    layers.add(first, 3)
    first[0].reach()
    assert not layers.event(0).done()  # two blocks are still to come
    layers.add(second, 2)
    assert layers.event(0).copies() == [first[0], second[0]]
    assert not layers.event(0).wait(0.0)
    second[0].reach()
    assert layers.event(0).wait(0.0)
    assert not layers.event(1).done()


def test_a_group_is_ready_once_no_more_blocks_will_come() -> None:
    layers, only = Layers(2), copy()
    layers.add(only, 3)
    only[0].reach()
    assert not layers.event(0).done()
    layers.complete(3)
    assert layers.event(0).done()


def test_the_end_of_a_get_ends_every_wait() -> None:
    layers = Layers(2)
    layers.complete(5)
    with closing(Worker("waiter", capacity=1)) as worker:
        seen: list[bool] = []
        assert worker.submit(lambda: seen.append(layers.event(1).wait(WAIT_SECONDS)))
        layers.end()
    assert seen == [True]


def test_copies_are_not_known_before_the_last_is_enqueued() -> None:
    layers = Layers(2)
    assert layers.event(0).copies(0.0) is None
    layers.complete(1)
    assert layers.event(0).copies(0.0) is None
    layers.add(copy(), 1)
    assert len(layers.event(0).copies(0.0) or []) == 1


@pytest.mark.parametrize("group", [-1, 2])
def test_there_is_no_group_beyond_those_of_the_cache(group: int) -> None:
    with pytest.raises(AssertionError, match=f"no page group {group}; the cache has 2"):
        Layers(2).event(group)
