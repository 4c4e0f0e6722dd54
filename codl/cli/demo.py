"""`codl demo`: what codl does, in a minute: from what ships, then measured on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from codl import files
from codl.cli.output import STDOUT, TERMINAL, JsonOutput, document, ended, note
from codl.errors import CodlError, InterruptedCommandError
from codl.files import check_folder
from codl.frontend.convert import load_structure
from codl.jobs import options as opt
from codl.jobs.explain import Explain, explain_predicted, explained_result
from codl.jobs.options import option
from codl.jobs.search import Search, plan_result
from codl.measure.budget import Budget
from codl.plan.strategies.model_search import FoundPlan
from codl.report.html import write_report
from codl.report.results import EvalResult, load_result
from codl.report.tables import eval_content
from codl.report.text_table import TextTable

#: The SoC that ships with a dataset and predictors, and what is planned for it.
SHIPPED = "epyc2"
MODELS = ("yolov2", "posenet", "resnet50", "mobilenet_v1")
STRATEGIES = ("cpu", "gpu", "codl")
#: What is measured here: few ops that differ, so that a minute is enough.
MEASURED = "resnet50"
#: The SoC's name here, and the libraries that run beside the plans.
HERE, PEERS = "host", ("ort", "ncnn")
#: The parts of the time that is left which planning from what ships, measuring ops, starting and
#: ending that, trying plans here, and planning and comparing together may take. All that a machine
#: takes before each part is over by then, so that a slow one has less of each.
PREDICTING, COLLECTING, STARTING, TRYING, COMPARING = 0.1, 0.4, 0.1, 0.25, 0.75
#: At least so long ops are measured, and at most so long strategies are compared, in seconds.
LEAST_S, COMPARING_S = 1.0, 5
#: A step that is interrupted has so many seconds to keep what it has done.
END_S = 5.0
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


@dataclass(frozen=True)
class DemoRow:
    """A model on either processor and on both, in milliseconds; as the source says.

    `shared` of the `chains` run on both processors.
    """

    model: str
    cpu_ms: float
    gpu_ms: float
    codl_ms: float
    source: str
    chains: int | None = None
    shared: int | None = None

    @property
    def speedup(self) -> float:
        """Over the better processor."""
        return min(self.cpu_ms, self.gpu_ms) / self.codl_ms


def run_demo(
    out: JsonOutput,
    measure: Annotated[
        bool, option("--measure", help="Measure this machine, too: its ops, and one model.")
    ] = False,
    budget_s: Annotated[
        float,
        opt.budget_option("Time for the whole command, such as 1m.", "1m"),
    ] = 60.0,
    output: Annotated[
        Path, option("-o", "--output", help="The page; its files are beside it.", read=opt.writable)
    ] = FOLDER / PAGE,
) -> None:
    """Shipped plans for a divided AMD EPYC come first: nothing runs, every figure is predicted.

    With --measure codl then measures this machine, and runs a network on each processor and on
    both. The command ends within --budget. Measurements stay beside the page; a second start
    continues.

    [dim]Examples:[/dim]
    codl demo
    codl demo --measure --budget 5m -o tried/report.html
    """
    folder, limit = output.parent, Budget(budget_s)

    def show(content: Any) -> None:
        if not out.as_json:
            STDOUT.print(content)

    check_folder(folder)
    rows = _predicted(folder, Budget(budget_s * (PREDICTING if measure else 1)))
    results = [folder / PLANS, folder / WATERFALL]
    title = f"Predicted for {SHIPPED}: nothing ran"
    heads = ("model", "CPU (ms)", "GPU (ms)", "both (ms)", "gain", "chains on both")
    shown = [
        (row.model, row.cpu_ms, row.gpu_ms, row.codl_ms, row.speedup,
         f"{row.shared} of {row.chains}")
        for row in rows
    ]  # fmt: skip
    caption = f"{PREDICTED} {ONE_CPU} Gain: over the better processor."
    show(TextTable.plain(title, heads, shown, [caption]))
    begin = limit.left_s
    note(f"Wrote {write_report(results, output, apart=True)}")
    if measure:
        _measure(output, limit, keep_s=2 * (begin - limit.left_s))
        rows = (*rows, _measured(folder / EVALUATION, show))
        write_report([folder / EVALUATION, *results], output, apart=True)
    else:
        note("`codl demo --measure` measures this machine, and runs a network on it.")
    show(f"The page: {output}")
    if out.as_json:
        content = [asdict(row) | {"speedup": row.speedup} for row in rows]
        print(document("demo", {"soc": SHIPPED, "rows": content, "page": str(output)}))


def _predicted(folder: Path, budget: Budget) -> tuple[DemoRow, ...]:
    """Plan models for the SoC that ships, one at least, and write the results beside the page."""
    rows, best, plans = [], [], []
    for model in budget.steps(MODELS):
        every = [
            Search(model, soc=SHIPPED, strategy=strategy, profile=False, reporter=TERMINAL).run()
            for strategy in STRATEGIES
        ]
        cpu_ms, gpu_ms, codl_ms = (
            found.plan.predicted_ms or 0.0 for found in every if isinstance(found, FoundPlan)
        )
        found = every[-1]
        assert isinstance(found, FoundPlan)
        best.append(plan_result(found))
        plans.append(found.plan)
        chains = found.plan.chains
        shared = sum(0 < chain.gpu_ratio < 1 for chain in chains)
        row = DemoRow(model, cpu_ms, gpu_ms, codl_ms, "computed", len(chains), shared)
        rows.append(row)
    searched = {"soc": SHIPPED, "plans": best, "failed": []}
    files.write(folder / PLANS, document("search", searched) + "\n")
    job = Explain(MODELS[0], soc=SHIPPED, predicted=True, reporter=TERMINAL)
    network = load_structure(MODELS[0])
    explained = explained_result(
        job, network, plans[0], explain_predicted(network, plans[0], job.context)
    )
    files.write(folder / WATERFALL, document("explain", explained) + "\n")
    return tuple(rows)


def _measure(output: Path, limit: Budget, *, keep_s: float) -> None:
    """Every step is a command of its own, as one would give it; `keep_s` are left for the page."""
    folder = output.parent

    def left_s() -> float:
        return max(0.0, limit.left_s - keep_s - END_S)

    if not (folder / "socs" / f"{HERE}.yaml").is_file():
        _step(output, left_s(), f"soc detect --name {HERE}")
    of, dataset = f"--soc {HERE} --models {MEASURED}", folder / "lat_datasets"
    # A run that goes on measures less, and has more time to compare.
    all_s = left_s() / (2 if (dataset / HERE).is_dir() else 1)
    command = f"collect {of} --resume --budget {max(LEAST_S, COLLECTING * all_s):.1f}s"
    _step(output, (COLLECTING + STARTING) * all_s, command, kept=dataset / HERE)
    if not (dataset / HERE).is_dir():
        raise CodlError(
            f"Nothing was measured in {COLLECTING * all_s:.0f} s: something else seems to keep the "
            "processors busy. The same command tries again, and --budget gives it more time."
        )
    _step(output, left_s(), f"train --soc {HERE} --predictor codl --no-evaluate")
    (folder / EVALUATION).unlink(missing_ok=True)
    trying_s, comparing_s = (max(LEAST_S, part * left_s()) for part in (TRYING, COMPARING))
    how = (
        f"--strategies {','.join(STRATEGIES)} --peers {','.join(PEERS)} --time {COMPARING_S}s "
        f"--plan-time {trying_s:.1f}s --budget {comparing_s:.1f}s"
    )
    result = folder / EVALUATION
    _step(output, left_s(), f"eval {of} {how} -o", str(result), kept=result)


def _measured(file: Path, show: Callable[[Any], None]) -> DemoRow:
    """Show the evaluation; raises `CodlError` where the network did not run by each strategy."""
    result = load_result(file)
    assert isinstance(result, EvalResult)
    levels = {row.strategy: row.latency_ms.level for row in result.rows if row.latency_ms}
    failed = [row for row in result.rows if row.strategy in STRATEGIES and not row.latency_ms]
    if failed:
        raise CodlError(
            f"{MEASURED} did not run by {failed[0].strategy}: {failed[0].reason} The same command "
            "measures more, and --budget gives it more time."
        )
    show(eval_content(result))
    cpu_ms, gpu_ms, codl_ms = (levels[name] for name in STRATEGIES)
    return DemoRow(MEASURED, cpu_ms, gpu_ms, codl_ms, "measured")


def _step(output: Path, left_s: float, command: str, *paths: str, kept: Path | None = None) -> None:
    """Run a command of these words and paths; all else that it writes lies beside the page.

    Its progress is seen, and its table is not. After `left_s` seconds it is interrupted. Raises
    `CodlError` where it fails, or has not `kept` anything by then, and `InterruptedCommandError`
    where this command is interrupted.
    """
    folder, words = output.parent, [*command.split(), *paths]
    text = f"CODL_HOME={folder} codl {' '.join(words)}"
    page = "" if output == FOLDER / PAGE else f" -o {output}"
    goes_on = f"What was done lies in {folder}, and `codl demo --measure{page}` goes on from there."
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
            code = child.wait(left_s)
        except subprocess.TimeoutExpired as error:
            _interrupt(child)
            if kept is None or not kept.exists():
                over = f"The time is over, and `{text}` is not done."
                raise CodlError(f"{over} {goes_on} --budget gives it more time.") from error
            return
        except KeyboardInterrupt as error:
            child.send_signal(signal.SIGINT)
            child.wait()
            raise InterruptedCommandError(goes_on) from error
    if code:
        raise CodlError(f"`{text}` ended with code {code}. {goes_on}")


def _interrupt(child: subprocess.Popen[bytes]) -> None:
    """End a command as Ctrl-C does; what does not end in time is killed with all that it began."""
    child.send_signal(signal.SIGINT)
    try:
        child.wait(END_S)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
