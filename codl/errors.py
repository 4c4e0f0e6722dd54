"""Exceptions and warnings of codl, and the conversion of other libraries' errors.

Every message states the problem with the wrong value, and a remedy. The command line prints the
message of a `CodlError` and exits with 1; any other exception is a defect.

`boundary` converts errors of libraries and of the system, `explained` those of missing packages.
The base packages are needed by an engine on a device, extras by parts of codl. Code of an extra
imports its packages as usual.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from os import PathLike


class CodlError(Exception):
    """Base of errors that a user can cause or fix; pickling keeps the message of any subclass."""

    def __reduce__(self) -> tuple[object, ...]:
        return _again, (type(self), self.args), self.__dict__ or None


def _again(cls: type[CodlError], arguments: tuple[object, ...]) -> CodlError:
    """An unpickled error, with its finished message."""
    return cls.__new__(cls, *arguments)


class InterruptedCommandError(CodlError):
    """Ctrl-C was pressed; the message names the kept results."""

    def __init__(self, kept: str = "") -> None:
        super().__init__(f"Interrupted.{' ' if kept else ''}{kept}")


class CodlWarning(UserWarning):
    """A problem that codl recovered from."""


class UnknownNameError(CodlError):
    """An unknown name; the message lists the known names and the nearest match."""

    def __init__(self, kind: str, name: str, choices: Iterable[str], *, fix: str = "") -> None:
        names = sorted(choices)
        near = get_close_matches(name, names, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        listed = ", ".join(names) if names else "none"
        super().__init__(
            f"Unknown {kind} {name!r}.{hint} Known: {listed}.{' ' + fix if fix else ''}"
        )


class DuplicateNameError(CodlError):
    """A name that is registered twice."""

    def __init__(self, kind: str, name: str, first: str, second: str) -> None:
        super().__init__(
            f"The {kind} {name!r} is registered twice, by {first} and by {second}: names must "
            "be unique."
        )


class InvalidFileError(CodlError):
    """An unusable file; `where` is the wrong line or key."""

    def __init__(self, path: object, problem: str, *, where: str = "", fix: str = "") -> None:
        place = f"{path}, {where}" if where else f"{path}"
        super().__init__(f"{place}: {problem}{' ' + fix if fix else ''}")


class UnwritableFileError(CodlError):
    """A file that cannot be written; its former content stays. `fix` is a sentence."""

    def __init__(self, path: object, error: OSError, *, fix: str = "") -> None:
        reason = error.strerror or error
        super().__init__(f"{path} cannot be written: {reason}.{' ' if fix else ''}{fix}")


class UnsupportedError(CodlError):
    """Valid input that codl does not support; the message names the failed constraint."""


class DeviceError(CodlError):
    """A missing or failed processor or driver."""


class NoKernelError(DeviceError):
    """A device refuses every kernel variant of a layer; `variant` is the planned one."""

    def __init__(self, layer: str, variant: str, reasons: str) -> None:
        super().__init__(f"No kernel variant of {layer!r} works here. {reasons}")
        self.layer, self.variant, self.reasons = layer, variant, reasons


class ForkError(DeviceError):
    """Use of drivers or libraries in a forked process."""


class WrongResultError(CodlError):
    """A plan with wrong outputs, and without a remedy."""


class MismatchError(CodlError):
    """Two files that do not match, such as a plan and another model."""


#: Oldest Python version that codl supports.
PYTHON = (3, 10)
#: Modules of the base packages, with their distribution names.
BASE: Mapping[str, str] = {
    "msgspec": "msgspec",
    "ncnn": "ncnn",
    "numpy": "numpy",
    "platformdirs": "platformdirs",
    "pyopencl": "pyopencl",
    "threadpoolctl": "threadpoolctl",
    "yaml": "pyyaml",
}
#: Base packages that only one part of codl needs, with that part; a device may do without them.
OF_PARTS: Mapping[str, str] = {"ncnn": "the CPU", "pyopencl": "the GPU"}
#: Purpose of each extra, for messages.
PURPOSES: Mapping[str, str] = {
    "cli": "the command line",
    "onnx": "reading ONNX models and operators that codl has none for",
    "report": "reports",
    "train": "predictors and tables of data",
    "peers": "comparing with other libraries",
    "dask": "sharing work with a Dask cluster",
}
#: Extras that `codl[all]` excludes.
OPTIONAL = ("dask", "peers")
#: Modules of each extra's packages, with their distribution names.
PACKAGES: Mapping[str, Mapping[str, str]] = {
    "cli": {"rich": "rich", "typer": "typer"},
    "onnx": {"onnx": "onnx", "onnxruntime": "onnxruntime", "safetensors": "safetensors"},
    "report": {"jinja2": "jinja2", "perfetto": "perfetto"},
    "train": {
        "joblib": "joblib",
        "lightgbm": "lightgbm",
        "pandas": "pandas",
        "scipy": "scipy",
        "sklearn": "scikit-learn",
    },
    "peers": {"MNN": "MNN", "openvino": "openvino"},
    "dask": {"dask": "dask", "distributed": "dask"},
}


class MissingPackageError(CodlError):
    """A missing package of an extra or a part of codl; the message has the install command."""

    def __init__(self, package: str, purpose: str, wanted: str) -> None:
        super().__init__(
            f"{package} is not installed; it is needed for {purpose}: `pip install {wanted}`."
        )


@contextmanager
def explained() -> Iterator[None]:
    """Raise `MissingPackageError` for a missing module of an extra or a part; also a decorator."""
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module in OF_PARTS:
            raise MissingPackageError(module, OF_PARTS[module], module) from error
        if module in BASE:
            raise CodlError(
                f"{BASE[module]} is not installed, and codl does nothing without it: "
                "`pip install codl`."
            ) from error
        extra = next((extra for extra, modules in PACKAGES.items() if module in modules), None)
        if extra is None:
            raise
        package, wanted = PACKAGES[extra][module], f"'codl[{extra}]'"
        raise MissingPackageError(package, PURPOSES[extra], wanted) from error


#: Libraries of the command line, which report their own errors.
OWN_WORDS = frozenset(PACKAGES["cli"])
#: Modules whose errors are no defects of codl; `google` is protobuf's.
FOREIGN = (
    frozenset({"google", *BASE, *(n for packages in PACKAGES.values() for n in packages)})
    - OWN_WORDS
)


@contextmanager
def boundary() -> Iterator[None]:
    """Raise `CodlError` for errors of libraries and the system inside; also a decorator."""
    try:
        with explained():
            yield
    except (CodlError, BrokenPipeError, TimeoutError):
        raise
    except MemoryError as error:
        reason = f" ({error})" if str(error) else ""
        raise CodlError(
            f"There is not enough memory for this{reason}: take a smaller batch or model."
        ) from error
    except OSError as error:
        place = f"{error.filename}: " if error.filename is not None else ""
        raise CodlError(f"{place}{error.strerror or error or type(error).__name__}.") from error
    except Exception as error:
        library = _library(error)
        if library is None:
            raise
        first = str(error).strip().splitlines() or [""]
        raise CodlError(f"{library} failed ({type(error).__name__}): {first[0]}") from error


def is_defect(error: Exception) -> bool:
    """Whether an error is a defect of codl, rather than of a device, a library or the system.

    C++ libraries raise plain `RuntimeError`s, which count as errors of libraries.
    """
    is_outside = isinstance(error, CodlError | OSError | MemoryError)
    return not (is_outside or type(error) is RuntimeError or _library(error))


def check_argument(name: str, value: object, what: str, *kinds: type) -> None:
    """Raise `CodlError` for a user's argument of another type; a bool is not a number."""
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise CodlError(f"{name} must be {what}, got {value!r}.")


def check_path(name: str, value: object) -> None:
    """Raise `CodlError` for an argument that is neither text nor a path."""
    check_argument(name, value, "text or a path", str, PathLike)


def _library(error: Exception) -> str | None:
    """The library that defines or raised an error; None for codl's own errors."""
    modules, trace = [type(error).__module__], error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is not None:
        modules.append(str(trace.tb_frame.f_globals.get("__name__", "")))
    names = (module.partition(".")[0] for module in modules)
    return next((name for name in names if name in FOREIGN), None)
