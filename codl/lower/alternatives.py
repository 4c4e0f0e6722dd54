"""Versions of a plan for other speeds of the GPU, or for none, which an engine switches to.

A plan is balanced for the speeds that it was made for. Where the GPU is `scale` times as fast
beside the CPU as then, the shares that balance it again follow from the shares that were: each
goes by its processor's speed, and both are made one again (`shifted`). Without a GPU all is the
CPU's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, log

from codl.errors import CodlError, UnsupportedError
from codl.ir.executable import Executable, GpuOp, Launch, NcnnNet, RunNet, Stage
from codl.ir.network import Layer, Network
from codl.ir.plan import Chain, Plan
from codl.kernels import registry
from codl.lower.nets import without_hints
from codl.records.soc import Soc

STRATEGY = "cpu"


def on_cpu(network: Network, plan: Plan, soc: Soc, *, but: Collection[str] = ()) -> Plan:
    """Every layer on the CPU alone, in the variant that the plan has there, or else the default.

    None has a backend of `but` where another one has a variant. Raises `UnsupportedError` with the
    first layer that the CPU has no variant for.
    """
    planned = {
        name: sides.get("cpu") for chain in plan.chains for name, sides in chain.variants.items()
    }
    variants = {
        layer.name: {"cpu": _variant(layer, planned.get(layer.name), soc, but)}
        for layer in network.layers
    }
    whole = Chain(tuple(variants), "H", 0.0, variants)
    return replace(
        plan,
        strategy=STRATEGY,
        predictor="none",
        sharing="gather",
        predicted_ms=None,
        predicted_mj=None,
        chains=(whole,) if variants else (),
        sums={},
        method="the GPU failed",
    )


def _variant(layer: Layer, planned: str | None, soc: Soc, but: Collection[str]) -> str:
    """The planned one, if it takes the whole op too; what was planned may have been for a part."""
    variants = registry.variants(layer.op, "cpu", soc)
    if but and variants:
        fit = registry.variants(layer.op, "cpu", soc, include_unfit=True)
        variants = [variant for variant in fit if variant.backend not in but] or variants
    names = [variant.name for variant in variants]
    if not names:
        raise UnsupportedError(
            f"The CPU has no kernel variant for {layer.name!r} ({layer.op.kind})."
        )
    return planned if planned in names else names[0]


#: Speeds of the GPU beside the CPU, in thirds of an octave around the plan's own: wherever between
#: two of them the truth lies, the nearer one is 12 % off, and that costs 6 % at the most.
SCALES = tuple(2 ** (third / 3) for third in range(-3, 4))


def shifted(gpu_ratio: float, scale: float) -> float:
    """The ratio that is balanced where the GPU is `scale` times as fast beside the CPU."""
    gpu = scale * gpu_ratio
    return gpu / (gpu + (1 - gpu_ratio))


@dataclass(frozen=True)
class Weights:
    """Bytes of weights, as the model has them, by what can have them in common.

    What has the same key on the GPU reads the first of the largest; nets of the CPU with the same
    key are the same.
    """

    gpu: Mapping[Hashable, int]
    cpu: Mapping[Hashable, int]

    def more(self, held: Iterable[Weights], gpu_factor: float) -> float:
        """The bytes that this takes beside what is held; those of the GPU times a factor."""
        weights_held = [*held]
        gpu = sum(
            max(0, taken - max((other.gpu.get(key, 0) for other in weights_held), default=0))
            for key, taken in self.gpu.items()
        )
        cpu = sum(
            taken
            for key, taken in self.cpu.items()
            if not any(other.cpu.get(key) == taken for other in weights_held)
        )
        return cpu + gpu_factor * gpu


def weights_by_chain(executable: Executable) -> dict[str, Weights]:
    """The weights of every chain, by its label."""
    return {stage.label: _weights(executable, stage) for stage in executable.stages}


def gpu_weights(executable: Executable) -> int:
    """Bytes of the weights of all kernels, as the model has them."""
    return sum(sum(weights.gpu.values()) for weights in weights_by_chain(executable).values())


def alternatives(
    network: Network,
    plan: Plan,
    how: Callable[[Plan], Executable],
    *,
    budget: float,
    gpu_factor: float,
    scales: Sequence[float] = SCALES,
) -> dict[float, tuple[Plan, Executable]]:
    """The plan, at scale 1, and by scale what it becomes elsewhere, as far as that differs.

    `how` lowers plans; scales at which that fails are left out. Rows and images are cut anywhere
    over the same weights. A chain that is cut through its output channels has other weights on the
    CPU at every ratio, and on the GPU the first of those that it has at its largest. Where such
    weights would take more than `budget` bytes in all, chains keep the nearest ratio that they have
    already. Chains that compute most come first, and the scales farthest from 1. The weights of
    kernels count `gpu_factor` times what they are in the model.
    """
    base = how(plan)
    levels = _Levels(network, plan, weights_by_chain(base), gpu_factor)
    others = sorted({*scales} - {1.0}, key=lambda scale: (-round(abs(log(scale)), 9), -scale))
    for scale in others:
        budget -= levels.add(scale, how, budget)
    by_scale: dict[float, tuple[Plan, Executable]] = {1.0: (plan, base)}
    for scale in reversed(others):
        scaled = levels.plan(scale)
        try:
            executable = how(scaled)
        except CodlError:  # a variant of the plan does not do so few rows or channels
            continue
        if all(_differ(executable, other) for _, other in by_scale.values()):
            by_scale[scale] = scaled, executable
    return dict(sorted(by_scale.items()))


def _differ(first: Executable, other: Executable) -> bool:
    """Whether two executables of a network do different things: cuts are whole rows and blocks."""
    return (first.stages, first.nets, first.tensors) != (other.stages, other.nets, other.tensors)


class _Levels:
    """At which scales each chain of a plan has a ratio of its own, with what weights."""

    def __init__(
        self, network: Network, plan: Plan, weights: Mapping[str, Weights], gpu_factor: float
    ) -> None:
        self._plan, self._gpu_factor = plan, gpu_factor
        written, applied = plan.applied(network)
        self._flops = [_flops(layers) for _, layers in applied.layers(written)]
        self._held = [{1.0: weights.get(chain.label, Weights({}, {}))} for chain in plan.chains]

    def add(self, scale: float, how: Callable[[Plan], Executable], budget: float) -> float:
        """Take in as many chains as a budget is enough for; the bytes that they take."""
        chains, taken = self._plan.chains, 0.0
        try:
            weights = weights_by_chain(how(_at(self._plan, [scale] * len(chains))))
        except CodlError:
            return 0.0
        more = [
            weights[chain.label].more(held.values(), self._gpu_factor)
            if chain.label in weights
            else inf
            for chain, held in zip(chains, self._held, strict=True)
        ]
        for place in sorted(range(len(chains)), key=lambda p: more[p] / max(1, self._flops[p])):
            if taken + more[place] <= budget:
                taken += more[place]
                self._held[place][scale] = weights[chains[place].label]
        return taken

    def plan(self, scale: float) -> Plan:
        """The plan with every chain at the nearest scale that it has."""
        return _at(self._plan, [_nearest(held, scale) for held in self._held])


def _at(plan: Plan, scales: Sequence[float]) -> Plan:
    """A plan with each chain's ratio shifted by a scale; no prediction is of it."""
    chains = tuple(
        chain if scale == 1.0 else replace(chain, gpu_ratio=shifted(chain.gpu_ratio, scale))
        for chain, scale in zip(plan.chains, scales, strict=True)
    )
    return replace(plan, chains=chains, predicted_ms=None, predicted_mj=None)


def _nearest(held: Iterable[float], scale: float) -> float:
    return min(held, key=lambda other: (abs(log(other / scale)), abs(log(other))))


def _flops(layers: Sequence[Layer]) -> int:
    return sum(layer.op.flops for layer in layers)


def _weights(executable: Executable, stage: Stage) -> Weights:
    programs: dict[int, set[int]] = {}
    for command in stage.commands:
        if isinstance(command, Launch):
            programs.setdefault(command.step, set()).add(command.program)
    gpu: dict[Hashable, int] = {}
    for number, used in programs.items():
        step = executable.steps[number]
        if isinstance(step, GpuOp) and step.constants is not None:
            texts = frozenset(executable.programs[program] for program in used)
            gpu[step.label, step.variant, texts] = _bytes(executable, step.constants)
    cpu: dict[Hashable, int] = {}
    for command in stage.commands:
        if isinstance(command, RunNet):
            net = executable.nets[command.net]
            if isinstance(net, NcnnNet):
                for part in net.parts:
                    numbers = {weight.constants for weight in part.weights}
                    weight_bytes = sum(_bytes(executable, number) for number in numbers)
                    cpu[without_hints(part.param)] = weight_bytes
            else:
                cpu[net.model] = _bytes(executable, net.model.constants)
    return Weights(gpu, cpu)


def _bytes(executable: Executable, constants: int) -> int:
    weights = executable.constants[constants].weights or {}
    return sum(array.nbytes for array in weights.values())
