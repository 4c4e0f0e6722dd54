"""In which order a copy goes: one table for every output axis becomes rows, or tiled matrices.

Tables are those of `codl.ir.ops.movement`: entries are added up, a negative one means nowhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from math import prod
from typing import Literal

import numpy as np

from codl.ir.ops.movement import Offsets

#: Consecutive elements from which a row is copied as vectors, without a table.
SHORTEST_RUN = 16
#: Rows that need a table are made so long at least, so that tables of rows stay small beside data,
SHORTEST_ROW = 64
#: and about so long at most where axes can be cut, so that the table of a row stays in cache.
LONGEST_ROW = 1024

#: How an element of a row is found; the numbers are the kernel's.
RowKind = Literal[0, 1, 2]
RUN: RowKind = 0
STEPS: RowKind = 1
TABLE: RowKind = 2


@dataclass(frozen=True, eq=False)
class CopiedRows:
    """Rows of `size` elements; `starts` says where each comes from (see gpu_copy.cl)."""

    starts: Offsets
    size: int
    kind: RowKind
    first: int = 0
    step: int = 0
    low: int = 0
    high: int = 0
    inner: Offsets = field(default_factory=lambda: np.zeros(1, np.int64))


@dataclass(frozen=True, eq=False)
class Tiles:
    """Matrices of the output, `rows` x `columns`, whose columns are dense in the input."""

    inputs: Offsets
    outputs: Offsets
    rows: int
    columns: int
    in_step: int
    out_step: int


def collapse(tables: Sequence[Offsets]) -> tuple[Offsets, ...]:
    """Fewer tables for the same copy: axes that go on from each other become one."""
    merged: list[Offsets] = []
    for table in tables:
        if merged and _continues(merged[-1], table):
            table = merge(merged.pop(), table)
        merged.append(table)
    return tuple(merged) or (np.zeros(1, np.int64),)


def _continues(outer: Offsets, inner: Offsets) -> bool:
    if outer.size == 1 or inner.size == 1:
        return True
    far, near = step_of(outer), step_of(inner)
    return far is not None and near is not None and far == near * inner.size


def merge(outer: Offsets, inner: Offsets) -> Offsets:
    """The table of two axes as one."""
    either = (outer[:, None] < 0) | (inner < 0)
    return np.where(either, -1, outer[:, None] + inner).reshape(-1)


def step_of(table: Offsets) -> int | None:
    """How far each entry is from the one before, where that is always the same."""
    if table.size == 1:
        return 1 if table[0] >= 0 else None
    step = int(table[1] - table[0])
    same = table.min() >= 0 and bool((np.diff(table) == step).all())
    return step if same else None


def _run(table: Offsets) -> tuple[int, int] | None:
    """From where to where the only entries that are not negative go up by 1, if they do."""
    inside = np.flatnonzero(table >= 0)
    if not inside.size:
        return 0, 0
    low, high = int(inside[0]), int(inside[-1]) + 1
    return (low, high) if step_of(table[low:high]) == 1 else None


def as_rows(tables: Sequence[Offsets]) -> CopiedRows:
    """Cut the output into rows; `tables` are collapsed."""
    *outer, row = tables
    while outer and (_run(row) is None or row.size < SHORTEST_RUN) and row.size < SHORTEST_ROW:
        taken, rest = _cut(outer.pop(), LONGEST_ROW // row.size)
        outer += [rest] if rest is not None else []
        row = merge(taken, row)
    starts = reduce(merge, outer, np.zeros(1, np.int64))
    step, run = step_of(row), _run(row)
    if run is not None:
        low, high = run
        return CopiedRows(starts, row.size, RUN, int(row[low]) - low, low=low, high=high)
    if step is not None:
        return CopiedRows(starts, row.size, STEPS, int(row[0]), step)
    return CopiedRows(starts, row.size, TABLE, inner=row)


def _cut(table: Offsets, most: int) -> tuple[Offsets, Offsets | None]:
    """An axis of even steps as two, the inner with at most `most` entries; otherwise whole."""
    if table.size <= most or step_of(table) is None:
        return table, None
    inner = max(n for n in range(1, max(most, 1) + 1) if table.size % n == 0)
    if inner == 1:
        return table, None
    near = table[:inner] - table[:inner].min()  # entries stay positive where steps are negative
    return near, table[::inner] - near[0]


def as_tiles(tables: Sequence[Offsets], least: int) -> Tiles | None:
    """The output as matrices to transpose, where there are any of `least` rows and columns."""
    *outer, columns = tables
    in_step = step_of(columns)
    if in_step is None or in_step == 1 or columns.size < least:
        return None
    dense = [i for i, t in enumerate(outer) if step_of(t) == 1 and t.size >= least]
    if not dense:
        return None
    axis = dense[-1]
    sizes = [table.size for table in tables]
    places = [np.arange(n) * prod(sizes[i + 1 :]) for i, n in enumerate(sizes)]
    first = np.array([outer[axis][0] + columns[0]])
    others = [i for i in range(len(outer)) if i != axis]
    return Tiles(
        inputs=reduce(merge, [outer[i] for i in others], first),
        outputs=reduce(merge, [places[i] for i in others], np.zeros(1, np.int64)),
        rows=sizes[axis],
        columns=columns.size,
        in_step=in_step,
        out_step=prod(sizes[axis + 1 :]),
    )
