"""Validation of a plan on a device: each op alone, accumulated errors, outputs, and a diagnosis."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from math import inf, nan
from typing import Any, TypeAlias

from numpy.typing import NDArray

from codl.engine.engine import Engine
from codl.errors import CodlError
from codl.ir import Layer, Network
from codl.ir.executable import Executable
from codl.ir.ops.onnx_model import OnnxModel
from codl.ir.plan import Plan
from codl.ir.records.results import Fallback
from codl.ir.types import Processor, arithmetic_of
from codl.kernels.tuning import Tuning
from codl.measure.budget import Budget, Progress, no_progress
from codl.measure.closeness import Closeness, closeness, is_right, tolerance, worst
from codl.plan import op_placement
from codl.plan.op_placement import OpPlacement
from codl.targets.base import Target
from codl.validate.references import (
    Exact,
    ModelAndSource,
    OpCheck,
    OpPart,
    Values,
    check,
    computed,
    outputs_by_ops,
    outputs_of,
    parts_of,
)

#: The lowest cosine of right outputs, and the lowest for a network that quantizes or runs in
#: float16. There the last bit of a float32 decides later roundings: ONNX Runtime is as far from its
#: own outputs for inputs that are 1e-7 larger.
COSINE, COSINE_OF_ROUNDED = 0.9999, 0.999
#: The accumulated error of a layer counts as steep beyond this factor of the error before it.
GROWTH = 4.0
#: The part of the time that checks leave for the search of fallbacks, if a result is wrong.
FOR_SEARCH = 0.25
#: Prefix of the extra outputs that expose the tensor of each layer.
TAP = "tap "
Outputs: TypeAlias = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class ModelUnderTest:
    """A model and a device to check plans: ops on the first of the `samples`, outputs on all."""

    model: ModelAndSource
    target: Target
    tuning: Tuning
    samples: Sequence[Values]
    _expected: dict[int, Outputs] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def network(self) -> Network:
        return self.model.network

    @cached_property
    def first(self) -> Values:
        return self.samples[0]

    def expected(self, number: int) -> Outputs:
        """The right outputs of the sample with this number, cached; by ops as a last resort."""
        if number not in self._expected:
            sample = self.samples[number] if number else self.first
            right = self.model.outputs(sample)
            self._expected[number] = right or outputs_by_ops(self.network, sample)
        return self._expected[number]

    def expect(self, outputs: Sequence[Outputs]) -> None:
        """Set the right outputs of the samples; masked elements are not compared."""
        self._expected.update(enumerate(outputs))

    def engine(self, plan: Plan, network: Network | None = None) -> Engine:
        return Engine(network or self.network, plan, self.target, self.tuning)


@dataclass(frozen=True)
class WholeCheck:
    """Outputs of a plan for the first samples, and their closeness to the reference.

    `refused` are the kernels that the device did not run; `executable` has their replacements.
    """

    samples: tuple[Closeness, ...]
    outputs: tuple[Outputs, ...]
    refused: tuple[Fallback, ...]
    executable: Executable

    @property
    def worst(self) -> Closeness:
        return worst(self.samples)


def check_whole(
    tested: ModelUnderTest, plan: Plan, most: int | None = None, *, budget: Budget | None = None
) -> WholeCheck:
    """Run a plan on all samples, or on the first `most`, within the budget; at least on one."""
    samples: list[Closeness] = []
    outputs: list[Outputs] = []
    with tested.engine(plan) as engine:
        for number in range(len(tested.samples) if most is None else most):
            if samples and budget is not None and budget.is_over():
                break
            got, right = engine(tested.samples[number]), tested.expected(number)
            samples.append(worst(closeness(got[name], right[name]) for name in right))
            outputs.append(got)
        return WholeCheck(tuple(samples), tuple(outputs), engine.fallbacks, engine.executable)


def check_parts(
    tested: ModelUnderTest,
    parts: Sequence[OpPart],
    progress: Progress = no_progress,
    *,
    look: Callable[[Layer, Exact], object] | None = None,
    budget: Budget | None = None,
    is_wrong: bool = False,
) -> Iterator[OpCheck]:
    """Check parts of ops on the reference's inputs, in the given order.

    `look` receives each layer with its right output. Parts beyond the budget are `not reached`.
    After a bad result, or with `is_wrong`, the share `FOR_SEARCH` of the time is left over.
    """
    done, time = 0, (budget or Budget()).share()
    for number, result in check_in_turn(tested, [[part] for part in parts], look=look):
        done, is_wrong = number + 1, is_wrong or result.is_bad
        progress(done, len(parts), time.to_go_s(done, len(parts)))
        yield result
        keep = FOR_SEARCH if is_wrong else 0.0
        if done < len(parts) and (time.is_over() or not time.has_time(keep=keep)):
            break
    for part in parts[done:]:
        yield OpCheck(part, "not reached", Closeness(nan, nan), tolerance(part.kernel))


def check_in_turn(
    tested: ModelUnderTest,
    ladders: Sequence[Sequence[OpPart]],
    *,
    look: Callable[[Layer, Exact], object] | None = None,
) -> Iterator[tuple[int, OpCheck]]:
    """Check the alternatives of each ladder in turn, until a result is right.

    All alternatives of a ladder compute the same layer's output. Yields the ladder's number with
    each result.
    """
    places = {layer.name: place for place, layer in enumerate(tested.network.layers)}
    #: Ladder numbers by the layer they compute, and the last layer that needs each tensor.
    by_result: dict[str, list[int]] = {}
    kept: dict[str, int] = {}
    for number, ladder in enumerate(ladders):
        for way in ladder[:1]:
            by_result.setdefault(way.result.name, []).append(number)
        for name in (name for way in ladder for name in way.reads):
            kept[name] = max(places[ladder[0].result.name], kept.get(name, 0))
    for layer, tensors, value in computed(tested.network, tested.first, kept):
        for number in by_result.pop(layer.name, ()):
            for way in ladders[number]:
                result = check(way, tensors, value, tested.target)
                yield number, result
                if result.ok:
                    break
        if look is not None:
            look(layer, value)
        elif not by_result:
            return


def _tapped(
    tested: ModelUnderTest, plan: Plan, executable: Executable
) -> tuple[dict[str, NDArray[Any]], str]:
    """Run the plan with the tensor of each layer as an extra output, on the first sample.

    Returns the tensors by name, and the error if the plan cannot run so. Kernels are the plan's
    own; fused layers before the last of their kernel have no tensor.
    """
    network = tested.network
    inside = {name for names in executable.fused.values() for name in names[:-1]}
    taps = {
        TAP + layer.name: (layer.output, tuple(layer.op.output))
        for layer in network.layers
        if layer.name not in inside
    }
    network = replace(network, outputs={**network.outputs, **taps})
    try:
        with tested.engine(replace(plan, digest=network.digest), network) as engine:
            engine.feed(tested.first)
            engine.run()
            return {n: a.copy() for n, a in engine.outputs.items() if n.startswith(TAP)}, ""
    except CodlError as error:
        return {}, " ".join(str(error).split())


@dataclass(frozen=True)
class Validation:
    """The result of `validate`: `checks` of every part of a plan's ops, and of the outputs.

    `accumulated` is the error behind each layer, without layers whose output exists only inside a
    fused kernel; `lost` says why it is empty.
    `reference` computed the right outputs; `doubt` is set where it is not ONNX Runtime on the
    unchanged model. `references` is the closeness of the ops' references to it, None unless all
    parts were checked. If its cosine is below `usual`, codl misreads the model. Outputs are right
    with a cosine of at least `cosine` and an error of at most `limit` of the largest value.
    `samples_left` counts samples that did not run.
    """

    plan: Plan
    whole: WholeCheck
    checks: tuple[OpCheck, ...]
    accumulated: Mapping[str, Closeness]
    lost: str
    placed: tuple[OpPlacement, ...]
    reference: str
    references: Closeness | None
    doubt: str = ""
    cosine: float = COSINE
    usual: float = COSINE
    samples_left: int = 0
    limit: float = inf

    @property
    def is_right(self) -> bool:
        return is_right(self.whole.worst, self.cosine, self.limit)

    @property
    def is_wrong(self) -> bool:
        """True where the outputs, or some checked part of an op, are wrong."""
        return not self.is_right or self.first_bad is not None

    @property
    def ok(self) -> bool:
        """True where the outputs and all ops are right, and no part or sample is left."""
        return not (self.is_wrong or self.left)

    @property
    def bad(self) -> tuple[OpCheck, ...]:
        return tuple(check for check in self.checks if check.is_bad)

    @property
    def first_bad(self) -> OpCheck | None:
        return next(iter(self.bad), None)

    @property
    def left(self) -> str:
        """Counts of parts and samples without time, as text; empty if all were checked."""
        ops = sum(not check.is_reached for check in self.checks)
        counts = ((ops, "parts of ops"), (self.samples_left, "samples"))
        return " and ".join(f"{count} {what}" for count, what in counts if count)

    @property
    def diagnosis(self) -> str:
        """A sentence on wrong ops, drift or a misread model, and on unchecked parts."""
        left = f" Not reached in time: {self.left}." if self.left else ""
        if self.references is not None and self.references.cosine < self.usual:
            return (
                "The references of its ops do not give what ONNX Runtime gives: codl reads this "
                f"model wrongly (cosine {self.references.cosine:.6f}).{left}"
            )
        if self.bad:
            names = ", ".join(dict.fromkeys(check.part.label for check in self.bad))
            right = "right" if self.is_right else "wrong"
            return f"Wrong by themselves: {names}. The outputs are {right}.{left}"
        if self.is_right:
            reached = "reached " if self.left else ""
            return f"Every op {reached}and the outputs are right.{left}"
        grown = ", ".join(self.steepest) or "no layer more than others"
        return (
            f"The model drifts: every op is right by itself, and errors add up (at {grown}).{left}"
        )

    @property
    def steepest(self) -> tuple[str, ...]:
        """The layers, at most three, where the accumulated error grows most."""
        grown: list[tuple[float, str]] = []
        before = 0.0
        for name, close in self.accumulated.items():
            if close.max_rel_err > GROWTH * before > 0:
                grown.append((close.max_rel_err - before, name))
            before = max(before, close.max_rel_err)
        return tuple(name for _, name in sorted(grown, reverse=True)[:3])

    def rows(self) -> list[dict[str, Any]]:
        """One JSON object per part: closeness, precision, verdict, reason of placement."""
        reasons = {(fallback.op, fallback.processor): fallback.reason for fallback in self.placed}
        return [self._row(check, reasons) for check in self.checks]

    def _row(self, check: OpCheck, reasons: Mapping[tuple[str, Processor], str]) -> dict[str, Any]:
        part, so_far = check.part, self.accumulated.get(check.part.result.name)
        return {
            "op": part.layer.name,
            "with": None if part.add is None else part.add.name,
            "kind": part.layer.op.kind,
            "processor": part.processor,
            "part": str(part.region),
            "variant": part.variant,
            "layout": part.storage.layout,
            # Element types in which the part stores, multiplies and accumulates.
            "precision": {
                "stored": part.storage.element,
                "computed": arithmetic_of(part.variant),
                "accumulated": "float32",
            },
            "placed": reasons.get((part.layer.name, part.processor)),
            **asdict(check.closeness),
            "limit": check.limit,
            "ok": check.ok if check.is_reached else None,
            "verdict": check.verdict,
            "reason": check.reason,
            "accumulated_cosine": None if so_far is None else so_far.cosine,
            "accumulated_max_rel_err": None if so_far is None else so_far.max_rel_err,
        }


def usual_cosine(network: Network, plan: Plan | None = None) -> float:
    """The lowest cosine of right outputs for a network, by a plan's kernel variants."""
    models = (x.op.nodes for x in network.layers if isinstance(x.op, OnnxModel))
    rounds = any("DynamicQuantize" in nodes for nodes in models)
    chains = plan.chains if plan else ()
    sides = (names.values() for chain in chains for names in chain.variants.values())
    is_half = any(arithmetic_of(variant) == "float16" for names in sides for variant in names)
    return COSINE_OF_ROUNDED if rounds or is_half else COSINE


def validate(
    tested: ModelUnderTest,
    plan: Plan,
    *,
    cosine: float | None = None,
    limit: float = inf,
    progress: Progress = no_progress,
    budget: Budget | None = None,
) -> Validation:
    """Check a plan's ops and outputs within the budget; `progress` is called after each part.

    Outputs are right with a cosine of at least `cosine` (by default `usual_cosine`) and an error of
    at most `limit` of the largest value.
    """
    network = tested.network
    usual = usual_cosine(network, plan)
    cosine = usual if cosine is None else cosine
    whole = check_whole(tested, plan, budget=budget)
    is_wrong = not is_right(whole.worst, cosine, limit)
    tapped, lost = _tapped(tested, plan, whole.executable)
    accumulated: dict[str, Closeness] = {}
    exact: dict[str, Exact] = {}

    def look(layer: Layer, value: Exact) -> None:
        if TAP + layer.name in tapped:
            accumulated[layer.name] = closeness(tapped.pop(TAP + layer.name), value)
        if layer.output in holders:
            exact[layer.output] = value

    holders = {holder for holder, _ in network.outputs.values()}
    parts = parts_of(whole.executable, network)
    checks = tuple(
        check_parts(tested, parts, progress, look=look, budget=budget, is_wrong=is_wrong)
    )
    is_whole = all(check.is_reached for check in checks)
    outputs = outputs_of(network, exact, tested.first) if is_whole else {}
    right = tested.expected(0)
    compared = [closeness(outputs[name], right[name]) for name in right if outputs]
    planned = op_placement.predicted(network, plan, tested.target.soc, None)
    return Validation(
        plan=plan,
        whole=whole,
        checks=checks,
        accumulated=accumulated,
        lost=lost,
        placed=tuple(op_placement.standing_in(planned, whole.refused)),
        reference=tested.model.reference,
        doubt=tested.model.doubt,
        references=worst(compared) if compared else None,
        cosine=cosine,
        usual=usual,
        samples_left=len(tested.samples) - len(whole.samples),
        limit=limit,
    )
