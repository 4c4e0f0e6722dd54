"""Benchmarks: ops alone, a model that runs on and on, and an interface beside one."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any

from codl.engine.engine import Engine
from codl.errors import CodlError
from codl.evaluation.benchmarks import TURNS, UiRow, Window, summary, sustain
from codl.evaluation.benchmarks import bench_ui as draw_beside
from codl.ir import Op, to_text
from codl.jobs import options as opt
from codl.jobs.job import Job
from codl.jobs.model import ModelJob, digests_of, recorded
from codl.jobs.options import option
from codl.measure import FOLDER as DATASETS
from codl.measure import tuning_file
from codl.measure.budget import Budget
from codl.measure.dataset import Dataset
from codl.measure.inputs import random_inputs
from codl.measure.op_runner import ELSEWHERE
from codl.measure.tasks import load_ops
from codl.measure.timing import Protocol
from codl.records.gpu_limits import UNLIMITED, GpuLimits
from codl.records.results import Digests
from codl.records.tuned import BenchRow
from codl.targets.connect import connect
from codl.targets.detect import load_local

#: A run on and on is told in at most this many stretches.
MOST_LINES = 20
#: The limits that are compared where none are named.
USUAL = GpuLimits(max_kernel_ms=1.0, gpu_duty=0.7)
BESIDE = ("without limits", "with limits")


SourceArgument = Annotated[
    str | None, opt.argument("A built-in model, an .onnx file or a .csv file of ops.")
]
EveryOption = Annotated[bool, option("--every", help="Also variants that are not for this SoC.")]


@dataclass(frozen=True, kw_only=True)
class BenchOps(Job):
    """Measure ops in every kernel variant, or in those for this SoC alone, while there is time."""

    source: SourceArgument = field(default=None, kw_only=False)
    soc: opt.SocOption = "host"
    ops: opt.OpsOption = ()
    every: EveryOption = False
    precision: opt.PrecisionOption = None
    budget_s: opt.BudgetOption = None
    dataset: opt.DatasetsOption = DATASETS
    serial: opt.SerialOption = opt.HERE

    def run(self) -> tuple[dict[str, Any], Budget]:
        """What `codl bench ops --json` holds, and what ended it."""
        sources = (*opt.names_of([self.source] if self.source else []), *self.ops)
        if not sources:
            example = '"conv2d in=1x64x56x56 oc=128 kernel=3x3"'
            raise CodlError(f"Name a model, or an op by --ops {example}.")
        soc, budget = load_local(self.soc, self.serial, self.precision), Budget(self.budget_s)
        ops = load_ops(sources)
        tuning = tuning_file.read(Dataset.found(soc.name, self.dataset), soc)
        done: list[Op] = []
        rows: list[dict[str, Any]] = []
        refused: list[dict[str, Any]] = []
        elsewhere = 0
        with (
            closing(connect(self.serial, soc)) as target,
            self.reporter.progress(f"Measuring on {soc.name}") as update,
        ):
            origin = recorded(target, Digests(tuning=tuning.fingerprint), **asdict(Protocol()))
            with budget.keeping(done):
                for each in budget.steps(ops, update):
                    measured, others = target.bench(each, tuning, every=self.every)
                    rows += [_row(each, row) for row in measured]
                    here = [x for x in others if self.every or x.reason != ELSEWHERE]
                    refused += [{"op": to_text(each), **asdict(other)} for other in here]
                    elsewhere += len(others) - len(here)
                    done.append(each)
        result = {
            "soc": soc.name,
            "source": "measured",
            "ops": rows,
            "refused": refused,
            "elsewhere": elsewhere,
            "stopped": budget.ended,
            "left": len(ops) - len(done),
            **origin,
        }
        return result, budget


def _row(op: Op, row: BenchRow) -> dict[str, Any]:
    return {
        "op": to_text(op),
        "variant": row.variant,
        "processor": row.processor,
        "latency_ms": row.latency.level,
        "gflops": row.gflops,
        "p20_ms": row.latency.p20,
        "p80_ms": row.latency.p80,
        "runs": row.latency.runs,
        "choice": None if row.choice is None else dict(row.choice),
    }


@dataclass(frozen=True, kw_only=True)
class BenchSustained(ModelJob):
    """Run a model for some time, or until Ctrl-C behind the first window."""

    time_s: Annotated[
        float, opt.time_option("10m", help="How long the model runs, such as 10m.")
    ] = 600.0

    def run(self) -> tuple[dict[str, Any], Budget]:
        """What `codl bench sustained --json` holds, and what ended it."""
        network, seconds, budget = self.load(), self.time_s, Budget()
        windows: list[Window] = []
        with self.connected() as context:
            plan = self.plan_of(network, context)
            with Engine(network, plan, context.device, context.tuning) as engine:
                engine.feed(random_inputs(network))
                with (
                    self.reporter.progress(f"Running {network.name}") as update,
                    budget.keeping(windows),
                ):
                    for window in sustain(context.device.time, engine.loaded, seconds):
                        windows.append(window)
                        done = min(window.end_s, seconds)
                        update(round(done), round(seconds), seconds - done)
            of = digests_of(context, network, plans={network.name: plan})
            origin = recorded(context.device, of, minutes=seconds / 60)
        every_s = max(seconds / MOST_LINES, min(60.0, seconds / 4))
        result = {
            "model": network.name,
            "soc": self.described.name,
            "serial": self.serial,
            "source": "measured",
            "strategy": plan.strategy,
            "minutes": windows[-1].end_s / 60,
            "interrupted": budget.ended == "interrupted",
            **asdict(summary(windows, every_s=every_s)),
            **origin,
        }
        return result, budget


@dataclass(frozen=True, kw_only=True)
class BenchInterface(ModelJob):
    """Draw frames beside nothing, beside a model as it usually runs, and beside it with limits.

    Each is planned for its limits.
    """

    time_s: Annotated[float, opt.time_option("9s", help="How long to draw beside each.")] = 9.0

    def run(self) -> tuple[dict[str, Any], Budget]:
        """What `codl bench ui --json` holds, and what ended it: the time, or Ctrl-C."""
        described, budget = load_local(self.soc, self.serial, self.precision), Budget()
        limits = self.options.limits(described) or USUAL
        network = self.load()
        with ExitStack() as stack:
            engines = {}
            for name, limit in zip(BESIDE, (UNLIMITED, limits), strict=True):
                soc = replace(described, placement=replace(described.placement, limits=limit))
                target = stack.enter_context(closing(connect(self.serial, soc)))
                context = replace(self.context, soc=soc, target=target)
                plan = self.plan_of(network, context)
                engines[name] = stack.enter_context(Engine(network, plan, target, context.tuning))
            probe = stack.enter_context(closing(target.fresh()))
            plans = {name: loaded.plan for name, loaded in engines.items()}
            of = digests_of(context, network, plans=plans)
            origin = recorded(target, of, seconds=self.time_s, turns=TURNS)
            self.reporter.stage(
                f"Drawing frames beside {network.name}, {self.time_s:g} s each",
                len(BESIDE) * self.time_s,
            )
            rows = draw_beside(
                engines, probe, random_inputs(network), seconds=self.time_s, budget=budget
            )
            strategies = {name: engine.plan.strategy for name, engine in engines.items()}
        result = {
            "model": network.name,
            "soc": described.name,
            "serial": self.serial,
            "source": "measured",
            "limits": asdict(limits),
            "rows": [{**asdict(row), "strategy": strategies.get(row.beside)} for row in rows],
            "price": _price(rows),
            "stopped": budget.ended,
            **origin,
        }
        return result, budget


def _price(rows: list[UiRow]) -> float | None:
    """How many times longer an inference takes with limits than without."""
    without_ms, with_ms = (row.latency_ms.median for row in rows if row.latency_ms is not None)
    return with_ms / without_ms if without_ms else None
