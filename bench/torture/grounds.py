"""The folder of a store as its neighbours on the machine see it: a real one, or that of a simulated disk.

Called by `damage` and by whoever runs lives, between two of them or beside one. Knows files, and nothing of what a
store makes of them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from bench.torture.blocks import records_in

if TYPE_CHECKING:
    from bench.torture.blocks import Record
    from tierstore.testing.sim_disk import SimDisk

__all__ = ["Ground", "RealGround", "SimGround"]


class Ground(Protocol):
    """A folder and what can be done to the files in it. Paths are relative, joined by ``/``."""

    def files(self) -> list[str]:
        """Every regular file, sorted."""

    def read(self, path: str) -> bytes:
        """The bytes of a file."""

    def write(self, path: str, contents: bytes) -> None:
        """Put other bytes into a file that is there."""

    def make(self, path: str, contents: bytes) -> None:
        """Leave a file, in place of another or where there was none."""

    def remove(self, path: str, *, folder: bool) -> None:
        """Remove a file; with `folder`, leave a folder in its place."""

    def hide(self, path: str) -> None:
        """Make a file unreadable until `reveal`."""

    def reveal(self) -> None:
        """Make every hidden file readable again."""

    def hidden_records(self) -> list[Record]:
        """The intact records of the hidden files."""


class RealGround:
    """A folder of the file system. For a user whom modes do not stop, a link that leads nowhere hides a file."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._hidden: list[tuple[Path, Path]] = []

    def files(self) -> list[str]:
        """Every regular file, sorted."""
        hidden = {place for place, _ in self._hidden}
        found = (Path(folder, name) for folder, _, names in os.walk(self._root) for name in names)
        return sorted(path.relative_to(self._root).as_posix() for path in found if path not in hidden)

    def read(self, path: str) -> bytes:
        """The bytes of a file."""
        return (self._root / path).read_bytes()

    def write(self, path: str, contents: bytes) -> None:
        """Put other bytes into a file that is there."""
        with (self._root / path).open("r+b") as file:
            file.truncate(len(contents))
            file.write(contents)

    def make(self, path: str, contents: bytes) -> None:
        """Leave a file, in place of another or where there was none."""
        (self._root / path).write_bytes(contents)

    def remove(self, path: str, *, folder: bool) -> None:
        """Remove a file; with `folder`, leave a folder in its place."""
        (self._root / path).unlink()
        if folder:
            (self._root / path).mkdir()

    def hide(self, path: str) -> None:
        """Make a file unreadable until `reveal`."""
        place = self._root / path
        if os.geteuid():
            place.chmod(0)
            self._hidden.append((place, place))
            return
        aside = self._root.parent / f"hidden-{len(self._hidden)}-{place.name}"
        place.rename(aside)
        place.symlink_to("nowhere")
        self._hidden.append((place, aside))

    def reveal(self) -> None:
        """Make every hidden file readable again."""
        for place, aside in self._hidden:
            if place == aside:
                place.chmod(0o600)
            elif place.is_symlink():
                aside.replace(place)
            else:
                aside.unlink()
        self._hidden.clear()

    def hidden_records(self) -> list[Record]:
        """The intact records of the hidden files."""
        return [record for _, aside in self._hidden for record in records_in(_readable(aside))]


class SimGround:
    """The folder of a simulated disk.

    Attributes:
        hidden: Files that the next life cannot open.
    """

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk
        self.hidden: set[str] = set()

    def files(self) -> list[str]:
        """Every file, sorted."""
        return sorted(set(self._files("")) - self.hidden)

    def _files(self, folder: str) -> list[str]:
        found: list[str] = []
        for entry in self._disk.look(folder).entries:
            path = f"{folder}/{entry.name}".lstrip("/")
            found += self._files(path) if entry.is_folder else [path]
        return found

    def read(self, path: str) -> bytes:
        """The bytes of a file."""
        return self._disk.contents(path)

    def write(self, path: str, contents: bytes) -> None:
        """Put other bytes into a file that is there."""
        self._disk.replace(path, contents)

    def make(self, path: str, contents: bytes) -> None:
        """Leave a file, in place of another or where there was none."""
        if path not in self._files(""):
            self._disk.create(path, len(contents)).close()
        self._disk.replace(path, contents)

    def remove(self, path: str, *, folder: bool) -> None:
        """Remove a file; with `folder`, leave a folder in its place."""
        self._disk.remove(path)
        if folder:
            self._disk.create(f"{path}/thing", 0).close()

    def hide(self, path: str) -> None:
        """Make a file unreadable until `reveal`."""
        self.hidden.add(path)

    def reveal(self) -> None:
        """Make every hidden file readable again."""
        self.hidden.clear()

    def hidden_records(self) -> list[Record]:
        """The intact records of the hidden files."""
        return [record for path in sorted(self.hidden) for record in records_in(self._disk.contents(path))]


def _readable(place: Path) -> bytes:
    """The bytes of a file of our own whatever its mode."""
    mode = place.stat().st_mode
    place.chmod(0o600)
    try:
        return place.read_bytes()
    finally:
        place.chmod(mode)
