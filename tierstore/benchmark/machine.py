"""Describes this machine in a few plain values. Called by the benchmark's report and by `tierstore doctor`.

Reads /proc and /sys, and asks the C library's loader. Values that a machine does not tell are left out, never guessed.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path

import tierstore

__all__ = ["cpu_name", "describe_machine", "file_system", "huge_pages", "num_cpus", "uncached_copy_nbytes"]

_UNCACHED = "glibc.cpu.x86_non_temporal_threshold:"


def describe_machine(folder: Path) -> dict[str, object]:
    """Processor, memory, kernel, versions and the file system under `folder`."""
    memory = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text("ascii").splitlines())
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "tierstore": tierstore.__version__,
        "cpu": cpu_name(),
        "num_cpus": num_cpus(),
        "memory_nbytes": int(memory["MemTotal"].split()[0]) * 1024,
        "memory_available_nbytes": int(memory["MemAvailable"].split()[0]) * 1024,
        "load_average": round(os.getloadavg()[0], 2),
        "kernel": platform.release(),
        "huge_pages": huge_pages(shared=False),
        "uncached_copy_nbytes": uncached_copy_nbytes(),
        "python": platform.python_version(),
        "numpy": _version("numpy"),
        "torch": _version("torch"),
        "file_system": file_system(folder),
    }


def file_system(folder: Path) -> str:
    """Type and source of the file system that holds `folder`, such as ``"ext4 on /dev/nvme0n1"``."""
    best, name = "", "unknown"
    target = str(folder.resolve())
    for line in Path("/proc/self/mounts").read_text("utf-8").splitlines():
        source, mount, kind = line.split()[:3]
        if len(mount) >= len(best) and Path(target).is_relative_to(mount):
            best, name = mount, f"{kind} on {source}"
    return name


def huge_pages(*, shared: bool) -> str:
    """When the kernel gives memory huge pages that asks for them, such as ``"never"`` or ``"madvise"``."""
    name = "shmem_enabled" if shared else "enabled"
    try:
        modes = Path("/sys/kernel/mm/transparent_hugepage", name).read_text("ascii")
    except OSError:
        return "never"
    return modes.partition("[")[2].partition("]")[0]


def uncached_copy_nbytes() -> int | None:
    """From how many bytes on memcpy(3) goes past the processor's caches; None where the C library does not say."""
    mapped = (line.split()[-1] for line in Path("/proc/self/maps").read_text("utf-8").splitlines())
    loader = next((path for path in mapped if Path(path).name.startswith("ld-linux-")), None)
    if loader is None:
        return None
    try:
        told = subprocess.run(
            [loader, "--list-tunables"], capture_output=True, text=True, timeout=10, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    line = next((line for line in told.splitlines() if line.startswith(_UNCACHED)), None)
    return None if line is None else int(line.split()[1], 16)


def num_cpus() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0))


def cpu_name() -> str:
    """The processor's name, or its architecture where it has none."""
    for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
