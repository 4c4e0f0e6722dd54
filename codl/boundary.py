"""The boundary to users: whatever is raised behind it leaves as a `CodlError`.

That holds of what other libraries and the system raise, and of extras that are missing: packages
that only a part of codl needs. The base is what an engine on a device needs. Code behind an extra
imports its packages as usual; `explained` turns a missing one into an error that names the command
to install it. What codl's own code raises otherwise is a defect and keeps its trace.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from types import TracebackType

from codl.errors import CodlError

#: The oldest Python that codl runs on.
PYTHON = (3, 10)
#: The modules of the base, and the names that they are installed by.
BASE: Mapping[str, str] = {
    "msgspec": "msgspec",
    "ncnn": "ncnn",
    "numpy": "numpy",
    "platformdirs": "platformdirs",
    "pyopencl": "pyopencl",
    "threadpoolctl": "threadpoolctl",
    "yaml": "pyyaml",
}
#: Those of the base that one part of codl alone needs, which a device may lack.
OF_PARTS: Mapping[str, str] = {"ncnn": "the CPU", "pyopencl": "the GPU"}
#: What each extra of the wheel is for.
PURPOSES: Mapping[str, str] = {
    "cli": "the command line",
    "onnx": "reading ONNX models and operators that codl has none for",
    "report": "reports",
    "images": "reading images",
    "train": "predictors and tables of data",
    "peers": "comparing with other libraries",
    "dask": "sharing work with a Dask cluster",
}
#: Extras that `codl[all]` does not bring.
OPTIONAL = ("dask", "peers")
#: The modules that an extra brings, and the names that they are installed by.
PACKAGES: Mapping[str, Mapping[str, str]] = {
    "cli": {"rich": "rich", "typer": "typer"},
    "onnx": {"onnx": "onnx", "onnxruntime": "onnxruntime", "safetensors": "safetensors"},
    "report": {"jinja2": "jinja2", "perfetto": "perfetto"},
    "images": {"PIL": "pillow"},
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
    """A package that is not installed, of an extra or of a part of codl.

    The message has the command that installs it.
    """

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


#: Those of the command line say what was wrong by themselves.
OWN_WORDS = frozenset(PACKAGES["cli"])
#: The modules whose errors are no defects of codl; `google` is protobuf's.
FOREIGN = (
    frozenset({"google", *BASE, *(n for packages in PACKAGES.values() for n in packages)})
    - OWN_WORDS
)


@contextmanager
def boundary() -> Iterator[None]:
    """Raise `CodlError` for what libraries and the system raise inside; also a decorator."""
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
    """Whether an error is a defect of codl, and none of a device, a library or the system.

    What libraries in C++ raise has no class of theirs: their `RuntimeError` counts as such.
    """
    is_outside = isinstance(error, CodlError | OSError | MemoryError)
    return not (is_outside or type(error) is RuntimeError or _library(error))


def check_argument(name: str, value: object, what: str, *kinds: type) -> None:
    """Raise `CodlError` where a user's argument is of no such kind; a bool is no number."""
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise CodlError(f"{name} must be {what}, got {value!r}.")


def check_path(name: str, value: object) -> None:
    """The same of what may be a name or the path of a file."""
    check_argument(name, value, "text or a path", str, PathLike)


def _library(error: Exception) -> str | None:
    """The library whose error it is, or in whose code it was raised; None for codl's own."""
    modules = [type(error).__module__]
    if (last := _innermost(error.__traceback__)) is not None:
        modules.append(last)
    names = (module.partition(".")[0] for module in modules)
    return next((name for name in names if name in FOREIGN), None)


def _innermost(trace: TracebackType | None) -> str | None:
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return None if trace is None else str(trace.tb_frame.f_globals.get("__name__", ""))
