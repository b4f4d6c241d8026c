"""Every registered policy keeps its contract."""

from __future__ import annotations

from typing import cast

import pytest

from tierstore.registry import load, names
from tierstore.testing.contracts.policy import (
    AdmissionPolicyContract,
    EvictionPolicyContract,
    NewAdmissionPolicy,
    NewEvictionPolicy,
)


@pytest.fixture(scope="module", params=names("policies"))
def new_policy(request: pytest.FixtureRequest) -> NewEvictionPolicy:
    return cast(NewEvictionPolicy, load("policies", request.param))


@pytest.fixture(scope="module", params=names("admissions"))
def new_admission(request: pytest.FixtureRequest) -> NewAdmissionPolicy:
    return cast(NewAdmissionPolicy, load("admissions", request.param))


class TestEvictionPolicies(EvictionPolicyContract): ...


class TestAdmissionPolicies(AdmissionPolicyContract): ...


def test_the_built_in_policies_are_registered() -> None:
    assert "lru" in names("policies")
    assert "always" in names("admissions")
