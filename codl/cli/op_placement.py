"""The table of `codl search` and `codl run` that says where every op runs."""

from __future__ import annotations

from collections.abc import Sequence

from codl.ir.ops.onnx_model import OnnxModel
from codl.kernels.ort import CpuOrt
from codl.plan.op_placement import OpPlacement
from codl.report.terminal import Table


def op_placement_table(placed: Sequence[OpPlacement], source: str, *, every: bool) -> Table:
    """Ops by where they run; those that codl has no operator for, or `every` one, by name."""
    title = f"Placement, {source} latencies"
    columns = ("op", "kind", "processor", "GPU ratio", "variant", "stored", "ms", "why")
    table = Table(*columns, title=title)
    for one in placed:
        if every or one.kind == OnnxModel.kind:
            ratio = f"{one.dim} {one.gpu_ratio:.2f}" if 0 < one.gpu_ratio < 1 else ""
            ms = "" if one.latency_ms is None else f"{one.latency_ms:.3f}"
            stored = f"{one.layout} {one.stored}"
            where = (one.op, one.kind, one.processor, ratio, one.variant, stored)
            table.add_row(*where, ms, one.reason)
    if not every:
        for (processor, engine), own in _by_engine(placed).items():
            total = sum(one.latency_ms or 0.0 for one in own)
            kinds = ", ".join(dict.fromkeys(one.kind for one in own))
            table.add_row(f"{len(own)} ops", kinds, processor, "", engine, "", f"{total:.3f}", "")
    shared = sum(one.together > 1 for one in placed)
    table.caption = "everything is computed and accumulated in float32"
    if shared:
        table.caption += (
            f"; {shared} ops were measured as parts of nets of the CPU or of fused kernels of the "
            "GPU, whose latencies they share as predicted"
        )
    return table


def _by_engine(placed: Sequence[OpPlacement]) -> dict[tuple[str, str], list[OpPlacement]]:
    """Ops that codl has operators for, by processor and what runs them."""
    groups: dict[tuple[str, str], list[OpPlacement]] = {}
    for one in placed:
        if one.kind == OnnxModel.kind:
            continue
        own = "ncnn" if one.variant != CpuOrt.name else "ONNX Runtime"
        engine = own if one.processor == "cpu" else "OpenCL kernels"
        groups.setdefault((one.processor, engine), []).append(one)
    return groups
