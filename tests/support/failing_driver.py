"""A driver that fails when it is told to: every OpenCL call of codl goes past one counter.

`calls_of` puts it between codl and pyopencl, in this process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from codl.runtime import launch
from codl.runtime.cl_library import error_of
from codl.runtime.drivers import cl_module, is_stand_in

#: What codl calls of pyopencl: functions and classes of the module, and methods of classes.
FUNCTIONS = (
    "enqueue_nd_range_kernel",
    "enqueue_map_buffer",
    "enqueue_fill_buffer",
    "enqueue_fill_image",
    "enqueue_marker",
    "create_image",
    "svm_empty",
    "SVM",
    "Buffer",
    "Kernel",
    "Program",
    "CommandQueue",
)
METHODS = (
    ("Event", "wait"),
    ("NannyEvent", "wait"),
    ("CommandQueue", "flush"),
    ("CommandQueue", "finish"),
    ("Kernel", "set_args"),
    ("Kernel", "get_work_group_info"),
    ("Program", "build"),
    ("MemoryMap", "release"),
)


LOOK = "command_execution_status"


def driver_error(routine: str, code: int) -> Exception:
    """As pyopencl, or what stands in for it, raises it."""
    cl = cl_module()
    if is_stand_in():
        return error_of(routine, code)
    kinds = {cl.status_code.MEM_OBJECT_ALLOCATION_FAILURE: cl.MemoryError}
    kind = kinds.get(code, cl.RuntimeError if code > -30 else cl.LogicError)
    error: Exception = kind(cl._cl._ErrorRecord(msg="", code=code, routine=routine))
    return error


@dataclass
class Calls:
    """Counts OpenCL calls; from the one numbered `fails_at`, `fails` calls end in `code`."""

    fails_at: int = 0
    fails: float = 1
    code: int = -5
    #: The calls so far; looks at an event until it is done are one.
    names: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def plan(self, fails_at: int = 0, code: int = 0, fails: float = 1) -> None:
        """Count anew, and fail then; never without a number."""
        self.fails_at, self.fails, self.code = fails_at, fails, code
        self.names, self.failed = [], []

    @property
    def count(self) -> int:
        return len(self.names)

    def every_kind(self) -> list[int]:
        """The numbers of the first and the last call of each name."""
        last = {name: number for number, name in enumerate(self.names, 1)}
        return sorted({*last.values(), *(self.names.index(name) + 1 for name in last)})

    def fails_now(self, name: str) -> bool:
        if name == LOOK and self.names[-1:] == [LOOK]:
            return False
        self.names.append(name)
        if not (self.fails_at and 0 <= self.count - self.fails_at < self.fails):
            return False
        self.failed.append(name)
        return True

    def passing(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """`call`, past the counter."""

        def counted(*args: Any, **options: Any) -> Any:
            if self.fails_now(name):
                raise driver_error(name, self.code)
            return call(*args, **options)

        return counted


@contextmanager
def calls_of() -> Iterator[Calls]:
    """The OpenCL calls of this process, inside."""
    calls = Calls()
    with pytest.MonkeyPatch.context() as patch:
        _install(calls, patch)
        yield calls


def _install(calls: Calls, patch: pytest.MonkeyPatch) -> None:
    cl = cl_module()
    # The classes themselves: the module's names of them may be among the functions.
    kinds = getattr(cl, "_cl", cl)
    methods = [(getattr(kinds, owner, cl.Program), owner, name) for owner, name in METHODS]
    queues = kinds.CommandQueue
    for name in FUNCTIONS:
        patch.setattr(cl, name, calls.passing(name, getattr(cl, name)))
    for kind, owner, name in methods:
        if name in vars(kind):
            patch.setattr(kind, name, calls.passing(f"{owner}.{name}", vars(kind)[name]))
    status = cl.Event.command_execution_status
    patch.setattr(cl.Event, "command_execution_status", property(calls.passing(LOOK, status.fget)))
    if is_stand_in():  # what a queue has of its own
        for name in ("enqueue", "flush"):
            patch.setattr(queues, name, _of_queue(calls, name), raising=False)
        return
    raw = launch.enqueue_function

    def passing_raw(queue: Any, *, is_cpu: bool) -> Callable[..., object] | None:
        function = raw(queue, is_cpu=is_cpu)
        return None if function is None else calls.passing("clEnqueueNDRangeKernel", function)

    patch.setattr(launch, "enqueue_function", passing_raw)


def _of_queue(calls: Calls, name: str) -> property:
    """What stands before an attribute of a queue."""
    return property(
        lambda queue: calls.passing(f"CommandQueue.{name}", vars(queue)[name]),
        lambda queue, value: vars(queue).update({name: value}),
    )
