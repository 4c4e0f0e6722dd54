"""Keeps memory of the device until the companion has stopped: this driver waits for that anyway.

Releasing memory that a kernel has used takes as long as anything runs, the companion too.
"""

from __future__ import annotations

from sys import getrefcount
from typing import Any

from codl.runtime.drivers import cl_module

#: References to something that is only kept: the list's, a variable's and an argument's.
ALONE = 3


class Kept:
    """Every buffer and image that this process makes from now on."""

    def __init__(self) -> None:
        self._all: list[Any] = []
        for name in ("Buffer", "Image"):
            setattr(cl_module(), name, self._keeping(getattr(cl_module(), name)))

    def _keeping(self, kind: type[Any]) -> type[Any]:
        everything = self._all

        def init(self: Any, *arguments: Any, **named: Any) -> None:
            kind.__init__(self, *arguments, **named)
            everything.append(self)

        return type(kind.__name__, (kind,), {"__init__": init})

    def __len__(self) -> int:
        return len(self._all)

    def release(self) -> None:
        """Let go what nobody else has."""
        self._all[:] = [one for one in self._all if getrefcount(one) > ALONE]
