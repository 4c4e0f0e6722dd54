"""Ops in the kernels of either side, and their outputs by the float64 references."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codl.ir import Activation, Array, Op, Region, Shape, parse, to_text
from codl.ir.ops.eltwise import Eltwise
from codl.ir.records.gpu_limits import UNLIMITED, GpuLimits
from codl.ir.records.soc import Soc
from codl.ir.types import Storage
from codl.kernels import registry
from codl.kernels.base import Variant
from codl.lower import pieces
from codl.measure.closeness import difference, tolerance
from codl.runtime.opencl import OpenClDevice
from codl.runtime.session import Session, host_session

#: What a kernel finds in the output, and must leave beside its part.
CANARY = 7.0


def operands(op: Op, seed: int = 0) -> tuple[list[Array], dict[str, Array]]:
    random = np.random.default_rng(seed)
    inputs = [random.standard_normal(shape, np.float32) for shape in op.inputs]
    weights = op.weights_of(lambda shape: random.standard_normal(shape, np.float32))
    return inputs, weights


def reference(op: Op, inputs: Sequence[Array], weights: dict[str, Array]) -> NDArray[np.float64]:
    return op.reference([x.astype(np.float64) for x in inputs], weights)


def cut(array: Array, region: Region) -> Array:
    return array[region.slices]


def run_cpu(variant: Any, op: Op, part: Region, inputs: Sequence[Array], weights: Any,
            soc: Soc) -> Array:  # fmt: skip
    """Compute a region of an op's output in place, among arrays of the whole tensors."""
    return cut(around_on_cpu(variant, op, part, inputs, weights, soc), part)


def around_on_cpu(variant: Any, op: Op, part: Region, inputs: Sequence[Array], weights: Any,
                  soc: Soc) -> Array:  # fmt: skip
    """The same; returns the whole array around the region."""
    session = host_session(pieces.net_alone([op], variant, [weights], soc, part=part), soc)
    for name, value in zip(pieces.input_names(len(inputs)), inputs, strict=True):
        session.inputs[name][...] = value
    session.outputs[pieces.OUTPUT].fill(CANARY)
    for _ in range(2):  # the second run reuses everything
        session.run()
    return session.outputs[pieces.OUTPUT]


def run_gpu(variant: Any, op: Op, part: Region, inputs: Sequence[Array], weights: Any,
            gpu: OpenClDevice, choice: Any = None, *, adding: bool = False,
            limits: GpuLimits = UNLIMITED) -> tuple[Array, Array]:  # fmt: skip
    """The same on the GPU; returns the region, and the whole array around it.

    Where it is `adding`, the last input is a residual.
    """
    plan, own = variant.plan(op.restrict(part), gpu.soc, choice), op.restrict_weights(weights, part)
    add = None
    if adding:
        plan = plan.adding()
        add = Eltwise(inputs=(op.output, op.output), activation=op.activation)
        op = op.with_activation(Activation())
    executable = pieces.kernels_alone(op, plan, own, gpu.soc, part=part, add=add)
    session = Session(executable, gpu, limits=limits)
    for name, value in zip(pieces.input_names(len(inputs)), inputs, strict=True):
        session.inputs[name][...] = value
    session.inputs[pieces.OUTPUT].fill(CANARY)
    session.run()
    around = session.outputs[pieces.OUTPUT].copy()
    return cut(around, part), around


def run_copy(
    gpu: OpenClDevice, region: Region, source: tuple[Storage, Array], target: tuple[Storage, Array]
) -> Array:
    """Copy a region between two storages of a tensor; returns all of the target."""
    shape, piece = Shape(*source[1].shape), pieces.Piece("copy", gpu.soc)
    for name, (storage, _) in (("source", source), ("target", target)):
        piece.on_host(name, shape, is_shared=gpu.soc.gpu.sees_host_memory)
        piece.on_device(name, shape, storage)
        piece.move(name, "to_gpu")
    piece.copy("source", "target", region)
    piece.move("target", "to_cpu")
    piece.end_stage(pieces.WORK)
    session = Session(piece.executable(["source", "target"], ["target"]), gpu)
    session.inputs["source"][...], session.inputs["target"][...] = source[1], target[1]
    session.run()
    return session.outputs["target"].copy()


def assert_close(
    variant: Variant, op: Op, got: Array, expected: NDArray[np.float64], clipped: float = 1.0
) -> None:
    """`clipped` is the largest value before the activation over the largest after it."""
    error, allowed = difference(got, expected), tolerance(variant)
    if variant.processor == "gpu" and variant.storage.element == "float16":
        allowed *= clipped  # halves round what is clipped later
    assert error <= allowed, f"{variant.name} of {to_text(op)}: {error:.2g}"


def check_on_gpu(
    op: Op,
    gpu: OpenClDevice,
    inputs: Sequence[Array] | None = None,
    *,
    variants: int | None = None,
    choices: int | None = None,
) -> None:
    """Every choice of every variant on the GPU against the reference; or the first so many.

    Of variants over halves the first alone. They hold the inputs, so what is off is the kernel's.
    """
    of_op, weights = operands(op)
    inputs = [x.astype(np.float16).astype(np.float32) for x in inputs or of_op]
    expected = reference(op, inputs, weights)
    assert parse(to_text(op)) == op
    whole = Region.whole(op.output)
    described: list[Any] = registry.variants(op, "gpu", gpu.soc, include_unfit=True)
    assert described, to_text(op)
    for variant in described[:variants]:
        most = choices if variant.storage.element == "float32" else 1
        for choice in variant.choices(op, gpu.soc)[:most]:
            features = variant.features(op, gpu.soc, choice)
            assert all(np.isfinite(v) and v >= 0 for v in features.values())
            _, got = run_gpu(variant, op, whole, inputs, weights, gpu, choice)
            assert_close(variant, op, got, expected)


def check_on_cpu(op: Op, soc: Soc, inputs: Sequence[Array] | None = None) -> None:
    """Every variant of every library on the CPU against the reference."""
    of_op, weights = operands(op)
    inputs = inputs or of_op
    expected, whole = reference(op, inputs, weights), Region.whole(op.output)
    found = registry.variants(op, "cpu", soc)
    assert found, to_text(op)
    for variant in found:
        got = run_cpu(variant, op, whole, inputs, weights, soc)
        assert_close(variant, op, got, expected)


def variants_for_gpus(op: Op, soc: Soc) -> list[Any]:
    found: list[Any] = registry.variants(op, "gpu", soc, include_unfit=True)
    return [variant for variant in found if variant.meant_for == {"gpu"}]


def enough(choices: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Of a kernel's choices the first, and so many that they have every value of every parameter.

    All of them together would take minutes to compile.
    """
    met: set[tuple[str, Any]] = set()
    found = []
    for choice in choices:
        if not found or not met >= choice.items():
            found.append(choice)
            met |= choice.items()
    return found


@dataclass(frozen=True)
class Case:
    """An op with random operands, and its output in float64."""

    op: Op
    inputs: Sequence[Array]
    weights: dict[str, Array]
    expected: NDArray[np.float64]

    @classmethod
    def of(cls, op: Op, seed: int = 0, inputs: Sequence[Array] | None = None) -> Case:
        own, weights = operands(op, seed)
        inputs = inputs or own
        return cls(op, inputs, weights, reference(op, inputs, weights))

    @property
    def whole(self) -> Region:
        return Region.whole(self.op.output)

    @property
    def clipped(self) -> float:
        """The largest value before an activation that clips over the largest after it."""
        if self.op.activation.kind != "clip":
            return 1.0
        before = reference(self.op.with_activation(Activation()), self.inputs, self.weights)
        return max(1.0, float(np.abs(before).max() / np.abs(self.expected).max()))

    def on_cpu(self, variant: Any, soc: Soc, part: Region) -> None:
        """A part of the output is right, and nothing beside it is touched."""
        around = around_on_cpu(variant, self.op, part, self.inputs, self.weights, soc)
        self._check(variant, part, cut(around, part), around)

    def on_gpu(
        self, variant: Any, gpu: OpenClDevice, part: Region | None = None, choice: Any = None
    ) -> None:
        """A part of the output, or all, is right, and nothing beside it is touched."""
        part = part or self.whole
        got, around = run_gpu(variant, self.op, part, self.inputs, self.weights, gpu, choice)
        self._check(variant, part, got, around)

    def _check(self, variant: Any, part: Region, got: Array, around: Array) -> None:
        expected = cut(self.expected, part)
        assert_close(variant, self.op.restrict(part), got, expected, self.clipped)
        for rest in self.whole.minus(part):
            assert (cut(around, rest) == CANARY).all(), f"{variant.name} wrote outside {part}"
