"""Predictors made from known laws, of a SoC that is not there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from codl.ir import Shape
from codl.ir.soc import CpuSide, GpuSide, Soc
from codl.kernels import registry

SOC = Soc(
    "simulated",
    "no device: latencies follow a law",
    CpuSide("cpu", (0,), 16, 1 << 20),
    GpuSide("none", "none", "gpu", "0", "gpu", (), 4, 256, 32, 4, 1 << 20, 1 << 15, True),
)


class Law:
    """Milliseconds from FLOPs and bytes: `gpu` times faster there, `fixed` for each exchange."""

    name = "law"

    def __init__(self, *, gpu: float = 1.0, fixed: float = 0.01, per_mb: float = 0.1) -> None:
        self.gpu, self.fixed, self.per_mb = gpu, fixed, per_mb
        self.asked: list[str] = []

    @property
    def targets(self) -> tuple[str, ...]:
        kinds = ("conv2d", "pooling", "fc", "concat")
        mulayer = tuple(f"mulayer_{k}_{p}" for k in kinds for p in ("cpu", "gpu"))
        variants = [f"{v.op_kind}_{v.name}" for v in registry.VARIANTS]
        flavors = [f"{name}_{mode}" for name in variants for mode in ("max", "avg")]
        return (*mulayer, *variants, *flavors)

    few: ClassVar[Mapping[str, frozenset[str]]] = {}

    def latency_ms(self, target: str, ops: Sequence[Any]) -> NDArray[np.float64]:
        self.asked.append(target)
        speed = self.gpu if "_gpu" in target else 1.0
        return np.array([1e-8 * op.flops / speed + 1e-3 for op in ops])

    def sharing_ms(self, direction: Any, shapes: Sequence[Shape]) -> dict[str, NDArray[np.float64]]:
        free = direction in ("load", "store")
        own = [1e-9 if free else self.fixed + self.per_mb * s.bytes / 1e6 for s in shapes]
        return {"copy": np.array(own)}


class RateLaw:
    """1e8 operations and 1e7 bytes in a millisecond, twice as many on the GPU; some kinds only."""

    name = "rates"
    kinds = ("conv2d", "pooling", "eltwise")
    few: ClassVar[Mapping[str, frozenset[str]]] = {}

    @property
    def targets(self) -> tuple[str, ...]:
        own = [f"{v.op_kind}_{v.name}" for v in registry.VARIANTS if v.op_kind in self.kinds]
        ort = {f"{kind}_cpu_ort" for kind in self.kinds}
        return tuple(name for name in (*own, *(f"{n}_max" for n in own)) if name not in ort)

    def latency_ms(self, target: str, ops: Sequence[Any]) -> NDArray[np.float64]:
        assert target in self.targets, target
        speed = 2.0 if "_gpu" in target else 1.0
        return np.array([1e-3 + max(1e-8 * op.flops, 1e-7 * op.bytes) / speed for op in ops])

    def sharing_ms(
        self, direction: Any, shapes: Sequence[Shape]
    ) -> Mapping[str, NDArray[np.float64]]:
        return {"copy": np.array([0.01 + 1e-7 * shape.bytes for shape in shapes])}
