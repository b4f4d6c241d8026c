"""Tracks where the blocks of a replay lie on SSD: chunk files laid out as by the tier, but without bytes.

Called by `world` alone. Blocks are appended to one open file; files are reclaimed whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tierstore.types import CopyJob, CopyResult, Extents, Outcome, TierName

if TYPE_CHECKING:
    from tierstore.types import DiscardJob

__all__ = ["ReplaySsd"]


class ReplaySsd:
    """The chunk files of one SSD.

    Args:
        num_blocks: Its capacity; a rest smaller than a file is not used.
        file_blocks: Blocks a chunk file.
        block_nbytes: Bytes that each block counts in what is free.
    """

    def __init__(self, *, num_blocks: int, file_blocks: int, block_nbytes: int) -> None:
        self._file_blocks = file_blocks
        self._block_nbytes = block_nbytes
        self._num_clean = num_blocks // file_blocks
        self._file = -1
        self._room = 0

    @property
    def free_nbytes(self) -> int:
        """Bytes that can be written before a file must be reclaimed; 0 once the clean file in reserve is begun."""
        clean_blocks = (self._num_clean - 1) * self._file_blocks
        return (clean_blocks + self._room if self._num_clean else 0) * self._block_nbytes

    def write(self, job: CopyJob) -> CopyResult:
        """Append a job's blocks, as many as fit; a clean file is reserved for rewrites from a file being reclaimed."""
        outcomes = np.full(len(job), Outcome.REJECTED.value, np.uint8)
        extents = Extents(np.full(len(job), -1, np.int32), *(np.zeros(len(job), np.uint32) for _ in range(3)))
        reserve = 0 if job.src is TierName.SSD else 1
        done = 0
        while done < len(job):
            if not self._room:
                if self._num_clean <= reserve:
                    break
                self._num_clean -= 1
                self._file += 1
                self._room = self._file_blocks
            rows = slice(done, min(len(job), done + self._room))
            count = rows.stop - done
            first = self._file_blocks - self._room
            outcomes[rows] = Outcome.OK.value
            extents.file[rows] = self._file
            extents.page[rows] = np.arange(first, first + count)
            extents.nbytes[rows] = self._block_nbytes
            self._room -= count
            done += count
        encoded_nbytes = done * self._block_nbytes
        return CopyResult(job.job_id, outcomes, extents, self.free_nbytes, encoded_nbytes=encoded_nbytes)

    def discard(self, job: DiscardJob) -> CopyResult:
        """Take a file back."""
        if job.file == self._file:
            self._room = 0
        self._num_clean += 1
        return CopyResult(job.job_id, np.zeros(1, np.uint8), dst_free_nbytes=self.free_nbytes)
