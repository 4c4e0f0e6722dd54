"""Where a user comes in: whatever is raised further in leaves as a `CodlError`.

That holds of what other libraries and the system raise. What codl's own code raises otherwise is a
defect and keeps its trace.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from types import TracebackType

from codl.errors import CodlError
from codl.optional import BASE, PACKAGES, explained

#: Those of the command line say what was wrong by themselves.
OWN_WORDS = frozenset(PACKAGES["cli"])
#: The modules whose errors are no defects of codl; `google` is protobuf's.
FOREIGN = frozenset({"google", *BASE, *(n for own in PACKAGES.values() for n in own)}) - OWN_WORDS


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
