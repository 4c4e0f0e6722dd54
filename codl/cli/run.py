"""`codl run` and `codl package`: a model by one plan, at once or as one file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from rich.console import Group

from codl.cli.output import JsonOutput, Output, PlacementOption, warn
from codl.jobs.run import Package, Run
from codl.report.results import PackageResult, RunResult, parse_as
from codl.report.tables import bundles_content, placement_content, run_content

#: A run that takes twice its prediction is worth a warning.
FAR_OFF = 2.0


def run_model(job: Run, out: Output, every: PlacementOption = False) -> None:
    """The latency is of consecutive runs after two untimed ones. --plan and --strategy override a
    deployment file. --threads, --gpu-performance and --gpu-priority apply to this run alone; the
    SoC file makes them permanent.

    Outputs are first compared with ONNX Runtime, once for each model, plan and driver. A wrong op
    gets another kernel; without a remedy it is an error (`codl validate` shows details).

    A kernel that does not build or run is replaced. After a GPU failure the CPU repeats the
    inference and runs all later ones. Both are warnings, and errors with --strict. --serial process
    survives drivers that crash or hang.

    [dim]Examples:[/dim]
    codl run yolov2 --soc host --inputs in.npz --outputs out.npz
    codl run yolov2 --soc host --adapt --rounds 500 --json
    codl run yolov2 --soc host --serial process --strict
    codl run deploy.yaml#detector --soc host --threads 2 --gpu-priority low
    """
    result, done = job.run()

    def render() -> Group:
        where = placement_content(done.placed, "measured", every=every)
        return Group(where, run_content(parse_as(RunResult, result)), *_kept(result))

    out.emit("run", result, render)
    _warn_of_doubts(result)
    _warn_of_prediction(result)
    _warn_of_no_numbers(done.outputs)


def package_model(job: Package, out: JsonOutput) -> None:
    """The file has the plan, the executable, the weights as each processor uses them, the compiled
    kernels, and reference outputs, with checksums. It is for one SoC; another driver compiles its
    kernels from source. The file is kept only if another process loads it and computes the same
    outputs.

    [dim]Examples:[/dim]
    codl package yolov2 --soc host -o yolov2.codl
    codl package model.onnx --soc host --plan plan.json -o model.codl
    codl run yolov2.codl
    """
    result = job.run()
    out.emit("package", result, lambda: bundles_content([parse_as(PackageResult, result)]))


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


def _kept(result: Mapping[str, Any]) -> Iterator[str]:
    """How the GPU's limits were kept, and how the plan changed."""
    if limited := result["limited"]:
        yield (
            f"{limited['launches']} kernels in {limited['enqueued']} launches, the longest "
            f"{limited['longest_ms']:.2f} ms ({limited['longest_kernel']})."
        )
        if too_long := limited["too_long"]:
            yield f"{len(too_long)} launches are above the limit: {too_long[0]['reason']}."
    if adaptation := result["adaptation"]:
        changes = adaptation["changes"]
        yield f"The plan changed {len(changes)} times in {adaptation['runs']} runs." + "".join(
            f" From {change['before_ms']:.2f} to {change['after_ms']:.2f} ms." for change in changes
        )
