"""Verifies a whole folder, file by file, on a closed store or beside its live owner.

Called by the command line. Reads only. Everything that looks wrong is checked again at the end: a record that the
owner was just writing is whole by then, and a file that was removed or renamed meanwhile is no fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from tierstore.errors import DiskError
from tierstore.inspect.findings import Fault, FileReport, Finding
from tierstore.inspect.verifying import Advance, SecondOpinion, verify_file

if TYPE_CHECKING:
    from tierstore.inspect.folder import FolderArray, FolderFile, StoreFolder
    from tierstore.inspect.zarr_reading import ZarrReader

__all__ = ["Checkup", "ZarrShare", "check_folder", "metadata_findings"]

ZarrShare: TypeAlias = Literal["none", "sample", "all"]
"""Of which blocks of sealed files Zarr is asked: the first of each file, or every one."""


@dataclass(slots=True)
class Checkup:
    """The result of verifying a folder.

    Attributes:
        num_files: Files that were read.
        num_blocks: Blocks in them, good and bad.
        nbytes: Bytes of those files.
        findings: Everything that is wrong.
        skipped: One line for each thing that was skipped.
    """

    num_files: int = 0
    num_blocks: int = 0
    nbytes: int = 0
    findings: list[Finding] = field(default_factory=list)
    skipped: Sequence[str] = ()


def check_folder(
    folder: StoreFolder,
    *,
    zarr: ZarrReader | None = None,
    share: ZarrShare = "sample",
    advance: Advance = lambda _nbytes: None,
) -> Checkup:
    """Verify every file; blocks. Never raises for a failing disk.

    Args:
        folder: The folder.
        zarr: Reads blocks of sealed files as a second opinion; None for none.
        share: Which share of the blocks it reads.
        advance: Told how many more bytes are done.
    """
    checkup = Checkup(findings=metadata_findings(folder), skipped=folder.skipped)
    doubtful: list[tuple[FolderArray, FolderFile, set[tuple[Fault, int]]]] = []
    for array in folder.arrays:
        if array.codec is None and array.files:
            folder.skipped.append(f"arrays/{array.name}: its codec is not installed, so payloads are not verified")
        for file in array.files:
            report = _check_file(folder, array, file, _opinion(array, zarr, share), advance)
            if report is None:
                continue
            checkup.num_files += 1
            checkup.num_blocks += report.num_blocks
            checkup.nbytes += report.file.nbytes
            if report.findings:
                doubtful.append((array, file, {(finding.fault, finding.page) for finding in report.findings}))
    for array, file, before in doubtful:
        again = _check_file(folder, array, file, _opinion(array, zarr, share), lambda _nbytes: None)
        if again is not None:
            checkup.findings += [finding for finding in again.findings if (finding.fault, finding.page) in before]
    return checkup


def metadata_findings(folder: StoreFolder) -> list[Finding]:
    """Arrays with files that are not described."""
    return [
        Finding(f"arrays/{array.name}/zarr.json", Fault.METADATA, detail="is missing or does not describe its array")
        for array in folder.arrays
        if array.files and not array.described
    ]


def _opinion(array: FolderArray, zarr: ZarrReader | None, share: ZarrShare) -> SecondOpinion | None:
    """Zarr's, of blocks of one array; for one file."""
    geometry = array.geometry
    if zarr is None or share == "none" or geometry is None or not array.described or array.layout is None:
        return None
    slots, reader, asked = geometry.slots, zarr, False

    def opinion(number: int, slot: int, raw: memoryview) -> str:
        nonlocal asked
        if asked and share == "sample":
            return ""
        asked = True
        return reader.differs(array.name, number * slots + slot, raw)

    return opinion


def _check_file(
    folder: StoreFolder, array: FolderArray, file: FolderFile, opinion: SecondOpinion | None, advance: Advance
) -> FileReport | None:
    """Verify one file; None if it is gone. A file that cannot be read is a finding."""
    done_nbytes = 0

    def step(nbytes: int) -> None:
        nonlocal done_nbytes
        done_nbytes += nbytes
        advance(nbytes)

    try:
        with folder.open(file) as chunk:
            return None if chunk is None else verify_file(chunk, array, advance=step, opinion=opinion)
    except DiskError as error:
        return FileReport.unreadable(array, file, str(error))
    finally:
        advance(max(0, file.nbytes - done_nbytes))
