"""`codl demo`: what codl does, in a minute: from what ships, then measured on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from codl import files
from codl.cli.output import STDOUT, TERMINAL, JsonOption, document, note, warn
from codl.cli.progress import ended
from codl.errors import CodlError, InterruptedCommandError
from codl.evaluation.explain import explain_predicted
from codl.files import check_folder
from codl.frontend.convert import load_structure
from codl.jobs import options as opt
from codl.jobs.collect import LAST_LOOK_S
from codl.jobs.explain import Explain, explained_result
from codl.jobs.options import option
from codl.jobs.search import Search, plan_result
from codl.measure.budget import Budget
from codl.report.html import write_report
from codl.report.load import load_result
from codl.report.results import EvalResult
from codl.report.text_table import Table
from codl.strategies.model_search import FoundPlan

#: The SoC that ships with a dataset and predictors, and what is planned for it.
SHIPPED = "epyc2"
MODELS = ("yolov2", "posenet", "resnet50", "mobilenet_v1")
STRATEGIES = ("cpu", "gpu", "codl")
#: What is measured here: few ops that differ, so that a minute is enough.
MEASURED = "resnet50"
#: The SoC's name here, and the libraries that run beside the plans.
HERE, PEERS = "host", ("ort", "ncnn")
#: Of a budget so many seconds are for all but measuring ops, which takes the least in any case.
#: 11 s for ops in the place of 29 ended in 54 s, with a plan that gained nothing.
OTHERS_S, LEAST_S, COMPARING_S = 25.0, 10.0, 5
#: The page, and what is beside it.
PAGE, PLANS, WATERFALL, EVALUATION = "report.html", "plans.json", "waterfall.json", "eval.json"
FOLDER = Path("codl-demo")
#: How a step is run.
COMMAND = (sys.executable, "-m", "codl")
PREDICTED = (
    "Predicted from latencies that were measured on another machine: ncnn on one core of an AMD "
    "EPYC, OpenCL on the other."
)
ONE_CPU = "Both sides are one CPU, divided: it says nothing about a CPU beside a GPU."
GAIN = "Gain: over the better processor."

MeasureOption = Annotated[
    bool, option("--measure", help="Measure this machine, too: its ops, and one model.")
]
BudgetOption = Annotated[
    float,
    option("--budget", help="Time to measure for, such as 1m.", read=opt.read_budget, text="1m"),
]
PageOption = Annotated[
    Path,
    option(
        "-o",
        "--output",
        help="The page. What it is made of lies beside it.",
        read=lambda text: opt.writable(Path(text)),
    ),
]


@dataclass(frozen=True)
class DemoRow:
    """A model on either processor and on both, in milliseconds; as the source says.

    `shared` of the `chains` run on both processors; `library_ms` is the best library on all cores.
    """

    model: str
    cpu_ms: float
    gpu_ms: float
    codl_ms: float
    source: str
    chains: int | None = None
    shared: int | None = None
    library: str = ""
    library_ms: float | None = None

    @property
    def speedup(self) -> float:
        """Over the better processor."""
        return min(self.cpu_ms, self.gpu_ms) / self.codl_ms


def run_demo(
    measure: MeasureOption = False,
    budget_s: BudgetOption = 60.0,
    output: PageOption = FOLDER / PAGE,
    json: JsonOption = False,
) -> None:
    """First from what ships: plans of some networks for a divided AMD EPYC, which somebody else's
    machine has measured; nothing runs, and every figure is predicted. With --measure this machine
    is then looked at, measured for --budget, and runs a network on either processor and on both.
    What was measured stays beside the page, and the same command goes on where it ended.

    [dim]Examples:[/dim]
    codl demo
    codl demo --measure
    codl demo --measure --budget 5m -o tried/report.html
    """
    folder = output.parent

    def show(content: Any) -> None:
        if not json:
            STDOUT.print(content)

    check_folder(folder)
    rows = _predicted(folder)
    results = [folder / PLANS, folder / WATERFALL]
    title = f"Predicted for {SHIPPED}: nothing ran"
    shared = [f"{row.shared} of {row.chains}" for row in rows]
    show(_table(rows, title, "chains on both", shared, f"{PREDICTED} {ONE_CPU}"))
    note(f"Wrote {write_report(results, output, apart=True)}")
    if measure:
        _measure(output, Budget(budget_s))
        rows = (*rows, _measured(folder / EVALUATION, show))
        write_report([folder / EVALUATION, *results], output, apart=True)
    else:
        note("`codl demo --measure` measures this machine, and runs a network on it.")
    show(f"The page: {output}")
    if json:
        content = [asdict(row) | {"speedup": row.speedup} for row in rows]
        print(document("demo", {"soc": SHIPPED, "rows": content, "page": str(output)}))


def _table(
    rows: Sequence[DemoRow], title: str, last: str, cells: Sequence[str], caption: str
) -> Table:
    columns = ("model", "CPU (ms)", "GPU (ms)", "both (ms)", "gain", last)
    table = Table(*columns, title=title, title_justify="left", caption=f"{caption} {GAIN}")
    for row, cell in zip(rows, cells, strict=True):
        times = [f"{ms:.1f}" for ms in (row.cpu_ms, row.gpu_ms, row.codl_ms)]
        table.add_row(row.model, *times, f"{row.speedup:.2f}", cell)
    return table


def _predicted(folder: Path) -> tuple[DemoRow, ...]:
    """Plan the models for the SoC that ships, and write the results beside the page."""
    rows, best, plans = [], [], []
    for model in MODELS:
        found = {}
        for strategy in STRATEGIES:
            found[strategy] = Search(
                model, soc=SHIPPED, strategy=strategy, profile=False, reporter=TERMINAL
            ).run()
        plan = found["codl"]
        assert isinstance(plan, FoundPlan)
        best.append(plan_result(plan))
        plans.append(plan.plan)
        rows.append(_row(model, found))
    searched = {"soc": SHIPPED, "plans": best, "failed": []}
    files.write(folder / PLANS, document("search", searched) + "\n")
    job = Explain(MODELS[0], soc=SHIPPED, predicted=True, reporter=TERMINAL)
    network = load_structure(MODELS[0])
    explained = explained_result(
        job, network, plans[0], explain_predicted(network, plans[0], job.context)
    )
    files.write(folder / WATERFALL, document("explain", explained) + "\n")
    return tuple(rows)


def _row(model: str, found: Mapping[str, object]) -> DemoRow:
    plans = [outcome.plan for outcome in found.values() if isinstance(outcome, FoundPlan)]
    cpu_ms, gpu_ms, codl_ms = (plan.predicted_ms or 0.0 for plan in plans)
    chains = plans[-1].chains
    shared = sum(0 < chain.gpu_ratio < 1 for chain in chains)
    return DemoRow(model, cpu_ms, gpu_ms, codl_ms, "computed", len(chains), shared)


def _measure(output: Path, limit: Budget) -> None:
    """Every step is a command of its own, as one would give it."""
    folder = output.parent
    if not (folder / "socs" / f"{HERE}.yaml").is_file():
        _step(output, f"soc detect --name {HERE}")
    measuring_s = max(LEAST_S, limit.left_s - OTHERS_S)
    # Behind it a collection keeps as long again, or this long, for a look that takes seconds here.
    collecting_s = measuring_s + min(LAST_LOOK_S, measuring_s)
    of = f"--soc {HERE} --models {MEASURED}"
    _step(output, f"collect {of} --resume --no-tune --budget {collecting_s:.0f}s")
    if not (folder / "lat_datasets" / HERE).is_dir():
        raise CodlError(
            f"Nothing was measured in {collecting_s:.0f} s: something else seems to keep the "
            "processors busy. The same command tries again, and --budget gives it more time."
        )
    _step(output, f"train --soc {HERE} --predictor codl --no-evaluate")
    how = f"--strategies {','.join(STRATEGIES)} --peers {','.join(PEERS)} --time {COMPARING_S}s"
    _step(output, f"eval {of} {how} -o", str(folder / EVALUATION))


def _measured(file: Path, show: Callable[[Any], None]) -> DemoRow:
    """Show the evaluation; raises `CodlError` where the network did not run by each strategy."""
    result = load_result(file)
    assert isinstance(result, EvalResult)
    levels = {row.strategy: row.latency_ms.level for row in result.rows if row.latency_ms}
    failed = [row for row in result.rows if row.strategy in STRATEGIES and not row.latency_ms]
    if failed:
        raise CodlError(f"{MEASURED} did not run by {failed[0].strategy}: {failed[0].reason}")
    library = min((name for name in PEERS if name in levels), key=levels.__getitem__, default="")
    cpu_ms, gpu_ms, codl_ms = (levels[name] for name in STRATEGIES)
    row = DemoRow(
        MEASURED, cpu_ms, gpu_ms, codl_ms, "measured",
        library=library, library_ms=levels.get(library),
    )  # fmt: skip
    best = "-" if row.library_ms is None else f"{row.library_ms:.1f}, {row.library}"
    parts = [part.name for part in (result.soc.cpu, result.soc.gpu) if part is not None]
    halves = f" {ONE_CPU}" if result.soc.is_one_cpu else ""
    caption = f"CPU and GPU: {', '.join(parts)}.{halves} 20th percentiles."
    title, last = "Measured on this machine", "best library, all cores (ms)"
    show(_table([row], title, last, [best], caption))
    doubts = [f"{row.strategy}: {'; '.join(row.doubts)}" for row in result.rows if row.doubts]
    if doubts:
        warn(
            f"Other programs seem to run beside it, so these are doubtful: {'. '.join(doubts)}. "
            "`codl demo --measure` measures again."
        )
    return row


def _step(output: Path, command: str, *paths: str) -> None:
    """Run a command of these words and paths; all else that it writes lies beside the page.

    Its progress is seen, and its table is not. Raises `CodlError` where it fails, and
    `InterruptedCommandError` where it is interrupted.
    """
    folder, words = output.parent, [*command.split(), *paths]
    text = f"CODL_HOME={folder} codl {' '.join(words)}"
    page = "" if output == FOLDER / PAGE else f" -o {output}"
    kept = f"What was done lies in {folder}, and `codl demo --measure{page}` goes on from there."
    ended()  # it tells by itself how far it is
    note(f"$ {text}")
    # A terminal's Ctrl-C reaches this process alone, which hands it on, once.
    with subprocess.Popen(
        [*COMMAND, *words],
        env={**os.environ, "CODL_HOME": str(folder)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    ) as child:
        try:
            code = child.wait()
        except KeyboardInterrupt as error:
            child.send_signal(signal.SIGINT)
            child.wait()
            raise InterruptedCommandError(kept) from error
    if code:
        raise CodlError(f"`{text}` ended with code {code}. {kept}")
