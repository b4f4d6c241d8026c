"""What tests of the vLLM connector stand on: an interpreter with vLLM, and models that are written once a run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.vllm.engines import Nursery, interpreter


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """Whose forks become engines."""
    python = interpreter()
    if python is None:
        pytest.skip(
            "needs vLLM: set PYTHON_WITH_VLLM to the interpreter of an environment that has it; see docs/vllm.md"
        )
    nursery = Nursery(python)
    yield nursery
    nursery.close()


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where models of this run are written."""
    return tmp_path_factory.mktemp("models")
