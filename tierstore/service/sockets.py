"""Unix socket paths: only their owner can use them, and a live server's path is never taken over."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tierstore.errors import ConfigError

__all__ = ["UNIX", "clear_way", "own_path", "private_mode", "unlink_socket"]

UNIX = "unix:"
"""Begins an address that is a path."""

_PROBE_SECONDS = 1.0
_PATH_BYTES_MAX = 107
"""Room of sun_path in unix(7), less the byte that ends it."""


@contextmanager
def private_mode() -> Iterator[None]:
    """What is bound meanwhile has mode 0600 from its first moment on. For the whole process, so be brief."""
    previous = os.umask(0o177)
    try:
        yield
    finally:
        os.umask(previous)


def clear_way(path: str) -> None:
    """Remove a socket that a server left behind. Blocks briefly.

    Raises:
        ConfigError: A server listens on it, or it is something else, or its folder is not there, or it is too long.
    """
    file = Path(path)
    if len(os.fsencode(path)) > _PATH_BYTES_MAX:
        raise ConfigError(f"{path} is too long for a socket: give a path of at most {_PATH_BYTES_MAX} bytes")
    if not file.parent.is_dir():
        raise ConfigError(f"{path} cannot be made: there is no folder {file.parent}; make it, or give another path")
    if not file.exists():
        return
    if not file.is_socket():
        raise ConfigError(f"{path} exists and is no socket; give another path")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(_PROBE_SECONDS)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            file.unlink()
            return
        except OSError as error:
            raise ConfigError(f"{path} cannot be used: {error.strerror or error}; give another path") from error
    raise ConfigError(f"a live server listens on {path}; stop it, or give another path")


def unlink_socket(path: str) -> None:
    """Remove one's own socket, if it is still there."""
    Path(path).unlink(missing_ok=True)


def own_path() -> str:
    """Where a service of this user listens if nothing else is said; its folder is made, for this user alone.

    Raises:
        ConfigError: Somebody else's folder is there.
    """
    user = os.getuid()
    runtime = Path(f"/run/user/{user}")
    if runtime.is_dir():
        return str(runtime / "tierstore.sock")
    folder = Path(f"/tmp/tierstore-{user}")
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if found.st_uid != user or found.st_mode & 0o077 or not stat.S_ISDIR(found.st_mode):
        raise ConfigError(f"{folder} is not this user's alone; remove it, or give --listen unix:/path")
    return str(folder / "tierstore.sock")
