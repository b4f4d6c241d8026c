"""What tests of the vLLM connector stand on: an interpreter with vLLM, and models that are written once a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.vllm.engines import interpreter


@pytest.fixture(scope="session")
def python() -> str:
    """An interpreter that has vLLM."""
    found = interpreter()
    if found is None:
        pytest.skip(
            "needs vLLM: set PYTHON_WITH_VLLM to the interpreter of an environment that has it; see docs/vllm.md"
        )
    return found


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where models of this run are written."""
    return tmp_path_factory.mktemp("models")
