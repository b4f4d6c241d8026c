"""Verifies every record of one chunk file: header, payload, decoding, and the footer of a sealed one.

Called by `tierstore.inspect.checkup` and by repair. Reads only. A record is first verified as the store itself does
when it reads it; then the reason of a failure is found. The keys of intact records are kept for repair.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from crc32c import crc32c

from tierstore.errors import DiskError
from tierstore.inspect.contents import read_keys
from tierstore.inspect.findings import Fault, FileReport, Finding
from tierstore.inspect.folder import FolderArray, FolderFile
from tierstore.tiers.fetching import RecordFetcher, Wanted, cut_runs, pages_to_read
from tierstore.tiers.footer import Keys, footer_nbytes, keys_of, pack_footer, read_footer
from tierstore.tiers.frame import Scratch, aligned_buffer
from tierstore.tiers.record import (
    CHECKSUM_NBYTES,
    HEADER,
    HEADER_NBYTES,
    KIND_BLOCK,
    KIND_TOMBSTONE,
    pages_of,
    record_pages,
)
from tierstore.tiers.tombstone import read_tombstone
from tierstore.types import PAGE_NBYTES, Extents, Outcome

if TYPE_CHECKING:
    from tierstore.tiers.chunkfile import ChunkFile
    from tierstore.types import Int64Array, UInt8Array

__all__ = ["Advance", "SecondOpinion", "decode_block", "read_bodies", "verify_file"]

Advance: TypeAlias = Callable[[int], None]
"""Told how many more bytes are done with."""

SecondOpinion: TypeAlias = Callable[[int, int, memoryview], str]
"""What another reader says of the block with this file number, slot and raw bytes; empty where it agrees."""

_WINDOW_PAGES = 1024


def verify_file(
    chunk: ChunkFile,
    array: FolderArray,
    *,
    advance: Advance = lambda _nbytes: None,
    opinion: SecondOpinion | None = None,
) -> FileReport:
    """Read every record of a file; blocks. `opinion` is asked of each block of a sealed file.

    Raises:
        DiskError: A whole file cannot be read; single records are findings.
    """
    keys, sealed, readable = read_keys(chunk, array)
    if not sealed:
        keys = _without_copies(keys)
    report = FileReport(
        array,
        FolderFile(chunk.name, chunk.nbytes),
        keys,
        np.zeros(len(keys), np.bool_),
        sealed,
        int(np.count_nonzero(keys.rows["kind"] == KIND_BLOCK)),
    )
    path = chunk.name.path
    if sealed and not _footer_is_exact(chunk, array, keys):
        report.findings.append(Finding(path, Fault.INDEX, detail="what Zarr reads at the file's end is damaged"))
    elif chunk.name.axes and not sealed and array.geometry:
        detail = "no key table verifies; a start scans the file" if len(keys) else "the file holds no record of a store"
        report.findings.append(Finding(path, Fault.FOOTER, detail=detail))
    if not readable:
        report.findings.append(Finding(path, Fault.UNREADABLE, detail="some pages could not be read"))
    if not chunk.name.axes and array.geometry and chunk.nbytes != array.geometry.file_nbytes:
        detail = f"{chunk.nbytes} bytes; the files of this array have {array.geometry.file_nbytes}"
        report.findings.append(Finding(path, Fault.LENGTH, detail=detail))
    faults = _judge(chunk, array, keys, advance, opinion if sealed and not report.findings else None)
    if not chunk.name.axes:
        report.findings += _strays(chunk, keys, _end_page(chunk, array))
    report.findings += [_finding(path, keys, row, *why) for row, why in faults.items()]
    lost = np.array([row in faults and faults[row][0] is not Fault.HEADER for row in range(len(keys))], np.bool_)
    spoiled = np.array([row in faults and not lost[row] for row in range(len(keys))], np.bool_)
    report.keys, report.spoiled = keys.only(~lost), spoiled[~lost]
    return report


_Faults: TypeAlias = dict[int, tuple[Fault, str]]
"""By row of the keys."""


def _judge(
    chunk: ChunkFile, array: FolderArray, keys: Keys, advance: Advance, opinion: SecondOpinion | None
) -> _Faults:
    """Compare every record of a file with its key."""
    faults: _Faults = {}
    blocks = np.flatnonzero(keys.rows["kind"] == KIND_BLOCK)
    for row in np.flatnonzero(keys.rows["kind"] != KIND_BLOCK).tolist():
        if read_tombstone(chunk, int(keys.pages[row])) is None:
            faults[row] = _diagnose(chunk, keys, row)
    for row, (fault, detail) in tuple(faults.items()):
        if fault is Fault.PAYLOAD and _is_said_elsewhere(keys, row, faults):
            faults[row] = Fault.COPY, f"{detail}; its other copy is whole"
    if array.codec is None:
        return faults
    for row, body in read_bodies(chunk, array, keys, blocks, advance):
        if body is None:
            faults[row] = _diagnose(chunk, keys, row)
            continue
        key = keys.rows[row]
        raw = decode_block(array, key, body)
        if raw is None:
            faults[row] = Fault.ENCODING, f"{array.codec.name} cannot decode it"
        elif opinion and (said := opinion(chunk.name.number, int(key["slot"]), raw)):
            faults[row] = Fault.ZARR, said
    return faults


def _is_said_elsewhere(keys: Keys, row: int, faults: _Faults) -> bool:
    """Whether a tombstone has a whole copy."""
    own, others = keys.rows[row], keys.rows
    same = (others["kind"] == KIND_TOMBSTONE) & (others["fingerprint"] == own["fingerprint"]).all(axis=1)
    for name in ("epoch", "encoded_nbytes", "payload_checksum"):
        same &= others[name] == own[name]
    return any(other not in faults for other in np.flatnonzero(same).tolist())


def read_bodies(
    chunk: ChunkFile, array: FolderArray, keys: Keys, blocks: Int64Array, advance: Advance = lambda _nbytes: None
) -> Iterator[tuple[int, memoryview | None]]:
    """Read blocks as the store would; blocks.

    Args:
        chunk: The file; its uuid is known.
        array: Whose file it is, of a codec that is installed.
        keys: Of records in it.
        blocks: int64[n]; the rows to read, in file order.
        advance: Told how many more bytes are done with.

    Yields:
        A row and the bytes behind its header, valid until the next; None instead of the bytes if they do not verify.
    """
    assert array.codec is not None, "a codec that is not installed reads nothing"
    rows, fetcher = keys.rows[blocks], RecordFetcher()
    raw_nbytes = array.layout.block_nbytes if array.layout else int(rows["raw_nbytes"].max(initial=0))
    zeros = np.zeros(len(blocks), dtype=np.int32)
    extents = Extents(zeros, keys.pages[blocks], rows["encoded_nbytes"], rows["payload_checksum"])
    for run in cut_runs(pages_to_read(extents, raw_nbytes, array.codec).tolist()):
        own, part = rows[run], extents.rows(run)
        wanted = Wanted(
            part, own["fingerprint"], own["epoch"].astype(np.int64), own["block_hash"], raw_nbytes, array.codec
        )
        fetched = fetcher.fetch(wanted, {chunk.file_id: chunk})
        for row, outcome, body in zip(blocks[run].tolist(), fetched.outcomes.tolist(), fetched.bodies, strict=True):
            yield row, body if outcome == Outcome.OK else None
        advance(int(record_pages(part.nbytes).sum()) * PAGE_NBYTES)


def decode_block(array: FolderArray, key: np.void, body: memoryview) -> memoryview | None:
    """A block's own bytes; None if they cannot be decoded. Not decoded if the layout is unknown.

    Args:
        array: Of a codec that is installed.
        key: Of the block.
        body: What `read_bodies` gave.
    """
    encoded = body[: int(key["encoded_nbytes"])]
    if array.layout is None or array.codec is None:
        return encoded
    raw = np.empty(int(key["raw_nbytes"]), dtype=np.uint8).data
    try:
        array.codec.decode(encoded, raw, item_nbytes=array.layout.item_nbytes)
    except ValueError:
        return None
    return raw


def _diagnose(chunk: ChunkFile, keys: Keys, row: int) -> tuple[Fault, str]:
    """Why a record is not what its key says."""
    nbytes, checksum = int(keys.rows["encoded_nbytes"][row]), int(keys.rows["payload_checksum"][row])
    record = aligned_buffer((1 + pages_of(nbytes + CHECKSUM_NBYTES)) * PAGE_NBYTES)
    try:
        chunk.file.read_into([record.data], int(keys.pages[row]) * PAGE_NBYTES)
    except DiskError as error:
        return Fault.UNREADABLE, str(error)
    payload, copy = record[PAGE_NBYTES:][:nbytes], record[PAGE_NBYTES + nbytes :][:CHECKSUM_NBYTES]
    found = crc32c(payload.data)
    if not found == checksum == int.from_bytes(copy.tobytes(), "little"):
        return Fault.PAYLOAD, f"CRC32C {found:08x}, not {checksum:08x} as written"
    if keys_of(record[:PAGE_NBYTES].view(HEADER)).tobytes() != keys.rows[row].tobytes():
        return Fault.HEADER, "differs from its copy in the key table; the payload is whole"
    return Fault.MISFIT, "a whole record that this array does not hold"


def _finding(path: str, keys: Keys, row: int, fault: Fault, detail: str) -> Finding:
    key = keys.rows[row]
    block_hash = key["block_hash"].tobytes().hex() if key["kind"] == KIND_BLOCK else ""
    pages = int(record_pages(keys.rows["encoded_nbytes"][row : row + 1])[0])
    return Finding(path, fault, int(keys.pages[row]), pages, block_hash, detail)


def _end_page(chunk: ChunkFile, array: FolderArray) -> int:
    """Where an open file ends: before the footer, if it has that already and only waits for its name."""
    footer = None
    if array.geometry:
        footer = read_footer(chunk.file, nbytes=chunk.nbytes, slots=array.geometry.slots)
    nbytes = footer_nbytes(array.geometry.slots, len(footer)) if array.geometry and footer is not None else 0
    return (chunk.nbytes - nbytes) // PAGE_NBYTES


def _strays(chunk: ChunkFile, keys: Keys, end_page: int) -> Iterator[Finding]:
    """Pages of an open file that belong to no record and are not zero."""
    starts = keys.pages.astype(np.int64)
    ends = starts + record_pages(keys.rows["encoded_nbytes"])
    for begin, end in zip([0, *ends.tolist()], [*starts.tolist(), end_page], strict=True):
        try:
            used = np.concatenate([np.empty(0, np.int64), *_used_pages(chunk, begin, end)])
        except DiskError as error:
            yield Finding(chunk.name.path, Fault.UNREADABLE, begin, end - begin, detail=str(error))
            continue
        edges = np.flatnonzero(np.diff(used) != 1) + 1
        for run in np.split(used, edges) if len(used) else []:
            detail = f"{len(run)} pages hold bytes of no record"
            yield Finding(chunk.name.path, Fault.STRAY, int(run[0]), len(run), detail=detail)


def _used_pages(chunk: ChunkFile, begin: int, end: int) -> Iterator[Int64Array]:
    for first, last in pairwise([*range(begin, end, _WINDOW_PAGES), end]):
        pages = aligned_buffer((last - first) * PAGE_NBYTES)
        chunk.file.read_into([pages.data], first * PAGE_NBYTES)
        yield first + np.flatnonzero(pages.reshape(-1, PAGE_NBYTES).any(axis=1))


def _footer_is_exact(chunk: ChunkFile, array: FolderArray, keys: Keys) -> bool:
    """Whether a sealed file ends with exactly the footer that sealing writes for these keys."""
    assert array.geometry is not None, "a footer was read, so its length is known"
    expected = pack_footer(keys, slots=array.geometry.slots, scratch=Scratch())
    found: UInt8Array = aligned_buffer(len(expected))
    chunk.file.read_into([found.data], chunk.nbytes - len(found))
    return found.tobytes() == expected.tobytes()


def _without_copies(keys: Keys) -> Keys:
    """The keys without false records: headers in a key table, which are copies of earlier ones."""
    rows = keys.rows.view(np.uint8).reshape(-1, HEADER_NBYTES)
    _, firsts = np.unique(rows, axis=0, return_index=True)
    chosen = np.zeros(len(keys), dtype=np.bool_)
    chosen[firsts] = True
    return keys.only(chosen)
