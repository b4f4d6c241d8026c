"""A kvikio of plain calls, which remembers what it was asked: reads land at addresses of host memory."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any, Self

import pytest

__all__ = ["RecordingKvikio"]


class _File:
    def __init__(self, package: RecordingKvikio, path: str, flags: str) -> None:
        assert flags == "r", f"opened for {flags!r}"
        before, package.before_open = package.before_open, lambda: None
        before()
        self._package = package
        try:
            self._number = os.open(path, os.O_RDONLY)
        except OSError as error:  # as the library does
            raise RuntimeError(f"Unable to open file. {error.strerror}") from None
        package.opened.append(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._number)
        self._package.num_closed += 1
        self._package.closed.set()

    def pread(self, buffer: object, size: int, file_offset: int) -> SimpleNamespace:
        interfaces = [name for name in ("__cuda_array_interface__", "__array_interface__") if hasattr(buffer, name)]
        assert len(interfaces) == 1, f"memory with {interfaces}"
        described = getattr(buffer, interfaces[0])
        assert (described["shape"], described["typestr"]) == ((size,), "|u1")
        address = described["data"][0]
        assert not (size | file_offset) % 4096, "not what GPUDirect Storage moves by itself"
        self._package.reads.append((interfaces[0], file_offset, size))
        return SimpleNamespace(get=lambda: self._package.move(self._number, address, size, file_offset))


class RecordingKvikio:
    """What ``import kvikio`` finds.

    Attributes:
        opened: Paths, in order.
        num_closed: Files closed again.
        reads: (interface, position, bytes) of each.
        failing: Reads from now on that fail.
        short: Whether reads lose their last page.
        closed: A file was closed.
        compatible: Whether there is no GPUDirect Storage.
        before_open: Called once, before the next file is opened.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened: list[str] = []
        self.num_closed = 0
        self.reads: list[tuple[str, int, int]] = []
        self.failing = 0
        self.short = False
        self.compatible = False
        self.closed = threading.Event()
        self.before_open: Callable[[], object] = lambda: None
        package: Any = ModuleType("kvikio")
        package.CuFile = lambda path, flags: _File(self, path, flags)
        package.defaults = SimpleNamespace(is_compat_mode_preferred=lambda: self.compatible)
        package.cufile_driver = SimpleNamespace(get=lambda name: {"is_gds_available": not self.compatible}[name])
        for name, module in (("", package), (".defaults", package.defaults), (".cufile_driver", package.cufile_driver)):
            monkeypatch.setitem(sys.modules, f"kvikio{name}", module)

    def move(self, number: int, address: int, size: int, file_offset: int) -> int:
        if self.failing:
            self.failing -= 1
            raise RuntimeError("KvikIO failure")
        size -= 4096 * self.short
        found = os.pread(number, size, file_offset)
        ctypes.memmove(address, found, len(found))
        return len(found)
