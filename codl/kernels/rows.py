"""What kernels along rows have in common: who shares a row, and how many a work-item takes."""

from __future__ import annotations

from dataclasses import dataclass

from codl.ir.ops.nd import AxisBlock
from codl.kernels.base import ENDS, Arg, Choice, KernelLaunch
from codl.kernels.tiling import GROUP, ceil_div, round_up, strip
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
        return cls(rows, size, 1, sharers, max(1, GROUP // sharers))

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
    def global_size(self) -> tuple[int, int]:
        return self.sharers, self.items // self.sharers

    @property
    def local_size(self) -> tuple[int, int]:
        return self.sharers, self.together


def column_grid(rows: AxisBlock, wide: int, soc: Soc) -> tuple[tuple[int, int], tuple[int, int]]:
    """Global and local size where a work-item has `wide` vectors of the inner axis."""
    vectors = ceil_div(rows.inner, wide * soc.gpu.vector_width)
    if soc.gpu.is_cpu:
        return (vectors, rows.outer), (1, 1)
    size = min(GROUP, soc.gpu.max_work_group_size)
    return (round_up(vectors, size), rows.outer), (size, 1)


def row_launch(
    name: str,
    rows: AxisBlock,
    choice: Choice,
    soc: Soc,
    *more: Arg,
) -> tuple[KernelLaunch, dict[str, int | float | str]]:
    """`NAME_rows` along the innermost axis, or `NAME_columns`, with its macros.

    From `TensorArg("input")` to `TensorArg("output")`; `more` are arguments of either, at the end.
    """
    if rows.inner == 1:
        grid = RowGrid.of(rows.outer, rows.size, choice, soc)
        args = (*ENDS, grid.strip, rows.outer, rows.size, *more)
        launch = KernelLaunch(f"{name}_rows", grid.global_size, args, grid.local_size)
        return launch, {"WIDE": 1, **grid.defines}
    size, local = column_grid(rows, choice["wide"], soc)
    args = (*ENDS, rows.size, rows.inner, *more)
    return KernelLaunch(f"{name}_columns", size, args, local), {"WIDE": choice["wide"]}


def row_choices(rows: AxisBlock, soc: Soc) -> tuple[Choice, ...]:
    """The `sharers` of a row; for columns, how many vectors `wide` a work-item takes of a row."""
    if rows.inner == 1:
        return sharer_choices(rows.size, soc)
    wide = 4 if soc.gpu.is_cpu and rows.inner >= 4 * soc.gpu.vector_width else 1
    return tuple({"wide": w} for w in dict.fromkeys((wide, 1)))


def sharer_choices(size: int, soc: Soc) -> tuple[Choice, ...]:
    """How many work-items may share a row of `size` elements: powers of two, the likely one first.

    On a CPU a row is one work-item's.
    """
    if soc.gpu.is_cpu:
        return ({},)
    most = min(256, soc.gpu.max_work_group_size)
    likely = min(max(4, power_of_two(size // (4 * soc.gpu.vector_width))), GROUP, most)
    if size >= 64 * GROUP:
        likely = power_of_two(most)
    others = (4, 16, GROUP, 256)
    return tuple({"sharers": s} for s in dict.fromkeys((likely, *others)) if s <= most)


def power_of_two(value: int) -> int:
    """The largest that is at most `value`, 1 for less than that."""
    return 1 << max(value.bit_length() - 1, 0)
