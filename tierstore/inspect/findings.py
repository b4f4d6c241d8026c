"""The results of verifying: kinds of damage, a finding, and the report on one file.

Made by `tierstore.inspect.verifying`; read by the command line and by repair. Plain data.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from tierstore.tiers.footer import Keys
from tierstore.tiers.record import KEY

if TYPE_CHECKING:
    from tierstore.inspect.folder import FolderArray, FolderFile
    from tierstore.tiers.record import BoolArray

__all__ = ["Fault", "FileReport", "Finding"]


class Fault(StrEnum):
    """What is wrong."""

    HEADER = "header"
    """The header page differs from its copy in the key table; the payload is right."""
    PAYLOAD = "payload"
    """The payload differs from its checksum."""
    COPY = "copy"
    """One of the two records of a deletion is damaged; the other one is whole."""
    ENCODING = "encoding"
    """The payload is as it was written and does not decode."""
    MISFIT = "misfit"
    """The record is whole, and none that this array may hold."""
    STRAY = "stray"
    """Bytes of no record where there should be none: a lost header, or a write that was cut off."""
    FOOTER = "footer"
    """A sealed file has no key table that verifies."""
    INDEX = "index"
    """The key table verifies, and what Zarr reads beside it is not as it should be."""
    LENGTH = "length"
    """An open file is longer or shorter than those of its array."""
    METADATA = "metadata"
    """The array's zarr.json does not describe it."""
    ZARR = "zarr"
    """A Zarr reader does not get the block's bytes."""
    UNREADABLE = "unreadable"
    """The disk does not give the bytes."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        path: Of the file, relative to the folder.
        fault: Its kind.
        page: Where the record or the stray bytes begin, in `PAGE_NBYTES`; -1 for the file as a whole.
        num_pages: Number of pages.
        block_hash: In hex; empty if it is no block.
        detail: Text for people.
    """

    path: str
    fault: Fault
    page: int = -1
    num_pages: int = 0
    block_hash: str = ""
    detail: str = ""

    @property
    def text(self) -> str:
        """On one line."""
        place = f" page {self.page}" if self.page >= 0 else ""
        block = f" block {self.block_hash}" if self.block_hash else ""
        return f"{self.path}{place}{block}: {self.fault}: {self.detail}"


@dataclass(slots=True, eq=False)
class FileReport:
    """What was found in one file.

    Attributes:
        array: Whose file it is.
        file: Its name, its uuid known, and its length.
        keys: Keys of the intact records, including those with a spoiled header.
        spoiled: bool[n]; which of those need their header page written again.
        sealed: Whether it is a sealed file with a key table that verifies.
        num_blocks: Blocks looked at, good and bad.
        findings: All that is wrong.
    """

    array: FolderArray
    file: FolderFile
    keys: Keys
    spoiled: BoolArray
    sealed: bool
    num_blocks: int
    findings: list[Finding] = field(default_factory=list)

    @classmethod
    def unreadable(cls, array: FolderArray, file: FolderFile, detail: str) -> FileReport:
        """The report on a file that cannot be read."""
        keys = Keys(np.empty(0, KEY), np.empty(0, np.uint32), file.name.file_uuid)
        finding = Finding(file.name.path, Fault.UNREADABLE, detail=detail)
        return cls(array, file, keys, np.zeros(0, np.bool_), sealed=False, num_blocks=0, findings=[finding])

    def found(self, *faults: Fault) -> bool:
        """Whether there is any of these."""
        return any(finding.fault in faults for finding in self.findings)
