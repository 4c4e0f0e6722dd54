"""`codl bench`: kernels alone, an interface beside a model, and streams of frames."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from codl.cli.output import Output, tell
from codl.jobs.bench import BenchInterface, BenchOps, BenchStream
from codl.report.results import BenchResult, parse_as
from codl.report.tables import bench_content
from codl.report.text_table import TextTable, Value, digits

#: Said at Ctrl-C.
KEPT = "What was measured before is kept."


def bench_ops(job: BenchOps, out: Output) -> None:
    """Variants that refuse or fail an op are listed with the reason. Variants for other device
    types, memory or elements are counted, and measured with --every. With --budget no op starts
    that would probably end too late.

    [dim]Examples:[/dim]
    codl bench ops --ops "conv2d in=1x64x56x56 oc=128 kernel=3x3 stride=1 pad=1"
    codl bench ops yolov2 --budget 5m
    """
    measured, budget = job.run()
    out.emit("bench", measured, lambda: bench_content(parse_as(BenchResult, measured)))
    if text := budget.left_out(measured["left"], "ops"):
        tell(text)
    budget.check(KEPT)


def bench_interface(job: BenchInterface, out: Output) -> None:
    """Frames are drawn alone, beside the model, and beside the model with --max-kernel-ms and
    --gpu-duty (by default 1 and 0.7). The table has frames on time, the worst stall, and the cost
    in latency. With --frame-rate, limits are found that let the interface draw as many frames.
    Nothing else may draw on the GPU meanwhile.

    [dim]Examples:[/dim]
    codl bench ui yolov2 --strategy gpu --max-kernel-ms 1 --gpu-duty 0.7
    codl bench ui yolov2 --strategy gpu --frame-rate 55
    """
    drawn, budget = job.run()
    out.emit("bench", drawn, lambda: _ui_table(drawn))
    budget.check(KEPT)


def bench_stream(job: BenchStream, out: Output) -> None:
    """Each processor runs frames alone, then both run them at once, in turns. The table has frames
    a second, and how long a frame takes from being read to its result. Results come in the order of
    the frames. With --plan or --strategy, that plan alone runs the stream.

    [dim]Examples:[/dim]
    codl bench stream mobilenet_v2 --soc host
    codl bench stream mobilenet_v2 --peers openvino-throughput --time 60s
    """
    ran = job.run()
    out.emit("bench", ran, lambda: _stream_table(ran))


def _stream_table(result: Mapping[str, Any]) -> TextTable:
    """A row for each processor alone, their sum, the stream, and other libraries."""
    sum_per_s = result["sum_per_s"]

    def cells(name: str, row: Mapping[str, Any]) -> tuple[Value, ...]:
        latency_ms = row.get("latency_ms", {})
        share = 100 * row["frames_per_s"] / sum_per_s if sum_per_s else None
        return (name, row["frames_per_s"], share, *map(latency_ms.get, ("median", "p95", "p99")))

    names = {"split": "a split plan", "cpu": "cpu alone", "gpu": "gpu alone"}
    rows = [cells(names[row["name"]], row) for row in result["alone"]]
    rows.append(cells("cpu and gpu, added", {"frames_per_s": sum_per_s}))
    rows.append(cells(f"the stream, by {' beside '.join(result['lanes'])}", result))
    rows += [cells(f"{row['name']} {row['version']}, all cores", row) for row in result["peers"]]
    taken = ", ".join(f"{count} by {name}" for name, count in result["taken"].items())
    caption = (
        f"Measured on {result['soc']}; at most {result['in_flight']} frames in flight; of the "
        f"stream's frames {taken}."
    )
    heads = ("frames of", "frames/s", "of the sum (%)", "p50 (ms)", "p95 (ms)", "p99 (ms)")
    title = f"A stream of frames through {result['model']}"
    return TextTable.plain(title, heads, rows, [caption])


def _ui_table(result: Mapping[str, Any]) -> TextTable:
    rows = [
        (
            row["beside"],
            100 * row["frames"]["on_time"],
            row["frames"]["worst_stall_ms"],
            row["frames"]["frame_ms"]["median"],
            row["latency_ms"] and row["latency_ms"]["median"],
            row["limited"] and row["limited"]["longest_ms"],
        )
        for row in result["rows"]
    ]
    caption = [
        f"Measured on {result['soc']}. Limits: {_limits(result['limits'])}; an inference takes "
        f"{digits(result['price'])} times as long with them."
    ]
    caption += [
        f"With {_limits(step['limits'])}: {digits(step['frames_per_s'])} frames/s, an inference "
        f"in {digits(step['latency_ms'])} ms."
        for step in result["tried"]
    ]
    if result["tried"] and all(x["frames_per_s"] < result["frame_rate"] for x in result["tried"]):
        caption.append(f"No limits reached {result['frame_rate']:g} frames/s; the tightest stay.")
    caption += [
        f"Longer: {launch['kernel']} ({digits(launch['ms'])} ms: {launch['reason']})."
        for launch in result["rows"][-1]["limited"]["too_long"]
    ]
    heads = ("an interface beside", "frames on time (%)", "worst stall (ms)", "frame (ms)",
             "inference (ms)", "longest kernel (ms)")  # fmt: skip
    title = f"An interface at 60 Hz beside {result['model']}"
    return TextTable.plain(title, heads, rows, caption)


def _limits(limits: Mapping[str, Any]) -> str:
    """Limits as options."""
    longest_ms, duty = limits["max_kernel_ms"], limits["gpu_duty"]
    kernels = "" if longest_ms is None else f"--max-kernel-ms {longest_ms:g} "
    return f"{kernels}--gpu-duty {duty:g}"
