"""What a fork of a process with an open store must not keep, and what it must not do.

A forked child inherits descriptors, but no threads. Those of the owner's lock, its pool and its chunk files would
keep the folder locked, the memory taken and deleted files on the disk for as long as the child lives, after the
owner's end too; so they are closed in the child before it runs on. Called by whoever opens such a descriptor. The
set of them is the one thing that this package knows for the whole process, as a fork copies the whole process.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING
from weakref import WeakSet

from tierstore.errors import ForkError

if TYPE_CHECKING:
    import socket

__all__ = ["check_owner", "close", "keep_from_children", "keep_socket_from_children"]

_numbers: set[int] = set()
_sockets: WeakSet[socket.socket] = WeakSet()


def keep_from_children(number: int) -> None:
    """Close a descriptor in every child that is forked from now on. To be closed here by `close`."""
    _numbers.add(number)


def keep_socket_from_children(listener: socket.socket) -> None:
    """Close a socket in every child that is forked from now on, so that its address is free when this process ends.

    Whoever closes it here needs to say nothing more: the object knows that it is closed, in the child too.
    """
    _sockets.add(listener)


def close(number: int) -> None:
    """Close a descriptor that was kept from children; in a child, where that has been done, nothing happens."""
    if number in _numbers:
        _numbers.discard(number)  # first: a child of this moment keeps it rather than close another file
        os.close(number)


def check_owner(owner_pid: int) -> None:
    """Raise ForkError where this process is a fork of the one that opened the store."""
    if os.getpid() != owner_pid:
        raise ForkError(
            f"the store belongs to process {owner_pid}, of which this one ({os.getpid()}) is a fork, without its "
            "threads and its memory; use it there, or open a store of this process's own, on another folder"
        )


def _let_go() -> None:
    for number in _numbers:
        with suppress(OSError):
            os.close(number)
    _numbers.clear()
    for listener in _sockets:
        listener.close()


os.register_at_fork(after_in_child=_let_go)
