"""Trace files of every known kind, and what is said of those that are none."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from tierstore.errors import ConfigError
from tierstore.replay.reading import read_trace
from tierstore.replay.trace import Trace

DATA = Path(__file__).parents[1] / "data"


def trace_of(folder: Path, *rows: object, block_tokens: int | None = None) -> Trace:
    path = folder / "trace.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows), "utf-8")
    return read_trace(path, block_tokens)


def requests(trace: Trace) -> list[list[int]]:
    return [trace.request(index).tolist() for index in range(len(trace))]


def asked(milliseconds: float, tokens: int, *ids: int) -> dict[str, object]:
    return {"timestamp": milliseconds, "input_length": tokens, "output_length": 1, "hash_ids": list(ids)}


def stored(hashes: list[object], parent: object, block_tokens: int = 4, **more: object) -> dict[str, object]:
    tokens = [0] * block_tokens * len(hashes)
    event = {"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": parent, "token_ids": tokens}
    return event | {"block_size": block_tokens, "lora_id": None} | more


@pytest.mark.parametrize(
    ("name", "num_requests", "num_unique", "block_tokens"),
    [
        ("mooncake_conversation", 12_031, 182_790, 512),
        ("mooncake_synthetic", 3_993, 43_924, 512),
        ("agents_blk16", 1_566, 25_906, 16),
    ],
)
def test_the_public_traces_are_what_they_are_said_to_be(
    name: str, num_requests: int, num_unique: int, block_tokens: int
) -> None:
    trace = read_trace(DATA / f"{name}.jsonl.gz")
    assert (len(trace), trace.num_unique, trace.block_tokens) == (num_requests, num_unique, block_tokens)


def test_requests_keep_their_blocks_tokens_and_seconds(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, asked(500, 10, 7, 9, 3), asked(2500, 8, 7, 9))
    assert requests(trace) == [[0, 1, 2], [0, 1]]
    assert trace.num_tokens.tolist() == [10, 8]
    assert trace.seconds.tolist() == [0.0, 2.0]
    assert trace.block_tokens == 4
    assert trace.tokens_of(np.array([3, 1])).tolist() == [10, 4]


def test_a_compressed_file_is_known_by_its_first_bytes(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(gzip.compress(json.dumps(asked(0, 4, 1)).encode()))
    assert requests(read_trace(path, 4)) == [[0]]


def test_equal_blocks_have_equal_hashes_and_others_do_not(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, asked(0, 16, 1, 2, 3, 4), asked(1, 8, 1, 5))
    assert trace.hashes.shape == (5, 32)
    assert len({row.tobytes() for row in trace.hashes}) == 5
    assert requests(trace)[1] == [0, 4]


def test_events_of_vllm_are_requests_for_what_it_stored(tmp_path: Path) -> None:
    trace = trace_of(
        tmp_path,
        {"ts": 5.0, "events": [stored(["a", "b"], None), stored(["c"], "b")]},
        {"ts": 6.0, "events": [{"type": "BlockRemoved", "block_hashes": ["c"], "medium": "GPU"}]},
        {"ts": 9.0, "events": [stored(["c"], "b", medium="GPU"), stored(["x"], None, medium="CPU")]},
    )
    assert requests(trace) == [[0, 1, 2], [2]]
    assert trace.num_tokens.tolist() == [12, 4]
    assert trace.seconds.tolist() == [0.0, 4.0]
    assert trace.block_tokens == 4


def test_events_of_sglang_are_arrays(tmp_path: Path) -> None:
    trace = trace_of(
        tmp_path,
        [1.5, [["BlockStored", [11, 12], None, [0] * 8, 4, None]], 0],
        [2.5, [["BlockRemoved", [12]], ["BlockStored", [12], 11, [0] * 4, 4, None]]],
    )
    assert requests(trace) == [[0, 1], [1]]


def test_after_a_clear_every_block_is_a_new_one(tmp_path: Path) -> None:
    cleared = {"ts": 2.0, "events": [{"type": "AllBlocksCleared"}]}
    trace = trace_of(tmp_path, {"ts": 1, "events": [stored([1], None)]}, cleared, {"ts": 3, "events": [stored([1], 0)]})
    assert requests(trace) == [[0], [1]]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], "is empty"),
        ([{"timestamp": 1}], "line 1: neither"),
        ([asked(0, 4, 1), {"hash_ids": [2]}], "line 2: not a request"),
        ([asked(0, 4, 1), {"timestamp": "now", "input_length": 1, "hash_ids": [2]}], "line 2: not a request"),
        ([asked(0, 8, 1, 1)], "line 1: a request names a block twice"),
        ([{"timestamp": 0, "input_length": 4, "hash_ids": []}], "holds no request"),
        ([asked(0, 3, 1, 2), asked(0, 100, 1, 2)], "give --block-tokens"),
        ([{"ts": 1, "events": [{"type": "BlockMoved"}]}], "line 1: no KV event"),
        ([{"ts": 1, "events": [{"type": "BlockStored", "block_hashes": [1]}]}], "line 1: no KV event"),
        ([{"ts": 1, "events": [stored([1], None), stored([2], None, 8)]}], "8 tokens among those of 4"),
    ],
)
def test_what_is_no_trace_is_refused_by_line(tmp_path: Path, rows: list[object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        trace_of(tmp_path, *rows)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_trace(tmp_path / "missing.jsonl")
    broken = tmp_path / "broken.gz"
    broken.write_bytes(gzip.compress(b"{}" * 1000)[:-20])
    with pytest.raises(ConfigError, match="cannot be read"):
        read_trace(broken)
    broken.write_text("{", "utf-8")
    with pytest.raises(ConfigError, match="line 1: not JSON"):
        read_trace(broken)
