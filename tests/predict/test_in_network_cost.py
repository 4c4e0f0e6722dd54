"""What ops take inside a network: costs found again in rows that were made by them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.simulated import SOC
from support.synthetic_predictors import Line, SyntheticPredictors

from codl.errors import InvalidFileError
from codl.ir import Op, parse, to_text
from codl.ir.columns import ColumnsByType
from codl.ir.ops.convolution import ConvColumns
from codl.ir.records.soc import CpuCache
from codl.ir.types import Processor
from codl.kernels import registry
from codl.kernels.conv2d.cpu import usual_tile
from codl.measure.dataset import Dataset, StageRow
from codl.predict.in_network_cost import FEWEST, InNetworkCost, Owner, fitted

COSTS: dict[Owner, InNetworkCost] = {
    "cpu": InNetworkCost(1.0, 0.02, 5e-8, 7e-8, 0.0, 9e-8, 1e-8),
    "ort": InNetworkCost(1.0, 0.05, 3e-8, 0.0, 0.0, 2e-7, 2e-8),
    "gpu": InNetworkCost(1.0, 0.004, 6e-8, 9e-8, 0.0, 0.0, 2e-8),
}
PREDICTORS = SyntheticPredictors(flops=3e7, gpu=1.3, packing=Line(0.01, 0.1))
CACHES = (CpuCache(2, "unified", 1 << 18, 1, 2), CpuCache(3, "unified", 1 << 20, 2, 1))
#: Bytes of the largest cache that each reads through.
LARGEST: dict[Processor, int] = {"cpu": 1 << 20, "gpu": SOC.gpu.global_mem_cache_size}
HOST = replace(SOC, cpu=replace(SOC.cpu, l2_cache_bytes=1 << 18, caches=CACHES))
SIDES: list[tuple[Processor, ...]] = [("cpu", "gpu"), ("cpu",), ("gpu",), ("cpu", "gpu")]
#: Every so many stages one's nets are ONNX Runtime's.
IN_ONNX_RUNTIME = 3


def window(channels: int) -> str:
    return "kernel=3x3 pad=1" if channels % 3 == 1 else "kernel=1x1"


def variant(op: Op, owner: Owner) -> str:
    """Winograd for windows of 3x3, whose weights are transformed; not in ONNX Runtime."""
    if owner == "ort":
        return "cpu_ort"
    names = {"cpu": ("cpu_gemm", "cpu_winograd"), "gpu": ("gpu_direct", "gpu_winograd")}
    return names[owner][op.kernel.h == 3]  # type: ignore[attr-defined,index]


def tile(op: Op, owner: Owner) -> int:
    """Outputs on a side of Winograd's tiles, as ncnn or the GPU's kernels take them."""
    if owner != "gpu":
        return int(usual_tile(ConvColumns.of([op]))[0])
    kernel: Any = registry.find(op, "gpu_winograd")
    return int(kernel.choices(op, HOST)[0]["tile"]) if op.kernel.h == 3 else 0  # type: ignore[attr-defined]


def rows(count: int, disturb: Callable[[int], float] = lambda _: 1.0) -> list[StageRow]:
    """Stages of one to three ops of all sizes, on both processors or on one."""
    dice, made = np.random.default_rng(5), []
    for number in range(count):
        sizes = dice.integers(1, 200, (dice.integers(1, 4), 3)).tolist()
        ops = [parse(f"conv2d in=1x{c}x{h}x{h} oc={o} {window(c)}") for c, o, h in sizes]
        sides = SIDES[number % len(SIDES)]
        is_packed = "cpu" in sides
        cpu: Owner = "cpu" if number % IN_ONNX_RUNTIME else "ort"
        suffix = "_ort" * (cpu == "ort")
        row = StageRow(
            before=f"op {number}",
            chain="",
            dim="H",
            gpu_ratio=0.5,
            cpu_ops="; ".join(f"{variant(op, cpu)} {to_text(op)}" for op in ops) * ("cpu" in sides),
            gpu_ops="; ".join(f"{variant(op, 'gpu')} {to_text(op)}" for op in ops)
            * ("gpu" in sides),
            cpu_calls=1,
            gpu_calls=len(ops),
            packed=f"load{suffix} {ops[0].input}; store{suffix} {ops[-1].output}" * is_packed,
            latency_ms=1.0,
        )
        owners: dict[Processor, Owner] = {"cpu": cpu, "gpu": "gpu"}
        taken = {
            f"{side}_ms": disturb(number) * taken_ms(row, ops, side, owners[side]) for side in sides
        }
        made.append(replace(row, **taken))  # type: ignore[arg-type]
    return made


def taken_ms(row: StageRow, ops: list[Op], side: Processor, owner: Owner) -> float:
    inputs, weights, outputs = 4 * ColumnsByType(ops).amounts[:3]
    is_winograd = np.array(["winograd" in variant(op, owner) for op in ops])
    tiles = np.array([tile(op, owner) for op in ops])
    larger = weights * np.where(is_winograd, (tiles + 2) ** 2 / 9, 1.0)
    each = np.stack([larger * ~is_winograd, larger * is_winograd, inputs + outputs])
    size = each.sum(axis=0)
    # None stays that fills the cache one and a half times, all that fills half of it.
    kept = (each * (1 - np.clip(size / LARGEST[side] - 0.5, 0, 1))).sum(axis=1)
    kept[2] = 0.0
    ends = [ops[0].input, ops[-1].output]
    packed = sum(shape.bytes for shape in ends) * (side == "cpu")
    alone_ms = sum(PREDICTORS.latency_ms(f"conv2d_{variant(op, owner)}", [op])[0] for op in ops)
    if owner == "cpu":  # what packing takes alone was measured of ncnn
        alone_ms += PREDICTORS.sharing_ms("load", ends)["copy"].sum()
    both = bool(row.cpu_ops and row.gpu_ops)
    calls = 1 if side == "cpu" else len(ops)
    moved = (inputs.sum() + weights.sum() + outputs.sum() + 2 * packed) * both
    amounts = [alone_ms, calls, *kept, packed, moved]
    return float(np.dot(astuple(COSTS[owner]), amounts))


def dataset_of(tmp_path: Path, made: list[StageRow]) -> Dataset:
    dataset = Dataset.of("test", tmp_path)
    dataset.table("stage").append(*made)
    return dataset


def costs_of(dataset: Dataset) -> dict[str, InNetworkCost]:
    return dict(fitted(HOST, dataset, PREDICTORS))  # type: ignore[arg-type]


def test_costs_are_found_again(tmp_path: Path) -> None:
    found = costs_of(dataset_of(tmp_path, rows(200)))
    for side, costs in COSTS.items():
        assert astuple(found[side]) == pytest.approx(astuple(costs), rel=1e-4, abs=1e-11)


def test_stages_that_something_disturbed_count_little(tmp_path: Path) -> None:
    found = costs_of(dataset_of(tmp_path, rows(200, lambda n: 5.0 if n % 16 == 3 else 1.0)))
    for side, costs in COSTS.items():
        assert astuple(found[side]) == pytest.approx(astuple(costs), rel=2e-2, abs=2e-9)


def test_runs_are_brought_to_the_speed_of_the_first(tmp_path: Path) -> None:
    made = [replace(row, run=f"run{1 + n % 2}") for n, row in enumerate(rows(200))]
    slower = [replace(r, cpu_ms=1.5 * r.cpu_ms) if r.run == "run2" else r for r in made]
    dataset = dataset_of(tmp_path, slower)
    dataset.write_manifest(
        {"source": "measured", "runs": {"run1": {}, "run2": {"calibration": {"cpu": 1.5}}}}
    )
    assert astuple(costs_of(dataset)["cpu"]) == pytest.approx(astuple(COSTS["cpu"]), rel=1e-4)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"cpu_ops": "cpu_gemm nonsense"}, "nonsense"),
        ({"cpu_ops": "cpu_best conv2d in=1x8x8x8 oc=8 kernel=1x1"}, "cpu_best"),
        ({"packed": "throw 1x2x3x4"}, "expected one of load, "),
        ({"packed": "load 1x2x3"}, "expected one like 1x64x56x56"),
    ],
)
def test_a_row_that_is_wrong_is_named(tmp_path: Path, changes: dict[str, str], reason: str) -> None:
    made = rows(20)
    made[0] = replace(made[0], **changes)  # type: ignore[arg-type]
    with pytest.raises(InvalidFileError, match=reason) as raised:
        costs_of(dataset_of(tmp_path, made))
    assert "t_stage.csv" in str(raised.value)


def test_too_few_stages_say_nothing(tmp_path: Path) -> None:
    assert costs_of(dataset_of(tmp_path, rows(FEWEST))) == {}
