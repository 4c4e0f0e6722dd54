"""A scripted device: plans take what a cost model says, times factors, by a clock that only runs
when something is loaded or runs. Nothing is computed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any
from zlib import crc32

import numpy as np

from codl.ir import parse
from codl.ir.executable import Executable
from codl.ir.records.results import Latency, TimeSpan
from codl.kernels.tuning import Tuning
from codl.machine.placement import LocalSoc, Placement
from codl.measure.timing import AnchorTime, Effort, TimedTogether
from codl.plan.cost_model import CostModel
from codl.plan.price import StageTimes, predicted_timeline, stage_times, walk
from support.simulated import SOC
from support.synthetic_predictors import SyntheticContext

CORES = range(SOC.gpu.compute_units if SOC.gpu.is_cpu else 0)
LOCAL = LocalSoc(**vars(SOC), placement=Placement("icd", (len(CORES),), tuple(CORES)))
#: Seconds to load an executable, to search beside it, and to run it once besides its latency.
LOAD_S = 0.5


@dataclass
class ScriptedTarget:
    """The device of `LOCAL`.

    `alone` and `shards` are by processor how many times as long as `truth` says nets and kernels
    take: of plans of one processor, and of split ones. `layers` is the standard deviation of a
    further log factor of each op. Everything takes `slower` times as long. These may change while
    the device runs. In the comparisons of the numbers `disturbed`, another program is at work in
    the turns of plans compared before, which take 3 times as long. `fails` raises for a plan that
    is to fail, before it is loaded.
    """

    truth: CostModel
    alone: Mapping[str, float] = field(default_factory=dict)
    shards: Mapping[str, float] = field(default_factory=dict)
    layers: float = 0.0
    slower: float = 1.0
    disturbed: Collection[int] = ()
    fails: Any = None
    driver: str = "1.0"
    anchor: float = 1.0
    now: float = 1000.0
    #: What was loaded, and the seconds that running took in all.
    loaded: list[Executable] = field(default_factory=list)
    ran_s: float = 0.0
    runs: int = 0
    compared: int = 0
    known: set[str] = field(default_factory=set)

    soc = LOCAL
    replays = None

    def open(self) -> Mapping[str, str]:
        return {"driver": self.driver}

    def libraries(self) -> Mapping[str, str]:
        return {"ncnn": "1"}

    def load(self, executable: Executable) -> Any:
        if self.fails is not None:
            self.fails(executable)
        self.loaded.append(executable)
        self.now += self.slower * LOAD_S
        return ScriptedModel(self, executable)

    def time(
        self, models: Mapping[str, Any], effort: Effort, *, anchors: Tuning | None = None
    ) -> TimedTogether:
        begin, rounds = self.now, 0
        while rounds < effort.min_rounds or self.now - begin < effort.min_seconds:
            for model in models.values():
                for _ in range(effort.turn):
                    model.run()
            rounds += 1
        taken = {name: model.latency_ms for name, model in models.items()}
        if self.compared in self.disturbed:
            taken |= {name: 3 * taken[name] for name in self.known & set(taken)}
        self.known |= set(taken)
        self.compared += 1
        beside = () if anchors is None else (AnchorTime("op", "cpu", self.anchor),)
        latencies = {name: Latency(ms, ms, ms, rounds) for name, ms in taken.items()}
        return TimedTogether(latencies, anchors=beside)

    def times(self, executable: Executable) -> list[StageTimes]:
        """What every stage really takes."""
        is_alone = not (executable.nets and any(s.kernels_ms for s in self._plain(executable)))
        factors = self.alone if is_alone else self.shards
        stages = []
        for stage in self._plain(executable):
            nets = {
                n: self.slower * sum(self._layer_ms(executable, n, factors).values())
                for n in stage.nets_ms
            }
            kernels = {
                n: self.slower
                * ms
                * factors.get("gpu", 1.0)
                * self._op_factor(executable.steps[n].label)
                for n, ms in stage.kernels_ms.items()
            }
            stages.append(replace(stage, nets_ms=nets, kernels_ms=kernels))
        return stages

    def _plain(self, executable: Executable) -> tuple[StageTimes, ...]:
        return stage_times(executable, self.truth)

    def _layer_ms(
        self, executable: Executable, net: int, factors: Mapping[str, float]
    ) -> dict[str, float]:
        return {
            layer.name: self.truth.variant_ms(parse(layer.op), "cpu", layer.variant)
            * factors.get("cpu", 1.0)
            * self._op_factor(layer.name)
            for layer in executable.nets[net].layers
        }

    def _op_factor(self, name: str) -> float:
        """A factor of the layer's own, the same for all of its parts on either processor."""
        random = np.random.default_rng(crc32(name.split(" ")[0].encode()))
        return float(np.exp(self.layers * random.standard_normal()))


@dataclass
class ScriptedModel:
    """What a scripted device has loaded."""

    target: ScriptedTarget
    executable: Executable

    limited = None
    lock = nullcontext()

    def __post_init__(self) -> None:
        ports = {**self.executable.inputs, **self.executable.outputs}
        arrays = {name: np.zeros(port.shape, np.float32) for name, port in ports.items()}
        self.inputs = {name: arrays[name] for name in self.executable.inputs}
        self.outputs = {name: arrays[name] for name in self.executable.outputs}
        self.footprint = SimpleNamespace(total=0)
        self._seen: dict[str, tuple[list[StageTimes], float]] = {}

    def _now(self) -> tuple[list[StageTimes], float]:
        """What stages and the whole take by the target's factors as they are now."""
        target = self.target
        factors = str((target.alone, target.shards, target.slower))
        if factors not in self._seen:
            times = target.times(self.executable)
            self._seen[factors] = times, walk(self.executable, times).latency_ms
        return self._seen[factors]

    @property
    def _times(self) -> list[StageTimes]:
        return self._now()[0]

    @property
    def latency_ms(self) -> float:
        return self._now()[1]

    def run(self) -> None:
        self.target.runs += 1
        self.target.now += 1e-3 * self.latency_ms
        self.target.ran_s += 1e-3 * self.latency_ms

    def profile(self, *, layers: bool = False) -> list[TimeSpan]:
        self.run()
        spans = [x.span for x in predicted_timeline(self.executable, self._times)]
        if layers:
            slower, is_alone = self.target.slower, not any(s.kernels_ms for s in self._times)
            factors = self.target.alone if is_alone else self.target.shards
            for number in range(len(self.executable.nets)):
                parts = self.target._layer_ms(self.executable, number, factors)
                spans += [TimeSpan("cpu", "layer", n, 0.0, slower * ms) for n, ms in parts.items()]
        return spans

    def close(self) -> None:
        pass


def context_of(
    target: ScriptedTarget, predictors: Any, profiling: Any, **more: Any
) -> SyntheticContext:
    """A context whose clock is the device's."""
    return SyntheticContext(
        LOCAL,
        target=target,  # type: ignore[arg-type]
        predictors=predictors,
        profiling=profiling,
        clock=lambda: target.now,
        **more,
    )
