"""What is done where a plan is not right: the smallest change of it that is, found by running it.

Ops that are wrong by themselves run in what stands in for their variant: another one on the same
processor, one that stores float32, or the other processor. The first that computes the op rightly
on the reference's inputs is taken. Where the outputs are still wrong, errors add up, or an op is
wrong only in its place; then the fewest other ops are looked for with which they are right.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from codl.errors import CodlError
from codl.ir.plan import OpFallback, Plan
from codl.ir.types import Processor
from codl.measure.budget import Budget
from codl.measure.check_variants import tolerance
from codl.plan.build_plan import with_fallbacks
from codl.validate.closeness import Closeness, is_right
from codl.validate.op_checks import OpCheck
from codl.validate.plan_check import Bench, check_in_turn, check_parts, check_whole
from codl.validate.smallest import smallest
from codl.validate.uses import OpUse, stand_ins, uses
from codl.validate.validation import Validation

#: Seconds that the search for a remedy may take.
BUDGET_S = 120.0
#: What is said of an op that is right by itself.
DRIFTS = "errors add up"
#: A layer's name and the processor that computes a part of it.
Key: TypeAlias = tuple[str, Processor]


def _key(one: OpCheck) -> Key:
    return one.use.layer.name, one.use.processor


@dataclass(frozen=True)
class Remedy:
    """A plan with `fallbacks`, and how close its outputs are; `whole` is None where it cannot run.

    `unmet` are parts that are wrong and for which nothing stands in; `tried` plans ran.
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
class _Trials:
    """Plans that were run with some fallbacks, each set of them once, until the time is over."""

    bench: Bench
    plan: Plan
    cosine: float
    limit: float
    #: So many, from the first on.
    samples: int
    budget: Budget
    known: dict[frozenset[OpFallback], Closeness | None] = field(default_factory=dict)
    right: dict[frozenset[OpFallback], bool] = field(default_factory=dict)

    def is_over(self) -> bool:
        return self.budget.is_over()

    def are_right(self, fallbacks: Iterable[OpFallback]) -> bool:
        some = list(dict.fromkeys(fallbacks))
        key = frozenset(some)
        if key not in self.right:
            try:
                whole = check_whole(self.bench, self.with_fallbacks(some), self.samples)
            except CodlError:  # a variant does not do the part, or the device does not run it
                self.known[key], self.right[key] = None, False
            else:
                self.known[key], self.right[key] = (
                    whole.worst,
                    is_right(whole.worst, self.cosine, self.limit),
                )
        return self.right[key]

    def with_fallbacks(self, fallbacks: Sequence[OpFallback]) -> Plan:
        if not fallbacks:
            return self.plan
        return with_fallbacks(self.bench.network, self.plan, fallbacks)

    def result(self, fallbacks: Sequence[OpFallback], unmet: Iterable[OpCheck]) -> Remedy:
        right = self.are_right(fallbacks)
        whole = self.known[frozenset(fallbacks)]
        plan = self.with_fallbacks(fallbacks)
        return Remedy(plan, tuple(fallbacks), whole, right, tuple(unmet), len(self.right))


def find_remedy(bench: Bench, found: Validation, *, budget: Budget | None = None) -> Remedy:
    """The smallest change of a plan with which its ops and outputs are right, or the best found.

    That is looked for for two minutes, where no budget is given.
    """
    samples, budget = len(found.whole.samples), budget or Budget(BUDGET_S)
    trials = _Trials(bench, found.plan, found.cosine, found.limit, samples, budget)
    trials.known[frozenset()], trials.right[frozenset()] = found.whole.worst, found.is_right
    wrong, unmet = _for_wrong_ops(bench, found, trials)
    sure = [*_for_refused(bench, found), *wrong]
    if trials.are_right(sure):
        return trials.result(sure, unmet)
    taken = {(one.op, one.processor) for one in sure}
    others = [one for one in found.ops.checks if one.is_reached and _key(one) not in taken]
    for suspects, only_exacter in ((_inexact(others), True), (_by_growth(others, found), False)):
        more = _options(bench, suspects, trials.is_over, only_exacter=only_exacter)
        if more and not trials.is_over() and trials.are_right([*sure, *more]):
            needed = smallest(more, _enough(trials, sure), trials.is_over)
            return trials.result([*sure, *needed], unmet)
    return trials.result(sure, unmet)


def _enough(trials: _Trials, sure: Sequence[OpFallback]) -> Callable[[Sequence[OpFallback]], bool]:
    return lambda some: trials.are_right([*sure, *some])


def _for_wrong_ops(
    bench: Bench, found: Validation, trials: _Trials
) -> tuple[list[OpFallback], list[OpCheck]]:
    """What stands in for the ops that are wrong by themselves, and those that nothing does for.

    A plan with that may fuse kernels that were not checked: those are checked then, and where they
    are wrong, the next one is taken.
    """
    done: dict[Key, OpFallback] = {}
    refused: dict[Key, set[str]] = {}
    checked = {one.use.key for one in found.ops.checks}
    unmet: list[OpCheck] = []
    bad: Sequence[OpCheck] = found.bad
    while bad and not trials.is_over():
        for one in bad:
            refused.setdefault(_key(one), set()).add(one.use.variant)
        standing = right_stand_ins(bench, bad, refused, trials.is_over)
        for one in bad:
            key = _key(one)
            first = done.pop(key, None)
            instead = standing.get(one.use)
            if instead is None:
                unmet.append(one)
            else:
                variant = first.variant if first else one.use.variant
                reason = first.reason if first else reason_of(one)
                done[key] = OpFallback(*key, variant, instead.use.variant, reason)
        bad = _newly_bad(bench, trials, [*done.values()], checked)
    return [*done.values()], [*unmet, *bad]


def _for_refused(bench: Bench, found: Validation) -> list[OpFallback]:
    """What ran instead of kernels that the device refuses: the next run need not try them."""
    planned = {
        n: own.get("gpu") for chain in found.plan.chains for n, own in chain.variants.items()
    }
    wrong = {one.use.layer.name for one in found.bad if one.use.processor == "gpu"}
    return [
        OpFallback(one.layer, "gpu", one.variant, one.instead, f"failed: {one.reason}")
        for one in found.whole.refused
        if planned.get(one.layer) == one.variant and one.layer not in wrong
    ]


def _newly_bad(
    bench: Bench,
    trials: _Trials,
    fallbacks: Sequence[OpFallback],
    checked: set[tuple[Hashable, ...]],
) -> list[OpCheck]:
    """Parts of the plan with some fallbacks that are wrong and were not checked before."""
    try:
        with bench.engine(trials.with_fallbacks(fallbacks)) as engine:
            parts = uses(engine.executable, bench.network)
    except CodlError:
        return []
    new = [one for one in parts if one.key not in checked]
    checked.update(one.key for one in new)
    checks = check_parts(bench, new, budget=trials.budget) if new else ()
    return [one for one in checks if not one.ok]


def right_stand_ins(
    bench: Bench,
    suspects: Sequence[OpCheck],
    refused: Mapping[Key, set[str]],
    is_over: Callable[[], bool],
    *,
    below: bool = False,
) -> dict[OpUse, OpCheck]:
    """What stands in for parts and is right; of each the smallest change.

    `refused` are variants that are out of the question, by layer and processor. With `below` only
    those that round less count. Where `is_over` ends the search, later parts have none.
    """
    soc, ladders = bench.target.soc, []
    for one in suspects:
        out = refused.get(_key(one), ())
        ways = [way for way in stand_ins(one.use, soc, bench.tuning) if way.variant not in out]
        if below:
            ways = [way for way in ways if tolerance(way.kernel) < one.limit]
        ladders.append(ways)
    found: dict[OpUse, OpCheck] = {}
    for number, result in check_in_turn(bench, ladders, is_enough=lambda result: result.ok):
        if result.ok:
            found[suspects[number].use] = result
        if is_over():
            break
    return found


def _options(
    bench: Bench,
    suspects: Sequence[OpCheck],
    is_over: Callable[[], bool],
    *,
    only_exacter: bool,
) -> list[OpFallback]:
    """A fallback for each of some parts that are right by themselves, as far as there is one."""
    standing = right_stand_ins(bench, suspects, {}, is_over, below=only_exacter)
    return [
        OpFallback(
            one.use.layer.name,
            one.use.processor,
            one.use.variant,
            standing[one.use].use.variant,
            DRIFTS,
        )
        for one in suspects
        if one.use in standing
    ]


def _inexact(checks: Sequence[OpCheck]) -> list[OpCheck]:
    """Those in variants that round more than others, the largest errors first."""
    least = min((one.limit for one in checks), default=0.0)
    some = (one for one in checks if one.limit > least)
    return sorted(some, key=lambda one: -one.closeness.max_rel_err)


def _by_growth(checks: Sequence[OpCheck], found: Validation) -> list[OpCheck]:
    """Those at which the error that has added up grows most first."""
    steep = {name: place for place, name in enumerate(found.steepest)}
    last = len(steep)
    return sorted(
        checks,
        key=lambda one: (steep.get(one.use.result.name, last), -one.closeness.max_rel_err),
    )


def reason_of(one: OpCheck) -> str:
    """What a check found, in a few words."""
    found = one.closeness
    counts = ((found.nan, "NaN"), (found.inf, "infinite"), (found.overflow, "too large to store"))
    told = [f"{count} {what}" for count, what in counts if count]
    if one.reason:
        told.append(one.reason)
    elif not told:
        told.append(f"off by {found.max_rel_err:.2g} of the largest value")
    return f"{one.verdict}: {', '.join(told)}"
