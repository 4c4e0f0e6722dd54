"""Search for few fallbacks that make a wrong plan right, by running plans.

Ops that are wrong alone get a fallback: another variant on the same processor, one that stores
float32, or the other processor. The first fallback that is right on the reference's inputs is
taken. If the outputs are still wrong, errors add up, or an op is wrong only inside the network.
Then the fewest of the likeliest further fallbacks with which the outputs are right are searched.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from codl.errors import CodlError
from codl.ir.plan import OpFallback, Plan
from codl.ir.types import Processor
from codl.measure.budget import Budget
from codl.measure.closeness import Closeness, is_right, tolerance
from codl.plan.build_plan import with_fallbacks
from codl.validate.references import OpCheck, OpPart, parts_of, stand_ins
from codl.validate.validation import (
    ModelUnderTest,
    Validation,
    check_in_turn,
    check_parts,
    check_whole,
)

#: Seconds for the search.
BUDGET_S = 120.0
#: The reason of a fallback for an op that is right alone.
DRIFTS = "errors add up"
#: A layer's name and the processor that computes a part of it.
Key: TypeAlias = tuple[str, Processor]


def _key(check: OpCheck) -> Key:
    return check.part.layer.name, check.part.processor


@dataclass(frozen=True)
class Remedy:
    """A plan with `fallbacks`, and how close its outputs are; `whole` is None if it cannot run.

    `unmet` are wrong parts without a fallback; `tried` is the number of plans that ran.
    """

    plan: Plan
    fallbacks: tuple[OpFallback, ...]
    whole: Closeness | None
    is_right: bool
    unmet: tuple[OpCheck, ...] = ()
    tried: int = 0

    @property
    def ok(self) -> bool:
        return self.is_right and not self.unmet


@dataclass
class _Search:
    """Runs plans with sets of fallbacks, each set once, within the budget."""

    tested: ModelUnderTest
    validation: Validation
    budget: Budget
    #: Closeness of the worst output by set of fallbacks; None where the plan cannot run.
    whole: dict[frozenset[OpFallback], Closeness | None] = field(default_factory=dict)

    def are_right(self, fallbacks: Iterable[OpFallback]) -> bool:
        some = list(dict.fromkeys(fallbacks))
        key, checked = frozenset(some), self.validation
        if key not in self.whole:
            try:
                plan = self.plan_with(some)
                self.whole[key] = check_whole(self.tested, plan, len(checked.whole.samples)).worst
            except CodlError:  # a variant refuses the part, or the device refuses the kernel
                self.whole[key] = None
        whole = self.whole[key]
        return whole is not None and is_right(whole, checked.cosine, checked.limit)

    def plan_with(self, fallbacks: Sequence[OpFallback]) -> Plan:
        plan = self.validation.plan
        return with_fallbacks(self.tested.network, plan, fallbacks) if fallbacks else plan

    def result(self, fallbacks: Sequence[OpFallback], unmet: Iterable[OpCheck]) -> Remedy:
        right = self.are_right(fallbacks)
        whole, plan = self.whole[frozenset(fallbacks)], self.plan_with(fallbacks)
        return Remedy(plan, tuple(fallbacks), whole, right, tuple(unmet), len(self.whole))

    def for_wrong_ops(self) -> tuple[list[OpFallback], list[OpCheck]]:
        """Fallbacks for ops that are wrong alone, and the wrong parts without a fallback.

        A plan with fallbacks may fuse kernels that were not checked yet. If such a kernel is wrong,
        the next fallback is tried.
        """
        done: dict[Key, OpFallback] = {}
        refused: dict[Key, set[str]] = {}
        reached = {check.part.key for check in self.validation.checks}
        unmet: list[OpCheck] = []
        bad: Sequence[OpCheck] = self.validation.bad
        while bad and not self.budget.is_over():
            for check in bad:
                refused.setdefault(_key(check), set()).add(check.part.variant)
            standing = self.stand_ins(bad, refused)
            for check in bad:
                key = _key(check)
                first = done.pop(key, None)
                if check.part not in standing:
                    unmet.append(check)
                else:
                    variant = first.variant if first else check.part.variant
                    reason = first.reason if first else reason_of(check)
                    done[key] = OpFallback(*key, variant, standing[check.part], reason)
            bad = self._newly_bad([*done.values()], reached)
        return [*done.values()], [*unmet, *bad]

    def _newly_bad(
        self, fallbacks: Sequence[OpFallback], reached: set[tuple[Hashable, ...]]
    ) -> list[OpCheck]:
        """Wrong parts of the plan with some fallbacks, without the parts that were checked."""
        try:
            with self.tested.engine(self.plan_with(fallbacks)) as engine:
                parts = parts_of(engine.executable, self.tested.network)
        except CodlError:
            return []
        new = [part for part in parts if part.key not in reached]
        reached.update(part.key for part in new)
        checks = check_parts(self.tested, new, budget=self.budget) if new else ()
        return [check for check in checks if not check.ok]

    def stand_ins(
        self,
        suspects: Sequence[OpCheck],
        refused: Mapping[Key, set[str]],
        *,
        only_exacter: bool = False,
    ) -> dict[OpPart, str]:
        """The variant of the smallest right change of each part.

        `refused` are variants to leave out, by layer and processor. With `only_exacter` only
        variants that round less count. Parts that are not reached in time have none.
        """
        target = self.tested.target
        ladders = [
            [
                way
                for way in stand_ins(suspect.part, target.soc, self.tested.tuning)
                if way.variant not in refused.get(_key(suspect), ())
                and not (only_exacter and tolerance(way.kernel) >= suspect.limit)
            ]
            for suspect in suspects
        ]
        right: dict[OpPart, str] = {}
        for number, result in check_in_turn(self.tested, ladders):
            if result.ok:
                right[suspects[number].part] = result.part.variant
            if self.budget.is_over():
                break
        return right


def find_remedy(
    tested: ModelUnderTest, checked: Validation, *, budget: Budget | None = None
) -> Remedy:
    """Few fallbacks that make all right, or the best found in the budget (two minutes)."""
    search = _Search(tested, checked, budget or Budget(BUDGET_S))
    is_over = search.budget.is_over
    search.whole[frozenset()] = checked.whole.worst
    wrong, unmet = search.for_wrong_ops()
    sure = [*_for_refused(checked), *wrong]
    if search.are_right(sure):
        return search.result(sure, unmet)
    taken = {(fallback.op, fallback.processor) for fallback in sure}
    others = [check for check in checked.checks if check.is_reached and _key(check) not in taken]
    # Errors add up: first parts in variants that round more than the most exact one, then all parts
    # by the growth of the accumulated error at them.
    least = min((check.limit for check in others), default=0.0)
    steep = {name: place for place, name in enumerate(checked.steepest)}
    others.sort(key=lambda check: -check.closeness.max_rel_err)
    inexact = [check for check in others if check.limit > least]
    others.sort(key=lambda check: steep.get(check.part.result.name, len(steep)))
    for suspects in (inexact, others):
        standing = search.stand_ins(suspects, {}, only_exacter=suspects is inexact)
        more = [
            OpFallback(*_key(suspect), suspect.part.variant, standing[suspect.part], DRIFTS)
            for suspect in suspects
            if suspect.part in standing
        ]
        if more and not is_over() and search.are_right([*sure, *more]):
            low, high = 0, len(more)  # the first `high` are enough
            while high - low > 1 and not is_over():
                middle = (low + high) // 2
                if search.are_right([*sure, *more[:middle]]):
                    high = middle
                else:
                    low = middle
            return search.result([*sure, *more[:high]], unmet)
    return search.result(sure, unmet)


def _for_refused(checked: Validation) -> list[OpFallback]:
    """Fallbacks for kernels that the device refuses, so that the next run does not try them."""
    planned = {
        name: variants.get("gpu")
        for chain in checked.plan.chains
        for name, variants in chain.variants.items()
    }
    wrong = {check.part.layer.name for check in checked.bad if check.part.processor == "gpu"}
    return [
        OpFallback(x.layer, "gpu", x.variant, x.instead, f"failed: {x.reason}")
        for x in checked.whole.refused
        if planned.get(x.layer) == x.variant and x.layer not in wrong
    ]


def reason_of(check: OpCheck) -> str:
    """The finding of a check, in a few words."""
    close = check.closeness
    counts = (
        (close.nan, "NaN"),
        (close.inf, "infinite"),
        (close.hidden, "that should be NaN or infinite"),
        (close.overflow, "too large to store"),
    )
    told = [f"{count} {what}" for count, what in counts if count]
    if check.reason:
        told.append(check.reason)
    elif not told:
        told.append(f"off by {close.max_rel_err:.2g} of the largest value")
    return f"{check.verdict}: {', '.join(told)}"
