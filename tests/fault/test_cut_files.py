"""Chunk files cut, emptied or lengthened while nobody looks: every block is its own or a miss, and a put mends it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.payload import TIMEOUT_SECONDS, block_hash, get, namespace, rows, small_store
from tierstore.types import Outcome

BLOCK_NBYTES = 8192
NUMBERS = range(11)
"""As many as fill one chunk file of `tests.payload.SMALL`, which is sealed then, and begin another."""


def _cut(path: Path, nbytes: int) -> None:
    with path.open("r+b") as file:
        file.truncate(nbytes)


HARMS: dict[str, Callable[[Path], object]] = {
    "cut by a byte": lambda path: _cut(path, path.stat().st_size - 1),
    "cut to a half": lambda path: _cut(path, path.stat().st_size // 2),
    "emptied": lambda path: _cut(path, 0),
    "lengthened by junk": lambda path: path.write_bytes(path.read_bytes() + b"junk" * 3000),
}


@pytest.mark.parametrize("which", ["sealed", "open"])
@pytest.mark.parametrize("harm", HARMS)
def test_a_harmed_chunk_file_costs_blocks_but_never_bytes_and_a_put_mends_it(
    tmp_path: Path, harm: str, which: str
) -> None:
    hashes, blocks = [block_hash(n) for n in NUMBERS], rows(NUMBERS, BLOCK_NBYTES)
    with small_store(ssd_dir=tmp_path) as store:
        assert store.namespace(namespace()).put(hashes, blocks, durable=True).result(TIMEOUT_SECONDS).ok
    (path,) = tmp_path.glob("arrays/*/c.*" if which == "sealed" else "arrays/*/open-*")
    HARMS[harm](path)
    with small_store(ssd_dir=tmp_path) as store:
        handle = store.namespace(namespace())
        for number in NUMBERS:
            result = get(handle, hashes[number : number + 1], blocks[number : number + 1])
            assert result.outcomes[0] in (Outcome.OK, Outcome.MISS, Outcome.CORRUPT, Outcome.IO_ERROR)
        for _ in range(2):  # what could not be read is forgotten at the second look, and then written anew
            for number in NUMBERS:
                get(handle, hashes[number : number + 1], blocks[number : number + 1])
        assert handle.put(hashes, blocks, durable=True).result(TIMEOUT_SECONDS).ok
        assert get(handle, hashes, blocks).ok
        store.check()
    with small_store(ssd_dir=tmp_path) as store:
        assert get(store.namespace(namespace()), hashes, blocks).ok
