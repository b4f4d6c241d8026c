"""What sealing costs of the time that writing takes: `python -m bench.sealing --folder F [--json -]`.

Appends blocks of several sizes to chunk files through the SSD tier alone, the sizes by turns, and times each seal: key
table, Zarr index and rename. The data sync in it is left out, for a full file needs that anyway, sealed or not. Works
in new folders below F and removes them.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from pathlib import Path

import click
import numpy as np

from tierstore.benchmark.machine import describe_machine
from tierstore.disk.base import File
from tierstore.disk.posix import PosixDisk
from tierstore.keys import Namespace
from tierstore.layout import KVLayout
from tierstore.settings import format_size
from tierstore.tiers.chunkfile import ChunkFile
from tierstore.tiers.frame import aligned_buffer
from tierstore.tiers.manifest import Manifest
from tierstore.tiers.ssd import SsdTier
from tierstore.types import PAGE_NBYTES, CopyJob, Generation, JobId, Outcome, Priority, RequestId, TierName

BLOCK_NBYTES = (4 << 10, 8 << 10, 64 << 10, 256 << 10, 2 << 20)
FILE_NBYTES = 64 << 20
"""The shortest that a folder has unless it is told otherwise, so the one that is sealed most often."""

POOL_NBYTES = 64 << 20


class TimedFile:
    """A file whose syncs are timed."""

    def __init__(self, file: File) -> None:
        self._file = file
        self.nbytes, self.direct = file.nbytes, file.direct
        self.read_into, self.write_from, self.close = file.read_into, file.write_from, file.close
        self.sync_seconds = 0.0

    def sync(self) -> None:
        """Sync."""
        begun = time.perf_counter()
        self._file.sync()
        self.sync_seconds += time.perf_counter() - begun


class SealClock:
    """Times the seals of one tier, their syncs left out.

    Attributes:
        seconds: Of each.
    """

    def __init__(self, tier: SsdTier) -> None:
        self.seconds: list[float] = []
        self._seal = tier._folder.seal
        tier._folder.seal = self.seal  # type: ignore[method-assign]

    def seal(self, chunk: ChunkFile) -> None:
        """Seal a file, and note how long that took."""
        file = chunk.file
        chunk.file = timed = TimedFile(file)
        begun = time.perf_counter()
        self._seal(chunk)
        self.seconds.append(time.perf_counter() - begun - timed.sync_seconds)
        chunk.file = file


def measure(folder: Path, block_nbytes: int, total_nbytes: int) -> tuple[float, int]:
    """The share of the time that went into seals, and how many there were."""
    disk, pool = PosixDisk(str(folder)), aligned_buffer(POOL_NBYTES)
    pool[:] = np.random.default_rng(0).integers(0, 256, POOL_NBYTES, dtype=np.uint8)
    manifest, space = Manifest.open(disk), Namespace("sealing", KVLayout.opaque(block_nbytes=block_nbytes))
    life = Generation(0, space.fingerprint, manifest.register(space), space.layout)
    tier = SsdTier(disk, pool, manifest, capacity_nbytes=8 * total_nbytes, free_floor_nbytes=0, file_nbytes=FILE_NBYTES)
    list(tier.recover())
    clock, count = SealClock(tier), POOL_NBYTES // block_nbytes
    slots = (np.arange(count) * (block_nbytes // PAGE_NBYTES)).astype(np.int32)
    hashes = np.random.default_rng(1).integers(0, 256, (total_nbytes // POOL_NBYTES, count, 32), dtype=np.uint8)
    begun = time.perf_counter()
    for number, own in enumerate(hashes):
        job = CopyJob(
            job_id=JobId(number),
            generation=life,
            src=TierName.HOST,
            dst=TierName.SSD,
            entries=np.arange(count),
            hashes=own,
            parents=None,
            src_locations=slots,
            dst_locations=None,
            priority=Priority.WRITE_BACK,
            request_id=RequestId(-1),
        )
        (result,) = tier.write([job])
        assert (result.outcomes == Outcome.OK).all(), "a block was not written"
    assert tier.sync().outcome is Outcome.OK
    seconds = time.perf_counter() - begun
    tier.close()
    manifest.close()
    return sum(clock.seconds) / seconds, len(clock.seconds)


@click.command()
@click.option("--folder", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--rounds", default=3, show_default=True)
@click.option("--nbytes", default=1 << 30, show_default=True, help="Bytes of blocks a round.")
@click.option("--json", "json_path", default="-")
def main(*, folder: Path, rounds: int, nbytes: int, json_path: str) -> None:
    """Write, and say what share sealing took."""
    machine = describe_machine(folder)
    shares: dict[int, list[float]] = {size: [] for size in BLOCK_NBYTES}
    files = dict.fromkeys(BLOCK_NBYTES, 0)
    for _ in range(rounds):
        for size in BLOCK_NBYTES:
            with tempfile.TemporaryDirectory(dir=folder) as name:
                share, files[size] = measure(Path(name), size, nbytes)
            shares[size].append(share)
    rows = [
        {
            "block_nbytes": size,
            "file_nbytes": FILE_NBYTES,
            "files_sealed": files[size],
            "share": {"median": statistics.median(own), "least": min(own), "most": max(own)},
        }
        for size, own in shares.items()
    ]
    for row, own in zip(rows, shares.values(), strict=True):
        click.echo(f"{format_size(int(str(row['block_nbytes'])))}: {statistics.median(own):.2%}", err=True)
    text = json.dumps({"version": 1, "command": "python -m bench.sealing", "machine": machine, "rows": rows}, indent=1)
    if json_path == "-":
        click.echo(text)
    else:
        Path(json_path).write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
