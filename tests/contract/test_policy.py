"""Every registered policy keeps its contract."""

from __future__ import annotations

from typing import cast

import pytest

from tierstore.policy.admission import AdmitContinued, AdmitLeaving
from tierstore.policy.base import NewPolicy
from tierstore.registry import load, names
from tierstore.testing.contracts.policy import (
    AdmissionPolicyContract,
    EvictionPolicyContract,
    NewAdmissionPolicy,
    NewEvictionPolicy,
    facts_of,
    offer_of,
)


@pytest.fixture(scope="module", params=names("policies"))
def new_policy(request: pytest.FixtureRequest) -> NewEvictionPolicy:
    make = cast(NewPolicy, load("policies", request.param))
    return lambda capacity: make(capacity, facts_of(capacity))


@pytest.fixture(scope="module", params=names("admissions"))
def new_admission(request: pytest.FixtureRequest) -> NewAdmissionPolicy:
    return cast(NewAdmissionPolicy, load("admissions", request.param))


class TestEvictionPolicies(EvictionPolicyContract): ...


class TestAdmissionPolicies(AdmissionPolicyContract): ...


def test_the_built_in_policies_are_registered() -> None:
    assert {"arc", "gdsf", "lfu", "lfu-da", "lru", "s3-fifo", "sieve"} <= set(names("policies"))
    assert {"always", "continued", "second-hit", "selective", "write-back", "write-through"} <= set(names("admissions"))


@pytest.mark.parametrize(
    ("name", "answers"),
    [
        ("always", [True] * 4),
        ("write-through", [True] * 4),
        ("second-hit", [False, True, True, True]),
        ("selective", [False, True, True, True]),
        ("continued", [False, True, True, True]),
        ("write-back", [False] * 4),
    ],
)
def test_a_built_in_admission_answers_by_its_name(name: str, answers: list[bool]) -> None:
    policy = cast(NewAdmissionPolicy, load("admissions", name))()
    assert policy.admit(offer_of([0, 1, 2, 0xFFFF])) == answers
    assert policy.asks_when_leaving == (name == "write-back")


def test_a_block_that_a_put_names_again_is_continued() -> None:
    assert AdmitContinued().admit(offer_of([0, 0], again=True)) == [True, True]


def test_a_block_that_leaves_is_written_back() -> None:
    assert AdmitLeaving().admit(offer_of([0, 3], leaving=True)) == [True, True]
