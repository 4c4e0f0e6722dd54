"""`codl bench --ui`: an interface beside a model that runs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from codl.cli.deployed import RunOptions, adapted, context_of, deployment_of, plan_of
from codl.cli.output import stage
from codl.cli.recorded import digests_of, recorded
from codl.engine.engine import Engine
from codl.errors import CodlError
from codl.evaluate.ui_bench import TURNS, UiRow, bench_ui
from codl.frontend.convert import load_network
from codl.measure.budget import Budget
from codl.measure.inputs import random_inputs
from codl.records.gpu_limits import UNLIMITED, GpuLimits
from codl.report.terminal import Table
from codl.runtime.placement import LocalSoc
from codl.targets.connect import connect

#: What is compared where no limits are named.
USUAL = GpuLimits(max_kernel_ms=1.0, gpu_duty=0.7)
BESIDE = ("without limits", "with limits")


def ui_result(
    model: str,
    described: LocalSoc,
    serial: str,
    *,
    strategy: str | None,
    wanted: RunOptions,
    dataset: Path,
    seconds: float,
    budget: Budget,
) -> dict[str, Any]:
    """Frames beside nothing, beside a model as it usually runs, and beside it with limits.

    Each is planned for its limits. Ctrl-C ends it, and the `budget` says so. Raises `CodlError` for
    a time that is not above 0.
    """
    if not 0 < seconds < float("inf"):
        raise CodlError(f"--seconds must be above 0, got {seconds:g}.")
    deployed = deployment_of(model)
    limits = wanted.deployed(deployed).limits(described) or USUAL
    network = load_network(model)
    with ExitStack() as stack:
        engines = {}
        for name, own in zip(BESIDE, (UNLIMITED, limits), strict=True):
            soc = replace(described, placement=replace(described.placement, limits=own))
            target = stack.enter_context(closing(connect(serial, soc)))
            asked = context_of(soc, dataset, target=target)
            context = adapted(asked, deployed)
            plan = plan_of(None, strategy, deployed, network=network, context=context)
            engines[name] = stack.enter_context(Engine(network, plan, target, context.tuning))
        probe = stack.enter_context(closing(target.fresh()))
        of = digests_of(context, network, plans={n: own.plan for n, own in engines.items()})
        origin = recorded(target, of, seconds=seconds, turns=TURNS)
        stage(f"Drawing frames beside {network.name}, {seconds:g} s each")
        rows = bench_ui(engines, probe, random_inputs(network), seconds=seconds, budget=budget)
        strategies = {name: engine.plan.strategy for name, engine in engines.items()}
    return {
        "model": network.name,
        "soc": described.name,
        "serial": serial,
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
            f"{one['kernel']} ({one['ms']:.2f} ms: {one['reason']})" for one in too_long
        )
    return table
