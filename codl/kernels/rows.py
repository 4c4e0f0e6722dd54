"""Row kernels of the GPU (reductions, softmax): how work-items share rows or take several."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from codl.ir.ops.nd import AxisBlock
from codl.ir.ops.reductions import REDUCTIONS, Reduce, Softmax
from codl.kernels.base import ENDS, Choice, KernelPlan
from codl.kernels.kernel import Kernel, Sizes, launch, of_every_storage
from codl.kernels.registry import register
from codl.kernels.tiling import (
    GROUP,
    ceil_div,
    grid_rounds,
    item_grid,
    power_of_two,
    strip,
    waves,
)
from codl.records.soc import Soc

#: Elements that one work-item of a CPU takes at most, in rows: some microseconds.
LONGEST_STRIP = 1 << 15


@dataclass(frozen=True)
class RowGrid:
    """`rows` rows of `size` elements: `sharers` work-items to a row, `together` rows to a group."""

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
        """The macros of `common.cl` for rows that are shared."""
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
    """How many work-items may share a row of `size` elements: powers of two, the likely one first.

    On a CPU a row is one work-item's.
    """
    if soc.gpu.is_cpu:
        return ({},)
    most = power_of_two(min(256, soc.gpu.max_work_group_size))
    likely = min(max(4, power_of_two(size // (4 * soc.gpu.vector_width))), GROUP, most)
    if size >= 64 * GROUP:
        likely = most
    others = (4, 16, GROUP, 256)
    return tuple({"sharers": s} for s in dict.fromkeys((likely, *others)) if s <= most)


class _AlongAxes(Kernel):
    """Any adjacent axes: rows, or some vectors of columns at a time where the axes are not last."""

    #: What its two kernels begin with.
    prefix: ClassVar[str]

    def choices(self, op: Any, soc: Soc) -> tuple[Choice, ...]:
        """The `sharers` of a row; for columns, the vectors of a row that a work-item takes."""
        if op.rows.inner == 1:
            return sharer_choices(op.rows.size, soc)
        wide = 4 if soc.gpu.is_cpu and op.rows.inner >= 4 * soc.gpu.vector_width else 1
        return tuple({"wide": w} for w in dict.fromkeys((wide, 1)))

    def counts(self, op: Any, soc: Soc, choice: Choice) -> dict[str, float]:
        rows: AxisBlock = op.rows
        if rows.inner == 1:
            grid = RowGrid.of(rows.outer, rows.size, choice, soc).features(soc)
        else:
            vectors = ceil_div(rows.inner, choice["wide"] * soc.gpu.vector_width)
            turns = grid_rounds(vectors, rows.outer, soc)
            grid = {"work_items": vectors * rows.outer, "waves": turns}
        return {
            "rows": rows.outer * rows.inner,
            "loop_length": rows.size,
            "in_columns": rows.inner > 1,
            **grid,
        }

    def build(self, op: Any, soc: Soc, choice: Choice) -> KernelPlan:
        rows: AxisBlock = op.rows
        macros: dict[str, Any] = {"WIDE": choice.get("wide", 1), **self.macros(op)}
        if rows.inner == 1:
            grid = RowGrid.of(rows.outer, rows.size, choice, soc)
            sizes, macros = grid.sizes, {**macros, **grid.defines}
            numbers = {"strip": grid.strip, "rows": rows.outer, "size": rows.size}
        else:
            sizes = self._columns(rows, choice, soc)
            numbers = {"size": rows.size, "inner": rows.inner}
        kernel = f"{self.prefix}_{'rows' if rows.inner == 1 else 'columns'}"
        along = launch(kernel, sizes, *ENDS, **numbers, **self.numbers(op))
        return self.assemble(op, soc, along, macros=macros)

    def macros(self, op: Any) -> Mapping[str, int | bool]:
        return {}

    def numbers(self, op: Any) -> Mapping[str, float]:
        """Arguments of either kernel, at the end."""
        return {}

    def _columns(self, rows: AxisBlock, choice: Choice, soc: Soc) -> Sizes:
        vectors = ceil_div(rows.inner, choice["wide"] * soc.gpu.vector_width)
        if soc.gpu.is_cpu:
            return (vectors, rows.outer), (1, 1)
        return item_grid(vectors, rows.outer, soc)


class GpuReduce(_AlongAxes):
    op_kind = "reduce"
    source = "reduce/gpu_direct.cl"
    prefix = "reduce"

    def counts(self, op: Reduce, soc: Soc, choice: Choice) -> dict[str, float]:
        read, written = self.stored(op.input.elements), self.stored(op.output.elements)
        moved = {"input_bytes": read, "output_bytes": written}
        return {**super().counts(op, soc, choice), **moved}

    def macros(self, op: Reduce) -> dict[str, int]:
        return {"MODE": list(REDUCTIONS).index(op.mode)}

    def numbers(self, op: Reduce) -> dict[str, float]:
        return {"per_element": 1.0 / op.rows.size}


class GpuSoftmax(_AlongAxes):
    op_kind = "softmax"
    source = "softmax/gpu_direct.cl"
    prefix = "softmax"

    def counts(self, op: Softmax, soc: Soc, choice: Choice) -> dict[str, float]:
        written = self.stored(op.output.elements)
        return {**super().counts(op, soc, choice), "output_bytes": written}

    def macros(self, op: Softmax) -> dict[str, bool]:
        return {"LOG": op.log}


register(*of_every_storage(GpuReduce, GpuSoftmax))
