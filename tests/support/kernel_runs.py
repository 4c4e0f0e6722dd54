"""Ops in the kernels of either side, and their outputs by the float64 references."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codl.ir import Array, Op, Region, to_text
from codl.ir.soc import Soc
from codl.kernels import registry
from codl.kernels.base import TensorArg, Variant
from codl.runtime.cpu_session import CpuShard
from codl.runtime.memory import GpuTensor, SharedBuffer
from codl.runtime.ncnn_net import CpuLayer, Home
from codl.runtime.opencl import OpenClDevice

#: What a kernel finds in the output, and must leave beside its part.
CANARY = 7.0


def tolerance(variant: Variant) -> float:
    if variant.name.endswith("_fp16"):
        return 2e-2
    return 1e-3 if "winograd" in variant.name else 1e-4


def operands(op: Op, seed: int = 0) -> tuple[list[Array], dict[str, Array]]:
    random = np.random.default_rng(seed)
    inputs = [random.standard_normal(shape, np.float32) for shape in op.inputs]
    weights = {n: random.standard_normal(s, np.float32) for n, s in op.weight_shapes.items()}
    return inputs, weights


def reference(op: Op, inputs: Sequence[Array], weights: dict[str, Array]) -> NDArray[np.float64]:
    return op.reference([x.astype(np.float64) for x in inputs], weights)


def cut(array: Array, region: Region) -> Array:
    return array[region.slices]


def run_cpu(variant: Any, op: Op, part: Region, inputs: Sequence[Array], weights: Any,
            soc: Soc) -> Array:  # fmt: skip
    """Compute a region of an op's output in place, among arrays of the whole tensors."""
    names = [f"x{i}" for i in range(len(inputs))]
    homes = {
        name: Home(x, Region.whole(shape), op.needs(part, i))
        for i, (name, x, shape) in enumerate(zip(names, inputs, op.inputs, strict=True))
    }
    reads = tuple((name, home.used) for name, home in homes.items())
    own = op.restrict_weights(weights, part)
    layer = CpuLayer("op", op.restrict(part), variant, reads, "y", part, own)
    out = Home.allocate(op.output, Region.whole(op.output)).of(part)
    CpuShard([layer], homes, {"y": out}, soc).run()
    return out.view()


def run_gpu(variant: Any, op: Op, part: Region, inputs: Sequence[Array], weights: Any,
            gpu: OpenClDevice, choice: Any = None) -> tuple[Array, Array]:  # fmt: skip
    """The same on the GPU; returns the region, and the whole buffer around it."""
    plan, arguments = variant.plan(op.restrict(part), gpu.soc, choice), {}
    for i, (x, shape) in enumerate(zip(inputs, op.inputs, strict=True)):
        argument = TensorArg("input", i)
        tensor = gpu.tensor(shape, Region.whole(shape), plan.storage(argument))
        gpu.upload(tensor, x)
        arguments[argument] = (tensor, op.needs(part, i))
    whole = Region.whole(op.output)
    out = gpu.tensor(op.output, whole, plan.storage(TensorArg("output")))
    gpu.upload(out, np.full(op.output, CANARY, np.float32))
    arguments[TensorArg("output")] = (out, part)
    own = op.restrict_weights(weights, part)
    gpu.run(gpu.bind(plan, arguments, weights=own))
    around = download(gpu, out)
    return cut(around, part), around


def download(gpu: OpenClDevice, tensor: GpuTensor) -> Array:
    shared = SharedBuffer(gpu, tensor.shape, tensor.region)
    gpu.run(gpu.transform(tensor, shared.tensor, tensor.region))
    gpu.wait(shared.map(write=False))
    return shared.array.copy()


def assert_close(variant: Variant, op: Op, got: Array, expected: NDArray[np.float64]) -> None:
    largest = max(float(np.abs(expected).max()), 1e-3)
    error = float(np.abs(got - expected).max()) / largest
    assert error <= tolerance(variant), f"{variant.name} of {to_text(op)}: {error:.2g}"


def variants_for_gpus(op: Op, soc: Soc) -> list[Any]:
    found: list[Any] = registry.variants(op, "gpu", soc, include_unfit=True)
    return [variant for variant in found if variant.meant_for == {"gpu"}]


@dataclass(frozen=True)
class Case:
    """An op with random operands, and its output in float64."""

    op: Op
    inputs: Sequence[Array]
    weights: dict[str, Array]
    expected: NDArray[np.float64]

    @classmethod
    def of(cls, op: Op, seed: int = 0) -> Case:
        inputs, weights = operands(op, seed)
        return cls(op, inputs, weights, reference(op, inputs, weights))

    @property
    def whole(self) -> Region:
        return Region.whole(self.op.output)

    def on_cpu(self, variant: Any, soc: Soc, part: Region) -> None:
        """A part of the output is right."""
        got = run_cpu(variant, self.op, part, self.inputs, self.weights, soc)
        assert_close(variant, self.op.restrict(part), got, cut(self.expected, part))

    def on_gpu(
        self, variant: Any, gpu: OpenClDevice, part: Region | None = None, choice: Any = None
    ) -> None:
        """A part of the output, or all, is right, and nothing beside it is touched."""
        part = part or self.whole
        got, around = run_gpu(variant, self.op, part, self.inputs, self.weights, gpu, choice)
        assert_close(variant, self.op.restrict(part), got, cut(self.expected, part))
        for rest in self.whole.minus(part):
            assert (cut(around, rest) == CANARY).all(), f"{variant.name} wrote outside {part}"
