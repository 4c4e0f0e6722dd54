"""Element-wise ops on the GPU, with broadcasting along any axis."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from codl.ir.columns import Column, FeatureColumns, ceil_div
from codl.ir.ops.eltwise import MODES, UNARY, Eltwise, EltwiseColumns
from codl.ir.records.soc import Soc
from codl.ir.types import PLANAR, Element, Storage
from codl.kernels.base import Choice, KernelPlan, TensorArg
from codl.kernels.cpu import CpuKernel, NamedArrays, NcnnLayer, OrtPlan, node, number, of_onnx
from codl.kernels.kernel import BLOCKS, IMAGES, ColumnKernel, Grid, Kernel, of_every_storage
from codl.kernels.tiling import float_literal

#: The most pixels of a work-item on a CPU: about 5 us. Half as many with emulated images.
LONGEST_STRIP = 2048
#: The most chunks of V elements of a work-item in planar tensors.
LONGEST_RUN = 1024
CODES = {mode: code for code, mode in enumerate(MODES)}
#: Modes that turn zeros into non-finite values, or into values that grow if repeated.
CLEARED = ("div", "pow", "log", "reciprocal", "exp", "cosh", "acosh")


#: Modes whose float16 result is the rounded float32 result.
OF_HALVES = ("add", "sub", "mul", "max", "min", "identity", "abs", "neg")


class GpuDirect(ColumnKernel):
    """Any mode, by blocks or texels of channels."""

    op_kind = "eltwise"
    source = "eltwise/gpu_direct.cl"
    multiplies_halves = True
    storages = (*BLOCKS, *IMAGES)
    batches = True
    op_columns = EltwiseColumns

    def __init__(self, storage: Storage, arithmetic: Element) -> None:
        super().__init__(storage, arithmetic)
        self.planar_fallback = f"gpu_planar{Storage(PLANAR.layout, storage.element).suffix}"

    def refuse_halves(self, op: Eltwise) -> str | None:
        if op.mode not in OF_HALVES:
            return f"in half mode must be one of {', '.join(OF_HALVES)}, got {op.mode}"
        return None

    def counts(self, ops: EltwiseColumns, soc: Soc, choice: Any) -> dict[str, Column]:
        width = self.width(soc)
        blocks = ceil_div(ops.oc, width)
        computed = ops.pixels * blocks
        only_here = (
            {"output_texels": computed}
            if self.in_images
            else {"output_blocks": computed, "stretched": ops.stretched}
        )
        return {
            **only_here,
            "activations": computed * ops.is_active,
            **self._grid(ops.pixels, blocks, soc).features,
            "input_bytes": self.stored(ops.input_elements),
            "output_bytes": self.stored(blocks * width) * ops.pixels,
        }

    def _grid(self, pixels: Any, blocks: Any, soc: Soc) -> Grid:
        return Grid.of(pixels, blocks, LONGEST_STRIP // (1 + self.in_images), soc)

    def build(self, op: Eltwise, soc: Soc, choice: Choice) -> KernelPlan:
        output, pixels, count = op.output, op.output.h * op.output.w, len(op.inputs)
        grid = self._grid(pixels, ceil_div(output.c, self.width(soc)), soc)
        ends = _ends(op)
        steps = {**self._steps(op, 0, 0), **self._steps(op, 1 % count, 1)}
        computed = grid.launch(
            "eltwise_image" if self.in_images else "eltwise_direct",
            *ends,
            channels=output.c,
            pixels=pixels,
            width=output.w,
            **steps,
        )
        macros: dict[str, Any] = {**_mode(op), "IMAGE": self.in_images}
        for index, shape in enumerate(op.inputs):
            macros[f"ONE_LANE_{index}"] = shape.c < output.c
            stretched = (shape.h, shape.w) != (output.h, output.w)
            macros[f"STRETCHED_{index}"] = stretched and not self.in_images
        if self.takes_batch:
            computed = computed.of_images(output.n, ends)
        return self.assemble(op, soc, computed, macros=macros)

    def _steps(self, op: Eltwise, index: int, operand: int) -> dict[str, int]:
        """Steps of an input, in pixels or blocks, per block, row and column of the output."""
        shape, output = op.inputs[index], op.output
        block, row = int(shape.c == output.c), int(shape.h == output.h)
        if self.in_images:
            block *= shape.w
        else:
            row *= shape.w
        column = int(shape.w == output.w)
        return {f"block_{operand}": block, f"row_{operand}": row, f"column_{operand}": column}


class GpuPlanar(Kernel):
    """Any mode for planar tensors of any rank.

    It replaces a variant for blocks among planar tensors, and is predicted as equally fast.
    """

    op_kind = "eltwise"
    base_name = "gpu_planar"
    source = "eltwise/gpu_planar.cl"
    batches = True
    meant_for = frozenset()

    def counts(self, op: Eltwise, soc: Soc, choice: Choice) -> dict[str, float]:
        grid = _runs(op, soc)
        return {
            "output_chunks": grid.items * grid.strip,
            "stretched": sum(shape != op.output for shape in op.inputs),
            **grid.features,
            "input_bytes": self.stored(sum(shape.elements for shape in op.inputs)),
            "output_bytes": self.stored(op.output.elements),
        }

    def build(self, op: Eltwise, soc: Soc, choice: Choice) -> KernelPlan:
        grid, (sizes, *steps) = _runs(op, soc), _axes(op)
        numbers = {f"size_{axis}": sizes[axis] for axis in (1, 2, 3)}
        for operand, of_axes in enumerate((steps[0], steps[-1])):
            numbers |= {f"step_{operand}_{axis}": step for axis, step in enumerate(of_axes)}
        elements = op.output.elements
        computed = grid.launch("eltwise_planar", *_ends(op), elements=elements, **numbers)
        macros: dict[str, Any] = _mode(op)
        macros |= {f"STRETCHED_{i}": x != op.output for i, x in enumerate(op.inputs)}
        return self.assemble(op, soc, computed, macros=macros)


def _ends(op: Eltwise) -> tuple[TensorArg, TensorArg, TensorArg]:
    """Two inputs, equal for a unary op, and the output."""
    other = TensorArg("input", 1 % len(op.inputs))
    return TensorArg("input"), other, TensorArg("output")


def _mode(op: Eltwise) -> dict[str, int | str | bool]:
    values = zip(("MODE_ALPHA", "MODE_BETA"), op.parameters, strict=False)
    return {
        "MODE": CODES[op.mode],
        **{name: float_literal(value) for name, value in values},
        "UNARY": op.mode in UNARY,
        "CLEAR_BEYOND": op.mode in CLEARED,
    }


def _runs(op: Eltwise, soc: Soc) -> Grid:
    chunks = ceil_div(op.output.elements, soc.gpu.vector_width)
    return Grid.of(chunks, 1, LONGEST_RUN, soc)


def _axes(op: Eltwise) -> list[list[int]]:
    """Sizes of the output merged to four axes, and each input's steps along them; 0 if broadcast.

    Neighbouring axes with the same broadcast inputs are merged.
    """
    axes: list[tuple[int, tuple[bool, ...]]] = []
    for size, *of_inputs in zip(op.output, *op.inputs, strict=True):
        moves = tuple(of_input == size for of_input in of_inputs)
        if axes and moves == axes[-1][1]:
            axes[-1] = (axes[-1][0] * size, moves)
        elif size > 1:
            axes.append((size, moves))
    axes = [(1, (False,) * len(op.inputs))] * (4 - len(axes)) + axes
    steps: list[list[int]] = []
    for index in range(len(op.inputs)):
        sizes = [size if moves[index] else 0 for size, moves in axes]
        steps.append([prod(filter(None, sizes[at + 1 :])) if sizes[at] else 0 for at in range(4)])
    return [[size for size, _ in axes], *steps]


# The CPU.


#: ncnn's codes of BinaryOp.
BINARY = {"add": 0, "sub": 1, "mul": 2}
#: Modes that ncnn computes differently from IEEE 754, with the difference.
INEXACT = {
    "div": "a reciprocal and one step of Newton, which is no number where the divisor is 0",
    "max": "keeping the other where one is not a number",
    "min": "keeping the other where one is not a number",
    "pow": "exp(y log x), which is wrong where x is not above 0",
}


def _refuse_ncnn(op: Eltwise) -> str | None:
    if op.mode in INEXACT:
        return f"ncnn computes {op.mode} by {INEXACT[op.mode]}"
    if op.mode not in BINARY and op.mode != "identity":
        return f"ncnn has no layer for {op.mode}"
    return None


def _ncnn(op: Eltwise) -> NcnnLayer:
    # A unary op runs in place, and ncnn crashes on memory that it did not allocate.
    parameters = {0: BINARY["add"], 1: 1, 2: 0.0} if op.mode == "identity" else {0: BINARY[op.mode]}
    return NcnnLayer("BinaryOp", parameters, after=op.activation, copies_input=True)


def _count_ncnn(ops: EltwiseColumns, soc: Soc) -> FeatureColumns:
    return {
        "input_bytes": 4.0 * ops.input_elements,
        "output_bytes": 4.0 * ops.output_elements,
        "activations": ops.output_elements * ops.is_active,
    }


#: ONNX nodes by mode, with the attributes for `alpha` and `beta`; others are called as the mode.
_ELEMENTWISE: Mapping[str, tuple[str, ...]] = {
    "selu": ("Selu", "alpha", "gamma"),
    "celu": ("Celu", "alpha"),
    "thresholded_relu": ("ThresholdedRelu", "alpha"),
    "shrink": ("Shrink", "bias", "lambd"),
}


def _onnx(op: Eltwise) -> OrtPlan:
    constants: NamedArrays = {}
    if op.mode == "prelu":  # ONNX's PRelu broadcasts only the slope
        constants = {"zero": number(0)}
        nodes = [
            node("Less", ("x0", "zero"), "below"),
            node("Mul", ("x0", "x1"), "scaled"),
            node("Where", ("below", "scaled", "x0")),
        ]
    else:
        kind, *named = _ELEMENTWISE.get(op.mode, (op.mode.capitalize(),))
        inputs = ("x0",) if op.mode in UNARY else ("x0", "x1")
        attributes: dict[str, Any] = dict(zip(named, op.parameters, strict=True))
        nodes = [node(kind, inputs, **attributes)]
    return OrtPlan(tuple(nodes), op.inputs, op.output, constants)


VARIANTS = (
    CpuKernel("eltwise", _ncnn, _count_ncnn, EltwiseColumns, _refuse_ncnn),
    *of_every_storage(GpuDirect, GpuPlanar),
    *of_onnx("eltwise", _onnx),
)
