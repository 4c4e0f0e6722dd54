"""Options of jobs: each is stated once, with its help, its bounds and how its text is read.

An `Option` is the metadata of a field's type. `codl.cli.adapter` makes an option of the command
line of it; from Python the field is given as it is.
"""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from codl.errors import CodlError, UnknownNameError
from codl.files import BUNDLE, check_folder, check_writable
from codl.measure import FOLDER as DATASETS
from codl.measure import LONGEST_S
from codl.predict import FOLDER as PREDICTORS
from codl.provenance import shipped

if TYPE_CHECKING:
    from codl.workers import Workers

#: Largest counts that are accepted.
MOST_IMAGES, MOST_ROUNDS = (1 << 31) - 1, 1_000_000
#: The serial of this machine, and the name of its SoC where no other is given.
HERE, HOST = "local", "host"
#: Names the SoC of commands that name none.
VARIABLE = "CODL_SOC"


@dataclass(frozen=True)
class Option:
    """A field on the command line: an option by its `names`, an argument without any.

    `help` may name a registry or a constant by its place, such as {codl.ir.types:PRECISIONS}.
    `read` makes the field's value of the text that was given, or of all texts where there may be
    `many`; a `ValueError` of it is wrong usage. `text` stands for an option that is not given; by
    default that is the field's own default. Numbers lie from `least` to `most`, both included, and
    `above` a number.
    """

    names: tuple[str, ...]
    help: str
    read: Callable[[Any], Any] | None = None
    many: bool = False
    text: str | None = None
    least: float | None = None
    most: float | None = None
    above: float | None = None
    metavar: str | None = None
    #: Gives the value and a reason where the option is not given, of the values that are.
    usual: Callable[[Mapping[str, Any]], tuple[Any, str]] | None = None

    def problem(self, value: Any) -> str:
        """What is wrong with a number; empty where nothing is, and for what is no number."""
        if not isinstance(value, int | float) or isinstance(value, bool):
            return ""
        limits = (
            ("at least", self.least, operator.ge),
            ("at most", self.most, operator.le),
            ("above", self.above, operator.gt),
        )
        wrong = [
            f"{word} {bound:g}"
            for word, bound, holds in limits
            if bound is not None and not holds(value, bound)
        ]
        if wrong or not isfinite(value):
            return f"must be a number{' '.join(['', *wrong])}, got {value:g}"
        return ""


class OptionError(CodlError):
    """An option that is wrong, or that is not given with another one."""

    def __init__(self, problem: str, *names: str) -> None:
        super().__init__(problem)
        self.names = names


def option(*names: str, help: str, **how: Any) -> Option:
    """An option of these names."""
    return Option(names, help, **how)


def argument(help: str, **how: Any) -> Option:
    """An argument, which has no name."""
    return Option((), help, **how)


# Readers of texts. A `ValueError` is wrong usage, a `CodlError` is an error of the command.

_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smh]?)")
_SHAPE = re.compile(r"(?P<name>.+)=(?P<sizes>[1-9]\d*(x[1-9]\d*)*)")


def read_seconds(text: str) -> float:
    """A duration such as 90s, 10m or 1.5h in seconds; raises `CodlError` for another text."""
    match = _DURATION.fullmatch(text)
    if not match:
        raise CodlError(f"Cannot read the duration {text!r}: expected one like 90s, 10m or 1h.")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


def read_duration(text: str) -> float:
    """The same, as usage that is checked before anything is done."""
    try:
        return read_seconds(text)
    except CodlError as error:
        raise ValueError(str(error)) from error


def read_budget(text: str, name: str = "--budget") -> float:
    """The seconds of a budget; raises `CodlError` for no time at all."""
    seconds = read_seconds(text)
    if not seconds:
        raise CodlError(f"{name} must be above 0, got {text!r}.")
    return seconds


def _time_of(name: str) -> Callable[[str], float]:
    def read(text: str) -> float:
        if (seconds := read_duration(text)) <= 0:
            raise CodlError(f"{name} must be above 0, got {text!r}.")
        return seconds

    return read


def known_serial(serial: str) -> str:
    """A serial that a transport takes; raises `UnknownNameError` before anything else is done."""
    if serial != HERE:
        from codl.targets.connect import transport_of

        transport_of(serial)
    return serial


def known_serials(serials: Sequence[str]) -> tuple[str, ...]:
    """Serials, each named once; raises `CodlError` for a serial that is repeated."""
    for serial in serials:
        if serials.count(known_serial(serial)) > 1:
            raise CodlError(f"--serial {serial!r} is given twice; give each device once.")
    return tuple(serials)


def writable(path: Path) -> Path:
    """A file that can be written; checked before its content is computed."""
    check_writable(path)
    return path


def result_file(path: Path) -> Path:
    """Where a result or a plan goes, behind a link; refuses to replace a file of another kind."""
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


def writable_folder(path: Path) -> Path:
    """A folder that files can be written to."""
    check_folder(path)
    return path


def existing_datasets(folder: Path) -> Path:
    """A folder that is there; the default one need not be."""
    if folder != DATASETS and not folder.is_dir():
        raise CodlError(f"--datasets {folder}: there is no such folder.")
    return folder


def _parts(text: str) -> list[str]:
    return [part for part in text.split(",") if part]


def names_of(
    texts: Iterable[str] | None, choices: Iterable[str] | None = None, what: str = ""
) -> tuple[str, ...]:
    """Names with commas between them, or in several texts; each once.

    Raises `UnknownNameError` for a name that is no `what` of the choices.
    """
    parts = (part.strip() for text in texts or () for part in text.split(","))
    names = tuple(dict.fromkeys(part for part in parts if part))
    for name in names:
        if choices is not None and name not in choices:
            raise UnknownNameError(what, name, choices)
    return names


def read_models(texts: Iterable[str]) -> tuple[str, ...]:
    """Every model that is named, once: names with commas, and all models of deployment files.

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
    from codl.workers import Workers

    if jobs is not None and dask is not None:
        text = "--jobs is not used with --dask: a Dask cluster has workers of its own."
        raise OptionError(text, "--jobs")
    return Workers(dask=dask) if dask is not None else Workers(jobs or usual)


def usual_soc(*, runs: bool) -> tuple[str, str]:
    """The SoC that CODL_SOC names, or that was described here and measured last, and the reason.

    Where none was measured it is `host`, or the only one described here. Where none is described
    and nothing `runs` on it, it is one that comes with codl. Raises `CodlError` without any.
    """
    from codl.measure.dataset import Dataset
    from codl.records import soc as socs
    from codl.runtime.placement import beside

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
    """The SoC of a command that names none; a bundle and --repro have their own."""

    def usual(given: Mapping[str, Any]) -> tuple[str, str]:
        if given.get("repro") or Path(str(given.get("model", ""))).suffix == BUNDLE:
            return "", ""
        is_run = (runs and not given.get("predicted")) or bool(given.get("serial"))
        name, reason = usual_soc(runs=is_run)
        return name, f"SoC {name}: {reason}. --soc names another."

    return usual


# Types of fields that several jobs have.

BY_COMMAS = "by commas"
MODELS = (
    "A built-in model ({codl.frontend.models:BUILT_IN}), an .onnx file, a model in .yaml, "
    "or a deployment .yaml (with #NAME where it has several models)"
)
SOCS = "A SoC: a name of `codl soc list`, or a .yaml file"
SERIALS = "local, process, an adb serial, ssh://user@host[:port] or replay:DIR"

BudgetOption = Annotated[
    float | None,
    option(
        "--budget",
        help="Time for the whole command, such as 90s, 10m or 1h: it ends with what is done then.",
        read=read_budget,
    ),
]
SerialOption = Annotated[
    str, option("--serial", "--on", help=f"The device: {SERIALS}.", read=known_serial)
]
SocOption = Annotated[
    str | Path,
    option(
        "--soc",
        help=f"{SOCS}.",
        read=str,
        usual=_usual_soc(runs=True),
    ),
]
#: Of jobs that need no device: where nothing is measured here, a SoC that comes with codl.
PlannedSocOption = Annotated[
    str | Path,
    option(
        "--soc",
        help=f"{SOCS}.",
        read=str,
        usual=_usual_soc(runs=False),
    ),
]
ModelArgument = Annotated[str | Path, argument(f"{MODELS}.", read=str)]
ModelsArgument = Annotated[
    Sequence[str],
    argument(
        f"{MODELS}. Several stand apart, or have commas between them.",
        read=read_models,
        many=True,
        metavar="MODEL",
    ),
]
ModelsOption = Annotated[
    Sequence[str],
    option("--models", help=f"Models, {BY_COMMAS}.", read=read_models, many=True, metavar="A,B"),
]
#: Models whose ops are measured or tuned; a deployment file counts as one.
ModelNamesOption = Annotated[
    Sequence[str],
    option("--models", help=f"Models, {BY_COMMAS}.", read=names_of, many=True, metavar="A,B"),
]
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
        help="Images at a time; by default as many as the model's inputs have.",
    ),
]
ShapeOption = Annotated[
    Mapping[str, tuple[int, ...]],
    option(
        "--shape",
        help="The shape of an input whose sizes the model leaves open, as NAME=1x3x224x224; "
        "may be repeated.",
        read=read_shapes,
        many=True,
    ),
]
PrecisionOption = Annotated[
    str | None,
    option(
        "--precision",
        help="What the GPU stores tensors as and computes in, of {codl.ir.types:PRECISIONS}: in "
        "half it multiplies halves too, and adds long sums as float32. By default as the SoC "
        "file says.",
    ),
]
PlanOption = Annotated[Path | None, option("--plan", help="A plan of `codl search`.")]
StrategyOption = Annotated[
    str | None,
    option(
        "--strategy",
        help="A way to plan: one of {codl.strategies:STRATEGIES}. By default what a deployment's "
        "runtime says, or {codl.strategies:DEFAULT}.",
    ),
]
PredictorOption = Annotated[
    str | None, option("--predictor", help="Plan with one of {codl.predict:ESTIMATORS}.")
]
LongestOption = Annotated[
    float | None,
    option(
        "--max-kernel-ms",
        metavar="MS",
        help="Split the GPU's kernels so that none runs longer, as 1 for a smooth interface.",
    ),
]
DutyOption = Annotated[
    float | None,
    option(
        "--gpu-duty",
        metavar="SHARE",
        help="Keep the GPU busy at most this fraction of the time (0.7: idle 30 %).",
    ),
]
IN_PREDICTORS = "Where predictors lie, a folder for each SoC."
PredictorsOption = Annotated[Path, option("--predictors", help=IN_PREDICTORS)]
ToPredictorsOption = Annotated[
    Path, option("--predictors", help=IN_PREDICTORS, read=lambda text: writable_folder(Path(text)))
]
IN_DATASETS = "Where datasets lie, a folder for each SoC."
DatasetsOption = Annotated[
    Path, option("--datasets", help=IN_DATASETS, read=lambda text: existing_datasets(Path(text)))
]
ToDatasetsOption = Annotated[
    Path, option("--datasets", help=IN_DATASETS, read=lambda text: writable_folder(Path(text)))
]
JobsOption = Annotated[
    int | None,
    option("--jobs", least=1, help="Processes of this machine that share the work."),
]
DaskOption = Annotated[
    str | None,
    option(
        "--dask",
        metavar="ADDRESS",
        help="Share the work with the workers of a Dask cluster instead: the address of its "
        "scheduler, such as tcp://host:8786.",
    ),
]
PlanTimeOption = Annotated[
    float | None,
    option(
        "--plan-time",
        help="How long a strategy may run plans of a model to find a faster one, such as "
        "90s or 10m; as long as they gain by default.",
        read=_time_of("--plan-time"),
    ),
]
ProfileOption = Annotated[
    Path | bool,
    option(
        "--profile",
        read=Path,
        metavar="FILE",
        help="The file of plans of this model that ran on this device, to begin with instead of "
        "the one in ./profiles, or of a new one.",
    ),
]
NoProfileOption = Annotated[
    bool, option("--no-profile", help="Plan by predictions alone, without running plans.")
]
GovernorOption = Annotated[
    str | None,
    option(
        "--governor",
        help="Let this governor choose the clocks, such as performance, where the device permits "
        "that; the former one is put back afterwards. By default it is left alone.",
    ),
]
CoolDownOption = Annotated[
    float,
    option(
        "--cool-down",
        help="How long to pause at most, each time that the device is hot or throttled; 0 for no "
        "pauses.",
        read=read_duration,
        text=f"{LONGEST_S:.0f}s",
    ),
]
HotOption = Annotated[
    float,
    option("--hot", above=0, help="From how many degrees Celsius on its processors are hot."),
]
CheckOption = Annotated[
    bool,
    option(
        "--check/--no-check",
        help="Compare the outputs once with ONNX Runtime's, on inputs from a seed, before anything "
        "else; what was found is remembered.",
    ),
]


def time_option(text: str, help: str = "Measure at least this long, such as 30s.") -> Option:
    """The option --time, with this text where it is not given."""
    return option("--time", help=help, read=_time_of("--time"), text=text)


def rounds_option(help: str) -> Option:
    """The option --rounds."""
    return option("--rounds", least=1, most=MOST_ROUNDS, help=help)
