"""Loops over a tensor's axes become rows and segments; neighbours are joined where they go on, and only there."""

from __future__ import annotations

import pytest

from tierstore.device.segments import SEGMENT, Loop, Segment, as_table, cut, merge


def pieces(*loops: Loop) -> list[tuple[int, int, int, int, int]]:
    """(address, rows, row stride, row bytes, slot offset) of every segment of a nest of loops."""
    segments = list(cut(loops, address=1000, block_stride_nbytes=64, slot_offset_nbytes=8))
    assert {segment.block_stride_nbytes for segment in segments} <= {64}
    return [(s.base_address, s.num_rows, s.row_stride_nbytes, s.row_nbytes, s.slot_offset_nbytes) for s in segments]


def test_axes_that_go_on_are_one_row() -> None:
    assert pieces(Loop(3, 8, 8), Loop(4, 2, 2), Loop(2, 1, 1)) == [(1000, 1, 24, 24, 8)]


def test_an_axis_that_leaves_a_gap_is_rows_of_one_segment() -> None:
    assert pieces(Loop(3, 10, 8), Loop(4, 2, 2), Loop(2, 1, 1)) == [(1000, 3, 10, 8, 8)]


def test_axes_that_are_backwards_in_the_cache_have_a_negative_stride() -> None:
    assert pieces(Loop(3, -8, 8), Loop(8, 1, 1)) == [(1000, 3, -8, 8, 8)]


def test_axes_in_another_order_than_the_slots_are_segments_of_short_rows() -> None:
    assert pieces(Loop(2, 4, 12), Loop(3, 8, 4), Loop(4, 1, 1)) == [(1000, 3, 8, 4, 8), (1004, 3, 8, 4, 20)]


def test_an_axis_that_the_slot_interleaves_with_others_is_no_row_of_the_segment() -> None:
    assert pieces(Loop(2, 4, 16), Loop(4, 1, 1)) == [(1000, 1, 4, 4, 8), (1004, 1, 4, 4, 24)]


def test_axes_of_one_step_change_nothing() -> None:
    assert pieces(Loop(1, 77, 5), Loop(4, 1, 1), Loop(1, 0, 0)) == pieces(Loop(4, 1, 1)) == [(1000, 1, 4, 4, 8)]
    assert pieces() == [(1000, 1, 1, 1, 8)]


ROW = Segment(1000, 64, 1, 8, 8, 0)


@pytest.mark.parametrize(
    ("second", "rows_apart", "joined"),
    [
        (Segment(1008, 64, 1, 8, 8, 8), False, Segment(1000, 64, 1, 16, 16, 0)),
        (Segment(1008, 64, 1, 4, 4, 8), False, Segment(1000, 64, 1, 12, 12, 0)),
        (Segment(1020, 64, 1, 8, 8, 8), True, Segment(1000, 64, 2, 20, 8, 0)),
        (Segment(980, 64, 1, 8, 8, 8), True, Segment(1000, 64, 2, -20, 8, 0)),
        (Segment(1020, 64, 2, 20, 8, 8), True, Segment(1000, 64, 3, 20, 8, 0)),
        (Segment(1020, 64, 1, 8, 8, 8), False, None),
        (Segment(1020, 64, 2, 30, 8, 8), True, None),
        (Segment(1008, 64, 2, 30, 8, 8), True, None),
        (Segment(1020, 64, 1, 4, 4, 8), True, None),
        (Segment(1008, 32, 1, 8, 8, 8), True, None),
        (Segment(1008, 64, 1, 8, 8, 16), True, None),
    ],
    ids=[
        *("goes on", "goes on, shorter", "apart", "before", "apart, two more"),
        *("apart where that may not be", "apart otherwise", "goes on, then apart", "of another length"),
        *("of another block stride", "elsewhere in the slot"),
    ],
)
def test_neighbours_are_joined_where_they_go_on(second: Segment, rows_apart: bool, joined: Segment | None) -> None:
    expected = [ROW, second] if joined is None else [joined]
    assert merge([ROW, second], rows_apart=rows_apart) == expected
    assert merge([second, ROW], rows_apart=rows_apart) == expected


def test_rows_that_lie_unevenly_are_not_joined_to_those_before() -> None:
    third = Segment(1050, 64, 1, 8, 8, 16)
    assert merge([ROW, Segment(1020, 64, 1, 8, 8, 8), third], rows_apart=True) == [
        Segment(1000, 64, 2, 20, 8, 0),
        third,
    ]


def test_the_table_holds_six_numbers_a_segment_and_nothing_between() -> None:
    table = as_table([ROW, Segment(-1, -2, 3, -4, 5, 6)])
    assert table.dtype == SEGMENT
    assert table.tobytes() == b"".join(
        number.to_bytes(8, "little", signed=True) for number in (*ROW, -1, -2, 3, -4, 5, 6)
    )
