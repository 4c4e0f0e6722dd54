"""The tuned parameters of GPU kernels on one device, passed as a value where plans are made.

`codl tune` measures them, and `codl collect` some before its first row;
`codl.measure.tuning_file` keeps them beside the dataset that was measured with them. Kernels and
features of a GPU variant are asked for by `Tuning.plan` and `Tuning.features`, so that measuring,
training, planning and running never differ in the choice they mean. A result holds only for the
kernel source that it was measured with, and only while its choice is still among the variant's. An
op that was not tuned itself has the number of blocks of output channels that typical ops are
fastest with; otherwise the variant's first choice holds. Those numbers are found once, when the
value is made for a SoC, and go with it wherever it is sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import itemgetter
from typing import Any

import numpy as np

from codl.errors import CodlError
from codl.ir.columns import Column, FeatureColumns, columns_of
from codl.ir.constants import digest
from codl.ir.op_text import parse, to_text
from codl.ir.ops.base import Op
from codl.ir.region import Shape
from codl.kernels import registry
from codl.kernels.base import KernelPlan
from codl.kernels.cpu_device.registers import typical_ops
from codl.kernels.feature_columns import ChoiceColumns
from codl.kernels.kernel import Kernel
from codl.kernels.source import source_digest
from codl.records.soc import Soc
from codl.records.tuned import Choice, Choices, Tuned, UsualBlocks

#: Typical ops that must agree at least, and be most of those that were tuned.
FEWEST_VOTES = 2


@dataclass(frozen=True)
class Tuning:
    """What was tuned on one device, by the op's text and the variant; by default nothing was.

    >>> plan = tuning.plan(variant, op, soc)
    >>> Tuning().choice(variant, op, soc) is None
    True
    """

    results: Mapping[tuple[str, str], Tuned] = field(default_factory=dict)
    #: Of ops that were not tuned themselves, by their kind and the variant; unusual numbers alone.
    blocks: Mapping[tuple[str, str], int] = field(default_factory=dict)

    @classmethod
    def of(cls, results: Iterable[Tuned], soc: Soc) -> Tuning:
        """Of some results on a SoC; the last one of an op and a variant holds."""
        tuning = cls({result.key: result for result in results})
        return replace(tuning, blocks=_voted(tuning, soc))

    @classmethod
    def of_choices(cls, choices: Choices) -> Tuning:
        """What another process found to hold; see `choices`."""
        blocks = {(each.op_kind, each.variant): each.blocks for each in choices.blocks}
        return cls({result.key: result for result in choices.results}, blocks)

    @property
    def choices(self) -> Choices:
        """All that kernels are made by, as plain data: what was tuned, without the trials."""
        return Choices(
            tuple(replace(result, trials=()) for result in self.results.values()),
            tuple(UsualBlocks(*key, blocks) for key, blocks in self.blocks.items()),
        )

    def with_results(self, results: Iterable[Tuned], soc: Soc) -> Tuning:
        """The same with more results, which take the place of earlier ones of the same key."""
        return Tuning.of([*self.results.values(), *results], soc)

    def find(self, variant: Kernel, op: Op, soc: Soc) -> Tuned | None:
        """The result for an op, if it was measured with the source and choices of now.

        Of a batch whose kernels compute one image at a time it is that for one image.
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
        """The tuned choice; None where the variant's first holds."""
        result = self.find(variant, op, soc)
        if result is not None:
            return result.choice
        blocks = self.blocks.get((variant.op_kind, variant.name))
        return None if blocks is None else variant.block_choice(op, soc, blocks)

    def plan(self, variant: Kernel, op: Op, soc: Soc) -> KernelPlan:
        """The kernels of a GPU variant for an op, in its tuned choice where there is one."""
        choice = self.choice(variant, op, soc)
        return variant.plan(op, soc) if choice is None else variant.plan(op, soc, choice)

    def features(self, variant: Any, op: Op, soc: Soc) -> dict[str, float]:
        """The features of a variant of either processor, in its tuned choice if there is one."""
        return self.feature_rows(variant, [op], soc)[0]

    def feature_rows(self, variant: Any, ops: Sequence[Op], soc: Soc) -> list[dict[str, float]]:
        """As `features` has them, for many ops of a variant that is not written over columns."""
        if variant.processor == "cpu":
            return [variant.features(op, soc) for op in ops]
        return [variant.features(op, soc, self.choice(variant, op, soc)) for op in ops]

    def feature_columns(self, variant: Any, ops: Sequence[Op], soc: Soc) -> FeatureColumns:
        """The features of many ops at once, as `features` has them for one.

        For a variant that writes its features over columns (see `codl.kernels.feature_columns`).
        """
        columns: Any = columns_of(variant.op_columns, ops)
        features: FeatureColumns
        if variant.processor == "cpu":
            features = variant.feature_columns(columns, soc)
        else:
            choices = self._choice_columns(variant, columns, ops, soc)
            features = variant.feature_columns(columns, soc, choices)
        return features

    def weight_growth(self, variant: Any, ops: Sequence[Op], soc: Soc) -> Column:
        """How many times as many numbers a variant's weights are in memory as the ops', (ops)."""
        if not variant.transforms_weights:
            return np.ones(len(ops))
        columns: Any = columns_of(type(ops[0]).size_columns, ops)
        growth: Column
        if variant.processor == "cpu":
            growth = variant.weight_growth(columns)
        else:
            growth = variant.weight_growth(
                columns, self._choice_columns(variant, columns, ops, soc)
            )
        return growth

    def _choice_columns(
        self, variant: Any, columns: Any, ops: Sequence[Op], soc: Soc
    ) -> ChoiceColumns:
        """The choices that hold for ops, tuned or by default, by parameter, each shaped (ops)."""
        if variant.op_columns is None:
            rows = [self.choice(variant, op, soc) or variant.choices(op, soc)[0] for op in ops]
            return {name: np.array([row[name] for row in rows]) for name in rows[0]}
        blocks = self.blocks.get((variant.op_kind, variant.name))
        default: ChoiceColumns = (
            variant.default_columns(columns, soc)
            if blocks is None
            else variant.block_columns(columns, soc, blocks)
        )
        if not (tuned := self._choices(variant, ops, soc)):
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
        """Says which choices hold beside the defaults: what another one measured is not of this.

        "" where there are none.
        """
        every = self.results.values()
        gained = any(result.best_ms != result.default_ms for result in every)
        choices: dict[str, object] = {
            f"{r.op} {r.variant} {r.source}": dict(r.choice) for r in every
        }
        choices |= {f"{kind} {variant}": blocks for (kind, variant), blocks in self.blocks.items()}
        return digest(choices)[:12] if gained else ""

    def _choices(self, variant: Kernel, ops: Sequence[Op], soc: Soc) -> dict[int, Choice]:
        """The tuned choices of ops that were tuned themselves, by their place."""
        asked = {at: self.find(variant, ops[at], soc) for at in self._likely(variant, ops)}
        return {at: result.choice for at, result in asked.items() if result is not None}

    def _likely(self, variant: Kernel, ops: Sequence[Op]) -> list[int]:
        """The places of the ops that may have a result: the others need no closer look."""
        tuned = self._inputs.get(variant.name)
        if not tuned:
            return []
        return [at for at, op in enumerate(ops) if op.inputs in tuned or op.inputs[0].n > 1]

    @cached_property
    def _inputs(self) -> Mapping[str, set[tuple[Shape, ...]]]:
        """The inputs' shapes of every variant's results."""
        shapes: dict[str, set[tuple[Shape, ...]]] = {}
        for op, variant in self.results:
            with suppress(CodlError):  # of an op that is written otherwise by now
                shapes.setdefault(variant, set()).add(parse(op).inputs)
        return shapes


def _voted(tuning: Tuning, soc: Soc) -> dict[tuple[str, str], int]:
    """The number of blocks that most of the typical ops were found to be fastest with.

    By their kind and the variant; without those where it is the usual number.
    """
    votes: dict[tuple[str, str], Counter[int | None]] = {}
    for op in typical_ops():
        variants: Sequence[Any] = registry.of_kind(op.kind, "gpu")
        for variant in variants:
            fits = variant.refusal(op, soc) is None
            result = tuning.find(variant, op, soc) if fits else None
            if result is not None and len(result.trials) > 1:
                is_usual = dict(result.choice) == dict(variant.choices(op, soc)[0])
                blocks = None if is_usual else result.choice.get("outs")
                votes.setdefault((variant.op_kind, variant.name), Counter())[blocks] += 1
    elected = {}
    for key, counts in votes.items():
        blocks, count = max(counts.items(), key=itemgetter(1))
        if blocks is not None and count >= FEWEST_VOTES and 2 * count > counts.total():
            elected[key] = blocks
    return elected
