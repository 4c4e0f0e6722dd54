"""Kernels over rows: reductions, softmax and norms."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, sqrt
from typing import Any, ClassVar

import numpy as np

from codl.ir.columns import ceil_div
from codl.ir.onnx_node import Node
from codl.ir.ops.nd import AxisBlock
from codl.ir.ops.reductions import REDUCTIONS, Channels, Norm, Reduce, Softmax
from codl.ir.records.soc import Soc
from codl.kernels.base import ENDS, Choice, KernelPlan, ScratchArg, TensorArg
from codl.kernels.cpu import NamedArrays, OrtPlan, ints, node, number, of_onnx
from codl.kernels.kernel import BLOCKS, Grid, Kernel, Sizes, launch, of_every_storage
from codl.kernels.tiling import GROUP, power_of_two, strip, waves

#: The most elements of whole rows per work-item on a CPU: some microseconds.
LONGEST_STRIP = 1 << 15


@dataclass(frozen=True)
class RowGrid:
    """`rows` rows of `size` elements: `sharers` work-items per row, `together` rows per group."""

    rows: int
    size: int
    strip: int
    sharers: int
    together: int

    @classmethod
    def of(cls, rows: int, size: int, choice: Choice, soc: Soc) -> RowGrid:
        if soc.gpu.is_cpu:
            return cls(rows, size, strip(rows, 1, max(1, LONGEST_STRIP // size), soc), 1, 1)
        sharers = choice["sharers"]
        most = min(GROUP, soc.gpu.max_work_group_size)
        return cls(rows, size, 1, sharers, max(1, most // sharers))

    @property
    def defines(self) -> dict[str, int | float | str]:
        """Macros of `common.cl` for shared rows."""
        if self.sharers == 1:
            return {}
        return {"SHARERS": self.sharers, "GROUP": self.sharers * self.together}

    @property
    def items(self) -> int:
        return ceil_div(self.rows, self.strip * self.together) * self.together * self.sharers

    @property
    def sizes(self) -> Sizes:
        return (self.sharers, self.items // self.sharers), (self.sharers, self.together)

    def features(self, soc: Soc) -> dict[str, float]:
        return {"work_items": self.items, "waves": waves(self.items, soc)}


def sharer_choices(size: int, soc: Soc) -> tuple[Choice, ...]:
    """Numbers of work-items per row of `size`, powers of two, the likely best first; 1 on a CPU."""
    if soc.gpu.is_cpu:
        return ({},)
    most = power_of_two(min(256, soc.gpu.max_work_group_size))
    likely = min(max(4, power_of_two(size // (4 * soc.gpu.vector_width))), GROUP, most)
    if size >= 64 * GROUP:
        likely = most
    others = (4, 16, GROUP, 256)
    return tuple({"sharers": s} for s in dict.fromkeys((likely, *others)) if s <= most)


class _AlongAxes(Kernel):
    """Ops along adjacent axes: over rows, or over vectors of columns if the axes are not last."""

    #: Prefix of the names of its two kernels.
    prefix: ClassVar[str]

    def choices(self, op: Any, soc: Soc) -> tuple[Choice, ...]:
        """Choices of the `sharers` of a row, or of the vectors of columns per work-item."""
        if op.rows.inner == 1:
            return sharer_choices(op.rows.size, soc)
        wide = 4 if soc.gpu.is_cpu and op.rows.inner >= 4 * soc.gpu.vector_width else 1
        return tuple({"wide": w} for w in dict.fromkeys((wide, 1)))

    def counts(self, op: Any, soc: Soc, choice: Choice) -> dict[str, float]:
        rows: AxisBlock = op.rows
        if rows.inner == 1:
            grid = RowGrid.of(rows.outer, rows.size, choice, soc).features(soc)
        else:
            grid = _columns(rows, choice, soc).features
        return {
            "rows": rows.outer * rows.inner,
            "loop_length": rows.size,
            "in_columns": rows.inner > 1,
            **grid,
        }

    def build(self, op: Any, soc: Soc, choice: Choice) -> KernelPlan:
        rows: AxisBlock = op.rows
        more, values = self.details(op)
        macros: dict[str, Any] = {"WIDE": choice.get("wide", 1), **more}
        if rows.inner == 1:
            grid = RowGrid.of(rows.outer, rows.size, choice, soc)
            sizes, macros = grid.sizes, {**macros, **grid.defines}
            numbers = {"strip": grid.strip, "rows": rows.outer, "size": rows.size}
        else:
            columns = _columns(rows, choice, soc)
            sizes = columns.sizes
            if soc.gpu.is_cpu:  # neighbours are in the first dimension here, too
                sizes = (columns.strips, columns.others), (1, 1)
            numbers = {"size": rows.size, "inner": rows.inner}
        kernel = f"{self.prefix}_{'rows' if rows.inner == 1 else 'columns'}"
        along = launch(kernel, sizes, *ENDS, **numbers, **values)
        return self.assemble(op, soc, along, macros=macros)

    def details(self, op: Any) -> tuple[dict[str, int | bool], dict[str, float]]:
        """Macros of an op, and its last kernel arguments."""
        raise NotImplementedError


def _columns(rows: AxisBlock, choice: Choice, soc: Soc) -> Grid:
    """The grid of vectors of columns."""
    vectors = ceil_div(rows.inner, choice["wide"] * soc.gpu.vector_width)
    return Grid.of(vectors, rows.outer, 1, soc)


class GpuReduce(_AlongAxes):
    op_kind = "reduce"
    source = "reduce/gpu_direct.cl"
    prefix = "reduce"

    def counts(self, op: Reduce, soc: Soc, choice: Choice) -> dict[str, float]:
        read, written = self.stored(op.input.elements), self.stored(op.output.elements)
        moved = {"input_bytes": read, "output_bytes": written}
        return {**super().counts(op, soc, choice), **moved}

    def details(self, op: Reduce) -> tuple[dict[str, int | bool], dict[str, float]]:
        return {"MODE": list(REDUCTIONS).index(op.mode)}, {"per_element": 1.0 / op.rows.size}


class GpuSoftmax(_AlongAxes):
    op_kind = "softmax"
    source = "softmax/gpu_direct.cl"
    prefix = "softmax"

    def counts(self, op: Softmax, soc: Soc, choice: Choice) -> dict[str, float]:
        written = self.stored(op.output.elements)
        return {**super().counts(op, soc, choice), "output_bytes": written}

    def details(self, op: Softmax) -> tuple[dict[str, int | bool], dict[str, float]]:
        return {"LOG": op.log}, {}


#: The most pixels of a block per work-item on a CPU: some microseconds.
MOST_PIXELS = 4096
#: With more pieces, a GPU adds up groups of them first, because finally every work-item adds up all
#: remaining sums.
MOST_PIECES = 256
#: The fewest pixels of a work-item on a GPU if the image has them; and with more than MOST_PIECES
#: pieces.
FEWEST_PIXELS, MANY_PIXELS = 16, 32
SUMS, FOLDED = ScratchArg("sums"), ScratchArg("folded")


class GpuNorm(Kernel):
    """Any run except a channel; scale and bias per element of a run, or per equal piece.

    For runs that are channels, the planar layout would cost a copy before and after the norm.
    """

    op_kind = "norm"
    source = "norm/gpu_direct.cl"

    def refuse(self, op: Norm, soc: Soc) -> str | None:
        if _is_by_channel(op):
            return f"runs must not be the channels of one image, got {op.input}"
        if op.affine and op.channels is None:
            return f"scale and bias must have no 1 between their axes, got {op.shapes[1]}"
        return None

    def choices(self, op: Norm, soc: Soc) -> tuple[Choice, ...]:
        return sharer_choices(op.run, soc)

    def counts(self, op: Norm, soc: Soc, choice: Choice) -> dict[str, float]:
        return {
            "runs": op.runs,
            "loop_length": op.run,
            "segments": op.runs * op.run // _segment(op),
            **RowGrid.of(op.runs, op.run, choice, soc).features(soc),
            "output_bytes": self.stored(op.output.elements),
        }

    def build(self, op: Norm, soc: Soc, choice: Choice) -> KernelPlan:
        grid = RowGrid.of(op.runs, op.run, choice, soc)
        channels = op.channels or Channels(1, 1)
        norm = launch(
            "norm_runs",
            grid.sizes,
            *(*_inputs(op), ENDS[1]),
            strip=grid.strip,
            runs=op.runs,
            size=op.run,
            segment=_segment(op),
            channel_run=channels.run,
            channels=channels.total,
            per_element=1.0 / op.run,
            epsilon=float(op.epsilon),
        )
        macros = {"CENTER": op.center, "AFFINE": op.affine, "IN_RUNS": channels.run > 1}
        return self.assemble(op, soc, norm, macros={**grid.defines, **macros})


def _pieces(op: Norm, soc: Soc) -> tuple[int, int, int]:
    """Pieces of a block, on a CPU the pixels of a piece, and the parts that are added up last."""
    pixels = op.output.h * op.output.w
    if soc.gpu.is_cpu:
        length = strip(pixels, soc.gpu.blocks(op.output.c), MOST_PIXELS, soc)
        number = ceil_div(pixels, length)
        return number, length, number
    if pixels <= MOST_PIECES * MANY_PIXELS:
        number = min(MOST_PIECES, ceil_div(pixels, FEWEST_PIXELS))
        return number, 0, number
    number = ceil_div(pixels, MANY_PIXELS)
    return number, 0, ceil(sqrt(number))


class GpuBlockedNorm(Kernel):
    """Runs that are the pixels of a channel: instance norms between convolutions."""

    op_kind = "norm"
    base_name = "gpu_blocked"
    source = "norm/gpu_blocked.cl"
    storages = BLOCKS

    def refuse(self, op: Norm, soc: Soc) -> str | None:
        if not _is_by_channel(op):
            return f"runs must be channels of one image, got {op.runs} of {op.run} in {op.input}"
        return None

    def counts(self, op: Norm, soc: Soc, choice: Choice) -> dict[str, float]:
        (pieces, _, parts), blocks = _pieces(op, soc), soc.gpu.blocks(op.output.c)
        vectors = op.output.h * op.output.w * blocks
        return {
            "output_blocks": vectors,
            "activations": vectors * (op.activation.kind != "none"),
            "sums": pieces * blocks * parts,
            **Grid.of(pieces, blocks, 1, soc).features,
            "output_bytes": self.stored(vectors * soc.gpu.vector_width),
        }

    def build(self, op: Norm, soc: Soc, choice: Choice) -> KernelPlan:
        (pieces, length, parts), blocks = _pieces(op, soc), soc.gpu.blocks(op.output.c)
        sizes, pixels = Grid.of(pieces, blocks, 1, soc).sizes, op.output.h * op.output.w
        cut = {"pieces": pieces, "strip": length, "pixels": pixels}
        launches = [launch("norm_sums", sizes, ENDS[0], SUMS, **cut)]
        sum_bytes, summed = 4 * 2 * soc.gpu.vector_width * blocks, SUMS
        scratch = {"sums": sum_bytes * pieces}
        if parts < pieces:
            fold = Grid.of(parts, blocks, 1, soc).sizes
            between = {"pieces": pieces, "folded": FOLDED, "parts": parts}
            launches.append(launch("norm_fold", fold, SUMS, **between))
            scratch["folded"], summed = sum_bytes * parts, FOLDED
        tensors: tuple[Any, ...] = (*_inputs(op), ENDS[1], summed)
        last = {"per_element": 1.0 / pixels, "epsilon": float(op.epsilon)}
        launches.append(launch("norm_channels", sizes, *tensors, parts=parts, **cut, **last))
        macros = {"CENTER": op.center, "AFFINE": op.affine}
        return self.assemble(op, soc, *launches, macros=macros, scratch=scratch)


def _inputs(op: Norm) -> list[TensorArg]:
    return [TensorArg("input", index) for index in range(len(op.shapes))]


def _segment(op: Norm) -> int:
    """Elements of a run with one channel's scale, or with successive channels' scales."""
    channels = op.channels
    if channels is None:
        return op.run
    return min(op.run, channels.run if channels.run > 1 else channels.total)


def _is_by_channel(op: Norm) -> bool:
    """True where each channel of one image is a run, with its own scale and bias."""
    shape = op.inputs[0]
    planes = shape.n == 1 and (op.runs, op.run) == (shape.c, shape.h * shape.w)
    return planes and all(tuple(other) == (1, shape.c, 1, 1) for other in op.inputs[1:])


# The CPU.


def _onnx_softmax(op: Softmax) -> OrtPlan:
    outer, size, inner = op.rows
    seen = (outer, size) if inner == 1 else (outer, size, inner)
    softmax = node("LogSoftmax" if op.log else "Softmax", axis=1)
    return OrtPlan((softmax,), (seen,), seen)


def _onnx_reduce(op: Reduce) -> OrtPlan:
    """The op as an ONNX node that keeps the axis; OpenVINO swaps others with a transpose."""
    kind = op.mode.title().replace("_", "")
    reduce = node(f"Reduce{kind}", ("x0", "axis"), keepdims=1)
    outer, _, inner = op.rows
    return OrtPlan((reduce,), (tuple(op.rows),), (outer, 1, inner), {"axis": ints(1)})


def _onnx_norm(op: Norm) -> OrtPlan:
    normalized = op.shapes[0][op.axis :]
    is_per_element = op.groups == 1 and set(op.shapes[-1][: op.axis]) <= {1}
    if op.center and op.affine and is_per_element and op.shapes[1][op.axis :] == normalized:
        norm = node("LayerNormalization", ("x0", "x1", "x2"), axis=op.axis, epsilon=op.epsilon)
        return OrtPlan((norm,), (op.shapes[0], normalized, normalized), op.shapes[0])
    nodes, constants = _normalized(op)
    shapes = (op.shapes[0], *(op.shapes[1] for _ in op.shapes[1:]))
    if op.affine:
        nodes += [node("Mul", ("normal", "x1"), "scaled"), node("Add", ("scaled", "x2"))]
    else:
        nodes.append(node("Identity", ("normal",)))
    return OrtPlan(tuple(nodes), shapes, op.shapes[0], constants)


def _normalized(op: Norm) -> tuple[list[Node], NamedArrays]:
    """Nodes that norm each run, by its mean and deviation or by its root mean square."""
    constants: NamedArrays
    if op.center:
        constants = {
            "runs": ints(1, op.runs, op.run),
            "ones": np.ones(op.runs, np.float32),
            "zeros": np.zeros(op.runs, np.float32),
        }
        names = ("rows", "ones", "zeros")
        nodes = [node("InstanceNormalization", names, "even", epsilon=op.epsilon)]
    else:
        constants = {
            "runs": ints(op.runs, op.run), "axis": ints(1), "epsilon": number(op.epsilon)
        }  # fmt: skip
        nodes = [
            node("Mul", ("rows", "rows"), "squares"),
            node("ReduceMean", ("squares", "axis"), "mean", keepdims=1),
            node("Add", ("mean", "epsilon"), "above"),
            node("Sqrt", ("above",), "root"),
            node("Div", ("rows", "root"), "even"),
        ]
    into, back = (
        node("Reshape", ("x0", "runs"), "rows"),
        node("Reshape", ("even", "back"), "normal"),
    )
    return [into, *nodes, back], {**constants, "back": ints(*op.shapes[0])}


VARIANTS = (
    *of_every_storage(GpuReduce, GpuSoftmax),
    *of_onnx("softmax", _onnx_softmax),
    *of_onnx("reduce", _onnx_reduce),
    *of_every_storage(GpuNorm, GpuBlockedNorm),
    *of_onnx("norm", _onnx_norm),
)
