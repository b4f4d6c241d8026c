"""Every disk keeps the contract of its seam."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from tierstore.disk.base import Disk
from tierstore.disk.bounded import BoundedDisk
from tierstore.disk.posix import PosixDisk
from tierstore.disk.watched import WatchedDisk
from tierstore.registry import load, names
from tierstore.testing.contracts.disk import DiskContract
from tierstore.testing.sim_disk import SimDisk


class TestRegisteredDisks(DiskContract):
    @pytest.fixture(params=names("disks"))
    def disk(self, tmp_path: Path, request: pytest.FixtureRequest) -> Disk:
        return cast(Disk, load("disks", request.param)(str(tmp_path / "root")))


class TestPosixDiskInThePageCache(DiskContract):
    @pytest.fixture
    def disk(self, tmp_path: Path) -> Disk:
        disk = PosixDisk(str(tmp_path / "root"))
        disk.direct = False
        return disk


class TestSimDisk(DiskContract):
    @pytest.fixture
    def disk(self) -> Disk:
        return SimDisk()


class TestBoundedDisk(DiskContract):
    @pytest.fixture(params=[1, 100])
    def disk(self, tmp_path: Path, request: pytest.FixtureRequest) -> Disk:
        return BoundedDisk(PosixDisk(str(tmp_path / "root")), request.param)


class TestBoundedSimDisk(DiskContract):
    @pytest.fixture
    def disk(self) -> Disk:
        return BoundedDisk(SimDisk(), 1)


class TestWatchedSimDisk(DiskContract):
    @pytest.fixture
    def disk(self) -> Disk:
        return WatchedDisk(SimDisk())


def test_the_built_in_disk_is_registered() -> None:
    assert "posix" in names("disks")
