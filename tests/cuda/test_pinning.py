"""Registering the host pool: in slices, all or nothing, and what is said where the system refuses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tierstore.device import pinning
from tierstore.device.pinning import PinnedMemory
from tierstore.testing.sim_gpu import SimGpu


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pinning, "SLICE_NBYTES", 4096)


def test_memory_is_registered_slice_by_slice_with_progress() -> None:
    gpu = SimGpu()
    seen: list[int] = []
    pinned = PinnedMemory(gpu, np.zeros(10_000, np.uint8), seen.append)
    assert seen == [4096, 8192, 10_000]
    assert pinned.nbytes == 10_000
    assert gpu.num_held == 3
    pinned.release()
    pinned.release()
    assert gpu.num_held == 0


def test_memory_that_cannot_all_be_pinned_is_not_pinned_and_it_is_said(caplog: pytest.LogCaptureFixture) -> None:
    gpu = SimGpu(memlock_nbytes=8192)
    pinned = PinnedMemory(gpu, np.zeros(10_000, np.uint8))
    assert pinned.nbytes == 0
    assert gpu.num_held == 0
    assert "not pinned" in caplog.text
    assert "ulimit -l" in caplog.text


@pytest.mark.parametrize("node", [0, 63, 64])
def test_a_node_that_the_machine_lacks_is_a_wish_and_no_error(node: int) -> None:
    gpu = SimGpu(facts=replace(SimGpu().facts, numa_node=node))
    assert PinnedMemory(gpu, np.zeros(4096, np.uint8)).nbytes == 4096
