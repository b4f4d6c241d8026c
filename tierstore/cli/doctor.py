"""`tierstore doctor`: shows on one screen what this machine offers and how the store would use it.

Starts no store and takes no memory. Exits 1 if something that a store needs is missing. Anything that only slows it
down is reported, without an effect on the exit code.
"""

from __future__ import annotations

import importlib.metadata
import resource
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import click

from tierstore.config import HostConfig, SsdConfig, StoreConfig
from tierstore.errors import DiskError, FolderError, FolderFormatError, MemoryLimitError, NoDeviceError, TierstoreError
from tierstore.settings import format_size

__all__ = ["command"]

_PACKAGES = ("numpy", "torch", "zarr", "crc32c", "numcodecs")

_COPY_NBYTES = 2 << 20
"""A usual block. Copied through the caches, what it is written over is read first, and what is there is lost."""

_UNCACHED_COPIES = (
    "blocks are copied more slowly than they could be: start engines and tierstore serve with "
    "GLIBC_TUNABLES=glibc.cpu.x86_non_temporal_threshold=0x100000"
)

_HUGE_PAGES = {
    "private": "copies and direct I/O are slower: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
    "shared": "copies and direct I/O are slower: echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled",
}


@dataclass(frozen=True, slots=True)
class _Finding:
    """One line: what was checked, what was found, and what to do if something is wrong.

    `fatal` if a store cannot run, `lossy` if it does not keep every byte.
    """

    what: str
    found: str
    advice: str = ""
    fatal: bool = False
    lossy: bool = False


@click.command("doctor")
@click.option("--config", "path", type=click.Path(path_type=Path), help="TOML file to read.")
@click.option("--ssd-dir", type=click.Path(path_type=Path), help="Folder to look at.  [default: the setting's, or .]")
@click.option("--host-size", metavar="SIZE", help="Pool to judge memory by.  [default: the setting's]")
def command(path: Path | None, ssd_dir: Path | None, host_size: str | None) -> None:
    """Say what this machine offers and what is missing."""
    config = StoreConfig.load(path, overrides={"host.size": host_size, "ssd.dir": ssd_dir})
    findings = [
        *_packages(),
        *_memory(config.host),
        _gpu(config.device.name),
        _folder(Path(config.ssd.dir or ".")),
        *_floor(Path(config.ssd.dir or "."), config.ssd),
        *(_direct_reads(config.ssd.dir or ".") if config.device.direct_reads else ()),
        *_lossy(Path(config.ssd.dir or ".")),
    ]
    width = max(len(finding.what) for finding in findings)
    for finding in findings:
        mark = "FAIL" if finding.fatal else "LOSS" if finding.lossy else "slow" if finding.advice else "ok"
        click.echo(f"{mark:4}  {finding.what:{width}}  {finding.found}")
        if finding.advice:
            click.echo(f"      {'':{width}}  -> {finding.advice}")
    if any(finding.fatal for finding in findings):
        click.echo("tierstore: this machine cannot run a store with these settings; see FAIL above", err=True)
        sys.exit(1)


def _packages() -> Iterator[_Finding]:
    yield _Finding("python", sys.version.split()[0])
    for name in _PACKAGES:
        try:
            yield _Finding(name, importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            yield _Finding(name, "not installed", f"install {name}", fatal=True)
    try:
        yield _Finding("grpc", importlib.metadata.version("grpcio"))
    except importlib.metadata.PackageNotFoundError:
        yield _Finding("grpc", "not installed: no tierstore serve, no tierstore.client; install tierstore[grpc]")


def _memory(host: HostConfig) -> Iterator[_Finding]:
    from tierstore.benchmark.machine import cpu_name, huge_pages, num_cpus, uncached_copy_nbytes
    from tierstore.tiers.memory_limit import check_memory, find_limits

    yield _Finding("processor", f"{cpu_name()}, {num_cpus()} of its cores for this process")
    try:
        check_memory(host.size)
        free_nbytes = min(limit.free_nbytes for limit in find_limits())
        yield _Finding("memory", f"{_rounded(free_nbytes)} free; the pool asks for {format_size(host.size)}")
    except MemoryLimitError as error:
        yield _Finding("memory", str(error), "set [host] size lower, or raise that limit", fatal=True)
    for shared in (False, True) if host.shared is None else (host.shared,):  # auto: as a service has it, too
        mode, kind = huge_pages(shared=shared), "shared" if shared else "private"
        advice = _HUGE_PAGES[kind] if mode in {"never", "deny"} else ""
        yield _Finding("huge pages", f"{mode}, for {kind} memory{', as a service has' if shared else ''}", advice)
    if (uncached_nbytes := uncached_copy_nbytes()) is not None:
        advice = _UNCACHED_COPIES if uncached_nbytes > _COPY_NBYTES else ""
        yield _Finding("copies", f"past the caches from {uncached_nbytes / (1 << 20):.1f} MiB on", advice)
    memlock, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if memlock == resource.RLIM_INFINITY:
        yield _Finding("memlock", "unlimited")
    else:
        advice = "a GPU cannot pin the pool; raise it with ulimit -l" if memlock < host.size else ""
        yield _Finding("memlock", format_size(memlock), advice)


def _gpu(device: str) -> _Finding:
    """The GPU. A missing GPU is a fault only if the settings ask for one."""
    from tierstore.device import cuda

    try:
        return _Finding("gpu", cuda.describe_gpu())
    except NoDeviceError as error:
        return _Finding(
            "gpu",
            f"none used: {error}",
            'set [device] name to "auto" or "cpu"' if device == "cuda" else "",
            fatal=device == "cuda",
        )


def _folder(folder: Path) -> _Finding:
    from tierstore.benchmark.machine import file_system
    from tierstore.disk.posix import PosixDisk
    from tierstore.tiers.manifest import read_manifest

    what = f"ssd {folder}"
    if not folder.exists() and folder.parent.is_dir():
        parent = _folder(folder.parent)
        return replace(parent, what=what, found=f"no such folder yet; where it will be made: {parent.found}")
    if not folder.is_dir():
        return _Finding(what, "no folder, nor can one be made there", "set [ssd] dir to another one", fatal=True)
    try:
        disk = PosixDisk(str(folder))
        free = _rounded(disk.look("").free_nbytes)
        read_manifest(disk)
    except FolderFormatError as error:
        found, _, advice = str(error).partition("; ")
        return _Finding(what, found, advice, fatal=True)
    except (FolderError, DiskError) as error:
        return _Finding(what, str(error), "set [ssd] dir to a folder that can be written", fatal=True)
    system = file_system(folder)
    found = f"{system}, {free} free, {'direct I/O' if disk.direct else 'no direct I/O'}"
    if system.startswith("tmpfs"):
        return _Finding(what, found, "this is memory and ends with the machine; use a folder on an SSD")
    return _Finding(what, found, "" if disk.direct else "use a local file system with O_DIRECT, such as ext4 or xfs")


def _floor(folder: Path, ssd: SsdConfig) -> Iterator[_Finding]:
    """Findings if the file system has less free than the store must leave free, or than its chunk files need."""
    from tierstore.tiers.space import default_file_nbytes

    floor_nbytes, file_nbytes = ssd.free_floor, ssd.file_size or default_file_nbytes(ssd.size)
    place = folder if folder.is_dir() else folder.parent
    free_nbytes = shutil.disk_usage(place).free if place.is_dir() else floor_nbytes
    if free_nbytes < floor_nbytes:
        yield _Finding(
            "ssd space",
            f"{_rounded(free_nbytes)} free, less than the {format_size(floor_nbytes)} that [ssd] free_floor keeps",
            "nothing would be written there: make room, or set [ssd] free_floor lower",
        )
    elif free_nbytes < floor_nbytes + 2 * file_nbytes and not _has_chunk_files(folder):
        yield _Finding(
            "ssd space",
            f"{_rounded(free_nbytes)} free: too little for two chunk files of {format_size(file_nbytes)}",
            "nothing would be written there: make room, or set [ssd] file_size or free_floor lower",
        )


def _has_chunk_files(folder: Path) -> bool:
    """Whether a store has chunk files there, whose room it can reclaim."""
    return any(any(folder.glob(f"arrays/*/{name}")) for name in ("open-*", "c"))


def _direct_reads(folder: str) -> Iterator[_Finding]:
    """How blocks are read from SSD into the device pool."""
    from tierstore.disk.gds import open_gds

    reads = open_gds(folder, on_gpu=True)
    if reads is None:
        yield _Finding("direct reads", "by way of host memory: kvikio is not installed", "install tierstore[gds]")
    else:
        yield _Finding("direct reads", reads.way)


def _lossy(folder: Path) -> Iterator[_Finding]:
    """The namespaces of a folder whose blocks come back close to what was put, not equal (quantized)."""
    from tierstore.disk.posix import PosixDisk
    from tierstore.tiers.manifest import read_manifest

    if not folder.is_dir():
        return
    try:
        manifest = read_manifest(PosixDisk(str(folder), read_only=True))
    except TierstoreError:
        return  # a folder that cannot be read is another line's matter, or a start's
    for entry in {} if manifest is None else manifest["namespaces"].values():
        scheme = entry["identity"].get("stored_as")
        if scheme is not None:
            model = entry["identity"].get("model")
            advice = "leave Namespace.stored_as out where every bit counts"
            yield _Finding(f"KV of {model}", f"stored as {scheme}, which loses precision", advice, lossy=True)


def _rounded(nbytes: int) -> str:
    return f"{nbytes / (1 << 30):.1f} GiB"
