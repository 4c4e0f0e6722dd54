"""Where the CPU side's nets take memory from."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache

import ncnn


@dataclass(frozen=True)
class Pools:
    """Where nets take the memory of tensors and of scratch from, and put it back.

    Pools must outlive every matrix that came from them, so they are never freed, not even when the
    interpreter ends, in whatever order that happens.
    """

    blobs: ncnn.PoolAllocator
    workspaces: ncnn.PoolAllocator

    @classmethod
    def new(cls) -> Pools:
        pools = cls(ncnn.PoolAllocator(), ncnn.PoolAllocator())
        for pool in (pools.blobs, pools.workspaces):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(pool))
        return pools

    @staticmethod
    @cache
    def shared() -> Pools:
        """Those of all nets that get none of their own."""
        return Pools.new()

    def clear(self) -> None:
        """Give back what no matrix holds."""
        self.blobs.clear()
        self.workspaces.clear()
