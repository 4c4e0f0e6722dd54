"""`codl bench`: kernels alone, and models that run on and on or beside an interface."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from codl.cli.output import JsonOption, OutputOption, emit, tell
from codl.jobs.bench import BenchInterface, BenchOps, BenchSustained
from codl.report.text_table import Table

UNREADABLE = "not readable"
#: Said at Ctrl-C.
KEPT = "What was measured before is kept."


def bench_ops(job: BenchOps, json: JsonOption = False, output: OutputOption = None) -> None:
    """Variants that refuse an op, or that fail on it, are listed with the reason; those for other
    types of device, memory or element are counted, and measured with --every. With --budget no op
    is begun that would probably end too late; it and Ctrl-C keep what was measured before.

    [dim]Examples:[/dim]
    codl bench ops yolov2 --soc host
    codl bench ops --ops "conv2d in=1x64x56x56 oc=128 kernel=3x3 stride=1 pad=1"
    codl bench ops yolov2 --budget 5m
    """
    measured, budget = job.run()
    emit("bench", measured, lambda: _table(measured), as_json=json, output=output)
    if text := budget.left_out(measured["left"], "ops"):
        tell(text)
    budget.check(KEPT)


def bench_sustained(
    job: BenchSustained, json: JsonOption = False, output: OutputOption = None
) -> None:
    """The table has the median and the 95th percentile, clocks and temperature over time, and the
    first minute beside the last. Ctrl-C ends it with what there is so far.

    [dim]Examples:[/dim]
    codl bench sustained yolov2 --time 10m
    codl bench sustained yolov2 --soc host --strategy gpu --time 30s
    """
    ran, budget = job.run()
    emit("bench", ran, lambda: _sustained_table(ran), as_json=json, output=output)
    budget.check(KEPT)


def bench_interface(
    job: BenchInterface, json: JsonOption = False, output: OutputOption = None
) -> None:
    """Frames are drawn beside nothing, beside the model as it is, and with --max-kernel-ms and
    --gpu-duty (1 and 0.7 where neither is named). The table has the frames on time, the worst
    stall, and what the limits cost in latency. Nothing else may draw on the GPU meanwhile.

    [dim]Example:[/dim] codl bench ui yolov2 --strategy gpu --max-kernel-ms 1 --gpu-duty 0.7
    """
    drawn, budget = job.run()
    emit("bench", drawn, lambda: _ui_table(drawn), as_json=json, output=output)
    budget.check(KEPT)


def _table(result: Mapping[str, Any]) -> Table:
    table = Table("op", "variant", "processor", "ms", "GFLOP/s", title="Kernels")
    for row in result["ops"]:
        numbers = (f"{row['latency_ms']:.4g}", f"{row['gflops']:.1f}")
        table.add_row(row["op"], row["variant"], row["processor"], *numbers)
    for row in result["refused"]:
        table.add_row(row["op"], row["variant"], row["processor"], "-", row["reason"])
    if result["elsewhere"]:
        table.caption = f"{result['elsewhere']} more are for other SoCs: --every lists them"
    return table


def _sustained_table(result: Mapping[str, Any]) -> Table:
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


def _ui_table(result: Mapping[str, Any]) -> Table:
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
