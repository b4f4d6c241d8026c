"""The kernels' own source, compiled by g++ for the CPU, and memory that faults where they leave it."""

from __future__ import annotations

import ctypes
import mmap
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np
import pytest

if TYPE_CHECKING:
    from tierstore.types import UInt8Array

KERNELS = Path(__file__).parents[2] / "kernels"
OPTIONS = (
    "-std=c++17",
    "-O1",
    "-g",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-unknown-pragmas",
    "-ffp-contract=off",
    "-shared",
    "-fPIC",
)

Compile: TypeAlias = Callable[[str], ctypes.CDLL]


class Guarded(Protocol):
    """Gives memory between two pages that fault when they are touched."""

    def __call__(self, nbytes: int, *, at_start: bool) -> UInt8Array:
        """uint8[nbytes] right behind the first such page, or else right before the second."""


@pytest.fixture(scope="session")
def compile_kernels(tmp_path_factory: pytest.TempPathFactory) -> Compile:
    """``compile_kernels("gather_scatter")``: that file of kernels as a library of the CPU."""
    if shutil.which("g++") is None:
        pytest.skip("needs g++ to compile the kernels for the CPU; there is none")
    folder = tmp_path_factory.mktemp("kernels")

    def compile_one(name: str) -> ctypes.CDLL:
        library = folder / f"{name}.so"
        if not library.exists():
            command = ["g++", *OPTIONS, "-o", str(library), str(KERNELS / "host" / f"{name}.cpp")]
            built = subprocess.run(command, capture_output=True, text=True, check=False)
            assert built.returncode == 0, built.stderr
        return ctypes.CDLL(str(library))

    return compile_one


@pytest.fixture(scope="session")
def guarded() -> Guarded:
    """Memory that ends the process when it is left on the side where it touches its guard."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    page = mmap.PAGESIZE

    def allocate(nbytes: int, *, at_start: bool) -> UInt8Array:
        inner = -(-nbytes // page) * page
        memory = np.frombuffer(mmap.mmap(-1, inner + 2 * page), np.uint8)
        first = memory.ctypes.data
        for guard in (first, first + page + inner):
            assert libc.mprotect(guard, page, 0) == 0, ctypes.get_errno()
        start = page if at_start else page + inner - nbytes
        return memory[start : start + nbytes]

    return allocate
