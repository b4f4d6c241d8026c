"""One who writes blocks to a tier and reads them back, and never lets a wrong byte pass.

For tests of tiers: a block's bytes follow from its identity alone, so that every block that comes back
can be checked, whatever happened to the disk meanwhile. Drives the tier as a link's worker would.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tierstore.tiers.base import Recovered, Tier
from tierstore.types import (
    PAGE_NBYTES,
    CopyJob,
    CopyResult,
    Extents,
    Generation,
    JobId,
    Outcome,
    Priority,
    RequestId,
    TierName,
    TombstoneJob,
)

if TYPE_CHECKING:
    from tierstore.types import Int32Array, UInt8Array

__all__ = ["BlockUser"]

_SENTINEL = 0xA5
_STORES_OWN = RequestId(-1)


class BlockUser:
    """Writes and reads the blocks of one generation, named by small numbers.

    Args:
        pool: The pool that the tiers copy from and to; used from its start, for one call at a time.
        generation: Whose blocks they are.

    Attributes:
        where: Extent of each block that was written or recovered: (file, page, nbytes, checksum).
    """

    def __init__(self, pool: UInt8Array, generation: Generation) -> None:
        self.pool = pool
        self.generation = generation
        self.where: dict[int, tuple[int, int, int, int]] = {}
        self._slot_pages = -(-generation.layout.block_nbytes // PAGE_NBYTES)
        self._jobs = 0

    def payload(self, name: int) -> bytes:
        """The bytes of a block."""
        seed = self.generation.fingerprint + self.block_hash(name)
        return hashlib.shake_256(seed).digest(self.generation.layout.block_nbytes)

    def block_hash(self, name: int) -> bytes:
        """Its 32-byte hash, which holds the name in clear."""
        return hashlib.sha256(b"block %d" % name).digest()[:24] + name.to_bytes(8, "little")

    def write_job(self, names: Sequence[int], *, first_page: int = 0) -> CopyJob:
        """Put blocks into pool slots and make the job that writes them."""
        slots = self._slots(len(names), first_page)
        for name, slot in zip(names, slots.tolist(), strict=True):
            payload = self.payload(name)
            start = slot * PAGE_NBYTES
            self.pool[start : start + self._slot_pages * PAGE_NBYTES] = _SENTINEL
            self.pool[start : start + len(payload)] = np.frombuffer(payload, dtype=np.uint8)
        return self._job(names, TierName.HOST, TierName.SSD, slots, None)

    def write(self, tier: Tier, names: Sequence[int]) -> CopyResult:
        """Write blocks in one job and remember where they are."""
        job = self.write_job(names)
        (result,) = tier.write([job])
        assert result.job_id == job.job_id
        self.remember(names, result)
        return result

    def rewrite(self, tier: Tier, names: Sequence[int]) -> CopyResult:
        """Write blocks of one file again, as before it goes; they lie in the new place from then on."""
        job = replace(self.read_job(names), dst=TierName.SSD, dst_locations=None, priority=Priority.WRITE_BACK)
        (result,) = tier.write([job])
        self.remember(names, result)
        return result

    def delete_job(self, names: Sequence[int]) -> TombstoneJob:
        """The job that writes down that blocks are deleted."""
        self._jobs += 1
        return TombstoneJob(JobId(self._jobs), self.generation, self._hashes(names))

    def delete(self, tier: Tier, names: Sequence[int]) -> CopyResult:
        """Delete blocks in one job."""
        job = self.delete_job(names)
        (result,) = tier.write([job])
        assert result.job_id == job.job_id
        assert len(result.outcomes) == len(names)
        return result

    def remember(self, names: Sequence[int], result: CopyResult) -> None:
        """Note where a write put its blocks."""
        assert result.outcomes.dtype == np.uint8
        assert len(result.outcomes) == len(names)
        assert result.dst_locations is not None
        for row in np.flatnonzero(result.outcomes == Outcome.OK).tolist():
            self.where[names[row]] = _extent(result.dst_locations, row)

    def read(self, tier: Tier, names: Sequence[int]) -> list[Outcome]:
        """Read blocks from where they are known to be, and check every byte of those that are OK."""
        slots = self._slots(len(names), self._slot_pages)
        first, end = slots[0] * PAGE_NBYTES, (slots[-1] + self._slot_pages) * PAGE_NBYTES
        self.pool[first - PAGE_NBYTES : end + PAGE_NBYTES] = _SENTINEL
        result = tier.read(self.read_job(names, slots))
        outcomes = [Outcome(outcome) for outcome in result.outcomes]
        assert len(outcomes) == len(names)
        for name, slot, outcome in zip(names, slots.tolist(), outcomes, strict=True):
            start = slot * PAGE_NBYTES
            found = self.pool[start : start + self.generation.layout.block_nbytes].tobytes()
            assert outcome is not Outcome.OK or found == self.payload(name), f"wrong bytes for block {name}"
        beside = np.concatenate([self.pool[first - PAGE_NBYTES : first], self.pool[end : end + PAGE_NBYTES]])
        assert (beside == _SENTINEL).all(), "a read wrote beside its slots"
        return outcomes

    def read_job(self, names: Sequence[int], slots: Int32Array | None = None) -> CopyJob:
        """The job that reads blocks from where they are known to be."""
        rows = [self.where[name] for name in names]
        file, *others = np.array(rows, dtype=np.int64).T
        extents = Extents(file.astype(np.int32), *(column.astype(np.uint32) for column in others))
        own = self._slots(len(names), self._slot_pages) if slots is None else slots
        return self._job(names, TierName.SSD, TierName.HOST, extents, own)

    def recover(self, batches: Iterable[Recovered]) -> list[int]:
        """Forget all that is known and take what a tier has recovered: the names, in order."""
        self.where.clear()
        names: list[int] = []
        for batch in batches:
            if batch.fingerprint != self.generation.fingerprint:
                continue
            assert batch.epoch == self.generation.epoch, "blocks of an epoch that is over came back"
            assert len(batch.hashes) == len(batch.extents)
            for row, found in enumerate(batch.hashes):
                name = int.from_bytes(found[24:].tobytes(), "little")
                assert found.tobytes() == self.block_hash(name)
                assert name not in self.where, f"block {name} came back twice"
                self.where[name] = _extent(batch.extents, row)
                names.append(name)
        return names

    def _hashes(self, names: Sequence[int]) -> UInt8Array:
        return np.frombuffer(b"".join(map(self.block_hash, names)), dtype=np.uint8).reshape(-1, 32)

    def _slots(self, count: int, first_page: int) -> Int32Array:
        slots = (first_page + np.arange(count) * self._slot_pages).astype(np.int32)
        end = (first_page + count * self._slot_pages) * PAGE_NBYTES
        assert end <= len(self.pool), f"{count} blocks need a pool of {end} bytes; it has {len(self.pool)}"
        return slots

    def _job(
        self,
        names: Sequence[int],
        src: TierName,
        dst: TierName,
        src_locations: Int32Array | Extents,
        dst_locations: Int32Array | None,
    ) -> CopyJob:
        self._jobs += 1
        return CopyJob(
            job_id=JobId(self._jobs),
            generation=self.generation,
            src=src,
            dst=dst,
            entries=np.arange(len(names)),
            hashes=self._hashes(names),
            parents=None,
            src_locations=src_locations,
            dst_locations=dst_locations,
            priority=Priority.GET if dst is TierName.HOST else Priority.WRITE_BACK,
            request_id=_STORES_OWN,
        )


def _extent(extents: Extents, row: int) -> tuple[int, int, int, int]:
    columns = (extents.file, extents.page, extents.nbytes, extents.checksum)
    file, page, nbytes, checksum = (int(column[row]) for column in columns)
    return file, page, nbytes, checksum
