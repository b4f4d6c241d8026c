"""Every registered device keeps its contract, and so does the simulated one."""

from __future__ import annotations

from contextlib import closing
from typing import cast

import numpy as np
import pytest
import torch

from tierstore.device.base import Device
from tierstore.device.copying import PRIMITIVES
from tierstore.device.cpu import CpuDevice
from tierstore.device.paging import bind_rows
from tierstore.errors import DeviceError
from tierstore.registry import load, names
from tierstore.testing.contracts.device import DeviceContract
from tierstore.testing.contracts.paged_cache import PagedCacheContract
from tierstore.testing.sim_device import SimDevice
from tierstore.types import PAGE_NBYTES

HOST_DEVICES = [name for name in names("devices") if name not in {"auto", "cuda"}]


@pytest.fixture(scope="module", params=[*HOST_DEVICES, "sim", *(f"cpu by {name}" for name in PRIMITIVES)])
def device(request: pytest.FixtureRequest) -> Device:
    if request.param == "sim":
        return SimDevice()
    if request.param.startswith("cpu by "):
        return CpuDevice(PRIMITIVES[request.param.removeprefix("cpu by ")])
    return cast(Device, load("devices", request.param)())


class TestDevices(DeviceContract): ...


class TestPagedCaches(PagedCacheContract): ...


def test_a_cache_of_another_device_is_refused_before_a_byte_moves(device: Device) -> None:
    kv = bind_rows(torch.zeros((2, 64), dtype=torch.uint8, device="meta"), 64)
    host, slots, block_ids = np.zeros(PAGE_NBYTES, np.uint8), np.zeros(1, np.int32), np.zeros((1, 1), np.int64)
    with closing(device.new_stream("test")) as stream:
        for copy in (device.load, device.store):
            with pytest.raises(DeviceError, match=r"uint8\[2, 64\] is on meta; this device copies memory of"):
                copy(host, slots, kv, block_ids, stream)


def test_the_built_in_device_is_registered() -> None:
    assert "cpu" in names("devices")
