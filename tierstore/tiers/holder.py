"""Who owns a folder: the text that an owner writes into LOCK, and how it is shown to another opener.

Called by the manifest alone. The text is advice for people; only the kernel's lock says whether a folder is owned.
The text may stem from an earlier owner, an earlier boot or another machine.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

__all__ = ["describe_holder", "this_holder"]

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def this_holder(store_uuid: str) -> bytes:
    """This process, as the owner of a store: a line of JSON."""
    holder = {
        "store": store_uuid,
        "pid": os.getpid(),
        "host": os.uname().nodename,
        "boot": _boot_id(),
        "since": int(time.time()),
    }
    return json.dumps(holder).encode() + b"\n"


def describe_holder(text: str) -> str:
    """Describe the text of a held LOCK for a person: who holds it, since when, and whether that can be true."""
    try:
        fields = json.loads(text)
        pid, host, boot, since = int(fields["pid"]), str(fields["host"]), str(fields["boot"]), int(fields["since"])
        when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(since))
    except (ValueError, KeyError, TypeError, OverflowError):
        return text or "it did not say who it is"
    return f"pid {pid}{_doubt(pid, boot)}, on host {host}, since {when}"


def _doubt(pid: int, boot: str) -> str:
    """What more is known of a process: its name, or why there is none of that number."""
    if boot != _boot_id():
        return " of another boot: it runs on a machine that shares the folder, or has not said yet who it is"
    if pid == os.getpid():
        return ": this very process"
    try:
        name = Path(f"/proc/{pid}/comm").read_text("utf-8", "replace").strip()
    except OSError:
        return ", which is not seen from here: it runs in another container, or a child of it lives on"
    return f" ({name})"


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except OSError:
        return "unknown"
