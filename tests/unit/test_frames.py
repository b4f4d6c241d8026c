"""Messages behind their lengths, cut out of a stream that comes in parts of any size."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierstore.errors import LimitError
from tierstore.service.frames import Frames, framed
from tierstore.service.wire import MESSAGE_NBYTES_MAX


@given(messages=st.lists(st.binary(max_size=40)), cuts=st.lists(st.integers(1, 12), min_size=1))
def test_messages_come_out_as_they_went_in_however_the_stream_is_cut(messages: list[bytes], cuts: list[int]) -> None:
    stream, frames, found, turn = b"".join(map(framed, messages)), Frames(), [], 0
    while stream:
        part, stream = stream[: cuts[turn % len(cuts)]], stream[cuts[turn % len(cuts)] :]
        found += frames.feed(part)
        turn += 1
    assert found == messages


def test_the_longest_message_passes_and_a_longer_one_is_refused_before_it_comes() -> None:
    longest = bytes(MESSAGE_NBYTES_MAX)
    assert Frames().feed(framed(longest)) == [longest]
    with pytest.raises(LimitError, match=f"a message of {MESSAGE_NBYTES_MAX + 1} bytes"):
        Frames().feed((MESSAGE_NBYTES_MAX + 1).to_bytes(4, "little"))


def test_a_long_message_in_many_small_parts_is_not_joined_anew_with_each() -> None:
    """4 MiB in 32,768 parts: joined anew with each they were 68 GB to copy."""
    message, frames, found = bytes(MESSAGE_NBYTES_MAX), Frames(), []
    stream, begun = framed(message), time.process_time()
    for start in range(0, len(stream), 128):
        found += frames.feed(stream[start : start + 128])
    assert found == [message]
    assert time.process_time() - begun < 2
