"""What torture believes: who must be there, who may, and what excuses a block that is not."""

from __future__ import annotations

import pytest

from bench.torture.blocks import Block, owner_of, payload, records_in
from bench.torture.knowledge import Fault, Knowledge, judge

FILE, CAPACITY = 100, 1000
OLD, NEW = "arrays/a/open-0", "arrays/a/open-1"


@pytest.fixture
def known() -> Knowledge:
    """One durable block, in an old file."""
    known = Knowledge(FILE)
    known.found({}, capacity_nbytes=CAPACITY)
    known.put(0, [7])
    known.wrote(OLD, [(0, 7, 1)])
    known.kept(0, [7], [0])
    return known


def must(known: Knowledge, number: int = 7) -> bool:
    return known.fates[Block(0, number)].must


def test_an_acknowledged_block_must_be_there_until_its_delete_is_called(known: Knowledge) -> None:
    assert must(known)
    known.delete(0, [7])
    assert not must(known)
    known.kept(0, [7], [0])
    assert not must(known), "its put was planned before the delete"


def test_a_full_folder_excuses_a_file_that_goes(known: Knowledge) -> None:
    known.left(OLD, CAPACITY)
    assert not must(known)
    assert not known.faults
    known.kept(0, [7], [0])
    assert not must(known), "its record has left meanwhile"


def test_an_answer_does_not_count_for_a_block_that_left_and_was_written_again_meanwhile(known: Knowledge) -> None:
    ticket = known.fates[Block(0, 7)].ticket
    known.left(OLD, CAPACITY)
    known.wrote(NEW, [(0, 7, 2)])
    known.kept(0, [7], [ticket])
    assert not must(known), "what was synced is not what is there"
    known.kept(0, [7], [known.fates[Block(0, 7)].ticket])
    assert must(known)


def test_a_file_that_goes_while_there_is_room_is_a_loss(known: Knowledge) -> None:
    known.left(OLD, CAPACITY - 3 * FILE)
    assert [kind for kind, _ in known.faults] == [Fault.LOST]


def test_a_block_written_again_does_not_leave_with_its_old_file(known: Knowledge) -> None:
    known.wrote(NEW, [(0, 7, 2)])
    known.left(OLD, CAPACITY)
    assert must(known)


def verdict(known: Knowledge, owner: Block, incarnation: int, number: int = 7) -> Fault | None:
    """What is wrong with these bytes where block `number` was asked for."""
    block = Block(0, number)
    wrong = judge(block, known.fates[block], payload(owner, incarnation))
    return wrong[0] if wrong else None


def test_bytes_of_another_block_are_wrong(known: Knowledge) -> None:
    assert verdict(known, Block(0, 7), 0) is None
    assert verdict(known, Block(0, 8), 0) is Fault.WRONG
    assert verdict(known, Block(2, 7), 0) is Fault.WRONG
    assert verdict(known, Block(0, 7), 1) is Fault.WRONG, "nobody has put these yet"


def test_a_delete_that_nobody_was_told_of_may_be_undone_by_the_next_start(known: Knowledge) -> None:
    known.delete(0, [7])
    assert verdict(known, Block(0, 7), 0) is Fault.RESURRECTED, "not in the same run"
    known.opened()
    assert verdict(known, Block(0, 7), 0) is None


def test_bytes_of_before_an_acknowledged_delete_are_a_deletion_undone(known: Knowledge) -> None:
    known.delete(0, [7])
    known.deleted(0, [7], [1])
    known.opened()
    assert verdict(known, Block(0, 7), 0) is Fault.RESURRECTED
    known.put(0, [7])
    assert verdict(known, Block(0, 7), 0) is Fault.RESURRECTED
    assert verdict(known, Block(0, 7), 1) is None


def test_a_damaged_deletion_may_be_undone_but_not_a_clear(known: Knowledge) -> None:
    known.clear(0)
    known.cleared(0)
    known.put(0, [7])
    known.delete(0, [7])
    known.deleted(0, [7], [2])
    known.spoilt([], [Block(0, 7)], 0)
    known.opened()
    assert verdict(known, Block(0, 7), 1) is None
    assert verdict(known, Block(0, 7), 0) is Fault.RESURRECTED


def test_every_byte_of_a_payload_counts() -> None:
    block = Block(1, 3)
    row = payload(block, 5).copy()
    assert owner_of(row) == (block, 5)
    for place in range(0, len(row), 61):
        row[place] ^= 1
        assert owner_of(row) is None
        row[place] ^= 1


def test_what_is_no_record_is_not_found() -> None:
    assert records_in(bytes(8192)) == []
    assert records_in(b"short") == []
