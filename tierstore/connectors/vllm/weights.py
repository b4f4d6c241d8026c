"""Digests of weights on disk. They identify the weights that made the KV; a name may stay while the weights change.

A digest of every byte would read hundreds of gigabytes at each start. Instead a few pieces of each tensor are read:
training, merging and converting change nearly all numbers of a tensor. Called while an engine starts, and on a separate
thread for adapters. Blocks on files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from tierstore.errors import ConfigError

__all__ = ["digest_folder", "find_folder"]

_PIECE_NBYTES = 4096
_HEADER_NBYTES_MAX = 100 << 20
_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.gguf")


def find_folder(model: str, revision: str | None) -> Path | None:
    """Where a model's files lie: the folder itself, or the one that the hub's client has downloaded. Loads nothing."""
    if Path(model).is_dir():
        return Path(model)
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:
        return None
    found = try_to_load_from_cache(model, "config.json", revision=revision)
    return Path(found).parent if isinstance(found, str) else None


def digest_folder(folder: Path) -> str:
    """Hex digest of the weights' files in a folder: their names, lengths, headers and pieces of every tensor.

    Raises:
        ConfigError: It holds no weights, or a file of them is malformed or cannot be read.
    """
    files = sorted({path for pattern in _WEIGHTS for path in folder.glob(pattern)})
    if not files:
        raise ConfigError(
            f"{folder} holds no weights ({', '.join(_WEIGHTS)}), so nothing tells them from others; set revision in "
            "kv_connector_extra_config to what names them"
        )
    digest = hashlib.sha256(b"tierstore weights 1\0")
    for path in files:
        try:
            nbytes = path.stat().st_size
            digest.update(f"{path.name}\0{nbytes}\0".encode())
            with path.open("rb") as file:
                for piece in _pieces(file, nbytes, safetensors=path.suffix == ".safetensors"):
                    digest.update(piece)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path} cannot be read as weights: {error}; mend it, or set revision") from error
    return digest.hexdigest()


def _pieces(file: BinaryIO, nbytes: int, *, safetensors: bool) -> Iterator[bytes]:
    """What is digested of one file: the header, and of each tensor its first, middle and last bytes."""
    spans = [(0, nbytes)]
    if safetensors:
        length = int.from_bytes(file.read(8), "little")
        if length > min(_HEADER_NBYTES_MAX, nbytes):
            raise ValueError(f"a header of {length} bytes")
        header = file.read(length)
        yield header
        tensors = json.loads(header)
        offsets = sorted(tuple(tensor["data_offsets"]) for name, tensor in tensors.items() if name != "__metadata__")
        spans = [(8 + length + begin, 8 + length + end) for begin, end in offsets]
    for begin, end in spans:
        middle = (begin + end) // 2
        for start in (begin, middle, max(begin, end - _PIECE_NBYTES)):
            file.seek(start)
            yield file.read(min(_PIECE_NBYTES, end - start))
