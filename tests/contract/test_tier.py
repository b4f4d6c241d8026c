"""The SSD tier keeps the contract of its seam, on the simulated disk and on a real one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tierstore.codec.lz4 import Lz4Codec
from tierstore.disk.posix import PosixDisk
from tierstore.testing.contracts.tier import TierContract
from tierstore.testing.ssd_world import SsdWorld


class TestSsdTierOnSimDisk(TierContract):
    @pytest.fixture
    def world(self) -> Iterator[SsdWorld]:
        world = SsdWorld()
        yield world
        world.kill()


class TestSsdTierThatEncodes(TierContract):
    @pytest.fixture
    def world(self) -> Iterator[SsdWorld]:
        world = SsdWorld(codec=Lz4Codec())
        yield world
        world.kill()


class TestSsdTierOnPosixDisk(TierContract):
    @pytest.fixture
    def world(self, tmp_path: Path) -> Iterator[SsdWorld]:
        world = SsdWorld(disk=PosixDisk(str(tmp_path / "root")))
        yield world
        world.kill()
