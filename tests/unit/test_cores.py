"""A thread that helps another leaves its core for as long as that takes, and no longer."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from tierstore.service.client.cores import core, off

CORES = sorted(os.sched_getaffinity(0))


def on_a_thread(first: int, allowed: set[int], taken: int) -> tuple[int, set[int], set[int]]:
    """Of a thread that has begun on a core: where it runs meanwhile, what was allowed to it, and what is afterwards."""

    def work() -> tuple[int, set[int], set[int]]:
        os.sched_setaffinity(0, {first})
        os.sched_setaffinity(0, allowed)
        with off(taken):
            meanwhile, allowed_meanwhile = core(), os.sched_getaffinity(0)
        return meanwhile, allowed_meanwhile, os.sched_getaffinity(0)

    with ThreadPoolExecutor(1) as threads:
        return threads.submit(work).result()


@pytest.mark.skipif(len(CORES) < 2 or core() < 0, reason="needs two cores, and a C library that names them")
def test_a_thread_on_the_core_of_whom_it_helps_runs_on_another_one_meanwhile() -> None:
    taken, other = CORES[:2]
    meanwhile, _, afterwards = on_a_thread(taken, {taken, other}, taken)
    assert meanwhile == other
    assert afterwards == {taken, other}


@pytest.mark.skipif(len(CORES) < 2 or core() < 0, reason="needs two cores, and a C library that names them")
def test_a_thread_that_is_sent_to_another_core_meanwhile_stays_there() -> None:
    taken, other = CORES[:2]

    def work() -> set[int]:
        os.sched_setaffinity(0, {taken})
        os.sched_setaffinity(0, {taken, other})
        with off(taken):
            os.sched_setaffinity(0, {taken})
        return os.sched_getaffinity(0)

    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(work).result() == {taken}


@pytest.mark.parametrize("taken", [CORES[0], -1, 10_000])
def test_a_thread_that_has_one_core_or_knows_none_stays_as_it_is(taken: int) -> None:
    meanwhile, allowed, afterwards = on_a_thread(CORES[0], {CORES[0]}, taken)
    assert allowed == afterwards == {CORES[0]}
    assert meanwhile in (CORES[0], -1)
