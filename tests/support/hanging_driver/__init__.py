"""A plugin with which an OpenCL call never returns, in every process of a command.

`CODL_HANGS` names the call, such as `Program.build`, and how: "held" keeps the interpreter's lock,
as pyopencl does in some calls, and "free" lets it go. The file `CODL_HUNG` is made when it hangs.
With `CODL_HANGS_AFTER` so many calls return before.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

from codl.runtime import drivers

_usual = drivers._pyopencl
#: Two calls of a function on this never return: a signal does not end it, as it ends a sleep.
_MUTEX = ctypes.create_string_buffer(64)


def _hang(how: str) -> None:
    Path(os.environ["CODL_HUNG"]).touch()
    library = ctypes.PyDLL(None) if how == "held" else ctypes.CDLL(None)
    library.pthread_mutex_lock(_MUTEX)
    library.pthread_mutex_lock(_MUTEX)


def _hanging() -> Any:
    module = _usual()
    named, how = os.environ["CODL_HANGS"].split()
    left = int(os.environ.get("CODL_HANGS_AFTER", "0"))
    owner, _, name = named.rpartition(".")
    place = getattr(module, owner) if owner else module
    call = getattr(place, name)

    def counted(*args: Any, **options: Any) -> Any:
        nonlocal left
        if left == 0:
            _hang(how)
        left -= 1
        return call(*args, **options)

    setattr(place, name, property(lambda event: counted(event)) if name == "status" else counted)
    return module


drivers._pyopencl = _hanging
