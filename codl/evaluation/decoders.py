"""Plans of a decoder's two steps, which keep the same part of each cache on each processor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, get_args

from codl.errors import CodlError
from codl.ir import Network
from codl.ir.plan import Chain, Plan
from codl.ir.region import Span
from codl.lower.partition import partition_plan
from codl.plan.build_plan import make_plan
from codl.plan.cost_model import WeightPlaces
from codl.plan.coverage import covered
from codl.predict import DEFAULT
from codl.records.soc import Soc
from codl.strategies.base import Context, Strategy

if TYPE_CHECKING:  # other strategies need no ONNX
    from codl.frontend.decoders import Step


class Kept(NamedTuple):
    """The groups of heads whose cache each processor keeps, of all that an op has."""

    cpu: Span
    gpu: Span
    groups: int

    @property
    def split(self) -> Kept:
        """The nearest in which no group is kept twice: the GPU has the first ones."""
        # Groups that both keep are the GPU's up to the half of them.
        shared = (self.cpu.size + self.gpu.size - self.groups + 1) // 2
        cut = min(self.gpu.size, self.groups - self.cpu.size + shared)
        return Kept(Span(cut, self.groups), Span(0, cut), self.groups)

    @property
    def sizes(self) -> tuple[int, int]:
        return self.cpu.size, self.gpu.size


#: Where weights may be: wherever each step is fastest, or each on one processor, the same in both.
Weights: TypeAlias = Literal["anywhere", "once"]
WEIGHTS: tuple[str, ...] = get_args(Weights)
#: Tokens of a prompt, and new ones, whose time is to be least where one step follows the other.
TOKENS = (512, 128)


def plan_steps(
    prefill: Step,
    decode: Step,
    strategy: Strategy,
    context: Context,
    *,
    weights: Weights = "anywhere",
    tokens: tuple[int, int] = TOKENS,
) -> tuple[Plan, Plan]:
    """A strategy's plans of both steps: decoding's has its way with caches, and the other follows.

    Where weights are to be there `once`, one step has its way with them: the one with which
    `tokens` of a prompt, and new ones, are predicted to take least. Raises `CodlError` where the
    strategy has no such plans.
    """
    networks = prefill.network, decode.network
    if weights == "once":
        runs = -(-tokens[0] // prefill.tokens), tokens[1]
        plans: Sequence[Plan] = _with_weights_once(networks, strategy, context, runs)
    else:
        plans = [strategy.plan(network, context) for network in networks]
    kept = {name: parts.split for name, parts in kept_of(networks[1], plans[1], context.soc)}
    first, second = (
        _keeping(network, plan, kept, context)
        for network, plan in zip(networks, plans, strict=True)
    )
    return first, second


def _with_weights_once(
    networks: tuple[Network, Network], strategy: Strategy, context: Context, runs: tuple[int, int]
) -> list[Plan]:
    """Plans with the same weights on each processor; `runs` says how often each runs."""
    pairs: list[list[Plan]] = []
    problems: list[CodlError] = []
    for leader, follower in ((networks[1], networks[0]), networks):
        try:
            plan = strategy.plan(leader, replace(context, places=WeightPlaces(once=True)))
            following = replace(context, places=WeightPlaces.of(leader, plan, context.soc))
            other = strategy.plan(follower, following)
            pairs.append([plan, other] if leader is networks[0] else [other, plan])
        except CodlError as error:
            problems.append(error)
    if not pairs:
        raise problems[-1]

    def taken_ms(plans: Sequence[Plan]) -> float:
        return sum(n * (plan.predicted_ms or 0.0) for n, plan in zip(runs, plans, strict=True))

    return min(pairs, key=taken_ms)


def kept_of(network: Network, plan: Plan, soc: Soc) -> Iterator[tuple[str, Kept]]:
    """What each processor keeps of the cache of every layer that has one."""
    nothing = Span(0, 0)
    for segment in partition_plan(network, plan, soc).segments:
        sides = [
            {part.layer.name: part for part in side.parts} for side in (segment.cpu, segment.gpu)
        ]
        for name in {**sides[0], **sides[1]}:
            parts = [side.get(name) for side in sides]
            op = next(part for part in parts if part is not None).layer.op
            if op.states:
                cpu, gpu = (nothing if part is None else part.region.rows for part in parts)
                yield name, Kept(cpu, gpu, op.output.h)


def _keeping(network: Network, plan: Plan, kept: Mapping[str, Kept], context: Context) -> Plan:
    """The plan with layers that would keep something else cut otherwise.

    Each of these layers becomes a chain of its own.
    """
    others = _others(network, plan, kept, context.soc)
    if not others:
        return plan
    chains = [part for chain in plan.chains for part in _apart(chain, others, kept)]
    return make_plan(
        network,
        covered(context.cost(DEFAULT), network),
        chains,
        strategy=plan.strategy,
        sharing=plan.sharing,
        method=plan.method,
    )


def _others(network: Network, plan: Plan, kept: Mapping[str, Kept], soc: Soc) -> set[str]:
    """The layers of which a plan keeps something else."""
    planned = dict(kept_of(network, plan, soc))
    return {name for name, wanted in kept.items() if planned[name].sizes != wanted.sizes}


def _apart(chain: Chain, others: set[str], kept: Mapping[str, Kept]) -> Iterator[Chain]:
    """A chain without some layers, and those, in order."""
    run: list[str] = []
    for name in chain.ops:
        if name not in others:
            run.append(name)
            continue
        ratio = kept[name].gpu.size / kept[name].groups
        if run:
            yield replace(chain, ops=tuple(run), variants={})
        run = []
        yield Chain((name,), "H", ratio, {})
    if run:
        yield Chain(tuple(run), chain.dim, chain.gpu_ratio, {})
