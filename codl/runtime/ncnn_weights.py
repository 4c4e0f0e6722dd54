"""Weights for ncnn, which reads them as from a file."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any

import ncnn
import numpy as np

from codl.ir import Array


class WeightReader(ncnn.DataReader):  # type: ignore[misc]  # ncnn comes without types
    """Arrays, one after the other, as ncnn would read them from a file; it copies what it reads."""

    def __init__(self, arrays: Iterable[Array]) -> None:
        super().__init__()
        # Arrays are float32, contiguous, and may lie in a file that is mapped.
        self._left = [array.reshape(-1).view(np.uint8) for array in arrays]
        self._left.reverse()
        self.bytes = self.left

    @property
    def left(self) -> int:
        """Bytes that were not read yet."""
        return sum(piece.size for piece in self._left)

    def read(self, target: Any, size: int) -> int:
        """Copy the next bytes to where a capsule points."""
        start, at = _pointer(target, None), 0
        while at < size and self._left:
            piece = self._left.pop()
            taken = min(piece.size, size - at)
            ctypes.memmove(start + at, piece.ctypes.data, taken)
            at += taken
            if taken < piece.size:
                self._left.append(piece[taken:])
        return at


_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
