"""Plans of a decoder's two steps, which keep the same part of each cache on each processor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from codl.frontend.decoders import Step
from codl.ir import Network
from codl.ir.plan import Chain, Plan
from codl.ir.region import Span
from codl.ir.soc import Soc
from codl.lower.partition import partition_plan
from codl.plan.build_plan import make_plan
from codl.plan.coverage import covered
from codl.predict.names import DEFAULT
from codl.strategies.base import Context, Strategy


class Kept(NamedTuple):
    """The groups of heads whose cache each processor keeps, of all that an op has."""

    cpu: Span
    gpu: Span
    groups: int

    @property
    def split(self) -> Kept:
        """The nearest in which no group is kept twice: the GPU has the first ones."""
        cut = min(self.gpu.size, self.groups - self.cpu.size + self._shared)
        return Kept(Span(cut, self.groups), Span(0, cut), self.groups)

    @property
    def _shared(self) -> int:
        """Groups that both keep, less half of them."""
        return (self.cpu.size + self.gpu.size - self.groups + 1) // 2

    @property
    def sizes(self) -> tuple[int, int]:
        return self.cpu.size, self.gpu.size


def plan_steps(
    prefill: Step, decode: Step, strategy: Strategy, context: Context
) -> tuple[Plan, Plan]:
    """A strategy's plans of both steps: decoding's has its way, and the other follows it."""
    networks = prefill.network, decode.network
    plans = [strategy.plan(network, context) for network in networks]
    kept = {name: own.split for name, own in kept_of(networks[1], plans[1], context.soc)}
    first, second = (
        _keeping(network, plan, kept, context)
        for network, plan in zip(networks, plans, strict=True)
    )
    return first, second


def kept_of(network: Network, plan: Plan, soc: Soc) -> Iterator[tuple[str, Kept]]:
    """What each processor keeps of the cache of every layer that has one."""
    nothing = Span(0, 0)
    for segment in partition_plan(network, plan, soc).segments:
        sides = [
            {part.layer.name: part for part in own.parts} for own in (segment.cpu, segment.gpu)
        ]
        for name in {**sides[0], **sides[1]}:
            parts = [own.get(name) for own in sides]
            op = next(part for part in parts if part is not None).layer.op
            if op.states:
                cpu, gpu = (nothing if part is None else part.region.rows for part in parts)
                yield name, Kept(cpu, gpu, op.output.h)


def _keeping(network: Network, plan: Plan, kept: Mapping[str, Kept], context: Context) -> Plan:
    """The plan with layers that would keep something else in chains of their own."""
    own = dict(kept_of(network, plan, context.soc))
    others = {name for name, wanted in kept.items() if own[name].sizes != wanted.sizes}
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


def _apart(chain: Chain, others: set[str], kept: Mapping[str, Kept]) -> Iterator[Chain]:
    """A chain without some layers, and those, in order."""
    run: list[str] = []
    for name in chain.ops:
        if name not in others:
            run.append(name)
            continue
        if run:
            yield Chain(tuple(run), chain.dim, chain.gpu_ratio, {})
        run = []
        yield Chain((name,), "H", kept[name].gpu.size / kept[name].groups, {})
    if run:
        yield Chain(tuple(run), chain.dim, chain.gpu_ratio, {})
