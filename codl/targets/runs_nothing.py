"""What a target refuses that is no machine: everything that has to run or to look at one."""

from __future__ import annotations

from typing import Any, NoReturn

from codl.errors import UnsupportedError

#: What is said of a serial that is a recording.
INSTEAD = (
    "a replay answers with the rows of a dataset and runs nothing. Name a device by --serial, such "
    "as `local`."
)


def refusal(serial: str, what: str) -> UnsupportedError:
    """What is said where a replay is asked for something else than rows."""
    return UnsupportedError(f"{serial!r} cannot {what}: {INSTEAD}")


class RunsNothing:
    """Refuses all of the `Target` protocol that needs a machine, with `UnsupportedError`."""

    serial: str

    def measure_facts(self, *_: Any, **__: Any) -> NoReturn:
        raise refusal(self.serial, "measure facts of a device")

    def observe_cores(self) -> NoReturn:
        raise refusal(self.serial, "tell on which cores threads run")

    def set_governor(self, *_: Any) -> NoReturn:
        raise refusal(self.serial, "set a governor")

    def tune(self, *_: Any, **__: Any) -> NoReturn:
        raise refusal(self.serial, "tune kernels")

    def bench(self, *_: Any, **__: Any) -> NoReturn:
        raise refusal(self.serial, "bench an op")

    def power(self, *_: Any) -> NoReturn:
        raise refusal(self.serial, "measure power")

    def draw_frames(self, *_: Any) -> NoReturn:
        raise refusal(self.serial, "draw frames")

    def examine(self) -> NoReturn:
        raise refusal(self.serial, "be examined")

    def import_package(self, *_: Any) -> NoReturn:
        raise refusal(self.serial, "import a package")

    def pace(self, *_: Any) -> NoReturn:
        raise refusal(self.serial, "do work to see how fast a core is")

    def check_kernels(self, *_: Any, **__: Any) -> NoReturn:
        raise refusal(self.serial, "check kernels")

    def open(self, *_: Any, **__: Any) -> NoReturn:
        raise refusal(self.serial, "open an OpenCL device")

    def load(self, *_: Any, **__: Any) -> NoReturn:
        raise refusal(self.serial, "load a model")

    def load_on_cpu(self, *_: Any) -> NoReturn:
        raise refusal(self.serial, "load a model")

    def binaries(self, *_: Any) -> NoReturn:
        raise refusal(self.serial, "compile kernels")

    def start_peer(self, *_: Any, **__: Any) -> NoReturn:
        raise refusal(self.serial, "start another library")

    def time(self, *_: Any, **__: Any) -> NoReturn:
        raise refusal(self.serial, "time models")

    def fresh(self) -> NoReturn:
        raise refusal(self.serial, "start a process")
