"""A program of somebody else's that has codl run a network, and looks at its process around that.

    python guest.py ORDER MODEL SOC PLAN

ORDER says who imports pyopencl first, `guest` or `codl`. It prints, as JSON, what differs
afterwards, the OpenCL platforms that a child of it has then, and what its own kernel computed.
"""

from __future__ import annotations

import ctypes
import gc
import json
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Sequence
from typing import Any

import lightgbm  # noqa: F401
import numpy as np
import sklearn.ensemble  # noqa: F401  its import alone sets a variable, filters and seeds

CHILD = """
import ctypes, os, sys
for library in sys.argv[1:]:
    ctypes.CDLL(library, ctypes.RTLD_GLOBAL)
import pyopencl
print(len(pyopencl.get_platforms()))
"""

PYOPENCL = ["function of pyopencl", "function of pyopencl.invoker"]


class Mine(UserWarning):
    """A warning that the program filters."""


def state(threads: dict[str, int]) -> dict[str, Any]:
    """All that a library could change of this process."""
    numbers = [n for n in signal.valid_signals() if n not in (signal.SIGKILL, signal.SIGSTOP)]
    return {
        **{f"environment {name}": value for name, value in os.environ.items()},
        **{f"cores of {name}": os.sched_getaffinity(tid) for name, tid in threads.items()},
        **{f"signal {int(number)}": signal.getsignal(number) for number in numbers},
        "warnings": (*warnings.filters,),
        "how warnings are shown": warnings.showwarning,
        "collector": (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()),
        "dice": (hash(random.getstate()), hash(np.random.get_state()[1].tobytes())),
        "NumPy's errors": np.geterr(),
        "small floats": (np.full(4, 1e-39, np.float32) * np.float32(0.5)).tolist(),
        "folder": os.getcwd(),
        "path": (*sys.path,),
        "logging": (logging.root.level, (*logging.root.handlers,)),
        "hooks": (sys.excepthook, threading.excepthook, sys.unraisablehook),
        "recursion": sys.getrecursionlimit(),
        "switching": sys.getswitchinterval(),
        "pyopencl": pyopencl_functions(),
    }


def pyopencl_functions() -> list[str]:
    """Where the code is that the program's own kernels would go through."""
    if "pyopencl" not in sys.modules:
        return PYOPENCL
    import pyopencl.invoker

    functions = (pyopencl.compiler_output, pyopencl.invoker._generate_enqueue_and_set_args_module)
    return [f"{type(one).__name__} of {one.__module__}" for one in functions]


def differing(before: dict[str, Any], after: dict[str, Any]) -> dict[str, str]:
    names = sorted({*before, *after})
    return {
        name: f"{before.get(name)!r:.300} -> {after.get(name)!r:.300}"
        for name in names
        if before.get(name) != after.get(name)
    }


class Own:
    """A context of the program's, with a kernel that it uses before and after codl."""

    SOURCE = "__kernel void squares(__global int *y) { int i = get_global_id(0); y[i] = i * i; }"

    def __init__(self, libraries: Sequence[str]) -> None:
        for library in libraries:
            ctypes.CDLL(library, ctypes.RTLD_GLOBAL)
        import pyopencl as cl

        self._context = cl.Context(cl.get_platforms()[0].get_devices())
        self._queue = cl.CommandQueue(self._context)
        self._program = cl.Program(self._context, self.SOURCE).build()

    def squares(self) -> list[int]:
        import pyopencl as cl

        result = np.zeros(5, np.int32)
        buffer = cl.Buffer(self._context, cl.mem_flags.WRITE_ONLY, result.nbytes)
        self._program.squares(self._queue, result.shape, None, buffer)
        cl.enqueue_copy(self._queue, result, buffer)
        return [int(value) for value in result]


def spin(ids: dict[str, int], begun: threading.Event, stop: threading.Event) -> None:
    """A thread of the program's that works all the time."""
    ids["another thread"] = threading.get_native_id()
    begun.set()
    while not stop.is_set():
        sum(range(1000))


def use_codl(model: str, soc: str, plan: str) -> list[float]:
    """What codl is used for: a search, an engine with its first runs, and another one's."""
    import codl
    from codl.frontend.convert import load_network
    from codl.ir.records import soc as socs
    from codl.plan.strategies import Context, find

    searched = find("codl").plan(load_network(model), Context.of(socs.load("epyc2")))
    largest = [searched.predicted_ms or 0.0]
    for _ in range(2):
        with codl.compile(model, soc=soc, plan=plan) as engine:
            inputs = {n: np.ones(shape, np.float32) for n, shape in engine.network.inputs.items()}
            for _ in range(3):
                outputs = engine(inputs)
            engine.profile(2)
        largest += [float(np.abs(array).max()) for array in outputs.values()]
    return largest


def main() -> None:
    order, model, soc, plan, *libraries = sys.argv[1:]
    contexts = [Own(libraries)] if order == "guest" else []
    squares = [own.squares() for own in contexts]
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda number, frame: None)
    warnings.filterwarnings("error", category=Mine)
    gc.set_threshold(500, 7, 7)
    ids, begun, stop = (
        {"this thread": threading.get_native_id()},
        threading.Event(),
        threading.Event(),
    )
    thread = threading.Thread(target=spin, args=(ids, begun, stop), daemon=True)
    thread.start()
    begun.wait()
    before = state(ids)
    largest = use_codl(model, soc, plan)
    changed = differing(before, state(ids))
    stop.set()
    thread.join()
    squares += [own.squares() for own in (*contexts, Own(libraries))]
    child = subprocess.run(
        [sys.executable, "-c", CHILD, *libraries], capture_output=True, text=True, check=False
    )
    platforms = child.stdout.strip() or child.stderr
    said = {"changed": changed, "platforms": platforms, "largest": largest, "squares": squares}
    print(json.dumps(said))


if __name__ == "__main__":
    main()
