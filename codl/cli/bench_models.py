"""`codl bench sustained` and `ui`: a model that runs on and on, and an interface beside one."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import asdict, replace
from typing import Any

from codl.api.job import Job, digests_of, recorded
from codl.cli.output import progress, stage
from codl.engine.engine import Engine
from codl.evaluation.ui_bench import TURNS, UiRow, bench_ui
from codl.measure.budget import Budget
from codl.measure.inputs import random_inputs
from codl.measure.sustained import Window, summary, sustain
from codl.records.gpu_limits import UNLIMITED, GpuLimits
from codl.report.text_table import Table
from codl.targets.connect import connect
from codl.targets.detect import load_local

#: A table has at most this many lines.
MOST_LINES = 20
UNREADABLE = "not readable"
#: The limits that are compared where none are named.
USUAL = GpuLimits(max_kernel_ms=1.0, gpu_duty=0.7)
BESIDE = ("without limits", "with limits")


def sustained_result(job: Job, *, minutes: float, budget: Budget) -> dict[str, Any]:
    """Run a model for some minutes, or until Ctrl-C behind the first window."""
    network, seconds = job.read_network(), 60 * minutes
    windows: list[Window] = []
    with job.connected() as context:
        plan = job.plan_of(network, context)
        with Engine(network, plan, context.device, context.tuning) as engine:
            engine.feed(random_inputs(network))
            with progress(f"Running {network.name}") as update, budget.keeping(windows):
                for window in sustain(context.device.time, engine.loaded, seconds):
                    windows.append(window)
                    done = min(window.end_s, seconds)
                    update(round(done), round(seconds), seconds - done)
        of = digests_of(context, network, plans={network.name: plan})
        origin = recorded(context.device, of, minutes=minutes)
    every_s = max(seconds / MOST_LINES, min(60.0, seconds / 4))
    return {
        "model": network.name,
        "soc": job.described.name,
        "serial": job.serial,
        "source": "measured",
        "strategy": plan.strategy,
        "minutes": windows[-1].end_s / 60,
        "interrupted": budget.ended == "interrupted",
        **asdict(summary(windows, every_s=every_s)),
        **origin,
    }


def sustained_table(result: Mapping[str, Any]) -> Table:
    """A line for every while, the first and the last minute below."""
    columns = ("from", "to", "p50 ms", "p95 ms", "runs", "CPU MHz", "GPU MHz", "°C", "held down")
    table = Table(*columns, title=f"{result['model']} by {result['strategy']}, on and on")
    for part in result["stretches"]:
        table.add_row(*_cells(part))
    first, last = result["first_minute"], result["last_minute"]
    table.add_section()
    for part in (first, last, result["whole"]):
        table.add_row(*_cells(part))
    drop = 100 * result["drop"]
    change = f"{drop:.1f} % slower" if drop >= 0 else f"{-drop:.1f} % faster"
    table.caption = (
        f"below: the first minute, the last one (halves of a shorter run), and all. Its speed in "
        f"the end is {change} than in the beginning, by medians; measured on {result['soc']}"
    )
    return table


def _cells(part: Mapping[str, Any]) -> tuple[str, ...]:
    now = part["conditions"]
    clocks = (_told(now[key]) for key in ("cpu_mhz", "gpu_mhz", "temperature_c"))
    times = (_time(part["begin_s"]), _time(part["end_s"]))
    latency = (f"{part['p50_ms']:.4g}", f"{part['p95_ms']:.4g}", str(part["runs"]))
    return (*times, *latency, *clocks, ", ".join(now["throttled"]))


def _told(value: float | None) -> str:
    return UNREADABLE if value is None else f"{value:.0f}"


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"


def ui_result(job: Job, *, seconds: float, budget: Budget) -> dict[str, Any]:
    """Frames beside nothing, beside a model as it usually runs, and beside it with limits.

    Each is planned for its limits. Ctrl-C ends it, and the `budget` says so.
    """
    described = load_local(job.soc, job.serial, job.precision)
    limits = job.wanted.limits(described) or USUAL
    network = job.read_network()
    with ExitStack() as stack:
        engines = {}
        for name, limit in zip(BESIDE, (UNLIMITED, limits), strict=True):
            soc = replace(described, placement=replace(described.placement, limits=limit))
            target = stack.enter_context(closing(connect(job.serial, soc)))
            context = replace(job.context, soc=soc, target=target)
            plan = job.plan_of(network, context)
            engines[name] = stack.enter_context(Engine(network, plan, target, context.tuning))
        probe = stack.enter_context(closing(target.fresh()))
        of = digests_of(context, network, plans={n: loaded.plan for n, loaded in engines.items()})
        origin = recorded(target, of, seconds=seconds, turns=TURNS)
        stage(f"Drawing frames beside {network.name}, {seconds:g} s each", len(BESIDE) * seconds)
        rows = bench_ui(engines, probe, random_inputs(network), seconds=seconds, budget=budget)
        strategies = {name: engine.plan.strategy for name, engine in engines.items()}
    return {
        "model": network.name,
        "soc": described.name,
        "serial": job.serial,
        "source": "measured",
        "limits": asdict(limits),
        "rows": [{**asdict(row), "strategy": strategies.get(row.beside)} for row in rows],
        "price": _price(rows),
        "stopped": budget.ended,
        **origin,
    }


def _price(rows: list[UiRow]) -> float | None:
    """How many times longer an inference takes with limits than without."""
    without_ms, with_ms = (row.latency_ms.median for row in rows if row.latency_ms is not None)
    return with_ms / without_ms if without_ms else None


def ui_table(result: Mapping[str, Any]) -> Table:
    columns = ("an interface beside", "frames on time", "worst stall ms", "frame ms",
               "inference ms", "longest kernel ms")  # fmt: skip
    table = Table(*columns, title=f"An interface at 60 Hz beside {result['model']}")
    for row in result["rows"]:
        frames, latency_ms, limited = row["frames"], row["latency_ms"], row["limited"]
        table.add_row(
            row["beside"],
            f"{100 * frames['on_time']:.1f} %",
            f"{frames['worst_stall_ms']:.1f}",
            f"{frames['frame_ms']['median']:.1f}",
            "-" if latency_ms is None else f"{latency_ms['median']:.1f}",
            "-" if limited is None else f"{limited['longest_ms']:.2f}",
        )
    limits = result["limits"]
    longest_ms, duty = limits["max_kernel_ms"], limits["gpu_duty"]
    kernels = "of any length" if longest_ms is None else f"of at most {longest_ms:g} ms"
    table.caption = (
        f"on {result['soc']}, measured; limits: kernels {kernels}, GPU busy {100 * duty:g} % of "
        f"the time; an inference takes {result['price']:.2f} times as long with them"
    )
    too_long = result["rows"][-1]["limited"]["too_long"]
    if too_long:
        table.caption += "; longer are " + ", ".join(
            f"{launch['kernel']} ({launch['ms']:.2f} ms: {launch['reason']})" for launch in too_long
        )
    return table
