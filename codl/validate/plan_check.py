"""A plan on a device: every op alone, the error as it adds up layer by layer, and the outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

from numpy.typing import NDArray

from codl.engine.engine import Engine
from codl.errors import CodlError
from codl.ir import Layer, Network
from codl.ir.executable import Executable
from codl.ir.plan import Plan
from codl.kernels.tuning import Tuning
from codl.measure.budget import Budget, Progress, nobody
from codl.records.results import Fallback
from codl.targets.base import Target
from codl.validate.closeness import Closeness, closeness, worst
from codl.validate.op_checks import OpCheck, check, not_reached
from codl.validate.references import Exact, Model, Values, computed, outputs_by_ops, outputs_of
from codl.validate.uses import OpUse, uses

#: Where something is wrong, checks leave this part of their time for the search of a fallback.
FOR_SEARCH = 0.25
#: The output that a layer's tensor becomes where all are looked at begins so.
TAP = "tap "
Outputs: TypeAlias = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Bench:
    """A model and a device on which plans of it are checked; `samples` are inputs by name.

    Ops are checked on the first of them, and outputs on all.
    """

    model: Model
    target: Target
    tuning: Tuning
    samples: Sequence[Values]
    #: Outputs that are not looked at.
    ignored: frozenset[str] = frozenset()
    _known: dict[int, Outputs] = field(default_factory=dict, init=False, repr=False, compare=False)

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
        return "references of ops" if self._by_onnx_runtime is None else "ONNX Runtime"

    def expected(self, number: int) -> Outputs:
        """The right outputs of a sample, computed once."""
        if number not in self._known:
            sample = self.samples[number] if number else self.first
            right = self.model.outputs(sample) if number else self._by_onnx_runtime
            by_ops = outputs_by_ops(self.network, sample) if right is None else right
            self._known[number] = {k: v for k, v in by_ops.items() if k not in self.ignored}
        return self._known[number]

    def engine(self, plan: Plan, network: Network | None = None) -> Engine:
        return Engine(network or self.network, plan, self.target, self.tuning)


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


def check_whole(
    bench: Bench, plan: Plan, most: int | None = None, *, budget: Budget | None = None
) -> WholeCheck:
    """Run a plan on every sample, or the first `most`, until the time is over; at least on one."""
    found: list[Closeness] = []
    outputs: list[Outputs] = []
    with bench.engine(plan) as engine:
        for number in range(len(bench.samples) if most is None else most):
            if found and budget is not None and budget.is_over():
                break
            got, right = engine(bench.samples[number]), bench.expected(number)
            found.append(worst(closeness(got[name], right[name]) for name in right))
            outputs.append(got)
        return WholeCheck(tuple(found), tuple(outputs), engine.fallbacks, engine.executable)


def check_ops(
    bench: Bench,
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
    executable = whole.executable
    network, parts = bench.network, uses(executable, bench.network)
    tapped, lost = _tapped(bench, plan, executable)
    accumulated: dict[str, Closeness] = {}
    holders = {holder for holder, _ in network.outputs.values()}
    exact: dict[str, Exact] = {}

    def look(layer: Layer, value: Exact) -> None:
        if TAP + layer.name in tapped:
            accumulated[layer.name] = closeness(tapped.pop(TAP + layer.name), value)
        if layer.output in holders:
            exact[layer.output] = value

    options: dict[str, Any] = {"look": look, "budget": budget, "is_wrong": is_wrong}
    checks = tuple(check_parts(bench, parts, progress, **options))
    is_whole = all(one.is_reached for one in checks)
    outputs = outputs_of(network, exact, bench.first) if is_whole else {}
    return OpsCheck(checks, accumulated, outputs, lost)


def check_parts(
    bench: Bench,
    parts: Sequence[OpUse],
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
    done, own = 0, (budget or Budget()).share()
    for number, result in check_in_turn(bench, [[part] for part in parts], look=look):
        done, is_wrong = number + 1, is_wrong or result.is_bad
        progress(done, len(parts), own.to_go_s(done, len(parts)))
        yield result
        keep = FOR_SEARCH if is_wrong else 0.0
        if done < len(parts) and (own.is_over() or not own.has_time(keep=keep)):
            break
    yield from map(not_reached, parts[done:])


def check_in_turn(
    bench: Bench,
    ladders: Sequence[Sequence[OpUse]],
    *,
    is_enough: Callable[[OpCheck], bool] = lambda result: False,
    look: Callable[[Layer, Exact], object] | None = None,
) -> Iterator[tuple[int, OpCheck]]:
    """Check several ways to compute each of some parts, in turn, until one is enough.

    All of one part have the same layer's output. Gives the number of the part with each result.
    """
    by_result, kept = _by_result(ladders, bench.network)
    for layer, there, value in computed(bench.network, bench.first, kept):
        for number in by_result.pop(layer.name, ()):
            for use in ladders[number]:
                result = check(use, there, value, bench.target)
                yield number, result
                if is_enough(result):
                    break
        if look is not None:
            look(layer, value)
        elif not by_result:
            return


def _by_result(
    ladders: Sequence[Sequence[OpUse]], network: Network
) -> tuple[dict[str, list[int]], dict[str, int]]:
    """The numbers of parts by the layer whose output they compute, and until which layer tensors
    are needed.
    """
    places = {layer.name: place for place, layer in enumerate(network.layers)}
    by_result: dict[str, list[int]] = {}
    kept: dict[str, int] = {}
    for number, ladder in enumerate(ladders):
        for use in ladder[:1]:
            by_result.setdefault(use.result.name, []).append(number)
        for name in (name for use in ladder for name in use.reads):
            kept[name] = max(places[ladder[0].result.name], kept.get(name, 0))
    return by_result, kept


def _tapped(
    bench: Bench, plan: Plan, executable: Executable
) -> tuple[dict[str, NDArray[Any]], str]:
    """What the plan computes of every layer that has a tensor, or why that is not known.

    The kernels are the plan's own; what is kept inside a chain is handed over besides.
    """
    network = _with_taps(bench.network, executable)
    try:
        with bench.engine(replace(plan, digest=network.digest), network) as engine:
            engine.feed(bench.first)
            engine.run()
            return {n: a.copy() for n, a in engine.outputs.items() if n.startswith(TAP)}, ""
    except CodlError as error:
        return {}, " ".join(str(error).split())


def _with_taps(network: Network, executable: Executable) -> Network:
    """The network with every tensor an output, but those inside of a kernel."""
    inside = {name for names in executable.fused.values() for name in names[:-1]}
    taps = {
        TAP + layer.name: (layer.output, tuple(layer.op.output))
        for layer in network.layers
        if layer.name not in inside
    }
    return replace(network, outputs={**network.outputs, **taps})
