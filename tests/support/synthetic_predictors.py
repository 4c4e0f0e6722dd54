"""Predictors made from known laws: what the planner asks, with every term of its costs or few."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from codl.ir import OP_TYPES, Op, Shape
from codl.ir.records.soc import Soc
from codl.ir.types import BLOCKED, PROCESSORS, Direction, Processor
from codl.kernels import registry
from codl.plan.cost_model import CostModel, VariantCost
from codl.plan.strategies.base import Context
from codl.predict.features import CONTEXT, STORAGES, Item, mulayer_target, sharing_target
from codl.predict.in_network_cost import InNetworkCost, InNetworkCosts
from support.simulated import WITH_IMAGES

Milliseconds = NDArray[np.float64]


class Line(NamedTuple):
    """`ms` and as much more for each million: of bytes that are moved, or of launches."""

    ms: float
    per_million: float = 0.0

    def at(self, amounts: Sequence[float]) -> Milliseconds:
        return self.ms + 1e-6 * self.per_million * np.array(amounts, np.float64)


#: Of one copy between the processors, where nothing else is asked for.
EXCHANGE = Line(0.01, 0.1)


def inside(call_ms: float, beside_ms: float = 3e-8) -> InNetworkCost:
    """Every cost that there is, of a memory of about 20 GB/s."""
    return InNetworkCost(1.1, call_ms, 5e-8, 6e-8, 3e-8, 4e-8, beside_ms)


def alike(target: str) -> float:
    """Every variant of an op takes as long as the others."""
    return 1.0


def apart(target: str) -> float:
    """Between 0.7 and 1.3 by the name of a target: no two variants take the same."""
    return 0.7 + 0.6 * (crc32(target.encode()) % 1009) / 1008


@dataclass(frozen=True)
class SyntheticPredictors:
    """The planner's `LatencyPredictors` by laws; a term that is not given has no predictor.

    An op takes `least_ms`, and what it computes or what it moves, whichever is longer; `gpu` times
    faster on the GPU; `times(target)` as long in a variant.
    """

    #: Operations and bytes in a millisecond, on the CPU.
    flops: float = 1e8
    bytes: float = inf
    gpu: float = 1.0
    least_ms: float = 1e-3
    times: Callable[[str], float] = alike
    #: The kinds of op that were measured, and the targets of those that were not.
    kinds: tuple[str, ...] = tuple(OP_TYPES)
    without: frozenset[str] = frozenset()
    few: Mapping[str, frozenset[str]] = field(default_factory=dict)
    #: An exchange between the processors: one copy, or by its parts for each direction.
    exchange: Line = EXCHANGE
    parts: Mapping[Direction, Mapping[str, Line]] = field(default_factory=dict)
    #: Into the CPU's nets and out of them: at the ends of its shards, and between two engines.
    packing: Line | None = None
    #: Between the storages of a GPU.
    relayout: Line | None = None
    #: What ops take more inside a network.
    inside: InNetworkCosts = field(default_factory=dict)
    #: So many launches that compute nothing.
    dispatch: Mapping[Processor, Line] = field(default_factory=dict)
    #: Milliseconds of a signal from one processor to the other, by what is measured.
    signals: Mapping[str, float] = field(default_factory=dict)
    name: str = "synthetic"
    #: The targets that were asked for, in order.
    asked: list[str] = field(default_factory=list, compare=False, repr=False)

    @classmethod
    def with_all_terms(cls, **changes: Any) -> SyntheticPredictors:
        """Every term that the planner knows, none of them too small to see."""
        terms: dict[str, Any] = {
            "bytes": 1e7,
            "gpu": 2.0,
            "times": apart,
            "parts": {
                "to_cpu": {
                    "transform": Line(0.002, 0.02),
                    "sync": Line(0.003),
                    "map": Line(0.002),
                    "copy": Line(0.001, 0.05),
                    "unmap": Line(0.001),
                },
                "to_gpu": {
                    "copy": Line(0.001, 0.06),
                    "unmap": Line(0.002),
                    "transform": Line(0.002, 0.03),
                    "map": Line(0.001),
                },
            },
            "packing": Line(0.002, 0.04),
            "relayout": Line(0.003, 0.03),
            "inside": {"cpu": inside(0.004), "gpu": inside(0.001)},
            "dispatch": {"gpu": Line(0.005, 2e3)},
            "signals": {"event_wait": 0.006},
        }
        return cls(**{**terms, **changes})

    @cached_property
    def targets(self) -> tuple[str, ...]:
        """What has a predictor, as a stored set of them would list it."""
        variants = [v for v in registry.VARIANTS.values() if v.op_kind in self.kinds]
        plain = [f"{v.op_kind}_{v.name}" for v in variants]
        flavors = [f"{name}_{flavor}" for name in plain for flavor in ("max", "avg", "constant")]
        mulayer = [mulayer_target(kind, side) for kind in self.kinds for side in PROCESSORS]
        names = (*mulayer, *plain, *flavors, *self._sharing_targets, *self._context_targets)
        return tuple(name for name in names if name not in self.without)

    @property
    def _sharing_targets(self) -> list[str]:
        relaid: tuple[Direction, ...] = ("relayout",) if self.relayout else ()
        packed: tuple[Direction, ...] = ("load", "store") if self.packing else ()
        ways: tuple[Direction, ...] = ("to_gpu", "to_cpu", *relaid)
        names = [sharing_target(way, storage) for way in ways for storage in STORAGES.values()]
        return names + [sharing_target(way, BLOCKED) for way in packed]

    @cached_property
    def _context_targets(self) -> list[str]:
        around = [f"dispatch_{side}" for side in self.dispatch]
        return around + [f"{name}_{CONTEXT[name].processor}" for name in self.signals]

    def latency_ms(self, target: str, items: Sequence[Item]) -> Milliseconds:
        self.asked.append(target)
        assert target in self.targets, f"the planner asked for {target!r}, which has no predictor"
        term, _, side = target.rpartition("_")
        rows: Sequence[Any] = items
        if target not in self._context_targets:
            return np.array([self._op_ms(target, op) for op in rows])
        if term in self.signals:
            return np.full(len(rows), self.signals[term])
        processor: Processor = "cpu" if side == "cpu" else "gpu"
        return self.dispatch[processor].at([item.number for item in rows])

    def _op_ms(self, target: str, op: Any) -> float:
        faster = self.gpu if "_gpu" in target else 1.0
        working_ms = max(op.flops / self.flops, op.bytes / self.bytes)
        return self.times(target) * (self.least_ms + working_ms / faster)

    def sharing_ms(
        self, direction: Direction, shapes: Sequence[Shape]
    ) -> Mapping[str, Milliseconds]:
        lines = {"load": self.packing, "store": self.packing, "relayout": self.relayout}
        own = lines[direction] or Line(0.0) if direction in lines else self.exchange
        parts = self.parts.get(direction, {"copy": own})
        amounts = [shape.bytes for shape in shapes]
        return {part: line.at(amounts) for part, line in parts.items()}


def of_few_kinds(**changes: Any) -> SyntheticPredictors:
    """Rates of computing and moving, twice as high on the GPU; only some kinds were measured."""
    kinds = ("conv2d", "pooling", "eltwise")
    ort = frozenset(f"{kind}_cpu_ort" for kind in kinds)
    return SyntheticPredictors(bytes=1e7, gpu=2.0, kinds=kinds, without=ort, **changes)


@dataclass(frozen=True)
class SyntheticContext(Context):
    """A strategy's context whose predictors follow a law, whatever they are called."""

    soc: Soc = WITH_IMAGES
    predictors: Any = field(default_factory=lambda: SyntheticPredictors(gpu=2.0))

    def cost(self, default: str, *, by_op: bool = False) -> CostModel:
        return CostModel(self.soc, self.predictors, by_op)


def synthetic_predictors() -> st.SearchStrategy[SyntheticPredictors]:
    """All terms, on SoCs whose processors and whose exchanges differ widely."""
    return st.builds(
        lambda gpu, exchange, beside, each_ms, signals: SyntheticPredictors.with_all_terms(
            gpu=gpu,
            parts={
                "to_cpu": {"transform": exchange, "map": Line(exchange.ms), "copy": exchange},
                "to_gpu": {"copy": exchange, "unmap": Line(exchange.ms), "transform": exchange},
            },
            inside={side: inside(each_ms, beside) for side in PROCESSORS},
            dispatch={"gpu": Line(each_ms, 1e6 * each_ms)},
            signals={} if signals is None else {"event_wait": signals},
        ),
        gpu=st.sampled_from([0.3, 1.0, 3.0]),
        exchange=st.builds(
            Line, st.sampled_from([1e-4, 0.01, 0.1]), st.sampled_from([0.0, 0.1, 2.0])
        ),
        beside=st.sampled_from([0.0, 1e-8, 1e-6]),
        each_ms=st.sampled_from([1e-4, 3e-3, 0.05]),
        signals=st.sampled_from([None, 0.0, 0.01, 0.2]),
    )


def fastest(cost: CostModel, op: Op, processor: Processor) -> VariantCost:
    """The fastest variant of an op that a processor has."""
    return next(iter(cost.fastest_by_storage(op, processor).values()))
