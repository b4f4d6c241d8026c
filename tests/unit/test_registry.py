"""Names to implementations, through the entry points of installed packages."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

from tierstore import registry
from tierstore.errors import ConfigError

Install: TypeAlias = Callable[[str, str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Puts a package with one codec on the path: ``install("shrink", "json:loads")``."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def add(name: str, value: str) -> None:
        package = f"codec{len(list(tmp_path.iterdir()))}"
        folder = tmp_path / f"{package}-1.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1\n")
        (folder / "entry_points.txt").write_text(f"[tierstore.codecs]\n{name} = {value}\n")

    registry._found.cache_clear()
    yield add
    registry._found.cache_clear()


def test_names_are_sorted_and_loaded_by_name(install: Install) -> None:
    install("zip", "zlib:compress")
    install("also", "json:dumps")
    found = registry.names("codecs")
    assert found == sorted(found)
    assert {"also", "zip"} <= set(found)
    assert registry.load("codecs", "zip") is __import__("zlib").compress


def test_an_unknown_name_is_told_the_nearest(install: Install) -> None:
    install("shrink", "zlib:compress")
    with pytest.raises(ConfigError, match=r"'shrnik' is not one of the codecs; did you mean shrink\?"):
        registry.load("codecs", "shrnik")


def test_a_name_unlike_all_is_told_what_is_known(install: Install) -> None:
    install("shrink", "zlib:compress")
    with pytest.raises(ConfigError, match=r"known are .*shrink"):
        registry.load("codecs", "0")


@pytest.mark.parametrize("value", ["no_such_module:Codec", "zlib:NoSuchCodec"])
def test_what_cannot_be_imported_says_where_it_should_come_from(install: Install, value: str) -> None:
    install("shrink", value)
    with pytest.raises(ConfigError, match=f"'shrink' of the codecs cannot be loaded from {value}"):
        registry.load("codecs", "shrink")


def test_a_name_that_two_packages_claim_is_an_error(install: Install) -> None:
    install("shrink", "zlib:compress")
    install("shrink", "bz2:compress")
    with pytest.raises(ConfigError, match=r"'shrink' of the codecs is both .*uninstall"):
        registry.names("codecs")


def test_a_kind_that_is_none_is_refused() -> None:
    with pytest.raises(AssertionError, match="there are no gadgets; kinds are devices"):
        registry.names("gadgets")  # type: ignore[arg-type]


def test_an_import_of_it_loads_no_implementation() -> None:
    program = "import sys, tierstore.registry as r; r.names('policies'); print('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=True, capture_output=True).stdout == b"False\n"
