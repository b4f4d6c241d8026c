"""What names the blocks of a request: vLLM's hashes, and what else has shaped its KV."""

from __future__ import annotations

from types import SimpleNamespace

from tests.payload import block_hash
from tierstore.connectors.vllm.waiting import Waiting

HASHES = [block_hash(number) for number in range(8)]


def waiting() -> Waiting:
    return Waiting(SimpleNamespace(block_hashes=list(HASHES)))


def test_without_a_salt_keys_are_the_engines_own_hashes() -> None:
    assert list(waiting().keys(1, b"")) == HASHES
    assert list(waiting().keys(4, b"")) == [HASHES[3], HASHES[7]]


def test_with_a_salt_keys_are_those_of_nobody_who_has_another() -> None:
    keys = [list(waiting().keys(1, salt)) for salt in (b"", b"one", b"other")]
    assert len({key for own in keys for key in own}) == 3 * len(HASHES)
    assert keys[1] == list(waiting().keys(1, b"one"))


def test_a_request_whose_weights_were_replaced_under_it_names_no_block() -> None:
    for before, after in ((b"", b"reset"), (b"adapter", b"adapter loaded anew")):
        state = waiting()
        assert state.keys(1, before)
        assert not state.keys(1, after)
