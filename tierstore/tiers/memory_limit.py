"""How much memory this process may still take, and what sets that bound.

Called by the host pool before it takes memory. A pool that is too large is refused with the numbers, instead of
the kernel killing the engine later. Reads the kernel's own files; takes nothing.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tierstore.errors import MemoryLimitError
from tierstore.settings import format_size

__all__ = ["MemoryLimit", "check_memory", "find_limits"]


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """One bound on memory.

    Attributes:
        name: Where a person finds it, such as ``"the cgroup limit /sys/fs/cgroup/memory.max"``.
        free_nbytes: What it still leaves; never negative.
    """

    name: str
    free_nbytes: int


def check_memory(nbytes: int, root: Path = Path("/")) -> None:
    """Refuse a pool that the tightest limit does not leave room for. Blocks for a few file reads.

    /dev/shm is no limit: an anonymous shared file lies in no mounted file system.

    Args:
        nbytes: What the pool would take.
        root: Where ``proc`` and ``sys`` are found.

    Raises:
        MemoryLimitError: Names the bytes asked, the bytes free, the limit and the setting.
    """
    limits = find_limits(root)
    if not limits:
        return
    tightest = min(limits, key=lambda limit: limit.free_nbytes)
    if nbytes > tightest.free_nbytes:
        raise MemoryLimitError(
            f"a host pool of {format_size(nbytes)} does not fit: {tightest.name} leaves {tightest.free_nbytes} bytes; "
            "lower [host] size, or raise the limit"
        )


def find_limits(root: Path = Path("/")) -> list[MemoryLimit]:
    """Every limit that holds for this process: the machine's, its cgroups' and its address space's. Blocks."""
    return [*_find_machine(root), *_find_cgroups(root), *_find_address_space(root)]


def _find_machine(root: Path) -> Iterator[MemoryLimit]:
    for line in (_read(root / "proc/meminfo") or "").splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            yield MemoryLimit("MemAvailable of /proc/meminfo", int(value.split()[0]) * 1024)


def _find_address_space(root: Path) -> Iterator[MemoryLimit]:
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    statm = _read(root / "proc/self/statm")
    if limit != resource.RLIM_INFINITY and statm:
        used = int(statm.split()[0]) * resource.getpagesize()
        yield MemoryLimit("RLIMIT_AS (ulimit -v)", max(limit - used, 0))


def _find_cgroups(root: Path) -> Iterator[MemoryLimit]:
    """Limits of the process's memory cgroup and of all above it; each may be the tightest."""
    mount = root / "sys/fs/cgroup"
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            yield from _find_above(mount, path, ("memory.max", "memory.current", "inactive_file"))
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            yield from _find_above(mount / "memory", path, names)


def _find_above(mount: Path, path: str, names: tuple[str, str, str]) -> Iterator[MemoryLimit]:
    """Walk from a cgroup up to its mount. Inside a container the path may not exist there; the mount does."""
    limit_name, usage_name, reclaimable_name = names
    inner = mount / path.lstrip("/")
    for folder in (inner, *inner.parents):
        limit, usage = _read(folder / limit_name), _read(folder / usage_name)
        if limit and usage and limit.strip() != "max":
            stat = dict(line.split(maxsplit=1) for line in (_read(folder / "memory.stat") or "").splitlines())
            used = int(usage) - int(stat.get(reclaimable_name, 0))  # the kernel drops cached files before it kills
            yield MemoryLimit(f"the cgroup limit {folder / limit_name}", max(int(limit) - max(used, 0), 0))
        if folder == mount:
            return


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None
