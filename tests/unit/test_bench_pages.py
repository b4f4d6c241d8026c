"""The limit of `python -m bench.pages` copies the rows that the device copies, and every figure is told."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.pages import ORDERS, Rows, Subject, build_loop, copy, measure, subjects
from tierstore.device.paging import slot_nbytes
from tierstore.types import PAGE_NBYTES

SUBJECTS = {subject.name: subject for subject in subjects()}


@pytest.fixture
def loop(tmp_path: Path) -> Any:
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler for the loop; there is none")
    return build_loop(str(tmp_path))


@pytest.mark.parametrize("name", SUBJECTS)
def test_the_loop_copies_the_rows_that_the_device_copies(loop: Any, name: str) -> None:
    kv = SUBJECTS[name].bind(4)
    generator = np.random.default_rng(0)
    for tensor in kv.tensors:
        memory = np.asarray(tensor.owner)
        memory[...] = generator.integers(0, 256, memory.shape, np.uint8)
    slot_pages = slot_nbytes(kv.block_nbytes) // PAGE_NBYTES
    ours, theirs = (np.zeros(4 * slot_nbytes(kv.block_nbytes), np.uint8) for _ in range(2))
    slots, block_ids = np.array([3, 0], np.int32) * np.int32(slot_pages), np.array([[1, 2]])
    copy(kv, ours, slots, block_ids, into_pool=True)
    Rows(loop, kv, theirs, slots, block_ids).copy(into_pool=True)
    assert np.array_equal(ours, theirs)
    assert ours.any()


def test_every_order_and_direction_of_a_cache_is_measured(loop: Any) -> None:
    subject: Subject = SUBJECTS["K and V apart, rows of 4 KiB"]
    options = argparse.Namespace(seed=0, cache_mib=2, batch_mib=1, turns=1)
    rows = list(measure(subject, loop, options))
    assert [(row["order"], row["direction"]) for row in rows] == [
        (order, direction) for order in ORDERS for direction in ("store", "load")
    ]
    assert all(row["share_of_memcpy_by_rows"] > 0 and row["share_of_plain_memcpy"] > 0 for row in rows)
