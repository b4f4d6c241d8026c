"""What befalls a store's folder behind its back, between two lives or during one, and what may be lost by it.

Each kind takes a file that it finds and says which records it spoils; all else must be served as before. Called by
whoever runs lives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import TYPE_CHECKING, Final

from bench.torture.blocks import records_in
from bench.torture.witness import is_chunk_file
from tierstore.types import PAGE_NBYTES

if TYPE_CHECKING:
    from bench.torture.blocks import Record
    from bench.torture.grounds import Ground
    from bench.torture.journal import Journal

__all__ = ["KINDS", "befall", "scan"]


def scan(ground: Ground) -> dict[str, list[Record]]:
    """The intact records of every chunk file."""
    return {path: records_in(ground.read(path)) for path in ground.files() if is_chunk_file(path)}


Spoil = Callable[[bytes, "list[Record]", Random], tuple[bytes, "list[Record]"]]
"""New contents of a file, and which of its records are spoilt by them."""


def _flip(contents: bytes, records: list[Record], rng: Random) -> tuple[bytes, list[Record]]:
    """One bit: of a record, or of anything else, the footer and what was never written among it."""
    offset = rng.randrange(len(contents))
    if records and rng.random() < 0.7:
        record = rng.choice(records)
        offset = rng.randrange(record.start, record.stop)
    new = bytearray(contents)
    new[offset] ^= 1 << rng.randrange(8)
    return bytes(new), _within(records, offset, offset + 1)


def _overwrite(contents: bytes, records: list[Record], rng: Random) -> tuple[bytes, list[Record]]:
    """A few sectors of noise or zeros."""
    start = rng.randrange(0, len(contents), 512)
    noise = rng.choice((rng.randbytes, bytes))(512 * rng.randrange(1, 40))[: len(contents) - start]
    return contents[:start] + noise + contents[start + len(noise) :], _within(records, start, start + len(noise))


def _truncate(contents: bytes, records: list[Record], rng: Random) -> tuple[bytes, list[Record]]:
    """Cut anywhere, at nothing, at a page, or by one byte."""
    stop = rng.choice(
        (0, rng.randrange(len(contents)), rng.randrange(0, len(contents), PAGE_NBYTES), len(contents) - 1)
    )
    return contents[:stop], _within(records, stop, len(contents))


def _lengthen(contents: bytes, records: list[Record], rng: Random) -> tuple[bytes, list[Record]]:
    """More than there was. What was found in the file before is there still."""
    return contents + rng.randbytes(rng.choice((1, 512, PAGE_NBYTES))), []


def _swap(contents: bytes, records: list[Record], rng: Random) -> tuple[bytes, list[Record]]:
    """Two records of one length, or their payloads alone, in each other's place."""
    first = rng.choice(records) if records else None
    alike = [own for own in records if first and own.stop - own.start == first.stop - first.start and own is not first]
    if first is None or not alike:
        return contents, []
    second, skipped = rng.choice(alike), rng.choice((0, PAGE_NBYTES))
    new = bytearray(contents)
    for src, dst in ((first, second), (second, first)):
        new[dst.start + skipped : dst.stop] = contents[src.start + skipped : src.stop]
    return bytes(new), [first, second]


_SPOILS: Final[Mapping[str, Spoil]] = {
    "flip": _flip,
    "overwrite": _overwrite,
    "truncate": _truncate,
    "lengthen": _lengthen,
    "swap": _swap,
}

KINDS: Final = (*_SPOILS, "remove", "folder", "hide", "junk", "metadata")
"""What may befall a folder."""


def befall(kind: str, ground: Ground, journal: Journal, rng: Random, *, sealed_only: bool = False) -> None:
    """Damage a folder once, where there is something to damage.

    Args:
        kind: One of `KINDS`.
        ground: The folder.
        journal: Told which records are spoilt, before they are.
        rng: Chooses.
        sealed_only: Leave alone what a living store may be writing to.
    """
    paths = ground.files()
    chunks = [path for path in paths if is_chunk_file(path) and not (sealed_only and "/open-" in path)]
    journal.say("count", f"damage_{kind}")
    if kind == "junk":
        _leave_junk(ground, [path for path in paths if is_chunk_file(path)], rng)
    elif kind == "metadata":
        _spoil_metadata(ground, [path for path in paths if path.endswith("/zarr.json") or path == "recency"], rng)
    elif chunks:
        path = rng.choice(chunks)
        contents = ground.read(path)
        records = records_in(contents)
        if kind in _SPOILS:
            new, spoilt = _SPOILS[kind](contents, records, rng) if contents else (contents, [])
            _say(journal, ground, path, spoilt, len(contents) if sealed_only else 0)
            ground.write(path, new)
            return
        _say(journal, ground, path, records, len(contents) if sealed_only else 0)
        if kind == "hide":
            ground.hide(path)
        else:
            ground.remove(path, folder=kind == "folder")


def _leave_junk(ground: Ground, chunks: list[str], rng: Random) -> None:
    """Files of nobody: beside the chunk files under names like theirs, and in the root."""
    names = ["stray", "store.json.new", "recency.new"]
    for path in chunks[:1]:
        array = path.rpartition("/")[0]
        taken = {path.rpartition("/")[2].partition(".")[2].partition(".")[0] for path in chunks}
        number = next(number for number in range(100, 1000) if str(number) not in taken)
        names += [f"{array}/open-{number}-{rng.randbytes(16).hex()}", f"{array}/c.{number}.0", f"{array}/core"]
    ground.make(rng.choice(names), rng.randbytes(rng.choice((0, 100, PAGE_NBYTES, 2 * PAGE_NBYTES))))


def _spoil_metadata(ground: Ground, paths: list[str], rng: Random) -> None:
    """What can be made anew: the arrays' Zarr metadata and how blocks were used."""
    if paths:
        path = rng.choice(paths)
        contents = ground.read(path)
        ground.write(path, rng.choice((contents[:-1], b"", rng.randbytes(len(contents)), b"{}".ljust(PAGE_NBYTES))))


def _within(records: list[Record], start: int, stop: int) -> list[Record]:
    return [record for record in records if record.start < stop and start < record.stop]


def _say(journal: Journal, ground: Ground, path: str, spoilt: list[Record], unseen_nbytes: int) -> None:
    """Say which records of a file are spoilt, and which blocks no deletion is left for that counts.

    What is hidden, a block or its deletion, may come back later; deletions that are hidden do not count until then.
    """
    left = [record for other, records in scan(ground).items() if other != path for record in records]
    left += [record for record in records_in(ground.read(path)) if record not in spoilt]
    newest = {block: record.sequence for record in sorted(left, key=_sequence) for block in record.deletes}
    last = {record.block: record.sequence for record in sorted([*left, *ground.hidden_records()], key=_sequence)}
    deleted = {block for record in spoilt for block in record.deletes}
    undone = [block for block in sorted(deleted) if last.get(block, -1) > newest.get(block, -1)]
    blocks = [(*record.block, record.sequence) for record in spoilt if record.block is not None]
    journal.say("spoilt", blocks, undone, unseen_nbytes)


def _sequence(record: Record) -> int:
    return record.sequence
