"""Options that several commands share, and how their values are read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from codl.cli.output import tell
from codl.errors import CodlError, UnknownNameError
from codl.files import BUNDLE, check_folder, check_writable
from codl.measure import FOLDER, LONGEST_S
from codl.measure.budget import Budget

if TYPE_CHECKING:
    from codl.workers import Workers

#: No count that is asked for is larger.
MOST_IMAGES, MOST_ROUNDS = (1 << 31) - 1, 1_000_000
#: This machine, where no device is named.
HERE = "local"
SERIALS = "{codl.cli.help_words:serials}"


def known_serial(serial: str) -> str:
    """Refuses what no target is called before anything else is done."""
    if serial != HERE:
        from codl.targets.connect import transport_of

        transport_of(serial)
    return serial


def _known_serials(serials: list[str] | None) -> list[str]:
    """Those given, or this machine; refuses what no target is called, and what is named twice."""
    named = [known_serial(serial) for serial in serials or [HERE]]
    for serial in named:
        if named.count(serial) > 1:
            raise CodlError(f"--serial names {serial!r} twice: a device works for itself alone.")
    return named


def positive(option: typer.CallbackParam, number: float | None) -> float | None:
    """Refuses what is no number above 0 before it is worked for."""
    if number is not None and not (0 < number < inf):
        raise typer.BadParameter(
            f"must be a number above 0, got {number:g}.", param_hint=option.opts
        )
    return number


def duration(option: typer.CallbackParam, text: str | None) -> str | None:
    """Refuses what is no duration before anything is worked for."""
    try:
        read_seconds(text)
    except CodlError as error:
        raise typer.BadParameter(str(error), param_hint=option.opts) from error
    return text


def writable(path: Path | None) -> Path | None:
    """Refuses a file that cannot be written before it is worked for."""
    if path is not None:
        check_writable(path)
    return path


def result_file(path: Path | None) -> Path | None:
    """Where a result or a plan goes, behind a link; refuses to replace what is no such file."""
    if path is not None and path.is_symlink() and path.is_file():
        path = path.resolve()
    if path is not None and path.is_file():
        with path.open("rb") as file:
            if file.read(1) not in (b"", b"{"):
                raise CodlError(
                    f"{path} is there, and no result or plan in JSON: it would be replaced. Name "
                    "another file."
                )
    return writable(path)


def writable_folder(path: Path) -> Path:
    """Refuses a folder that nothing can be written to."""
    check_folder(path)
    return path


JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
OutputOption = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--output",
        help="Write the result to this file as JSON, for `codl report`.",
        callback=result_file,
    ),
]
BudgetOption = Annotated[
    str | None,
    typer.Option(
        "--budget",
        help="Time for the whole command, such as 90s, 10m or 1h: it ends with what is done then.",
    ),
]
SerialOption = Annotated[
    str,
    typer.Option(
        "--serial",
        "--on",
        help=f"The device: {SERIALS}.",
        show_default=True,
        callback=known_serial,
    ),
]
SerialsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--serial",
        "--on",
        help=f"A device: {SERIALS}. By default {HERE}; may be repeated, for several devices of "
        "the same SoC that share the work.",
        show_default=False,
        callback=_known_serials,
    ),
]
#: How several names are told.
BY_COMMAS = "by commas"
MODELS = (
    "A built-in model ({codl.cli.help_words:models}), an .onnx file, a model in .yaml, "
    "or a deployment .yaml (with #NAME where it has several models)"
)
SOCS = "A SoC: a name of `codl soc list`, or a .yaml file"


def _usual_soc(*, runs: bool) -> Callable[[typer.Context, str], str]:
    """Takes the usual SoC where none is named, and says so; a bundle or --repro has its own."""

    def soc_of(context: typer.Context, name: str) -> str:
        told = context.params
        has_one = told.get("repro") or Path(str(told.get("model", ""))).suffix == BUNDLE
        if name or has_one or context.resilient_parsing:
            return name
        from codl.api.home import usual_soc

        usual = usual_soc(runs=(runs and not told.get("predicted")) or bool(told.get("serial")))
        tell(f"SoC {usual.name}: {usual.reason}. --soc names another.")
        return usual.name

    return soc_of


SocOption = Annotated[
    str,
    typer.Option(
        "--soc",
        help=f"{SOCS}. By default CODL_SOC, or the one that was measured here last.",
        callback=_usual_soc(runs=True),
        show_default=False,
    ),
]
#: Of commands that need no device: where nothing is measured here, what comes with codl.
PlannedSocOption = Annotated[
    str,
    typer.Option(
        "--soc",
        help=f"{SOCS}. By default CODL_SOC, the one that was measured here last, or one that comes "
        "with codl.",
        callback=_usual_soc(runs=False),
        show_default=False,
    ),
]
SocArgument = Annotated[str, typer.Argument(help=f"{SOCS}.")]
DeviceOption = Annotated[
    str | None,
    typer.Option(
        "--opencl-device", help="The OpenCL device: a driver or device name of `codl devices`."
    ),
]
ThreadsOption = Annotated[
    int | None, typer.Option("--threads", help="Threads of the CPU side; one a core by default.")
]
AffinityOption = Annotated[
    str | None,
    typer.Option(
        "--cpu-affinity", help="Cores of the CPU side: none, big, little, or a list such as 0,1."
    ),
]
PerformanceOption = Annotated[
    str | None, typer.Option("--gpu-performance", help="A hint: {codl.runtime.placement:HINTS}.")
]
LongestOption = Annotated[
    float | None,
    typer.Option(
        "--max-kernel-ms",
        metavar="MS",
        help="Split the GPU's kernels so that none runs longer, as 1 for a smooth interface.",
    ),
]
DutyOption = Annotated[
    float | None,
    typer.Option(
        "--gpu-duty",
        metavar="SHARE",
        help="Let the GPU rest for the other part of the time, as 0.7 for 30 %.",
    ),
]
PriorityOption = Annotated[
    str | None, typer.Option("--gpu-priority", help="A hint: {codl.runtime.placement:HINTS}.")
]

ModelArgument = Annotated[str, typer.Argument(help=f"{MODELS}.")]
ModelsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="MODEL",
        help=f"{MODELS}. Several stand apart, or have commas between them.",
    ),
]
ModelsOption = Annotated[
    list[str] | None,
    typer.Option("--models", help=f"Models, {BY_COMMAS}.", metavar="A,B"),
]
OpsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--ops", help="An op as text, or a .csv file of ops; may be repeated.", metavar="OP"
    ),
]
VariantsOption = Annotated[
    list[str] | None,
    typer.Option("--variants", help=f"Only these kernel variants, {BY_COMMAS}.", metavar="A,B"),
]
StrategiesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--strategies",
        help=f"Of {{codl.cli.help_words:compared}}, {BY_COMMAS}.",
        metavar="A,B",
        show_default=False,
    ),
]
BatchOption = Annotated[
    int | None,
    typer.Option(
        "--batch",
        min=1,
        max=MOST_IMAGES,
        help="Images at a time; by default as many as the model's inputs have.",
    ),
]
ShapeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--shape",
        help="The shape of an input whose sizes the model leaves open, as NAME=1x3x224x224; "
        "may be repeated.",
    ),
]

PrecisionOption = Annotated[
    str | None,
    typer.Option(
        "--precision",
        help="What the GPU stores tensors as and computes in, of {codl.ir.types:PRECISIONS}: in "
        "half it multiplies halves too, and sums what is long as float32. By default as the SoC "
        "file says.",
        show_default=False,
    ),
]
PlanOption = Annotated[Path | None, typer.Option("--plan", help="A plan of `codl search`.")]
StrategyOption = Annotated[
    str | None,
    typer.Option(
        "--strategy",
        help="A way to plan: one of {codl.strategies:STRATEGIES}. By default what a deployment's "
        "runtime says, or {codl.strategies:DEFAULT}.",
        show_default=False,
    ),
]
PredictorOption = Annotated[
    str | None, typer.Option("--predictor", help="Plan with one of {codl.predict:ESTIMATORS}.")
]
PlacementOption = Annotated[
    bool, typer.Option("--placement", help="Show where every op runs, not only a summary.")
]

PREDICTORS = "Where predictors lie, a folder for each SoC."
PredictorsOption = Annotated[Path, typer.Option("--predictors", help=PREDICTORS)]
ToPredictorsOption = Annotated[
    Path, typer.Option("--predictors", help=PREDICTORS, callback=writable_folder)
]
DATASETS = "Where datasets lie, a folder for each SoC."


def _existing(folder: Path) -> Path:
    """Refuses a folder that is named and is not there; the usual one need not be."""
    if folder != FOLDER and not folder.is_dir():
        raise CodlError(f"--datasets {folder}: there is no such folder.")
    return folder


DatasetsOption = Annotated[Path, typer.Option("--datasets", help=DATASETS, callback=_existing)]
ToDatasetsOption = Annotated[
    Path, typer.Option("--datasets", help=DATASETS, callback=writable_folder)
]
JobsOption = Annotated[
    int | None,
    typer.Option("--jobs", min=1, help="Processes of this machine that share the work."),
]
DaskOption = Annotated[
    str | None,
    typer.Option(
        "--dask",
        metavar="ADDRESS",
        help="Share the work with the workers of a Dask cluster instead: the address of its "
        "scheduler, such as tcp://host:8786.",
    ),
]
#: Of strategies that run plans on the device.
PlanTimeOption = Annotated[
    str | None,
    typer.Option(
        "--plan-time",
        help="How long {codl.cli.help_words:run_plans} may run plans of a model to find a faster "
        "one, such as 90s or 10m; as long as they gain by default.",
        callback=duration,
    ),
]
ProfileOption = Annotated[
    Path | None,
    typer.Option(
        "--profile",
        metavar="FILE",
        help="The file of plans of this model that ran on this device, to begin with instead of "
        "the one in ./profiles, or of a new one.",
    ),
]
NoProfileOption = Annotated[
    bool,
    typer.Option("--no-profile", help="Plan by predictions alone, without running plans."),
]
TimeOption = Annotated[
    str, typer.Option("--time", help="Measure at least this long, such as 30s.", callback=duration)
]

GovernorOption = Annotated[
    str | None,
    typer.Option(
        "--governor",
        help="Let this governor choose the clocks, such as performance, where the device permits "
        "that; the former one is put back afterwards. By default it is left alone.",
        show_default=False,
    ),
]
CoolDownOption = Annotated[
    str,
    typer.Option(
        "--cool-down",
        callback=duration,
        help="How long to pause at most, each time that the device is hot or throttled; 0 for no "
        "pauses.",
    ),
]
HotOption = Annotated[
    float,
    typer.Option(
        "--hot",
        callback=positive,
        help="From how many degrees Celsius on its processors are hot.",
    ),
]
#: As it is given.
COOL_DOWN = f"{LONGEST_S:.0f}s"

CheckOption = Annotated[
    bool,
    typer.Option(
        "--check/--no-check",
        help="Compare the outputs once with ONNX Runtime's, on inputs from a seed, before anything "
        "else; what was found is remembered.",
    ),
]

_SHAPE = re.compile(r"(?P<name>.+)=(?P<sizes>[1-9]\d*(x[1-9]\d*)*)")


def read_models(*texts: str) -> list[str]:
    """Every model that is named, once: some have commas between them, and deployment files several.

    Raises `CodlError` where none is named.
    """
    from codl.frontend.models import choices

    names = [name for text in texts for name in ([text] if Path(text).is_file() else _parts(text))]
    models = list(dict.fromkeys(model for name in names for model in choices(name)))
    if not models:
        raise CodlError(f"Name at least one model, such as yolov2; got {', '.join(texts)!r}.")
    return models


def names_of(
    texts: Iterable[str] | None, choices: Iterable[str] | None = None, what: str = ""
) -> list[str]:
    """The names of an option that has commas, or is repeated; each once.

    Raises `UnknownNameError` for one that is no `what` of the choices.
    """
    parts = (part.strip() for text in texts or () for part in text.split(","))
    names = list(dict.fromkeys(part for part in parts if part))
    for name in names:
        if choices is not None and name not in choices:
            raise UnknownNameError(what, name, choices)
    return names


def _parts(text: str) -> list[str]:
    return [part for part in text.split(",") if part]


def read_workers(jobs: int | None, dask: str | None, *, usual: int = 1) -> Workers:
    """Who shares the work, of --jobs and --dask: by default `usual` processes."""
    from codl.workers import Workers

    if jobs is not None and dask is not None:
        raise typer.BadParameter(
            "a Dask cluster has as many workers as it has.", param_hint="--jobs with --dask"
        )
    return Workers(dask=dask) if dask is not None else Workers(jobs or usual)


def budget_of(text: str | None, option: str = "--budget") -> Budget:
    """The budget that an option gives, from now on; raises `CodlError` for no time at all."""
    return Budget(None if text is None else read_budget(text, option))


def read_shapes(texts: Sequence[str] | None) -> dict[str, tuple[int, ...]]:
    """Sizes by input, of --shape; raises `CodlError` with what is none."""
    shapes = {}
    for text in texts or ():
        match = _SHAPE.fullmatch(text)
        if match is None:
            raise CodlError(f"--shape must be like input=1x3x224x224, got {text!r}.")
        shapes[match["name"]] = tuple(int(size) for size in match["sizes"].split("x"))
    return shapes


def read_plan_time(text: str | None) -> float | None:
    """The seconds of --plan-time; raises `CodlError` for no time at all."""
    return None if text is None else read_budget(text, "--plan-time")


def read_profile(file: Path | None, off: bool) -> Path | bool:
    """How a model is profiled, of --profile and --no-profile; raises `CodlError` for both."""
    if file is not None and off:
        raise CodlError(f"--profile {file} is not used with --no-profile: leave one of them out.")
    return file or not off


def sources_of(models: Iterable[str] | None, ops: Iterable[str] | None) -> list[str]:
    """What --models and --ops name, by commas; an op as text is one, and has a space in it."""
    parts = ([text] if " " in text.strip() else _parts(text) for text in ops or ())
    return [*names_of(models), *(part for some in parts for part in some)]


def read_shares(text: str) -> list[float]:
    """Shares of an op's output, above 0 and at most 1; raises `CodlError` for what is none."""
    try:
        shares = [float(part) for part in text.split(",")]
    except ValueError as error:
        raise CodlError(
            f"Cannot read the shares {text!r}: expected some like 0.2,0.5,1."
        ) from error
    if not all(0 < share <= 1 for share in shares):
        raise CodlError(f"Shares must be above 0 and at most 1, got {text!r}.")
    return shares


_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smh]?)")


def read_seconds(text: str | None) -> float | None:
    """A duration such as 90s, 10m or 1.5h in seconds; raises `CodlError` for what is none."""
    if text is None:
        return None
    match = _DURATION.fullmatch(text)
    if not match:
        raise CodlError(f"Cannot read the duration {text!r}: expected one like 90s, 10m or 1h.")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


def read_budget(text: str, option: str = "--budget") -> float:
    """The seconds of a --budget; raises `CodlError` for none, or for no time at all."""
    seconds = read_seconds(text)
    if not seconds:
        raise CodlError(f"{option} must be above 0, got {text!r}.")
    return seconds
