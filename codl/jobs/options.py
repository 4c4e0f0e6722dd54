"""Options of jobs: each is stated once, with its help, its bounds and how its text is read.

An `Option` is the metadata of a field's type. `codl.cli.commands` makes an option of the command
line of it; from Python the field is given as it is.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from functools import cache, wraps
from math import inf, isfinite
from pathlib import Path
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ParamSpec,
    Protocol,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from codl.errors import CodlError, CodlWarning
from codl.files import BUNDLE, check_folder, check_writable, shipped
from codl.measure import FOLDER as DATASETS
from codl.measure import LONGEST_S
from codl.measure.budget import Progress, no_progress
from codl.predict import FOLDER as PREDICTORS

if TYPE_CHECKING:
    from codl.ir.records.results import Digests
    from codl.machine.placement import LocalSoc
    from codl.predict.workers import Workers
    from codl.targets.base import Target

#: Largest counts that are accepted.
MOST_IMAGES, MOST_ROUNDS = (1 << 31) - 1, 1_000_000
#: The serial of this machine, and the name of its SoC where no other is given.
HERE, HOST = "local", "host"
#: The suffix of traces.
TRACE = ".pftrace"
#: Names the SoC of commands that name none.
VARIABLE = "CODL_SOC"


@dataclass(frozen=True)
class Option:
    """A field on the command line: an option by its `names`, an argument without any.

    `help` may name a registry or a constant by its place, such as {codl.ir.types:PRECISIONS}.
    `read` makes the field's value of the text that was given, or of all texts where there may be
    `many`; a `ValueError` of it is wrong usage. `text` stands for an option that is not given; by
    default that is the field's own default. Numbers lie from `least` to `most`, both included.
    """

    names: tuple[str, ...]
    help: str
    read: Callable[[Any], Any] | None = None
    many: bool = False
    text: str | None = None
    least: float | None = None
    most: float | None = None
    metavar: str | None = None
    #: Computes the value of an option that is not given, and the reason, from the other values.
    usual: Callable[[Mapping[str, Any]], tuple[Any, str]] | None = None


def option(*names: str, help: str, **how: Any) -> Option:
    return Option(names, help, **how)


def argument(help: str, **how: Any) -> Option:
    return Option((), help, **how)


# Readers of texts. A `ValueError` is wrong usage, a `CodlError` is an error of the command.

_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smh]?)")
_SHAPE = re.compile(r"(?P<name>.+)=(?P<sizes>[1-9]\d*(x[1-9]\d*)*)")


def read_duration(text: str) -> float:
    """A duration such as 90s, 10m or 1.5h in seconds; raises `ValueError` for another text."""
    match = _DURATION.fullmatch(text)
    if not match:
        raise ValueError(f"Cannot read the duration {text!r}: expected one like 90s, 10m or 1h.")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


def time_of(name: str) -> Callable[[str], float]:
    """Reads a duration; raises `CodlError` for no time at all."""

    def read(text: str) -> float:
        if not (seconds := read_duration(text)):
            raise CodlError(f"{name} must be above 0, got {text!r}.")
        return seconds

    return read


def known_serial(serial: str) -> str:
    """A serial that a transport takes; raises `UnknownNameError` before anything else is done."""
    if serial != HERE:
        from codl.targets.connect import transport_of

        transport_of(serial)
    return serial


def writable(text: str | Path) -> Path:
    """A file that can be written; checked before its content is computed."""
    check_writable(path := Path(text))
    return path


def writable_as(suffix: str) -> Callable[[str], Path]:
    """Reads a file that can be written, and that ends in a suffix."""

    def read(text: str) -> Path:
        if not text.endswith(suffix):
            raise ValueError(f"must end in {suffix}, got {text}")
        return writable(text)

    return read


def result_file(text: str | Path) -> Path:
    """Where a result or a plan goes, behind a link; refuses to replace a file of another kind."""
    path = Path(text)
    if path.is_symlink() and path.is_file():
        path = path.resolve()
    if path.is_file():
        with path.open("rb") as file:
            if file.read(1) not in (b"", b"{"):
                raise CodlError(
                    f"{path} is there, and no result or plan in JSON: it would be replaced. Name "
                    "another file."
                )
    return writable(path)


def writable_folder(text: str) -> Path:
    """A folder that files can be written to."""
    check_folder(path := Path(text))
    return path


def existing_datasets(text: str) -> Path:
    """An existing folder; the default one may be missing."""
    folder = Path(text)
    if folder != DATASETS and not folder.is_dir():
        raise CodlError(f"--datasets {folder}: there is no such folder.")
    return folder


def _parts(text: str) -> list[str]:
    return [part for part in text.split(",") if part]


def names_of(texts: Iterable[str] | None) -> tuple[str, ...]:
    """Distinct names, separated by commas or in several texts."""
    parts = (part.strip() for text in texts or () for part in text.split(","))
    return tuple(dict.fromkeys(part for part in parts if part))


def read_models(texts: Iterable[str]) -> tuple[str, ...]:
    """Distinct models: names separated by commas, and all models of deployment files.

    Raises `CodlError` where none is named.
    """
    from codl.frontend.models import choices

    texts = list(texts)
    names = [name for text in texts for name in ([text] if Path(text).is_file() else _parts(text))]
    models = tuple(dict.fromkeys(model for name in names for model in choices(name)))
    if not models:
        raise CodlError(f"Name at least one model, such as yolov2; got {', '.join(texts)!r}.")
    return models


def read_ops(texts: Iterable[str]) -> tuple[str, ...]:
    """Ops as text, which have a space in them, and files of ops, by commas."""
    return tuple(
        part for text in texts for part in ([text] if " " in text.strip() else _parts(text))
    )


def read_shapes(texts: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Sizes by input, such as input=1x3x224x224; raises `CodlError` for another text."""
    shapes = {}
    for text in texts:
        match = _SHAPE.fullmatch(text)
        if match is None:
            raise CodlError(f"--shape must be like input=1x3x224x224, got {text!r}.")
        shapes[match["name"]] = tuple(int(size) for size in match["sizes"].split("x"))
    return shapes


def read_shares(text: str) -> tuple[float, ...]:
    """Shares of an op's output, above 0 and at most 1; raises `CodlError` for another text."""
    try:
        shares = tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise CodlError(
            f"Cannot read the shares {text!r}: expected some like 0.2,0.5,1."
        ) from error
    if not all(0 < share <= 1 for share in shares):
        raise CodlError(f"Shares must be above 0 and at most 1, got {text!r}.")
    return shares


def workers_of(jobs: int | None, dask: str | None, *, usual: int = 1) -> Workers:
    """Processes of this machine that share the work, by default `usual` ones, or Dask's workers."""
    from codl.predict.workers import Workers

    if jobs is not None and dask is not None:
        raise CodlError("--jobs is not used with --dask: a Dask cluster has workers of its own.")
    return Workers(dask=dask) if dask is not None else Workers(jobs or usual)


def usual_soc(*, runs: bool) -> tuple[str, str]:
    """The SoC that CODL_SOC names, or that was described here and measured last, and the reason.

    Where none was measured it is `host`, or the only one described here. Where none is described
    and nothing `runs` on it, it is one that comes with codl. Raises `CodlError` without any.
    """
    from codl.ir.records import soc as socs
    from codl.machine.placement import beside
    from codl.measure.dataset import Dataset

    if name := os.environ.get(VARIABLE):
        return name, f"as {VARIABLE} says"
    here = [path.stem for path in sorted(socs.FOLDER.glob("*.yaml")) if beside(path).is_file()]
    manifests = {name: Dataset(DATASETS / name).manifest_path for name in here}
    if measured := {n: path.stat().st_mtime for n, path in manifests.items() if path.is_file()}:
        last = max(measured, key=lambda name: measured[name])
        day = datetime.fromtimestamp(measured[last]).strftime("%Y-%m-%d %H:%M")
        return last, f"measured here last ({day})"
    if HOST in here or len(here) == 1:
        return HOST if HOST in here else here[0], "described here"
    if here:
        raise CodlError(f"Name one of the SoCs described here by --soc: {', '.join(here)}.")
    coming = sorted(path.name for path in shipped(PREDICTORS).iterdir() if path.is_dir())
    if not runs and coming:
        return coming[0], "it comes with codl, nothing was measured here"
    raise CodlError(
        f"No SoC is described in {socs.FOLDER.absolute()}: `codl soc detect` describes this "
        "machine, then `codl collect` measures it and `codl train` learns from that. --soc names "
        "another."
    )


def _usual_soc(*, runs: bool) -> Callable[[Mapping[str, Any]], tuple[str, str]]:
    """The default of --soc; a bundle has its own SoC."""

    def usual(given: Mapping[str, Any]) -> tuple[str, str]:
        if Path(str(given.get("model", ""))).suffix == BUNDLE:
            return "", ""
        is_run = (runs and not given.get("predicted")) or bool(given.get("serial"))
        name, reason = usual_soc(runs=is_run)
        return name, f"SoC {name}: {reason}. --soc names another."

    return usual


# Types of fields that several jobs have.


def list_option(name: str, help: str, read: Callable[[Any], Any] = names_of) -> Option:
    """An option of several names, such as A,B; `help` is its first sentence without the stop."""
    return option(name, help=f"{help}, by commas.", read=read, many=True, metavar="A,B")


MODELS = (
    "A built-in model ({codl.frontend.models:BUILT_IN}), an .onnx file, or a deployment .yaml "
    "(with #NAME where it has several models)"
)
SOCS = "A SoC: a name of `codl soc list`, or a .yaml file"
SERIALS = "local, process, an adb serial, ssh://user@host[:port] or replay:DIR"


def budget_option(help: str, text: str | None = None) -> Option:
    """The option --budget, with this text where it is not given."""
    return option("--budget", help=help, read=time_of("--budget"), text=text)


BudgetOption = Annotated[
    float | None,
    budget_option(
        "Time limit of the whole command, such as 90s, 10m or 1h; results so far are kept."
    ),
]
ThreadsOption = Annotated[
    int | None, option("--threads", help="Threads of the CPU side; one a core by default.")
]
SerialOption = Annotated[
    str, option("--serial", "--on", help=f"The device: {SERIALS}.", read=known_serial)
]
InstallOption = Annotated[
    bool, option("--install/--no-install", help="Install the agent where it is missing or old.")
]
SocOption = Annotated[
    str | Path, option("--soc", help=f"{SOCS}.", read=str, usual=_usual_soc(runs=True))
]
#: Of jobs that need no device: where nothing is measured here, a SoC that comes with codl.
PlannedSocOption = Annotated[
    str | Path, option("--soc", help=f"{SOCS}.", read=str, usual=_usual_soc(runs=False))
]
ModelsOption = Annotated[Sequence[str], list_option("--models", "Models", read_models)]
#: Models whose ops are measured or tuned; a deployment file counts as one.
ModelNamesOption = Annotated[Sequence[str], list_option("--models", "Models")]
OpsOption = Annotated[
    Sequence[str],
    option(
        "--ops",
        help="An op as text, or a .csv file of ops; may be repeated.",
        read=read_ops,
        many=True,
        metavar="OP",
    ),
]
BatchOption = Annotated[
    int | None,
    option(
        "--batch",
        least=1,
        most=MOST_IMAGES,
        help="Images of a batch; by default as in the model's inputs.",
    ),
]
PrecisionOption = Annotated[
    str | None,
    option(
        "--precision",
        help="Stored and computed types on the GPU, one of {codl.ir.types:PRECISIONS}; the SoC "
        "file's by default. half also multiplies in float16.",
    ),
]
IN_PREDICTORS = "The folder of predictors."
IN_DATASETS = "The folder of datasets."
DatasetsOption = Annotated[Path, option("--datasets", help=IN_DATASETS, read=existing_datasets)]
ToDatasetsOption = Annotated[Path, option("--datasets", help=IN_DATASETS, read=writable_folder)]
JobsOption = Annotated[int | None, option("--jobs", least=1, help="Processes that share the work.")]
DaskOption = Annotated[
    str | None,
    option(
        "--dask",
        metavar="ADDRESS",
        help="The scheduler of a Dask cluster that does the work, such as tcp://host:8786.",
    ),
]
CoolDownOption = Annotated[
    float,
    option(
        "--cool-down",
        help="The longest pause when the device is hot or throttled; 0 for none.",
        read=read_duration,
        text=f"{LONGEST_S:.0f}s",
    ),
]
HotOption = Annotated[
    float, option("--hot", least=1, help="Degrees Celsius at which a processor is hot.")
]
CheckOption = Annotated[
    bool,
    option(
        "--check/--no-check",
        help="First compare the outputs with ONNX Runtime's, once, on seeded inputs.",
    ),
]


def time_option(text: str, help: str = "Measure at least this long, such as 30s.") -> Option:
    """The option --time, with this text where it is not given."""
    return option("--time", help=help, read=time_of("--time"), text=text)


def rounds_option(help: str) -> Option:
    return option("--rounds", least=1, most=MOST_ROUNDS, help=help)


P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Reporter:
    """Ignores progress, and turns warnings into `CodlWarning`s; subclasses show both."""

    def note(self, text: str) -> None:
        """Report a finished step."""

    def tell(self, text: str) -> None:
        """A line about what was done to a device or a file that nobody asked for by itself."""

    def stage(self, text: str, expected_s: float | None = None) -> None:
        """Begin a stage that is expected to take `expected_s` seconds, where known."""

    def warn(self, text: str) -> None:
        """Report a problem that does not end the job."""
        warnings.warn(text, CodlWarning, stacklevel=3)

    @contextmanager
    def progress(self, label: str) -> Iterator[Progress]:
        """Yields a function of steps done, steps in all, and seconds left."""
        yield no_progress


SILENT = Reporter()


@cache
def options_of(kind: Any) -> dict[str, tuple[tuple[type, ...], Option]]:
    """The types and options of a job's fields; a field without an option is for Python alone."""
    hints = get_type_hints(kind, include_extras=True)
    found: dict[str, tuple[tuple[type, ...], Option]] = {}
    for name in (field.name for field in fields(kind)):
        for option in getattr(hints[name], "__metadata__", ()):
            found[name] = _kinds(get_args(hints[name])[0]), option
    return found


def _kinds(hint: Any) -> tuple[type, ...]:
    """The classes of a type; a whole number is a number, too."""
    if get_origin(hint) in (Union, UnionType):
        return tuple(kind for each in get_args(hint) for kind in _kinds(each))
    return (float, int) if hint is float else (get_origin(hint) or hint,)


@dataclass(frozen=True, kw_only=True)
class Job:
    """The options of a job, and the reporter of its progress."""

    reporter: Reporter = SILENT

    def __post_init__(self) -> None:
        """Raise `CodlError` for a value of another type, and for a number outside its bounds."""
        for name, (kinds, option) in options_of(cast(Any, type(self))).items():
            value = getattr(self, name)
            if isinstance(value, str) and Path in kinds and str not in kinds:
                object.__setattr__(self, name, value := Path(value))
            is_text = isinstance(value, str) and str not in kinds
            if not isinstance(value, kinds) or is_text or (value is True and bool not in kinds):
                names = " or ".join(kind.__name__ for kind in kinds)
                raise CodlError(f"{name} must be {names}, got {value!r}.")
            if isinstance(value, int | float):
                least = -inf if option.least is None else option.least
                most = inf if option.most is None else option.most
                if not (least <= value <= most and isfinite(value)):
                    raise CodlError(f"{name} must be from {least:g} to {most:g}, got {value:g}.")


@dataclass(frozen=True, kw_only=True)
class DeviceJob(Job):
    """A job on a device, which gets this codl's agent unless `install` is off."""

    soc: SocOption = "host"
    serial: SerialOption = HERE
    precision: PrecisionOption = None
    install: InstallOption = True


def soc_on(job: DeviceJob, serial: str) -> LocalSoc:
    """The SoC of a job, at its place on a device; raises as `load_local`."""
    from codl.targets.placed import load_local

    return load_local(job.soc, serial, job.precision, install=job.install, tell=job.reporter.tell)


def recorded(target: Target, digests: Digests, **protocol: Any) -> dict[str, Any]:
    """The keys `environment`, None where the target is no machine, and `digests` of a result."""
    from codl.ir.records import statistic
    from codl.targets.base import environment_of

    environment = environment_of(target, {**protocol, "statistic": statistic.NAME})
    return {
        "environment": None if environment is None else asdict(environment),
        "digests": asdict(digests),
    }


class Runs(Protocol[R_co]):
    def run(self) -> R_co: ...


def function(kind: Callable[P, Runs[R]]) -> Callable[P, R]:
    """A function with the parameters and the documentation of a job, which it makes and runs."""

    @wraps(kind, updated=())
    def run(*args: P.args, **options: P.kwargs) -> R:
        return kind(*args, **options).run()

    run.job = kind  # type: ignore[attr-defined]
    return run
