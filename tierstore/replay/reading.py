"""Reads trace files: JSON lines, plain or gzip, of Mooncake's published requests or of engines' KV events.

Called by the command line. The first line of a file tells its format. A line that does not fit is an error that
names it; nothing is guessed.

Mooncake (https://github.com/kvcache-ai/Mooncake, FAST25-release): one request a line, ``timestamp`` in ms,
``input_length`` in tokens, ``hash_ids`` in prefix order.

KV events of vLLM (``vllm/distributed/kv_events.py``) and SGLang (``srt/disaggregation/kv_events.py``): one
batch a line, as msgspec encodes it to JSON: an object with ``ts`` and ``events`` whose ``type`` is
``BlockStored``, ``BlockRemoved`` or ``AllBlocksCleared``, or the same as arrays with the type first. An
engine stores blocks that it has just computed or loaded. So each `BlockStored` is read as a request for its blocks,
whose predecessors the engine held itself. One that continues another of its batch is part of the same request.
Removals concern the engine's own cache and are ignored; after a clear all blocks are new ones.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeAlias

from tierstore.errors import ConfigError
from tierstore.replay.trace import Asked, Trace

__all__ = ["read_trace"]

_Line: TypeAlias = tuple[int, object]
_GZIP_MAGIC = b"\x1f\x8b"
_ENGINE_MEDIA = (None, "GPU")
_STORED_FIELDS = ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium")


def read_trace(path: Path, block_tokens: int | None = None) -> Trace:
    """Read a whole trace.

    Args:
        path: A file of JSON lines, plain or gzip.
        block_tokens: Tokens a block; None to find out.

    Raises:
        ConfigError: The file cannot be read, or a line is none of a known trace.
    """
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if data.startswith(_GZIP_MAGIC) else data).decode("utf-8")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise ConfigError(f"the trace {path} cannot be read: {error}; give JSON lines, plain or gzip") from error
    lines = _parse(path.name, text)
    first = next(lines, None)
    if first is None:
        raise ConfigError(f"the trace {path} is empty; give one with at least a request")
    rows = _chain(first, lines)
    if isinstance(first[1], dict) and "hash_ids" in first[1]:
        return Trace.of(path.name, _mooncake(path.name, rows), block_tokens)
    if isinstance(first[1], list) or (isinstance(first[1], dict) and "events" in first[1]):
        found = _Events(path.name)
        requests = list(found.requests(rows))
        return Trace.of(path.name, requests, block_tokens or found.block_tokens)
    raise ConfigError(f"{path.name}, line {first[0]}: neither a request with hash_ids nor a batch of KV events")


def _parse(name: str, text: str) -> Iterator[_Line]:
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except ValueError as error:
                raise ConfigError(f"{name}, line {number}: not JSON: {error}") from error


def _chain(first: _Line, rest: Iterator[_Line]) -> Iterator[_Line]:
    yield first
    yield from rest


def _mooncake(name: str, lines: Iterable[_Line]) -> Iterator[Asked]:
    for number, row in lines:
        match row:
            case {"timestamp": int() | float() as milliseconds, "input_length": int(tokens), "hash_ids": list(ids)}:
                if ids:
                    yield Asked(number, milliseconds / 1e3, tokens, ids)
            case _:
                raise ConfigError(
                    f"{name}, line {number}: not a request with timestamp, input_length and hash_ids: {str(row)[:80]}"
                )


class _Events:
    """Requests out of batches of KV events.

    Attributes:
        block_tokens: As the events say; None before the first that does.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._epoch = 0
        self.block_tokens: int | None = None

    def requests(self, lines: Iterable[_Line]) -> Iterator[Asked]:
        """Every request of some batches, in order."""
        for number, row in lines:
            match row:
                case {"ts": int() | float() as seconds, "events": list(events)}:
                    pass
                case [int() | float() as seconds, list(events), *_]:
                    pass
                case _:
                    raise self._unknown(number, row)
            yield from self._batch(number, float(seconds), events)

    def _batch(self, number: int, seconds: float, events: list[object]) -> Iterator[Asked]:
        chains: dict[object, list[object]] = {}  # by the last block
        for event in events:
            stored = self._stored(number, event)
            if stored is None:
                continue
            parent, hashes = stored
            blocks = chains.pop(parent, [])
            blocks += [(self._epoch, block) for block in hashes]
            chains[hashes[-1]] = blocks
        for blocks in chains.values():
            distinct = list(dict.fromkeys(blocks))
            yield Asked(number, seconds, len(distinct) * (self.block_tokens or 1), distinct)

    def _stored(self, number: int, event: object) -> tuple[object, list[object]] | None:
        """Parent and blocks of an event that stored some in the engine's own memory."""
        if isinstance(event, list) and event:
            kind, fields = event[0], dict(zip(_STORED_FIELDS, event[1:], strict=False))
        elif isinstance(event, dict):
            kind, fields = event.get("type"), event
        else:
            raise self._unknown(number, event)
        if kind == "AllBlocksCleared":
            self._epoch += 1
            return None
        if kind == "BlockRemoved":
            return None
        match fields:
            case {"block_hashes": [_, *_] as hashes, "block_size": int(block_tokens)} if kind == "BlockStored":
                if self.block_tokens not in (None, block_tokens):
                    raise ConfigError(
                        f"{self._name}, line {number}: blocks of {block_tokens} tokens among those of "
                        f"{self.block_tokens}; replay one kind at a time"
                    )
                self.block_tokens = block_tokens
                own = fields.get("medium") in _ENGINE_MEDIA
                return (fields.get("parent_block_hash"), list(hashes)) if own else None
            case _:
                raise self._unknown(number, event)

    def _unknown(self, number: int, found: object) -> ConfigError:
        return ConfigError(f"{self._name}, line {number}: no KV event that is known: {str(found)[:80]}")
