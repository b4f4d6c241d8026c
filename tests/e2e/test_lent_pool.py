"""A device pool in memory that the engine lends: blocks lie there and nowhere else, and the engine keeps its memory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from tests.payload import TIMEOUT_SECONDS, block_hash, get, namespace, payload, rows, small_store
from tierstore.config import StoreConfig
from tierstore.errors import ConfigError, DeviceError, LayoutError
from tierstore.store import Store

if TYPE_CHECKING:
    from tierstore.types import UInt8Array

BLOCKS = [block_hash(number) for number in range(6)]
ALWAYS: dict[str, Any] = {"device_pool_admission": "always"}
POOL_NBYTES = 2 << 20


def held(memory: UInt8Array) -> int:
    """How many of the blocks lie whole at some page of it."""
    return sum(memory.tobytes().find(payload(number, 8192).tobytes()) % 4096 == 0 for number in range(6))


@pytest.mark.parametrize("as_torch", [False, True])
def test_blocks_lie_in_lent_memory(*, as_torch: bool) -> None:
    memory = np.zeros(POOL_NBYTES + 100, np.uint8)
    lent = torch.from_numpy(memory[: POOL_NBYTES + 64].view(np.uint16)).reshape(-1, 8) if as_torch else memory
    with small_store(device_pool=lent, **ALWAYS) as store:
        handle = store.namespace(namespace())
        assert handle.put(BLOCKS, rows(range(6), 8192)).result(TIMEOUT_SECONDS).ok
        assert get(handle, BLOCKS, rows(range(6), 8192)).ok
        assert store.flush().result(TIMEOUT_SECONDS).ok
        assert store.metrics()['tierstore_hit_blocks_total{tier="device-pool"}'] == 6
    assert held(memory) == 6
    assert not memory[POOL_NBYTES:].any(), "whole pages alone"


def test_two_stores_in_turn_find_nothing_of_each_other_in_lent_memory(tmp_path: Path) -> None:
    memory = np.zeros(POOL_NBYTES, np.uint8)
    for first in (0, 6):
        with small_store(device_pool=memory, **ALWAYS) as store:
            handle = store.namespace(namespace())
            assert handle.lookup(BLOCKS) == 0
            assert handle.put(BLOCKS, rows(range(first, first + 6), 8192)).result(TIMEOUT_SECONDS).ok
            assert get(handle, BLOCKS, rows(range(first, first + 6), 8192)).ok


def read_only(memory: UInt8Array) -> UInt8Array:
    memory.flags.writeable = False
    return memory


@pytest.mark.parametrize(
    ("lent", "settings", "kind", "said"),
    [
        (np.zeros((64, 64 << 10), np.uint8)[:, :4096], {}, LayoutError, "lend a contiguous tensor"),
        (read_only(np.zeros(POOL_NBYTES, np.uint8)), {}, LayoutError, "may be written to"),
        (b"bytes", {}, LayoutError, "pass a numpy array or a torch tensor"),
        (torch.empty(POOL_NBYTES, device="meta"), {}, DeviceError, "is on meta; lend the store memory of its device"),
        (np.zeros(4096, np.uint8), {}, ConfigError, r"size is 4 KiB, .* at least 16 KiB$"),
        (np.zeros(POOL_NBYTES, np.uint8), {"device_pool_size": "2 MiB"}, ConfigError, "set the other to 0"),
    ],
)
def test_memory_that_can_be_no_pool_is_refused(
    lent: object, settings: dict[str, object], kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind, match=said):
        Store(StoreConfig.load(overrides={"host_size": "1 MiB"} | settings), device_pool=lent)
