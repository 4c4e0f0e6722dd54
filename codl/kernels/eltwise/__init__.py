"""Element-wise operators on the GPU, with any axis stretched while it is read."""

from __future__ import annotations

from math import prod
from typing import Any

from codl.ir.columns import Column
from codl.ir.ops.eltwise import MODES, UNARY, Eltwise, EltwiseColumns
from codl.ir.types import PLANAR, Storage
from codl.kernels.activation import float_literal
from codl.kernels.base import Choice, KernelPlan, TensorArg
from codl.kernels.kernel import (
    BLOCKS,
    IMAGES,
    ColumnKernel,
    Grid,
    Kernel,
    launch,
    of_every_storage,
)
from codl.kernels.registry import register
from codl.kernels.tiling import ceil_div
from codl.records.soc import Soc

#: Pixels of one work-item of a CPU at most: about 5 us. Where images are emulated, half as many.
LONGEST_STRIP = 2048
#: Chunks of V elements of one in planar tensors.
LONGEST_RUN = 1024
CODES = {mode: code for code, mode in enumerate(MODES)}
#: Modes that make of zeros what is not finite, or grows where one follows another.
CLEARED = ("div", "pow", "log", "reciprocal", "exp", "cosh", "acosh")


#: Modes whose result in half is that of floats, rounded.
OF_HALVES = ("add", "sub", "mul", "max", "min", "identity", "abs", "neg")


class GpuDirect(ColumnKernel):
    """Any mode, by blocks or texels of channels."""

    op_kind = "eltwise"
    source = "eltwise/gpu_direct.cl"
    multiplies_halves = True
    storages = (*BLOCKS, *IMAGES)
    batches = True
    op_columns = EltwiseColumns

    @property
    def planar_fallback(self) -> str:
        """The variant whose tensors lie planar and have the same elements."""
        return GpuPlanar.base_name + Storage(PLANAR.layout, self.storage.element).suffix

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
        steps = {
            name: step
            for index in (0, 1)
            for name, step in self._steps(op, index % count, index).items()
        }
        computed = launch(
            "eltwise_image" if self.in_images else "eltwise_direct",
            grid.sizes,
            *ends,
            strip=grid.strip,
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
        """How far an input moves on, in pixels or blocks, for a block, a row and a column."""
        shape, output = op.inputs[index], op.output
        block, row = int(shape.c == output.c), int(shape.h == output.h)
        if self.in_images:
            block *= shape.w
        else:
            row *= shape.w
        column = int(shape.w == output.w)
        return {f"block_{operand}": block, f"row_{operand}": row, f"column_{operand}": column}


class GpuPlanar(Kernel):
    """Any mode among ops of any rank, whose tensors are planar.

    It is planned in place of one in blocks where that is among planar tensors, and counts as fast.
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
        computed = launch(
            "eltwise_planar",
            grid.sizes,
            *_ends(op),
            strip=grid.strip,
            elements=op.output.elements,
            **numbers,
        )
        macros: dict[str, Any] = _mode(op)
        macros |= {f"STRETCHED_{i}": x != op.output for i, x in enumerate(op.inputs)}
        return self.assemble(op, soc, computed, macros=macros)


def _ends(op: Eltwise) -> tuple[TensorArg, TensorArg, TensorArg]:
    """Two inputs, the only one twice, and the output."""
    other = TensorArg("input", 1 % len(op.inputs))
    return TensorArg("input"), other, TensorArg("output")


def _mode(op: Eltwise) -> dict[str, int | str | bool]:
    """The macros of what is computed, and of its parameters."""
    values = zip(("MODE_ALPHA", "MODE_BETA"), op.parameters, strict=False)
    return {
        "MODE": CODES[op.mode],
        **{name: float_literal(value) for name, value in values},
        "UNARY": op.mode in UNARY,
        "CLEAR_BEYOND": op.mode in CLEARED,
    }


def _runs(op: Eltwise, soc: Soc) -> Grid:
    """Chunks of a work-item, and work-items."""
    chunks = ceil_div(op.output.elements, soc.gpu.vector_width)
    return Grid.of(chunks, 1, LONGEST_RUN, soc)


def _axes(op: Eltwise) -> list[list[int]]:
    """The output as four axes, and how far each input moves on for each: 0 where it is stretched.

    Neighbours that the same inputs are stretched along are one axis.
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


register(*of_every_storage(GpuDirect, GpuPlanar))
