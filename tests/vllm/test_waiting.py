"""What names the blocks of a request: vLLM's hashes, its adapter's weights, and a salt after a reset."""

from __future__ import annotations

from types import SimpleNamespace

from tests.payload import block_hash
from tierstore.connectors.vllm.waiting import Waiting

HASHES = [block_hash(number) for number in range(8)]


def waiting(salt: bytes = b"") -> Waiting:
    return Waiting(SimpleNamespace(block_hashes=list(HASHES)), salt)


def test_without_salt_and_adapter_keys_are_the_engines_own_hashes() -> None:
    assert list(waiting().keys(1, b"")) == HASHES
    assert list(waiting().keys(4, b"")) == [HASHES[3], HASHES[7]]


def test_another_salt_or_adapter_gives_keys_that_nobody_else_has() -> None:
    pairs = [(salt, adapter) for salt in (b"", b"a reset", b"another") for adapter in (b"", b"weights", b"others")]
    keys = {key for salt, adapter in pairs for key in waiting(salt).keys(1, adapter)}
    assert len(keys) == len(pairs) * len(HASHES)
    assert list(waiting(b"a reset").keys(1, b"weights")) == list(waiting(b"a reset").keys(1, b"weights"))


def test_a_request_whose_adapter_was_replaced_under_it_names_no_block() -> None:
    state = waiting()
    assert state.keys(1, b"weights")
    assert not state.keys(1, b"others")
