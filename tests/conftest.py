"""What every test stands on: no setting from outside, seeds that are shown, GPU tests only where one is."""

from __future__ import annotations

import os
import signal

import pytest
from hypothesis import settings

for _name in [name for name in os.environ if name.startswith("TIERSTORE_")]:
    del os.environ[_name]

signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in a shell's background ignores it, and so would ours

settings.register_profile("tierstore", deadline=None, print_blob=True)
settings.load_profile("tierstore")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what is marked `gpu` on a machine without one."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device; there is none"))
