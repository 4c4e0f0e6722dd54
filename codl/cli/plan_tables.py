"""Tables of plans: every chain, and where every op runs; for `codl search`, `run` and `show`."""

from __future__ import annotations

from collections.abc import Sequence

from codl.ir.ops.onnx_model import OnnxModel
from codl.ir.plan import Plan
from codl.plan.op_placement import OpPlacement
from codl.report.text_table import Table, listed_in_short

#: What runs the CPU's variants; the others are ncnn's.
LIBRARY_NAMES = {"cpu_ort": "ONNX Runtime", "cpu_openvino": "OpenVINO"}


def op_placement_table(placed: Sequence[OpPlacement], source: str, *, every: bool) -> Table:
    """Ops by where they run; those that codl has no operator for, or `every` one, by name."""
    title = f"Placement, {source} latencies"
    columns = ("op", "kind", "processor", "GPU ratio", "variant", "stored", "ms", "why")
    table = Table(*columns, title=title)
    for op in placed:
        if every or op.kind == OnnxModel.kind:
            ratio = f"{op.dim} {op.gpu_ratio:.2f}" if 0 < op.gpu_ratio < 1 else ""
            ms = "" if op.latency_ms is None else f"{op.latency_ms:.3f}"
            stored = f"{op.layout} {op.stored}"
            where = (op.op, op.kind, op.processor, ratio, op.variant, stored)
            table.add_row(*where, ms, op.reason)
    if not every:
        for (processor, engine), ops in _by_engine(placed).items():
            total = sum(each.latency_ms or 0.0 for each in ops)
            kinds = ", ".join(dict.fromkeys(each.kind for each in ops))
            size = f"{len(ops)} op{'s' * (len(ops) > 1)}"
            table.add_row(size, kinds, processor, "", engine, "", f"{total:.3f}", "")
    shared = sum(each.together > 1 for each in placed)
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
    for op in placed:
        if op.kind == OnnxModel.kind:
            continue
        library = LIBRARY_NAMES.get(op.variant, "ncnn")
        engine = library if op.processor == "cpu" else "OpenCL kernels"
        groups.setdefault((op.processor, engine), []).append(op)
    return groups


def plan_table(plan: Plan, search_ms: float | None = None) -> Table:
    """Every chain of a plan, and what is predicted of the whole."""
    title = f"{plan.strategy} plan of {plan.model} on {plan.soc}"
    table = Table("ops", "dim", "GPU ratio", "CPU variants", "GPU variants", title=title)
    for chain in plan.chains:
        used = [
            ", ".join(dict.fromkeys(v[p] for v in chain.variants.values() if p in v))
            for p in ("cpu", "gpu")
        ]
        table.add_row(
            f"{chain.label} ({len(chain.ops)})", chain.dim, f"{chain.gpu_ratio:.2f}", *used
        )
    table.caption = (
        "in default variants, of which nothing is predicted"
        if plan.predicted_ms is None
        else f"predicted {plan.predicted_ms:.1f} ms by {plan.predictor} from {plan.source} "
        "latencies"
    )
    if search_ms is not None:
        table.caption += f", found in {search_ms:.0f} ms"
    if plan.method:
        table.caption += f" by {plan.method}"
    if plan.predicted_mj is not None:
        table.caption += f", {plan.predicted_mj:.1f} mJ"
    if plan.fallbacks:
        table.caption += f"\nin other variants than planned: {', '.join(map(str, plan.fallbacks))}"
    if plan.not_counted:
        table.caption += (
            f"\nnot counted, for want of latencies: {listed_in_short(plan.not_counted)}"
        )
    if plan.estimated:
        table.caption += f"\nestimated, for want of predictors: {listed_in_short(plan.estimated)}"
    return table
