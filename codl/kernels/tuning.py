"""Tuned parameters of GPU kernels on one device, passed as a value to planning and running.

`codl tune` measures them, and `codl collect` some before its first row; `codl.measure.tuning_file`
keeps them beside the dataset. Measuring, training, planning and running take kernels and features
from `Tuning.plan` and `Tuning.features`, so their choices agree. A result holds for its kernel
source, and while its choice is among the variant's. An untuned op uses the variant's first choice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from codl.errors import CodlError
from codl.ir.columns import Column, FeatureColumns, columns_of
from codl.ir.constants import digest
from codl.ir.op_text import parse, to_text
from codl.ir.ops.base import Op
from codl.ir.records.soc import Soc
from codl.ir.records.tuned import Choice, Tuned
from codl.ir.region import Shape
from codl.kernels.base import KernelPlan
from codl.kernels.kernel import Kernel
from codl.kernels.source import source_digest
from codl.kernels.tiling import ChoiceColumns


@dataclass(frozen=True)
class Tuning:
    """Tuned parameters of one device, by op text and variant; empty by default.

    >>> plan = tuning.plan(variant, op, soc)
    >>> Tuning().choice(variant, op, soc) is None
    True
    """

    results: Mapping[tuple[str, str], Tuned] = field(default_factory=dict)

    @classmethod
    def of(cls, results: Iterable[Tuned]) -> Tuning:
        """The tuning of results; the last result of an op and variant counts."""
        return cls({result.key: result for result in results})

    @property
    def choices(self) -> tuple[Tuned, ...]:
        """The results without trials, for another process."""
        return tuple(replace(result, trials=()) for result in self.results.values())

    def find(self, variant: Kernel, op: Op, soc: Soc) -> Tuned | None:
        """The result for an op, if its source and choice are still current.

        For a batch in kernels of single images, it is the result for one image.
        """
        if not self._likely(variant, [op]):
            return None
        if op.images > 1 and not variant.plan(op, soc).whole_batch:
            op = op.one_image
        result = self.results.get((to_text(op), variant.name))
        if result is None or dict(result.choice) not in map(dict, variant.choices(op, soc)):
            return None
        source = source_digest(variant.plan(op, soc, result.choice))
        return result if source == result.source else None

    def choice(self, variant: Kernel, op: Op, soc: Soc) -> Choice | None:
        """The tuned choice; None for the variant's first."""
        result = self.find(variant, op, soc)
        return None if result is None else result.choice

    def plan(self, variant: Kernel, op: Op, soc: Soc) -> KernelPlan:
        return variant.plan(op, soc, self.choice(variant, op, soc))

    def features(self, variant: Any, op: Op, soc: Soc) -> dict[str, float]:
        features: dict[str, float] = variant.features(op, soc, self.choice(variant, op, soc))
        return features

    def feature_columns(self, variant: Any, ops: Sequence[Op], soc: Soc) -> FeatureColumns:
        """Features of a variant with `op_columns`, each shaped (ops)."""
        columns = columns_of(variant.op_columns, ops)
        choices = self._choice_columns(variant, columns, ops, soc)
        features: FeatureColumns = variant.feature_columns(columns, soc, choices)
        return features

    def weight_growth(self, variant: Any, ops: Sequence[Op], soc: Soc) -> Column:
        """Ratio of a variant's weight elements in memory to the ops', shaped (ops)."""
        if not variant.transforms_weights:
            return np.ones(len(ops))
        columns = columns_of(type(ops[0]).size_columns, ops)
        choices = self._choice_columns(variant, columns, ops, soc)
        growth: Column = variant.weight_growth(columns, choices)
        return growth

    def _choice_columns(
        self, variant: Any, columns: Any, ops: Sequence[Op], soc: Soc
    ) -> ChoiceColumns:
        """Choices of ops by parameter, tuned or default, each shaped (ops)."""
        if variant.op_columns is None:
            rows = [self.choice(variant, op, soc) or variant.choices(op, soc)[0] for op in ops]
            return {name: np.array([row[name] for row in rows]) for name in rows[0]}
        default: ChoiceColumns = variant.default_columns(columns, soc)
        results = {at: self.find(variant, ops[at], soc) for at in self._likely(variant, ops)}
        tuned = {at: result.choice for at, result in results.items() if result is not None}
        if not tuned:
            return default
        choices = {
            name: np.array(np.broadcast_to(values, len(ops))) for name, values in default.items()
        }
        for at, choice in tuned.items():
            for name, value in choice.items():
                choices[name][at] = value
        return choices

    @cached_property
    def fingerprint(self) -> str:
        """Digest of the choices if any differs from the default, else "".

        Measurements hold only for the same fingerprint.
        """
        every = self.results.values()
        gained = any(result.best_ms != result.default_ms for result in every)
        choices: dict[str, object] = {
            f"{r.op} {r.variant} {r.source}": dict(r.choice) for r in every
        }
        return digest(choices)[:12] if gained else ""

    def _likely(self, variant: Kernel, ops: Sequence[Op]) -> list[int]:
        """Indices of ops with a possible result, by input shapes; batches are always included."""
        tuned = self._inputs.get(variant.name)
        if not tuned:
            return []
        return [at for at, op in enumerate(ops) if op.inputs in tuned or op.inputs[0].n > 1]

    @cached_property
    def _inputs(self) -> Mapping[str, set[tuple[Shape, ...]]]:
        shapes: dict[str, set[tuple[Shape, ...]]] = {}
        for op, variant in self.results:
            with suppress(CodlError):  # the op's text may be from an older codl
                shapes.setdefault(variant, set()).add(parse(op).inputs)
        return shapes
