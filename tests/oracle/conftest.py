"""A real folder for the tests with Zarr as the oracle, and the one warning that Zarr must give there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.zarr_folder import ZarrFolder


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[ZarrFolder]:
    folder = ZarrFolder(tmp_path / "root")
    yield folder
    folder.world.kill()
