"""Generates this folder's modules from `proto/`: `python -m tierstore.service._pb.generate [FOLDER]`. Needs grpcio-tools."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

SOURCE = "tierstore/v1/tierstore.proto"
MADE = ("tierstore_pb2.py", "tierstore_pb2.pyi")


def generate(folder: Path) -> None:
    """Write the modules into a folder. Blocks."""
    from grpc_tools import protoc

    root = Path(__file__).parents[3] / "proto"
    with tempfile.TemporaryDirectory() as scratch:
        status = protoc.main(["", f"-I{root}", f"--python_out={scratch}", f"--pyi_out={scratch}", str(root / SOURCE)])
        if status:
            raise SystemExit(status)
        for name in MADE:
            shutil.copy(Path(scratch, SOURCE).with_name(name), folder / name)


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
