"""A small chunk file, open and sealed, with a bit flipped in every byte that means something, and all others spoiled.

Whatever is hit: no wrong byte is served, no deleted block comes back, and no other block is lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from tests.payload import quiet
from tierstore.testing.block_user import BlockUser
from tierstore.testing.ssd_world import SsdWorld
from tierstore.tiers.footer import footer_nbytes
from tierstore.types import PAGE_NBYTES, Outcome

BLOCK_NBYTES = 100
FILE_NBYTES = 14 * PAGE_NBYTES
SLOTS = 6
RECORDS = {0: BLOCK_NBYTES, 2: BLOCK_NBYTES, 4: BLOCK_NBYTES, 6: 32, 8: 32, 10: BLOCK_NBYTES}
"""Bytes of each record's payload by its page: blocks 0 to 2, twice the deletion of block 1, block 3."""

KEPT = {0, 2, 3}
HEADER_NBYTES = 256
CHECKSUM_NBYTES = 4
KEY_NBYTES = 256 + 4
TRAILER_NBYTES = 64
INDEX_ENTRY_NBYTES = 16


class Folder:
    """A folder that can be put back as it was.

    Attributes:
        path: The file that is spoiled.
        kept: The blocks that live in the folder.
    """

    def __init__(self, *, sealed: bool) -> None:
        self.world = SsdWorld(capacity_nbytes=8 * FILE_NBYTES, file_nbytes=FILE_NBYTES)
        tier, self.user = self.world.begin(BLOCK_NBYTES)
        self.user.write(tier, [0, 1, 2])
        self.user.delete(tier, [1])
        self.user.write(tier, [3, 4] if sealed else [3])
        self.kept = KEPT | ({4} if sealed else set())
        tier.close()
        self.world.kill()
        self.path = min(self.world.files())
        assert ("/c.0" in self.path) is sealed
        self._whole = {path: self.world.sim.contents(path) for path in self.world.files()}
        self.used = [byte for page, nbytes in RECORDS.items() for byte in _record(page * PAGE_NBYTES, nbytes)]
        if sealed:
            table = FILE_NBYTES - footer_nbytes(SLOTS, len(RECORDS))
            self.used += range(table, table + len(RECORDS) * KEY_NBYTES)
            self.used += range(FILE_NBYTES - TRAILER_NBYTES - SLOTS * INDEX_ENTRY_NBYTES - CHECKSUM_NBYTES, FILE_NBYTES)

    def spoil(self, mask: dict[int, int]) -> None:
        """Put every file back, and change some bytes of the one."""
        for path in set(self.world.files()) - set(self._whole):
            self.world.sim.remove(path)
        for path, content in self._whole.items():
            if path not in self.world.files():
                self.world.sim.create(path, len(content)).close()
            if path == self.path:
                spoiled = bytearray(content)
                for byte, bits in mask.items():
                    spoiled[byte] ^= bits
                content = bytes(spoiled)
            self.world.sim.replace(path, content)

    def outcomes(self) -> dict[int, Outcome]:
        """What a start finds, and how reading it ends; every byte of what is OK is compared."""
        user = BlockUser(self.world.pool, self.user.generation)
        tier = self.world.start()
        found = user.recover(tier.recover())
        outcomes = dict(zip(found, user.read(tier, found), strict=True))
        self.world.kill()
        return outcomes


def _record(start: int, nbytes: int) -> Iterator[int]:
    yield from range(start, start + HEADER_NBYTES)
    yield from range(start + PAGE_NBYTES, start + PAGE_NBYTES + nbytes + CHECKSUM_NBYTES)


@pytest.mark.slow  # thousands of starts
@pytest.mark.parametrize("sealed", [False, True], ids=["open", "sealed"])
def test_a_flipped_bit_in_any_byte_costs_one_block_at_most_and_brings_none_back(sealed: bool) -> None:
    folder = Folder(sealed=sealed)
    with quiet():
        for byte in folder.used:
            folder.spoil({byte: 1 << byte % 8})
            outcomes = folder.outcomes()
            assert set(outcomes) <= folder.kept, f"byte {byte}: a deleted block is back"
            assert set(outcomes.values()) <= {Outcome.OK, Outcome.CORRUPT}
            bad = folder.kept - {name for name, outcome in outcomes.items() if outcome is Outcome.OK}
            assert len(bad) <= 1, f"byte {byte}: blocks {bad} are lost"


@pytest.mark.parametrize("sealed", [False, True], ids=["open", "sealed"])
def test_all_bytes_that_mean_nothing_may_be_anything(sealed: bool) -> None:
    folder = Folder(sealed=sealed)
    padding = set(range(FILE_NBYTES)) - set(folder.used)
    random = Random(6)
    for _ in range(4):
        folder.spoil({byte: random.randrange(256) for byte in padding})
        with quiet():
            assert folder.outcomes() == dict.fromkeys(sorted(folder.kept), Outcome.OK)
