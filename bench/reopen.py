"""How long a folder of many small blocks takes to open: `python -m bench.reopen --folder F --blocks 100000 [--json -]`.

Puts durable blocks of 4 KiB, closes the store, then times a new `Store` and its first `namespace`, which
fills the directory. Works in a new folder below F and removes it.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

import click
import numpy as np

from tierstore.benchmark.machine import describe_machine
from tierstore.keys import Namespace
from tierstore.layout import KVLayout
from tierstore.store import Store

_BLOCK_NBYTES = 4096
_CALL_BLOCKS = 4096
_SPACE = Namespace("reopen", KVLayout.opaque(block_nbytes=_BLOCK_NBYTES))


def _open(folder: Path, num_blocks: int) -> Store:
    return Store(
        host_size="256 MiB",
        ssd_dir=folder,
        ssd_size=max(1 << 30, 4 * _BLOCK_NBYTES * num_blocks),
        ssd_free_floor="64 MiB",
    )


def _fill(folder: Path, num_blocks: int) -> None:
    random, blocks = np.random.default_rng(0), np.zeros((_CALL_BLOCKS, _BLOCK_NBYTES), np.uint8)
    with _open(folder, num_blocks) as store:
        handle = store.namespace(_SPACE)
        for first in range(0, num_blocks, _CALL_BLOCKS):
            count = min(_CALL_BLOCKS, num_blocks - first)
            hashes = random.integers(0, 256, (count, 32), dtype=np.uint8)
            assert handle.put(hashes, blocks[:count], durable=True).result().ok, "a block was not written"


@click.command()
@click.option("--folder", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--blocks", "num_blocks", default=100_000)
@click.option("--json", "json_path", default="-")
def main(*, folder: Path, num_blocks: int, json_path: str) -> None:
    """Fill, close, open, and say how long the opening took."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        _fill(Path(name), num_blocks)
        begun = time.perf_counter()
        with _open(Path(name), num_blocks) as store:
            opened = time.perf_counter()
            store.namespace(_SPACE)
            known = time.perf_counter()
        machine = describe_machine(folder)
    seconds = {"open_seconds": opened - begun, "namespace_seconds": known - opened}
    text = json.dumps({"num_blocks": num_blocks, **seconds, "machine": machine}, indent=1)
    if json_path == "-":
        click.echo(text)
    else:
        Path(json_path).write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
