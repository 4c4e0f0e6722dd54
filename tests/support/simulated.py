"""A SoC that is no machine, and latencies after a known law: what predictors are tested with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from codl.ir import Op, Shape, parse, split, to_text
from codl.ir.records.soc import CpuSide, GpuSide, Soc
from codl.measure.dataset import Dataset, OpRow, SharingRow, Status
from codl.measure.tasks import OpTask
from codl.predict import features

SOC = Soc(
    name="simulated",
    description="no machine",
    cpu=CpuSide(name="cpu", threads=1, simd_floats=16, l2_cache_bytes=1 << 20),
    gpu=GpuSide(
        platform="none",
        name="gpu",
        driver="none",
        type="gpu",
        compute_units=2,
        max_work_group_size=256,
        wave_size=32,
        vector_width=4,
        global_mem_cache_size=1 << 17,
        local_mem_bytes=1 << 15,
        unified_memory=True,
        max_image_width=16384,
        max_image_height=16384,
    ),
)


def soc_with(**gpu: Any) -> Soc:
    """The same but for some of its GPU."""
    return replace(SOC, gpu=replace(SOC.gpu, **gpu))


#: Its GPU has images and halves too.
WITH_IMAGES = soc_with(memory_types=("buffer", "image2d"), half=True)
#: As if somebody else had measured it.
REPLAYED = replace(SOC, name="phone", source="replayed")
GEMM = "conv2d_cpu_gemm"
#: A known law of the GEMM's features, in milliseconds; what is not here costs nothing.
LAW = {"padded_macs": 2e-8, "window_copies": 1e-6, "output_bytes": 5e-7}
OVERHEAD_MS = 0.02


def conv_parts(seed: int = 0, ops: int = 40) -> Iterator[tuple[Op, str, float, Op]]:
    """Random convolutions, each whole and cut at some ratios: op, dim, share, part."""
    rng = np.random.default_rng(seed)
    for _ in range(ops):
        c, oc = 8 * rng.integers(3, 33, 2)
        size, kernel = rng.integers(7, 57), rng.choice([1, 3])
        op = parse(f"conv2d in=1x{c}x{size}x{size} oc={oc} kernel={kernel} pad={kernel // 2}")
        yield op, "H", 1.0, op
        for dim in op.dims:
            for share in (0.25, 0.5, 0.75):
                part = op.restrict(split(op, dim, share)[1])
                yield op, dim, share, part


def law_ms(part: Op) -> float:
    values = features.variant_of(GEMM, part).features(part, SOC)
    return OVERHEAD_MS + sum(LAW.get(name, 0.0) * value for name, value in values.items())


def op_row(op: Op, dim: str, share: float, part: Op, ms: float, status: Status = "ok") -> OpRow:
    texts = {"op": to_text(op), "part": to_text(part)}
    return OpRow(
        **texts, dim=dim, share=share, latency_ms=ms, status=status, source="simulated", runs=5
    )


def sharing_rows() -> Iterator[SharingRow]:
    rng = np.random.default_rng(1)
    for direction in features.DIRECTIONS:
        for _ in range(20):
            shape = Shape(1, *(int(v) for v in rng.integers(1, 60, 3)))
            ms = 0.01 + 1e-6 * shape.bytes
            yield SharingRow(
                direction=direction, shape=str(shape), latency_ms=ms, source="simulated"
            )


def write_dataset(folder: Path) -> Dataset:
    """Simulated GEMM rows after the law with 1 % of noise, some failed; data sharing; one pool."""
    found = Dataset(folder)
    rng = np.random.default_rng(2)
    table = found.table(GEMM)
    for op, dim, share, part in conv_parts():
        table.append(op_row(op, dim, share, part, law_ms(part) * rng.normal(1, 0.01)))
    whole = parse("conv2d in=1x64x9x9 oc=64 kernel=3 pad=1")
    for share in (0.1, 0.2):
        table.append(op_row(whole, "H", share, whole, 0.0, status="failed"))
    for row in sharing_rows():
        found.table("data_sharing").append(row)
    pool = parse("pooling in=1x64x28x28 mode=max kernel=2 stride=2")
    for ratio in np.linspace(0.1, 0.8, 8):
        part = pool.restrict(split(pool, "H", float(ratio))[1])
        row = op_row(pool, "H", float(ratio), part, float(ratio))
        found.table("pooling_cpu_direct_max").append(row)
    fc = parse("fc in=1x64x1x1 oc=64")
    found.table("fc_cpu_gemv").append(op_row(fc, "H", 1.0, fc, 0.0, status="failed"))
    return found


def conv_tasks(seed: int = 0, ops: int = 40) -> list[OpTask]:
    """The tasks of the simulated rows, in random order."""
    found = [
        OpTask((GEMM,), "cpu_gemm", "cpu", op, dim, share, part)  # type: ignore[arg-type]
        for op, dim, share, part in conv_parts(seed, ops)
    ]
    order = np.random.default_rng(seed).permutation(len(found))
    return [found[at] for at in order]
