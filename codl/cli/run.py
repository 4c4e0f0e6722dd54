"""`codl run` and `codl package`: a model by one plan, at once or as one file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from rich.console import Group

from codl.cli.output import JsonOption, OutputOption, PlacementOption, emit, warn
from codl.cli.plan_tables import op_placement_table
from codl.jobs.run import Package, Run
from codl.report.text_table import Table

#: A run that takes twice its prediction is worth a warning.
FAR_OFF = 2.0


def run_model(
    job: Run,
    every: PlacementOption = False,
    json: JsonOption = False,
    output: OutputOption = None,
) -> None:
    """Latency is over back-to-back runs after two warm-ups.

    --plan and --strategy override what a deployment file says. --threads, --cpu-affinity,
    --gpu-performance and --gpu-priority hold for this run alone; write them to the SoC file to
    measure and plan with them too. --max-kernel-ms and --gpu-duty leave the GPU to the interface in
    between, and hold for the plan that is made here too.

    First, its outputs are compared with ONNX Runtime's, once for each model, plan and driver. Where
    they are wrong, the op at fault runs in another kernel; where nothing helps, it is an error.
    `codl validate` tells more; --no-check leaves it out.

    Where a kernel does not build or run, another one stands in. Where the GPU fails later, the CPU
    does the inference again, and the rest. Both are told; --strict makes them errors. With --serial
    process that holds of drivers that crash or hang, too.

    [dim]Examples:[/dim]
    codl run yolov2 --soc host --inputs in.npz --outputs out.npz
    codl run yolov2.codl --inputs in.npz --outputs out.npz
    codl run yolov2 --soc host --adapt --rounds 500 --json
    codl run yolov2 --soc host --serial process --strict
    codl run deploy.yaml#detector --soc host --threads 2 --cpu-affinity big --gpu-priority low
    codl run yolov2 --soc host --max-kernel-ms 1 --gpu-duty 0.7
    codl run yolov2 --soc host --trace yolov2.pftrace
    """
    result, done = job.run()

    def render() -> Group:
        return Group(op_placement_table(done.placed, "measured", every=every), _summary(result))

    emit("run", result, render, as_json=json, output=output)
    _warn_of_doubts(result)
    _warn_of_prediction(result)
    _warn_of_no_numbers(done.outputs)


def package_model(job: Package, json: JsonOption = False) -> None:
    """The file holds the plan, the executable, its weights as each processor takes them, and the
    compiled kernels, with checksums. It is for one SoC; with another driver its kernels are
    compiled from source. The file is only kept after another process has loaded it and computed
    the same outputs. Those are compared with ONNX Runtime's before, as `codl run` does, and lie in
    the file: where it runs on another device or driver, it is compared with them.

    [dim]Examples:[/dim]
    codl package yolov2 --soc host -o yolov2.codl
    codl package model.onnx --soc host --plan plan.json -o model.codl
    codl run yolov2.codl
    """
    result = job.run()
    emit("package", result, lambda: _package_table(result), as_json=json)


def _summary(result: Mapping[str, Any]) -> str:
    latency_ms = "{p20:.2f} ms (20th percentile; median {median:.2f}, p80 {p80:.2f}, {runs} runs)"
    predicted_ms = result["predicted_ms"]
    predicted = "nothing" if predicted_ms is None else f"{predicted_ms:.2f} ms"
    return (
        f"{result['model']} by {result['strategy']} on {result['soc']}: "
        f"{latency_ms.format(**result['latency_ms'])}, {predicted} predicted, "
        f"data sharing {result['data_sharing_ms']:.2f} ms, measured{_changed(result['adaptation'])}"
        f"{_limited(result['limited'])}"
    )


def _warn_of_doubts(result: Mapping[str, Any]) -> None:
    """Where the 20th percentile hides what most runs took."""
    if result["doubts"]:
        warn(
            f"Doubtful: {'; '.join(result['doubts'])}. `codl doctor` looks at the machine; "
            "measure again when nothing else runs."
        )


def _warn_of_prediction(result: Mapping[str, Any]) -> None:
    """Where predictions are far off, so may the plan be."""
    predicted_ms, found_ms = result["predicted_ms"], result["latency_ms"]["p20"]
    if predicted_ms and found_ms > FAR_OFF * predicted_ms:
        warn(
            f"It takes {found_ms / predicted_ms:.1f} times what was predicted, so another plan may "
            "be faster: `codl explain` says where the time goes."
        )


def _warn_of_no_numbers(outputs: Mapping[str, Any]) -> None:
    """Where a weight or an input is NaN or too large, so may everything behind it be."""
    for name, values in outputs.items():
        if values.size and not np.isfinite(values).any():
            warn(
                f"The output {name!r} has no number: all {values.size:,} values are NaN or "
                "infinite. Look at the weights and the inputs of the model."
            )


def _limited(limited: Mapping[str, Any] | None) -> str:
    """How the GPU's limits were kept, for people."""
    if limited is None:
        return ""
    text = (
        f"; {limited['launches']} kernels in {limited['enqueued']} launches, the longest "
        f"{limited['longest_ms']:.2f} ms ({limited['longest_kernel']})"
    )
    if too_long := limited["too_long"]:
        text += f", {len(too_long)} above the limit: {too_long[0]['reason']}"
    return text


def _changed(adaptation: Mapping[str, Any] | None) -> str:
    """How the plan changed, for people."""
    if adaptation is None:
        return ""
    if not (changes := adaptation["changes"]):
        return f"; the plan did not change in {adaptation['runs']} runs"
    last = changes[-1]
    return (
        f"; the plan changed {len(changes)} times in {adaptation['runs']} runs, the last time from "
        f"{last['before_ms']:.2f} to {last['after_ms']:.2f} ms"
    )


def _package_table(result: Mapping[str, Any]) -> Table:
    table = Table("", "ms", title=f"{result['file']}, {result['bytes'] / 1e6:.1f} MB")
    table.add_row("a new process to its first output", f"{result['cold_start_ms']:.0f}")
    table.add_row("  Python's modules", f"{result['import_ms']:.0f}")
    table.add_row("  the bundle", f"{result['load_ms']:.0f}")
    table.add_row("  the first inference", f"{result['first_run_ms']:.0f}")
    table.caption = (
        f"{result['model']} by {result['strategy']} on {result['soc']}, measured; outputs are "
        f"those of the engine that made it (max_rel_err {result['max_rel_err']:.1g})"
    )
    return table
