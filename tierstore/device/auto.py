"""Chooses the device for ``device.name = "auto"``: the GPU if one can be used, else the CPU.

Loaded by the registry. If a GPU cannot be used, the reason is logged.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from tierstore.device.cpu import CpuDevice
from tierstore.errors import DeviceError

if TYPE_CHECKING:
    from tierstore.device.base import Device

__all__ = ["open_device"]

_logger = logging.getLogger(__name__)


def open_device() -> Device:
    """The GPU that torch has as its current one, or the CPU, with a warning that says why."""
    from tierstore.device import cuda

    try:
        return cuda.open_device()
    except DeviceError as error:
        _logger.warning("blocks are copied from and to memory of the CPU alone: %s", error)
        return CpuDevice()
