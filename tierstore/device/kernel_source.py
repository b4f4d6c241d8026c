"""Finds the CUDA sources, in a checkout or in an installed package, and defines how they are compiled.

Called by the CUDA runtime, which compiles them for the GPU it finds, and by the tests, which compile the same text
with the same options for every architecture. Reads the package's own files and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

__all__ = ["OPTIONS", "SOURCES", "read_source"]

OPTIONS = ("-std=c++17",)
"""What NVRTC is told besides the architecture."""

_PACKAGE = Path(__file__).parents[1]

_WIDTHS = (16, 8, 4, 2, 1)

SOURCES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "crc32c": ("crc32c",),
        "gather_scatter": tuple(f"{way}_{width}" for way in ("gather", "scatter") for width in _WIDTHS),
        "quantize": tuple(
            f"{way}_{dtype}_{scheme}"
            for way in ("quantize", "dequantize")
            for dtype in ("bfloat16", "float16", "float32")
            for scheme in ("fp8_e4m3", "int8")
        ),
    }
)
"""Every file of kernels by the name that `read_source` takes, and the kernels in it."""


def read_source(name: str) -> str:
    """The text of ``kernels/<name>.cu``."""
    folders = (_PACKAGE / "_kernels", _PACKAGE.parent / "kernels")
    folder = next(folder for folder in folders if folder.is_dir())
    return (folder / f"{name}.cu").read_text("utf-8")
