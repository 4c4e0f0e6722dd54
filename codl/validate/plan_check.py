"""A plan on a device: every op alone, the error as it adds up layer by layer, and the outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from time import monotonic
from typing import Any, TypeAlias

from numpy.typing import NDArray

from codl.errors import CodlError
from codl.ir import Layer, Network
from codl.ir.executable import Executable
from codl.ir.plan import Plan
from codl.ir.results import Fallback
from codl.kernels.tuning import Tuning
from codl.measure.progress import Progress, seconds_left
from codl.runtime.engine import Engine
from codl.targets.base import Target
from codl.validate.closeness import Closeness, closeness, worst
from codl.validate.op_checks import OpCheck, check
from codl.validate.references import Exact, Model, Values, computed, outputs_by_ops, outputs_of
from codl.validate.uses import OpUse, uses


def untold(done: int, total: int, left: float) -> None:
    """Progress that nobody is told of."""


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

    @property
    def network(self) -> Network:
        return self.model.network

    @cached_property
    def _by_onnx_runtime(self) -> tuple[Outputs | None, ...]:
        return tuple(self.model.outputs(sample) for sample in self.samples)

    @property
    def reference(self) -> str:
        """What makes the right outputs."""
        return "references of ops" if None in self._by_onnx_runtime else "ONNX Runtime"

    @cached_property
    def expected(self) -> tuple[Outputs, ...]:
        """The right outputs of every sample."""
        return tuple(
            outputs_by_ops(self.network, sample) if right is None else right
            for sample, right in zip(self.samples, self._by_onnx_runtime, strict=True)
        )

    def engine(self, plan: Plan, network: Network | None = None) -> Engine:
        return Engine(network or self.network, plan, self.target, self.tuning)


@dataclass(frozen=True)
class OpsCheck:
    """Every part of a plan's ops, the error that has added up behind every layer, and the outputs.

    `accumulated` lacks layers whose output is inside of a kernel that computes another too; `lost`
    says why it is empty. `outputs` are those of the first sample by the ops' references.
    """

    checks: tuple[OpCheck, ...]
    accumulated: Mapping[str, Closeness]
    outputs: Outputs
    lost: str = ""


@dataclass(frozen=True)
class WholeCheck:
    """A plan as it runs: its outputs for every sample beside the reference's.

    `refused` are the kernels that the device did not run, and `executable` what ran instead.
    """

    samples: tuple[Closeness, ...]
    outputs: tuple[Outputs, ...]
    refused: tuple[Fallback, ...]
    executable: Executable

    @property
    def worst(self) -> Closeness:
        return worst(self.samples)


def check_whole(bench: Bench, plan: Plan) -> WholeCheck:
    """Run a plan on every sample."""
    with bench.engine(plan) as engine:
        got = tuple(engine(sample) for sample in bench.samples)
        found = tuple(
            worst(closeness(own[name], right[name]) for name in right)
            for own, right in zip(got, bench.expected, strict=True)
        )
        return WholeCheck(found, got, engine.fallbacks, engine.executable)


def check_ops(
    bench: Bench, plan: Plan, executable: Executable, progress: Progress = untold
) -> OpsCheck:
    """Check every part that an executable of a plan computes, on the first sample."""
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

    checks = tuple(check_parts(bench, parts, progress, look=look))
    outputs = outputs_of(network, exact, bench.samples[0])
    return OpsCheck(checks, accumulated, outputs, lost)


def check_parts(
    bench: Bench,
    parts: Sequence[OpUse],
    progress: Progress = untold,
    *,
    look: Callable[[Layer, Exact], object] | None = None,
) -> Iterator[OpCheck]:
    """Check parts of ops on the reference's inputs, in the order of the model.

    `look` is given every layer's right output.
    """
    start, last = monotonic(), len(parts)
    alone = [[part] for part in parts]
    for done, (_, result) in enumerate(check_in_turn(bench, alone, look=look), start=1):
        progress(done, last, seconds_left(done, last, monotonic() - start))
        yield result


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
    for layer, there, value in computed(bench.network, bench.samples[0], kept):
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
            engine.feed(bench.samples[0])
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
