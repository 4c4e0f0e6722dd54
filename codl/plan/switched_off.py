"""Terms of predictions and rules of planning that can be switched off, each by one name.

A cost model without a term plans and prices as if that term counted as nothing; one without a rule
as if nobody had thought of it. Of sharing and launches the first can be said of a stage's times too
(`codl.plan.price.StageTimes`); most terms are part of what nets and kernels take.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codl.errors import UnknownNameError
from codl.ir import Shape
from codl.ir.types import PROCESSORS, Direction
from codl.plan.cost_model import CostModel
from codl.plan.coverage import Delegating


@dataclass(frozen=True)
class Term:
    """What is counted, or done, and what makes that nothing.

    That is predictors without some `targets`, `ways` in which tensors change their layout and which
    then take 0, and other values of some `rules`.
    """

    what: str
    targets: tuple[str, ...] = ()
    ways: tuple[Direction, ...] = ()
    rules: Mapping[str, Any] = field(default_factory=dict)


def _both(kind: str) -> tuple[str, ...]:
    return tuple(f"{kind}_{side}" for side in PROCESSORS)


SIGNALS = ("event_wait_cpu", "flag_wait_cpu")
#: Every term by its name.
TERMS: Mapping[str, Term] = {
    "cold": Term("ops inside a network find their weights in no cache", _both("cold")),
    "batch": Term("several images at once take less than one after another", _both("batch")),
    "contention": Term("each processor slows the other down", _both("contention")),
    "net-calls": Term("ops of one net are called once", ("dispatch_cpu",)),
    "launches": Term("the CPU enqueues kernels", ("dispatch_gpu",)),
    "first-launch": Term("a launch is on its way to a GPU without work", ("first_launch_gpu",)),
    "waits": Term("the CPU learns of a kernel's end later, as measured by itself", SIGNALS),
    "sharing": Term("regions move between the processors", ways=("to_gpu", "to_cpu")),
    "packing": Term("ncnn packs and unpacks tensors", ways=("load", "store")),
    "relayouts": Term("the GPU copies tensors from one storage to another", ways=("relayout",)),
    "added-inside": Term(
        "residual adds cost less inside a convolution's kernels", rules={"added_inside": 1.0}
    ),
    "least-share": Term(
        "calls that are saved leave a share of a net's ops", rules={"least_share": 0.0}
    ),
    "most-slowdown": Term("slowdowns have a limit", rules={"most_slowdown": inf}),
    "joins-onnx": Term(
        "light layers are ONNX Runtime's where their neighbours are", rules={"joins_onnx": False}
    ),
    "merges": Term("neighbouring chains are tried as one", rules={"merges": False}),
    "image-splits": Term("whole images are tried on either processor", rules={"image_splits": 0}),
    "wide-search": Term("networks of few chains are searched twice", rules={"few_chains": -1}),
    "worth": Term("one processor alone, unless two gain more than the error", rules={"worth": inf}),
}


@dataclass(frozen=True)
class SwitchedOff(Delegating):
    """Predictors that know nothing of some targets, and for which some ways take 0."""

    without: frozenset[str]
    free: frozenset[Direction]

    @cached_property
    def targets(self) -> tuple[str, ...]:
        return tuple(target for target in self.predictors.targets if target not in self.without)

    def sharing_ms(
        self, direction: Direction, shapes: Sequence[Shape]
    ) -> Mapping[str, NDArray[np.float64]]:
        if direction in self.free:
            return {"copy": np.zeros(len(shapes))}
        return super().sharing_ms(direction, shapes)


def without(cost: CostModel, *names: str) -> CostModel:
    """The same cost model without some terms; raises `UnknownNameError` for what is none."""
    for name in names:
        if name not in TERMS:
            raise UnknownNameError("term", name, TERMS)
    terms = [TERMS[name] for name in names]
    targets = frozenset(target for term in terms for target in term.targets)
    ways = frozenset(way for term in terms for way in term.ways)
    if targets or ways:
        cost = cost.with_predictors(SwitchedOff(cost.predictors, targets, ways))
    rules = {name: value for term in terms for name, value in term.rules.items()}
    return cost.with_rules(**rules) if rules else cost
