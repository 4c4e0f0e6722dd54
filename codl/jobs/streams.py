"""The engines of streams: the plans of each processor alone, and of both."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil
from typing import TYPE_CHECKING

from codl.engine.engine import Engine
from codl.errors import CodlError, InvalidFileError
from codl.ir import Network
from codl.ir.plan import Plan
from codl.ir.types import PROCESSORS, Processor
from codl.machine import threads
from codl.machine.placement import LocalSoc, require_local
from codl.plan.build_plan import ALONE, preferring
from codl.plan.strategies import Context, find
from codl.targets.connect import connect
from codl.validate.first_check import checked_engine

if TYPE_CHECKING:
    from codl.engine.stream import Lanes
    from codl.frontend.convert import Source

#: The name of a plan on both processors, beside those of processors alone.
SPLIT = "split"
#: A second processor must add this part to the frames of the other one: a smaller gain is not worth
#: frames that wait for the slower one.
WORTH = 0.05
#: Serials of this machine, whose spare cores are known.
SERIALS_HERE = ("local", "process")
#: Frames of one engine: one that runs, and one that is read meanwhile.
LEAST_IN_FLIGHT = 2


@dataclass(frozen=True)
class StreamPlan:
    """The plans that a stream may run, by `cpu`, `gpu` and `split`, and milliseconds of each.

    A plan whose latency is neither measured nor predicted has none.
    """

    plans: Mapping[str, Plan]
    latency_ms: Mapping[str, float]

    @property
    def chosen(self) -> tuple[str, ...]:
        """The plans that share out the frames, the fastest first.

        Both processors side by side where a latency is unknown.
        """
        both = tuple(name for name in PROCESSORS if name in self.plans)
        if len(both) == 2 and not all(name in self.latency_ms for name in both):
            return both
        known = sorted(self.latency_ms, key=self.latency_ms.__getitem__)
        best: tuple[str, ...] = tuple(known[:1]) or tuple(self.plans)[:1]
        pair = tuple(name for name in known if name in both)
        is_worth_it = len(pair) == 2 and self.frames_per_s(*pair) > (1 + WORTH) * self.frames_per_s(
            *best
        )
        return pair if is_worth_it else best

    def frames_per_s(self, *names: str) -> float:
        """The expected rate of plans that run at once; each must have a latency."""
        return sum(1e3 / self.latency_ms[name] for name in names)

    @property
    def in_flight(self) -> int:
        """The frames that keep the chosen plans busy.

        While the slower one runs one frame, results of the faster one wait for it.
        """
        times = [self.latency_ms[name] for name in self.chosen if name in self.latency_ms]
        waiting = ceil(max(times) / min(times)) if len(times) > 1 else len(self.chosen) - 1
        return LEAST_IN_FLIGHT + waiting


def stream_plan(network: Network, context: Context, plan: Plan) -> StreamPlan:
    """The plans of each processor alone, and `plan` where it is on both.

    With a profile, the fastest of a processor's plans that ran; otherwise what its strategy plans.
    """
    plans: dict[str, Plan] = {}
    latency_ms: dict[str, float] = {}

    def add(name: str, plan: Plan, ms: float | None) -> None:
        plans[name] = plan
        if ms:
            latency_ms[name] = ms

    for processor in PROCESSORS:
        with suppress(CodlError):  # no variant of an op, or no plan that runs
            add(processor, *_alone(network, context, processor))
    if plan.is_split:
        profile = context.profiling.of(network) if context.profiling else None
        ran = profile.run_of(plan) if profile else None
        add(SPLIT, plan, ran.latency_ms if ran else plan.predicted_ms)
    return StreamPlan(plans, latency_ms)


def _alone(network: Network, context: Context, processor: Processor) -> tuple[Plan, float | None]:
    """The fastest known plan of one processor, and its latency in milliseconds."""
    if found := _ran(network, context, processor):
        return found
    try:
        plan = find(processor).plan(network, context)
    except InvalidFileError:  # no trained predictors
        return preferring(network, context.soc, processor), None
    return _ran(network, context, processor) or (plan, plan.predicted_ms)


def _ran(network: Network, context: Context, processor: Processor) -> tuple[Plan, float] | None:
    """The fastest plan of one processor that ran, and its latency in milliseconds."""
    profile = context.profiling.of(network) if context.profiling else None
    alone = [
        (run.plan, run.latency_ms)
        for run in (profile.runs if profile else ())
        if {chain.gpu_ratio for chain in run.plan.chains} == {ALONE[processor]}
    ]
    return min(alone, key=lambda found: found[1], default=None)


@dataclass
class StreamEngines:
    """The engines that streams of an engine may run, each made when it is first asked for.

    `source` is what first results are compared with; None for no comparison.
    """

    engine: Engine
    context: Context
    source: Source | None = None
    strict: bool = False
    _made: dict[str, Engine] = field(default_factory=dict)

    @cached_property
    def plan(self) -> StreamPlan:
        return stream_plan(self.engine.network, self.context, self.engine.plan)

    def lanes(self) -> Lanes:
        """The engines of the chosen plans; raises as building an engine does."""
        engines = {name: self.of(name) for name in self.plan.chosen}
        return self.engine.lanes_of(engines, self.plan.in_flight)

    def of(self, name: str) -> Engine:
        """The engine of one of the plans."""
        if name not in self._made:
            is_here = self.plan.plans[name].fingerprint == self.engine.plan.fingerprint
            self._made[name] = self.engine if is_here and name != "gpu" else self._build(name)
        return self._made[name]

    def _build(self, name: str) -> Engine:
        """An engine with the target of the first one; the GPU has a target of its own.

        Engines of one target take turns.
        """
        context, target = self.context, self.context.device
        with ExitStack() as stack:
            if name == "gpu":
                soc = off_the_cpu_side(require_local(context.soc), target.serial)
                target = stack.enter_context(closing(connect(target.serial, soc)))
            engine = checked_engine(
                self.engine.network,
                self.plan.plans[name],
                target,
                context.tuning,
                source=self.source,
                recovers=not self.strict,
                strict=self.strict,
            )
            engine.owned = stack.pop_all()
        return engine


def off_the_cpu_side(soc: LocalSoc, serial: str) -> LocalSoc:
    """The SoC for an engine of the GPU alone, whose calling thread leaves the CPU side its cores.

    It runs on the cores of an OpenCL device that is a CPU, whose waits then work through the queue.
    For a GPU it runs on cores of this machine that no side has, where there are some.
    """
    place = soc.placement
    spare = [core for core in threads.INITIAL_CORES if core not in place.cpu_cores]
    cores = place.gpu_cores or (tuple(spare) if serial in SERIALS_HERE else ()) or place.cpu_cores
    return replace(soc, placement=replace(place, cpu_cores=cores, cpu_threads=0))
