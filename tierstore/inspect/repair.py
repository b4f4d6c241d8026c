"""Repairs a folder: keeps every intact record, drops the others, and leaves the format that the store itself writes.

Called by the command line, with the folder's lock held. A spoiled header is rewritten from its copy in the key table.
A record that cannot be repaired is wiped, so that no start finds it. A sealed file gets a new key table and Zarr
index. The format stays format 1. Any step may be interrupted: the next repair completes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from tierstore.errors import DiskError
from tierstore.inspect.checkup import metadata_findings
from tierstore.inspect.findings import Fault, FileReport
from tierstore.inspect.verifying import Advance, verify_file
from tierstore.tiers.footer import pack_footer
from tierstore.tiers.frame import Scratch, aligned_buffer
from tierstore.tiers.record import HEADER_NBYTES, pages_of, record_pages
from tierstore.tiers.zarr_metadata import ZarrArrays
from tierstore.types import PAGE_NBYTES

if TYPE_CHECKING:
    from tierstore.disk.base import Disk, File
    from tierstore.inspect.folder import FolderArray, StoreFolder

__all__ = ["ArrayMend", "FileMend", "Mend", "plan_repair"]

_DROPPED = (Fault.PAYLOAD, Fault.COPY, Fault.ENCODING, Fault.MISFIT)
_WIPED = (*_DROPPED, Fault.STRAY)
_WIPE_PAGES = 1024


@dataclass(frozen=True, slots=True)
class ArrayMend:
    """Writes the metadata of an array anew."""

    array: FolderArray

    @property
    def lines(self) -> list[str]:
        """What it does, for people."""
        return [f"arrays/{self.array.name}/zarr.json: write it anew"]

    def apply(self, disk: Disk) -> None:
        """Do it; blocks. Raises DiskError."""
        spec, geometry = self.array.spec, self.array.geometry
        assert spec and geometry, "planned only where both are known"
        files = 1 + max(file.name.number for file in self.array.files)
        ZarrArrays(disk).declare(spec, geometry, files=files)


@dataclass(frozen=True, slots=True)
class FileMend:
    """Mends one chunk file.

    Attributes:
        report: What verifying found there; everything in it could be read.
    """

    report: FileReport

    @property
    def removes(self) -> bool:
        """Whether nothing in the file is worth keeping, and no start would remove it."""
        return not len(self.report.keys) and (self._is_sealed or self.report.found(Fault.LENGTH))

    @property
    def seals(self) -> bool:
        """Whether the file gets a new footer: a sealed file that changes, or an open file that cannot be continued."""
        if not self._is_sealed:
            return self.report.found(Fault.LENGTH)
        return self.report.found(*_DROPPED, Fault.FOOTER, Fault.INDEX)

    @property
    def path_after(self) -> str:
        """The path of the file after the repair."""
        name, geometry = self.report.file.name, self.report.array.geometry
        if not self.seals or self._is_sealed:
            return name.path
        assert geometry, "only where it is known can a length be wrong"
        return name.sealed(geometry.axes).path

    @property
    def lines(self) -> list[str]:
        """What it does, for people."""
        return list(self._lines())

    def _lines(self) -> Iterator[str]:
        path = self.report.file.name.path
        if self.removes:
            yield f"{path}: remove it; no record in it is whole"
            return
        for finding in self.report.findings:
            what = f"block {finding.block_hash}" if finding.block_hash else "a record of deletions, which are undone"
            if finding.fault is Fault.COPY:
                what = "one of the two records of a deletion"
            if finding.fault is Fault.HEADER:
                yield f"{path} page {finding.page}: write the header again from its copy"
            elif finding.fault in _DROPPED:
                yield f"{path} page {finding.page}: drop {what} ({finding.fault})"
            elif finding.fault is Fault.STRAY:
                yield f"{path} page {finding.page}: wipe {finding.num_pages} pages of no record"
        if self.seals:
            yield f"{path}: seal it{' again' if self._is_sealed else ''} with the {len(self.report.keys)} records left"

    def apply(self, disk: Disk) -> None:
        """Do it, durably; blocks. Raises DiskError."""
        path = self.report.file.name.path
        if self.removes:
            disk.remove(path)
            return
        file = disk.open(path)
        try:
            self._write_headers(file)
            for finding in self.report.findings:
                if finding.fault in _WIPED:
                    _wipe(file, finding.page, finding.num_pages)
            file.sync()
            if self.seals:
                self._write_footer(file)
                file.sync()
        finally:
            file.close()
        if self.path_after != path:
            disk.rename(path, self.path_after)

    @property
    def _is_sealed(self) -> bool:
        return self.report.file.name.axes > 0

    def _write_headers(self, file: File) -> None:
        keys = self.report.keys
        used = keys.rows.view(np.uint8).reshape(-1, HEADER_NBYTES)
        for row in np.flatnonzero(self.report.spoiled).tolist():
            page = aligned_buffer(PAGE_NBYTES)
            page[:HEADER_NBYTES] = used[row]
            file.write_from([page.data], int(keys.pages[row]) * PAGE_NBYTES)

    def _write_footer(self, file: File) -> None:
        """At the end of the file, or where that end should be; never on a record."""
        keys, geometry = self.report.keys, self.report.array.geometry
        assert geometry, "a file is sealed only where its array is known"
        footer = pack_footer(keys, slots=geometry.slots, scratch=Scratch())
        records_end = int((keys.pages + record_pages(keys.rows["encoded_nbytes"])).max(initial=0)) * PAGE_NBYTES
        whole_nbytes = pages_of(self.report.file.nbytes) * PAGE_NBYTES
        end = max(geometry.file_nbytes, whole_nbytes, records_end + len(footer))
        file.write_from([footer.data], end - len(footer))


def _wipe(file: File, page: int, num_pages: int) -> None:
    zeros = aligned_buffer(min(num_pages, _WIPE_PAGES) * PAGE_NBYTES)
    for first in range(0, num_pages, _WIPE_PAGES):
        piece = zeros[: (num_pages - first) * PAGE_NBYTES]
        file.write_from([piece.data], (page + first) * PAGE_NBYTES)


Mend: TypeAlias = ArrayMend | FileMend


def plan_repair(folder: StoreFolder, advance: Advance = lambda _nbytes: None) -> tuple[list[Mend], list[str]]:
    """Verify a folder that is held by its lock, and say what is to be done; blocks.

    Returns:
        The mends in their order, and one line for each fault that is left as it is.
    """
    mends: list[Mend] = []
    left: list[str] = []
    undescribed = {finding.path for finding in metadata_findings(folder)}
    for array in folder.arrays:
        path = f"arrays/{array.name}/zarr.json"
        taken = {file.name.path for file in array.files}
        if path in undescribed and array.spec and array.geometry:
            mends.append(ArrayMend(array))
        elif path in undescribed:
            left.append(f"{path}: its layout or codec is not known")
        for report in _reports(folder, array, advance, left):
            if report.found(Fault.UNREADABLE):
                left += [finding.text for finding in report.findings]
            elif report.findings:
                mend = FileMend(report)
                if mend.path_after in taken - {report.file.name.path}:
                    left.append(f"{report.file.name.path}: {mend.path_after} is there already; move one of them away")
                else:
                    mends.append(mend)
    return mends, left


def _reports(
    folder: StoreFolder, array: FolderArray, advance: Callable[[int], None], left: list[str]
) -> Iterator[FileReport]:
    """Of every file of an array; one that cannot be read is left."""
    for file in array.files:
        try:
            with folder.open(file) as chunk:
                if chunk is not None:
                    yield verify_file(chunk, array)
        except DiskError as error:
            left.append(f"{file.name.path}: {error}")
        advance(file.nbytes)
