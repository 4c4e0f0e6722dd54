"""Remedy of a wrong plan: the fewest fallbacks with which it is right, found by running it.

Ops that are wrong by themselves get a fallback: another variant on the same processor, one that
stores float32, or the other processor. The first fallback that is right on the reference's inputs
is taken. If the outputs are still wrong, errors add up, or an op is wrong only inside the network.
Then the smallest set of further fallbacks is searched with which the outputs are right.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from codl.errors import CodlError
from codl.evaluation.closeness import Closeness, is_right
from codl.ir.plan import OpFallback, Plan
from codl.ir.types import Processor
from codl.measure.budget import Budget
from codl.measure.check_variants import tolerance
from codl.plan.build_plan import with_fallbacks
from codl.validate.executable_ops import OpCheck, OpPart, parts_of, stand_ins
from codl.validate.validation import (
    ModelUnderTest,
    Validation,
    check_in_turn,
    check_parts,
    check_whole,
)

#: Seconds that the search for a remedy may take.
BUDGET_S = 120.0
#: The reason of a fallback for an op that is right by itself.
DRIFTS = "errors add up"
#: A layer's name and the processor that computes a part of it.
Key: TypeAlias = tuple[str, Processor]
T = TypeVar("T")


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
        """Whether outputs and ops are all right."""
        return self.is_right and not self.unmet


@dataclass
class _TriedFallbacks:
    """Plans that were run with some fallbacks, each set of them once, until the time is over."""

    tested: ModelUnderTest
    validation: Validation
    budget: Budget
    #: How close the worst output was, by fallbacks; None where the plan cannot run.
    whole: dict[frozenset[OpFallback], Closeness | None] = field(default_factory=dict)

    def are_right(self, fallbacks: Iterable[OpFallback]) -> bool:
        some = list(dict.fromkeys(fallbacks))
        key, checked = frozenset(some), self.validation
        if key not in self.whole:
            try:
                plan = self.with_fallbacks(some)
                self.whole[key] = check_whole(self.tested, plan, len(checked.whole.samples)).worst
            except CodlError:  # a variant does not do the part, or the device does not run it
                self.whole[key] = None
        whole = self.whole[key]
        return whole is not None and is_right(whole, checked.cosine, checked.limit)

    def with_fallbacks(self, fallbacks: Sequence[OpFallback]) -> Plan:
        plan = self.validation.plan
        return with_fallbacks(self.tested.network, plan, fallbacks) if fallbacks else plan

    def result(self, fallbacks: Sequence[OpFallback], unmet: Iterable[OpCheck]) -> Remedy:
        right = self.are_right(fallbacks)
        whole, plan = self.whole[frozenset(fallbacks)], self.with_fallbacks(fallbacks)
        return Remedy(plan, tuple(fallbacks), whole, right, tuple(unmet), len(self.whole))


def find_remedy(
    tested: ModelUnderTest, checked: Validation, *, budget: Budget | None = None
) -> Remedy:
    """The smallest change with which a plan's ops and outputs are right, or the best one found.

    The search takes two minutes at most if no budget is given.
    """
    trials = _TriedFallbacks(tested, checked, budget or Budget(BUDGET_S))
    is_over = trials.budget.is_over
    trials.whole[frozenset()] = checked.whole.worst
    wrong, unmet = _for_wrong_ops(trials)
    sure = [*_for_refused(checked), *wrong]
    if trials.are_right(sure):
        return trials.result(sure, unmet)
    taken = {(fallback.op, fallback.processor) for fallback in sure}
    others = [
        check for check in checked.ops.checks if check.is_reached and _key(check) not in taken
    ]
    for suspects, only_exacter in ((_inexact(others), True), (_by_growth(others, checked), False)):
        more = _drifting(tested, suspects, is_over, only_exacter=only_exacter)
        if more and not is_over() and trials.are_right([*sure, *more]):
            needed = smallest(more, lambda some: trials.are_right([*sure, *some]), is_over)
            return trials.result([*sure, *needed], unmet)
    return trials.result(sure, unmet)


def _for_wrong_ops(trials: _TriedFallbacks) -> tuple[list[OpFallback], list[OpCheck]]:
    """Fallbacks for the ops that are wrong by themselves, and the ops without one.

    A plan with fallbacks may fuse kernels that were not checked. They are checked here, and if they
    are wrong, the next fallback is taken.
    """
    done: dict[Key, OpFallback] = {}
    refused: dict[Key, set[str]] = {}
    reached = {check.part.key for check in trials.validation.ops.checks}
    unmet: list[OpCheck] = []
    bad: Sequence[OpCheck] = trials.validation.bad
    while bad and not trials.budget.is_over():
        for check in bad:
            refused.setdefault(_key(check), set()).add(check.part.variant)
        standing = right_stand_ins(trials.tested, bad, refused, trials.budget.is_over)
        for check in bad:
            key = _key(check)
            first = done.pop(key, None)
            instead = standing.get(check.part)
            if instead is None:
                unmet.append(check)
            else:
                variant = first.variant if first else check.part.variant
                reason = first.reason if first else reason_of(check)
                done[key] = OpFallback(*key, variant, instead.part.variant, reason)
        bad = _newly_bad(trials, [*done.values()], reached)
    return [*done.values()], [*unmet, *bad]


def _newly_bad(
    trials: _TriedFallbacks, fallbacks: Sequence[OpFallback], reached: set[tuple[Hashable, ...]]
) -> list[OpCheck]:
    """Parts of the plan with some fallbacks that are wrong and were not checked before."""
    tested = trials.tested
    try:
        with tested.engine(trials.with_fallbacks(fallbacks)) as engine:
            parts = parts_of(engine.executable, tested.network)
    except CodlError:
        return []
    new = [part for part in parts if part.key not in reached]
    reached.update(part.key for part in new)
    checks = check_parts(tested, new, budget=trials.budget) if new else ()
    return [check for check in checks if not check.ok]


def _for_refused(checked: Validation) -> list[OpFallback]:
    """Fallbacks for kernels that the device refuses, so that the next run does not try them."""
    planned = {
        name: variants.get("gpu")
        for chain in checked.plan.chains
        for name, variants in chain.variants.items()
    }
    wrong = {check.part.layer.name for check in checked.bad if check.part.processor == "gpu"}
    return [
        OpFallback(
            refusal.layer, "gpu", refusal.variant, refusal.instead, f"failed: {refusal.reason}"
        )
        for refusal in checked.whole.refused
        if planned.get(refusal.layer) == refusal.variant and refusal.layer not in wrong
    ]


def right_stand_ins(
    tested: ModelUnderTest,
    suspects: Sequence[OpCheck],
    refused: Mapping[Key, set[str]],
    is_over: Callable[[], bool],
    *,
    below: bool = False,
) -> dict[OpPart, OpCheck]:
    """The smallest right fallback of each part.

    `refused` are variants to leave out, by layer and processor. With `below` only variants that
    round less count. Parts that are not reached before `is_over` have none.
    """
    ladders = [
        [
            way
            for way in stand_ins(suspect.part, tested.target.soc, tested.tuning)
            if way.variant not in refused.get(_key(suspect), ())
            and not (below and tolerance(way.kernel) >= suspect.limit)
        ]
        for suspect in suspects
    ]
    right: dict[OpPart, OpCheck] = {}
    for number, result in check_in_turn(tested, ladders, is_enough=lambda result: result.ok):
        if result.ok:
            right[suspects[number].part] = result
        if is_over():
            break
    return right


def _drifting(
    tested: ModelUnderTest,
    suspects: Sequence[OpCheck],
    is_over: Callable[[], bool],
    *,
    only_exacter: bool,
) -> list[OpFallback]:
    """Fallbacks for parts that are right by themselves."""
    standing = right_stand_ins(tested, suspects, {}, is_over, below=only_exacter)
    return [
        OpFallback(
            *_key(suspect), suspect.part.variant, standing[suspect.part].part.variant, DRIFTS
        )
        for suspect in suspects
        if suspect.part in standing
    ]


def _inexact(checks: Sequence[OpCheck]) -> list[OpCheck]:
    """Parts in variants that round more than the most exact one, the largest errors first."""
    least = min((check.limit for check in checks), default=0.0)
    inexact = (check for check in checks if check.limit > least)
    return sorted(inexact, key=lambda check: -check.closeness.max_rel_err)


def _by_growth(checks: Sequence[OpCheck], checked: Validation) -> list[OpCheck]:
    """Parts sorted by how much the accumulated error grows at them."""
    steep = {name: place for place, name in enumerate(checked.steepest)}
    return sorted(
        checks,
        key=lambda check: (
            steep.get(check.part.result.name, len(steep)),
            -check.closeness.max_rel_err,
        ),
    )


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


def smallest(
    items: Sequence[T],
    enough: Callable[[Sequence[T]], bool],
    is_over: Callable[[], bool] = lambda: False,
) -> list[T]:
    """A minimal subset of items that is enough, by delta debugging.

    The likeliest items come first. Bisection finds the shortest prefix that is enough, which is
    right if more items are never worse. Then pieces of it are left out, by halves down to single
    items. If `is_over` ends the search, the result is enough but may not be minimal.
    """
    low, high = 0, len(items)  # the first `high` are enough
    while high - low > 1 and not is_over():
        middle = (low + high) // 2
        if enough(items[:middle]):
            high = middle
        else:
            low = middle
    kept = list(items[:high])
    size = len(kept)
    while size > 1 and not is_over():
        size = (size + 1) // 2
        begin = 0
        while begin < len(kept) and not is_over():
            rest = kept[:begin] + kept[begin + size :]
            if len(kept) > 1 and rest and enough(rest):
                kept = rest
            else:
                begin += size
    return kept
