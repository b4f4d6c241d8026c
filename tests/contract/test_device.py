"""Every registered device keeps its contract, and so does the simulated one."""

from __future__ import annotations

from typing import cast

import pytest

from tierstore.device.base import Device
from tierstore.device.copying import PRIMITIVES
from tierstore.device.cpu import CpuDevice
from tierstore.registry import load, names
from tierstore.testing.contracts.device import DeviceContract
from tierstore.testing.sim_device import SimDevice

HOST_DEVICES = [name for name in names("devices") if name != "cuda"]


@pytest.fixture(scope="module", params=[*HOST_DEVICES, "sim", *(f"cpu by {name}" for name in PRIMITIVES)])
def device(request: pytest.FixtureRequest) -> Device:
    if request.param == "sim":
        return SimDevice()
    if request.param.startswith("cpu by "):
        return CpuDevice(PRIMITIVES[request.param.removeprefix("cpu by ")])
    return cast(Device, load("devices", request.param)())


class TestDevices(DeviceContract): ...


def test_the_built_in_device_is_registered() -> None:
    assert "cpu" in names("devices")
