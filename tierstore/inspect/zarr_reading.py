"""Reads blocks as any Zarr reader would, through zarr-python: a second opinion on what the store wrote.

Called by verifying. The only module that imports Zarr for reading; a few milliseconds a block. Bad data never raises
an exception here.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable

import numpy as np
import zarr

__all__ = ["ZarrReader"]


class ZarrReader:
    """Opens arrays of one folder when they are first asked for.

    Args:
        root: The store's folder on the local file system.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self._arrays: dict[str, Callable[[int], bytes]] = {}

    def differs(self, array: str, row: int, expected: memoryview) -> str:
        """Why what Zarr reads in one row is not the expected bytes; empty where it is. Blocks."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the codecs of numcodecs are no part of Zarr's own specification
                if array not in self._arrays:
                    self._arrays[array] = _open(os.path.join(self._root, "arrays", array))
                found = self._arrays[array](row)
        except (OSError, ValueError, KeyError, TypeError, IndexError, RuntimeError) as error:
            return f"Zarr cannot read row {row}: {type(error).__name__}: {error}"
        return "" if found == expected else f"Zarr reads other bytes in row {row}"


def _open(path: str) -> Callable[[int], bytes]:
    array = zarr.open_array(path, mode="r")
    return lambda row: np.asarray(array[row]).tobytes()
