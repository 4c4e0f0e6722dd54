"""`codl collect`: measures operators and data sharing into a dataset."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, dataclass, replace
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from codl.cli.base_options import MOST_IMAGES, MOST_ROUNDS
from codl.cli.collect_course import (
    AllOption,
    Course,
    Limits,
    ToleranceOption,
    collected_table,
    course_of,
)
from codl.cli.conditions import COOL_DOWN, CoolDownOption, GovernorOption, HotOption, control
from codl.cli.options import (
    BudgetOption,
    JsonOption,
    SerialsOption,
    SocOption,
    ToDatasetsOption,
    read_seconds,
    read_shares,
)
from codl.cli.output import emit, note, progress
from codl.errors import CodlError, DeviceError, InterruptedCommandError, UnknownNameError
from codl.evaluate.settled_plans import SettledPlans
from codl.frontend.models import MEASURED
from codl.ir import Op
from codl.kernels.tuning import Tuning
from codl.measure import dataset as datasets
from codl.measure import tuning_file
from codl.measure.brief_tuning import BUDGET_S, tasks_before, tune_briefly
from codl.measure.budget import Budget
from codl.measure.collector import Collected, collect
from codl.measure.cool_down import HOT_C
from codl.measure.dataset import Dataset
from codl.measure.dataset_writer import check_is_new
from codl.measure.devices_at_work import DeviceNews
from codl.measure.measurement_order import MOST_SIMILAR, Scope
from codl.measure.recording import Recording
from codl.measure.tasks import FEW_SHARES, SHARES, Task, check_sources, load_sources
from codl.plugins import RUNNERS
from codl.records.soc import Soc
from codl.report.terminal import Table
from codl.targets.connect import connect
from codl.targets.detect import load_measured
from codl.targets.environment import environment_of
from codl.targets.replay import folder_of

#: At most this part of what a budget has left is tuned in, and so long is measured in any case.
TUNING, LEAST_S = 0.15, 1.0
ALL_SHARES, SOME_SHARES = (",".join(map(str, shares)) for shares in (SHARES, FEW_SHARES))

#: What measures unless --runner names a plugin's, which is called as `collect_original` is.
CODL = "codl"

OpsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--ops",
        help="Built-in models, .onnx files, or .csv files of ops; may be repeated. By default "
        f"{', '.join(MEASURED)}; and some of what attention is made of.",
        show_default=False,
    ),
]
SharesOption = Annotated[
    str | None,
    typer.Option(
        "--shares",
        help="A processor's shares of an op's output, 0 ... 1. "
        f"{ALL_SHARES}, or {SOME_SHARES} with a budget.",
        show_default=False,
    ),
]
SimilarOption = Annotated[
    int | None,
    typer.Option(
        "--similar",
        min=0,
        help="How many similar ops to measure: those that the networks of --ops would have for "
        "other image sizes or widths. By default 0; with a budget as many as there is time for, "
        f"{MOST_SIMILAR} at most.",
        show_default=False,
    ),
]
BatchesOption = Annotated[
    list[int] | None,
    typer.Option(
        "--batch",
        min=2,
        max=MOST_IMAGES,
        help="Measure some ops for this many images at once, too; may be repeated. Without it, "
        "N images are predicted to take N times as long as one.",
        show_default=False,
    ),
]
SamplesOption = Annotated[
    int | None, typer.Option("--samples", min=1, help="Stop after this many measurements.")
]
TuneOption = Annotated[
    bool,
    typer.Option(
        "--tune/--no-tune",
        help="Before the first row, find in some seconds how large the tiles of convolutions "
        "should be on an OpenCL device that is a CPU.",
    ),
]
ResumeOption = Annotated[
    bool,
    typer.Option("--resume", help="Add to the dataset that is there, and measure what it lacks."),
]


def _runner(name: str) -> str:
    if name not in (known := (CODL, *RUNNERS)):
        raise UnknownNameError("runner", name, known)
    return name


RunnerOption = Annotated[
    str,
    typer.Option(
        "--runner",
        callback=_runner,
        help="What measures: codl, or codl_op_run, the original CoDL's program on the device, "
        "which has kernels of its own.",
    ),
]
ProgramOption = Annotated[
    str | None,
    typer.Option(
        "--program",
        help="Where codl_op_run lies on the device; by default where the original's scripts put "
        "it, /data/local/tmp/codl/codl_op_run.",
        show_default=False,
    ),
]
MemoryTypeOption = Annotated[
    str | None,
    typer.Option(
        "--gpu-memory-type",
        help="What codl_op_run keeps the GPU's tensors in: buffer or, by default, image.",
        show_default=False,
    ),
]
RoundsOption = Annotated[
    int | None,
    typer.Option(
        "--rounds",
        min=1,
        max=MOST_ROUNDS,
        help="How often codl_op_run runs an op, by default 21 times; the first 10 do not count.",
        show_default=False,
    ),
]


def collect_data(
    soc: SocOption,
    serial: SerialsOption = None,
    ops: OpsOption = None,
    shares: SharesOption = None,
    similar: SimilarOption = None,
    batch: BatchesOption = None,
    budget: BudgetOption = None,
    samples: SamplesOption = None,
    everything: AllOption = False,
    tolerance: ToleranceOption = None,
    resume: ResumeOption = False,
    tune: TuneOption = True,
    governor: GovernorOption = None,
    cool_down: CoolDownOption = COOL_DOWN,
    hot: HotOption = HOT_C,
    runner: RunnerOption = CODL,
    program: ProgramOption = None,
    gpu_memory_type: MemoryTypeOption = None,
    rounds: RoundsOption = None,
    output: ToDatasetsOption = datasets.FOLDER,
    json: JsonOption = False,
) -> None:
    """Measure ops in every kernel variant of both processors, and the cost of data sharing.

    Ops are measured in batches of about ten seconds, in turns, so that a disturbance hits a few
    samples of each and not all samples of one. Rows are written at the end of each batch; a run
    that was killed goes on with --resume.

    It ends when more would change no plan. Whole ops come first, and what --similar and --batch ask
    for. Then, with every fifth more measurements, predictors are trained and the models of --ops
    are planned; where it names none, the built-in ones. Plans that take at most --tolerance longer
    than new ones are unchanged. After three looks in a row without a change it is over. --all
    measures everything, --budget for a fixed time, --samples a fixed number.

    --budget is of all that the command does: reading models, tuning, measuring, and the last look.
    With it, whole ops come first, then their parts, then similar ops. One of two measurements
    is random; the other is chosen by active learning. Collection ends early when more rows would
    change nothing. It prints what to expect: accuracy on shapes held out, and the regret of the
    splits that predictions would choose.

    The first collection of a SoC begins with a tune of some seconds: on a few convolutions, tiles
    with more or fewer blocks of output channels meet the default in turns. Another number is kept
    in the dataset's tuning.json only where it is faster for certain. `codl tune` finds more.

    Rows carry temperature, clocks and battery. What a throttled processor measured is measured
    again; a hot device is waited for between batches; a battery below 20 % ends the collection.

    With --runner codl_op_run the original CoDL's program measures its own kernels: whole ops first,
    then parts. Its rows are those of a SoC that only that program, or somebody else, measures.

    Several devices of one SoC share the work: each measures at its own pace what no other one does.
    One that goes away is tried again later, and the others go on.

    With --serial replay:DIR nothing runs: rows of that dataset are written again, to try an
    order or a budget, which counts the time that measuring them took. What DIR has no row of is
    left out.

    [dim]Examples:[/dim]
    codl collect --soc host --serial local
    codl collect --soc host --serial local --resume --ops yolov2 --tolerance 1
    codl collect --soc host --serial local --resume --all
    codl collect --soc host --serial local --resume --budget 10m
    codl collect --soc host --serial local --resume --ops yolov2 --budget 10m
    codl collect --soc phone --serial X --governor performance --cool-down 5m
    codl collect --soc sdm855 --serial 3a9c4f5 --runner codl_op_run --ops yolov2
    codl collect --soc rk3588 --serial ssh://pi@one.local --serial ssh://pi@two.local
    codl collect --soc host --serial replay:lat_datasets/host --budget 10m -o tried
    """
    serials = serial or []
    sources = [part for text in ops or MEASURED for part in text.split(",")]
    limit_s = read_seconds(budget)
    command = Budget(limit_s)
    asked_shares = _shares(shares, few=limit_s is not None)
    if runner != CODL:
        _refuse_runner(runner, serials, similar=similar, batch=batch, tolerance=tolerance)
        given_options = {
            "program": program,
            "memory_type": gpu_memory_type,
            "rounds": rounds,
        }
        dataset, done = RUNNERS[runner](
            soc,
            serials[0],
            {name: value for name, value in given_options.items() if value is not None},
            ops=sources,
            shares=asked_shares,
            root=output,
            resume=resume,
            budget_s=limit_s,
            samples=samples,
        )
        result = {**asdict(done), "expected": None, "plans": None}
        emit("collect", result, lambda: collected_table(dataset, done, None, None), as_json=json)
        return
    limits = Limits(limit_s, samples, everything, tolerance)
    limits.check()
    described = _described(soc, serials)
    dataset = Dataset.of(described.name, output)
    check_sources(sources)
    if not resume:
        check_is_new(dataset)  # before models are read, which takes longer
    given, networks = load_sources(sources)
    scope = Scope(
        ops=given,
        similar=similar,
        batches=tuple(dict.fromkeys(batch or [])),
        shares=asked_shares,
        attention=ops is None,
    )
    recorded = _recorded(serials)
    tuning = tuning_file.read(recorded or dataset, described)
    if tune and recorded is None:
        time_s = min(BUDGET_S, TUNING * command.left_s)
        tuning = _tuned_briefly(serials[0], dataset, described, scope.ops, tuning, time_s)
    if limit_s is not None and recorded is None:  # the time of a replay is that of its rows
        limits = replace(limits, budget_s=max(LEAST_S, command.left_s))
    course = course_of(limits, scope, networks, soc=described, dataset=dataset, tuning=tuning)
    if recorded is not None:
        course = course.of(_answered(course.tasks, recorded))
    devices = _Devices(described, serials, governor, cool_down, hot)
    done = _collected(devices, dataset, course, tuning, resume=resume, samples=samples)
    if recorded is not None and tuning.results:
        tuning_file.add(dataset, described, tuning.results.values())
    expected = course.learner.expected() if course.learner else None
    result = {**asdict(done), "expected": expected}
    result["plans"] = course.plans.to_json() if course.plans else None
    emit("collect", result, lambda: collected_table(dataset, done, expected, course), as_json=json)
    if done.reason:
        raise CodlError(f"{done.reason} All rows so far are kept, and --resume goes on.")


def _refuse_runner(
    runner: str,
    serials: Sequence[str],
    *,
    similar: int | None,
    batch: Sequence[int] | None,
    tolerance: float | None,
) -> None:
    """Raises `CodlError` for what the original's program cannot do."""
    if similar or batch:
        raise CodlError(f"--similar and --batch are not for --runner {runner}.")
    if tolerance is not None:
        raise CodlError(f"--tolerance is not for --runner {runner}, which measures everything.")
    if len(serials) > 1:
        raise CodlError(f"--runner {runner} works on one device, got {', '.join(serials)}.")


@dataclass(frozen=True)
class _Devices:
    """Where a SoC is measured, and under which conditions."""

    soc: Soc
    serials: Sequence[str]
    governor: str | None
    cool_down: str
    hot_c: float


def _collected(
    devices: _Devices,
    dataset: Dataset,
    course: Course,
    tuning: Tuning,
    *,
    resume: bool,
    samples: int | None,
) -> Collected:
    """Measure the tasks of a course; shows how far it is."""
    shown = _Shown(course.plans)
    with ExitStack() as opened:
        targets = [
            opened.enter_context(closing(connect(serial, devices.soc)))
            for serial in devices.serials
        ]
        by_serial = {target.serial: target for target in targets}
        title = f"Collecting on {devices.soc.name}"
        update = opened.enter_context(progress(title, shown.lines))
        try:
            return collect(
                targets,
                dataset,
                course.tasks,
                tuning,
                resume=resume,
                budget_s=course.time_s,
                samples=samples,
                chooser=course.chooser,
                progress=update,
                cooling=lambda own: control(
                    by_serial[own.serial], devices.governor, devices.cool_down, devices.hot_c
                ),
                tells=lambda own: environment_of(by_serial[own.serial], {}),
                watch=shown.watch,
            )
        except KeyboardInterrupt as error:
            kept = f"All rows so far are kept in {dataset.folder}, and --resume goes on."
            raise InterruptedCommandError(kept) from error


def _tuned_briefly(
    serial: str, dataset: Dataset, soc: Soc, ops: Sequence[Op], tuning: Tuning, time_s: float
) -> Tuning:
    """The tuning to measure with: of a SoC's first collection, what a few seconds find."""
    tasks = tasks_before(dataset, soc, ops, tuning)
    if not tasks:
        return tuning
    try:
        with closing(connect(serial, soc)) as target, progress(f"Tuning on {soc.name}") as update:
            found, problem = tune_briefly(
                target, dataset, soc, tasks, progress=update, budget_s=time_s
            )
    except DeviceError as error:  # others may be there, and this one come back
        found, problem = tuning, str(error)
    path = tuning_file.path_of(dataset)
    note(f"Tuning left out: {problem}" if problem else f"Tiles were tuned, see {path}")
    return found


@dataclass
class _Shown:
    """How it stands with the plans and with each device, for lines below the progress."""

    plans: SettledPlans | None
    news: Sequence[DeviceNews] = ()

    def watch(self, news: Sequence[DeviceNews]) -> None:
        self.news = news

    def lines(self) -> RenderableType:
        """A line for plans, where they end the collection, and one for each of several devices."""
        grid = Table.grid(padding=(0, 2))
        for own in self.news if len(self.news) > 1 else ():
            again = f"tried again in {own.retry_s:.0f} s" if own.state == "away" else ""
            grid.add_row(Text(own.serial), own.state, f"{own.measured} measurements", again)
        return Group(Text(self.plans.describe()), grid) if self.plans else grid


def _described(name: str, serials: Sequence[str]) -> Soc:
    """The SoC, and where it is on the first device that tells."""
    *others, last = serials
    for serial in others:
        with suppress(DeviceError):
            return load_measured(name, serial)
    return load_measured(name, last)


def _recorded(serials: Sequence[str]) -> Dataset | None:
    """The dataset that is replayed: its kernels were tuned as it says; None of devices."""
    folders = [folder for folder in map(folder_of, serials) if folder is not None]
    if folders and len(serials) > 1:
        raise CodlError(f"A replay is collected from alone, got {', '.join(serials)}.")
    return Dataset.at(folders[0]) if folders else None


def _answered(tasks: Sequence[Task], recorded: Dataset) -> list[Task]:
    """The tasks that a replay has rows of; of the others it is said how many there are."""
    recording = Recording.read(recorded.folder)
    found = [task for task in tasks if recording.has(task)]
    if len(found) < len(tasks):
        others = len(tasks) - len(found)
        note(f"{others} of {len(tasks)} measurements are left out: the replay has no row of them")
    return found


def _shares(given: str | None, *, few: bool) -> Sequence[float]:
    if given:
        return read_shares(given)
    return FEW_SHARES if few else SHARES
