"""Validation of a plan on a device: every op alone, the error as it adds up layer by layer, and the
outputs; and the diagnosis: which op is wrong first, or where a model drifts away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from math import inf
from typing import Any, TypeAlias

from numpy.typing import NDArray

from codl.engine.engine import Engine
from codl.errors import CodlError
from codl.evaluation.closeness import Closeness, closeness, is_right, worst
from codl.ir import Layer, Network, Op
from codl.ir.executable import Executable
from codl.ir.ops.onnx_model import OnnxModel
from codl.ir.plan import Chain, Plan
from codl.ir.types import ARITHMETIC, Processor, Storage, arithmetic_of
from codl.kernels import registry
from codl.kernels.tuning import Tuning
from codl.measure.budget import Budget, Progress, nobody
from codl.plan import op_placement
from codl.plan.op_placement import OpPlacement
from codl.records.results import Fallback
from codl.records.soc import Soc
from codl.targets.base import Target
from codl.validate.executable_ops import OpCheck, OpPart, check, not_reached, parts_of
from codl.validate.references import (
    BY_OPS,
    Exact,
    ModelAndSource,
    Values,
    computed,
    outputs_by_ops,
    outputs_of,
)

#: The lowest cosine of outputs that counts as right, and that of a network that rounds: there the
#: last bit of a float decides, layer by layer, what becomes of some numbers. ONNX Runtime itself is
#: so far from what it makes of an input that is 1e-7 larger.
COSINE, COSINE_OF_ROUNDED = 0.9999, 0.999
#: An error that grows by more than this factor at one layer is told of.
GROWTH = 4.0
#: Where something is wrong, checks leave this part of their time for the search of a fallback.
FOR_SEARCH = 0.25
#: The output that a layer's tensor becomes where all are looked at begins so.
TAP = "tap "
Outputs: TypeAlias = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class ModelUnderTest:
    """A model and a device on which plans of it are checked; `samples` are inputs by name.

    Ops are checked on the first sample, and outputs on all.
    """

    model: ModelAndSource
    target: Target
    tuning: Tuning
    samples: Sequence[Values]
    #: Outputs that are not looked at.
    ignored: frozenset[str] = frozenset()
    _expected: dict[int, Outputs] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def network(self) -> Network:
        return self.model.network

    @cached_property
    def first(self) -> Values:
        """The sample on which ops are checked."""
        return self.samples[0]

    @cached_property
    def _by_onnx_runtime(self) -> Outputs | None:
        return self.model.outputs(self.first)

    @property
    def reference(self) -> str:
        """What makes the right outputs."""
        return BY_OPS if self._by_onnx_runtime is None else self.model.reference

    def expected(self, number: int) -> Outputs:
        """The right outputs of a sample, computed once."""
        if number not in self._expected:
            sample = self.samples[number] if number else self.first
            right = self.model.outputs(sample) if number else self._by_onnx_runtime
            by_ops = outputs_by_ops(self.network, sample) if right is None else right
            self._expected[number] = {k: v for k, v in by_ops.items() if k not in self.ignored}
        return self._expected[number]

    def expect(self, outputs: Sequence[Outputs]) -> None:
        """Take these for the right outputs of the samples; elements may be masked."""
        for number, right in enumerate(outputs):
            self._expected[number] = {k: v for k, v in right.items() if k not in self.ignored}

    def engine(self, plan: Plan, network: Network | None = None) -> Engine:
        return Engine(network or self.network, plan, self.target, self.tuning)


@dataclass(frozen=True)
class WholeCheck:
    """A plan as it runs: its outputs for samples, from the first on, beside the reference's.

    `refused` are the kernels that the device did not run, and `executable` what ran instead.
    """

    samples: tuple[Closeness, ...]
    outputs: tuple[Outputs, ...]
    refused: tuple[Fallback, ...]
    executable: Executable

    @property
    def worst(self) -> Closeness:
        return worst(self.samples)


#: What nothing can be compared with.
NOTHING = Closeness(cosine=0.0, max_rel_err=inf)


def closeness_of(got: NDArray[Any], right: NDArray[Any]) -> Closeness:
    """That of two outputs, which may be of different sizes."""
    return closeness(got, right) if got.size == right.size else NOTHING


def check_whole(
    tested: ModelUnderTest, plan: Plan, most: int | None = None, *, budget: Budget | None = None
) -> WholeCheck:
    """Run a plan on every sample, or the first `most`, until the time is over; at least on one."""
    samples: list[Closeness] = []
    outputs: list[Outputs] = []
    with tested.engine(plan) as engine:
        for number in range(len(tested.samples) if most is None else most):
            if samples and budget is not None and budget.is_over():
                break
            got, right = engine(tested.samples[number]), tested.expected(number)
            samples.append(worst(closeness_of(got[name], right[name]) for name in right))
            outputs.append(got)
        return WholeCheck(tuple(samples), tuple(outputs), engine.fallbacks, engine.executable)


@dataclass(frozen=True)
class OpsCheck:
    """Every part of a plan's ops, the error that has added up behind every layer, and the outputs.

    `accumulated` lacks layers whose output is inside of a kernel that computes another too; `lost`
    says why it is empty. `outputs` are those of the first sample by the ops' references, empty
    where not all ops were reached.
    """

    checks: tuple[OpCheck, ...]
    accumulated: Mapping[str, Closeness]
    outputs: Outputs
    lost: str = ""


def check_ops(
    tested: ModelUnderTest,
    plan: Plan,
    whole: WholeCheck,
    progress: Progress = nobody,
    *,
    budget: Budget | None = None,
    is_wrong: bool = False,
) -> OpsCheck:
    """Check every part that a plan computed as a whole, on the first sample.

    Those that there is no time for are not reached; the outputs are not known then. `is_wrong` says
    that something will have to be looked for.
    """
    executable, network = whole.executable, tested.network
    tapped, lost = _tapped(tested, plan, executable)
    accumulated: dict[str, Closeness] = {}
    holders = {holder for holder, _ in network.outputs.values()}
    exact: dict[str, Exact] = {}

    def look(layer: Layer, value: Exact) -> None:
        if TAP + layer.name in tapped:
            accumulated[layer.name] = closeness(tapped.pop(TAP + layer.name), value)
        if layer.output in holders:
            exact[layer.output] = value

    parts = parts_of(executable, network)
    checks = tuple(
        check_parts(tested, parts, progress, look=look, budget=budget, is_wrong=is_wrong)
    )
    is_whole = all(check.is_reached for check in checks)
    outputs = outputs_of(network, exact, tested.first) if is_whole else {}
    return OpsCheck(checks, accumulated, outputs, lost)


def check_parts(
    tested: ModelUnderTest,
    parts: Sequence[OpPart],
    progress: Progress = nobody,
    *,
    look: Callable[[Layer, Exact], object] | None = None,
    budget: Budget | None = None,
    is_wrong: bool = False,
) -> Iterator[OpCheck]:
    """Check parts of ops on the reference's inputs, in the order of the model.

    `look` is given every layer's right output. What there is no time for is not reached; where
    something is wrong, a part of the time is left over.
    """
    done, time = 0, (budget or Budget()).share()
    for number, result in check_in_turn(tested, [[part] for part in parts], look=look):
        done, is_wrong = number + 1, is_wrong or result.is_bad
        progress(done, len(parts), time.to_go_s(done, len(parts)))
        yield result
        keep = FOR_SEARCH if is_wrong else 0.0
        if done < len(parts) and (time.is_over() or not time.has_time(keep=keep)):
            break
    yield from map(not_reached, parts[done:])


def check_in_turn(
    tested: ModelUnderTest,
    ladders: Sequence[Sequence[OpPart]],
    *,
    is_enough: Callable[[OpCheck], bool] = lambda result: False,
    look: Callable[[Layer, Exact], object] | None = None,
) -> Iterator[tuple[int, OpCheck]]:
    """Check several ways to compute each of some parts, in turn, until one is enough.

    All of one part have the same layer's output. Gives the number of the part with each result.
    """
    places = {layer.name: place for place, layer in enumerate(tested.network.layers)}
    #: The numbers of parts by the layer whose output they compute, and until which layer tensors
    #: are needed.
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
                if is_enough(result):
                    break
        if look is not None:
            look(layer, value)
        elif not by_result:
            return


def _tapped(
    tested: ModelUnderTest, plan: Plan, executable: Executable
) -> tuple[dict[str, NDArray[Any]], str]:
    """What the plan computes of every layer that has a tensor, or why that is not known.

    The kernels are the plan's own; what is kept inside a chain is handed over besides.
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
    """A plan that was checked.

    `reference` is what made the right outputs, with a `doubt` where that is not ONNX Runtime with
    the model as it is. `references` is how close the references of ops are to it: where they are
    not, the model was not read as it is meant. It is None where not all ops were reached;
    `samples_left` are samples on which the plan did not run. Outputs are right from `cosine` on,
    off by `limit` of the largest value at most, and the references from `usual`, which is the
    network's own.
    """

    plan: Plan
    whole: WholeCheck
    ops: OpsCheck
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
        """Whether the outputs are."""
        return is_right(self.whole.worst, self.cosine, self.limit)

    @property
    def is_wrong(self) -> bool:
        """Whether the outputs, or an op that was reached, are not right."""
        return not self.is_right or self.first_bad is not None

    @property
    def ok(self) -> bool:
        """Whether the outputs and every op are right, and were all reached."""
        return not (self.is_wrong or self.left)

    @property
    def bad(self) -> tuple[OpCheck, ...]:
        return tuple(check for check in self.ops.checks if check.is_bad)

    @property
    def first_bad(self) -> OpCheck | None:
        """The first in the model's order that was found not to be ok."""
        return next(iter(self.bad), None)

    @property
    def left(self) -> str:
        """What there was no time for; empty where all was reached."""
        ops = sum(not check.is_reached for check in self.ops.checks)
        counts = ((ops, "parts of ops"), (self.samples_left, "samples"))
        return " and ".join(f"{count} {what}" for count, what in counts if count)

    @property
    def diagnosis(self) -> str:
        """In a sentence, whether an op is wrong or the model drifts, and what was not reached."""
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
        """The layers at which the error that has added up grows most, at most three."""
        grown: list[tuple[float, str]] = []
        before = 0.0
        for name, close in self.ops.accumulated.items():
            if close.max_rel_err > GROWTH * before > 0:
                grown.append((close.max_rel_err - before, name))
            before = max(before, close.max_rel_err)
        return tuple(name for _, name in sorted(grown, reverse=True)[:3])

    def rows(self) -> list[dict[str, Any]]:
        """Every part as JSON has it: how close it is, what it runs in, and why there."""
        reasons = {(fallback.op, fallback.processor): fallback.reason for fallback in self.placed}
        return [self._row(check, reasons) for check in self.ops.checks]

    def _row(self, check: OpCheck, reasons: Mapping[tuple[str, Processor], str]) -> dict[str, Any]:
        part = check.part
        so_far = self.ops.accumulated.get(part.result.name)
        return {
            "op": part.layer.name,
            "with": None if part.add is None else part.add.name,
            "kind": part.layer.op.kind,
            "processor": part.processor,
            "part": str(part.region),
            "variant": part.variant,
            "layout": part.layout,
            # What tensors are stored, computed and accumulated in.
            "precision": {
                "stored": part.stored,
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


def usual_cosine(network: Network, variants: Iterable[str] = ()) -> float:
    """From which cosine on a network's outputs usually count as right, in some kernel variants."""
    models = (x.op.nodes for x in network.layers if isinstance(x.op, OnnxModel))
    rounds = any("DynamicQuantize" in nodes for nodes in models)
    is_half = "float16" in map(arithmetic_of, variants)
    return COSINE_OF_ROUNDED if rounds or is_half else COSINE


def variants_of(plan: Plan) -> Iterator[str]:
    """The kernel variants that a plan names."""
    return (
        variant
        for chain in plan.chains
        for by_side in chain.variants.values()
        for variant in by_side.values()
    )


def validate(
    tested: ModelUnderTest,
    plan: Plan,
    *,
    cosine: float | None = None,
    limit: float = inf,
    progress: Progress = nobody,
    budget: Budget | None = None,
) -> Validation:
    """Check a plan's ops and outputs, as far as there is time; `progress` hears of every op.

    Outputs are right from `cosine` on, without one from the usual one, and off by `limit` at most.
    """
    network = tested.network
    usual = usual_cosine(network, variants_of(plan))
    cosine = usual if cosine is None else cosine
    whole = check_whole(tested, plan, budget=budget)
    is_wrong = not is_right(whole.worst, cosine, limit)
    ops = check_ops(tested, plan, whole, progress, budget=budget, is_wrong=is_wrong)
    right = tested.expected(0)
    compared = [closeness(ops.outputs[name], right[name]) for name in right if ops.outputs]
    planned = op_placement.predicted(network, plan, tested.target.soc, None)
    return Validation(
        plan=plan,
        whole=whole,
        ops=ops,
        placed=tuple(op_placement.standing_in(planned, whole.refused)),
        reference=tested.reference,
        doubt=tested.model.doubt(tested.reference),
        references=worst(compared) if compared else None,
        cosine=cosine,
        usual=usual,
        samples_left=len(tested.samples) - len(whole.samples),
        limit=limit,
    )


def to_precision(network: Network, plan: Plan, soc: Soc, precision: str) -> Plan:
    """The plan with every op of the GPU's in the same variant at a precision, where there is one.

    A scan of ranges begins with it. Nothing is predicted of it. Raises as `Soc.at` does.
    """
    written, _ = plan.applied(network)
    ops = {layer.name: layer.op.whole for layer in written.layers}
    at = soc.at(precision)

    def changed(chain: Chain) -> Chain:
        variants = {
            name: {side: _at(ops[name], variant, at) if side == "gpu" else variant
                   for side, variant in by_side.items()}
            for name, by_side in chain.variants.items()
        }  # fmt: skip
        return replace(chain, variants=variants)

    chains = tuple(changed(chain) for chain in plan.chains)
    return replace(plan, chains=chains, predicted_ms=None, predicted_mj=None)


def _at(op: Op, name: str, soc: Soc) -> str:
    """The name of the variant that does the same at a SoC's precision, or the nearest to it."""
    variant: Any = registry.find(op, name)
    storage = Storage(variant.storage.layout, soc.gpu.element)  # type: ignore[arg-type]
    base = name.removesuffix(ARITHMETIC[variant.arithmetic]).removesuffix(variant.storage.suffix)
    candidates: dict[str, Any] = {v.name: v for v in registry.of_kind(op.kind, "gpu")}
    for ending in dict.fromkeys((ARITHMETIC[soc.gpu.arithmetic], "")):  # type: ignore[index]
        same = candidates.get(base + storage.suffix + ending)
        if same is not None and same.storage == storage and not same.refusal(op, soc):
            return str(same.name)
    return name
