"""Terms of predictions and rules of planning that can be switched off, each by one name.

A cost model without a term plans and prices as if that term counted as nothing; one without a rule
as if nobody had thought of it. Of sharing and launches the first can be said of a stage's times too
(`codl.plan.price.StageTimes`); most terms are part of what nets and kernels take.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
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
from codl.predict.in_network_cost import NOTHING, InNetworkCosts


@dataclass(frozen=True)
class Term:
    """What is counted, or done, and what makes that nothing.

    That is predictors without some `targets`, `ways` in which tensors change their layout and which
    then take 0, other values of some costs `inside` a network, and of some `rules`.
    """

    what: str
    targets: tuple[str, ...] = ()
    ways: tuple[Direction, ...] = ()
    inside: Mapping[str, float] = field(default_factory=dict)
    rules: Mapping[str, Any] = field(default_factory=dict)


def _both(kind: str) -> tuple[str, ...]:
    return tuple(f"{kind}_{side}" for side in PROCESSORS)


CACHES = dict.fromkeys(("weight_ms", "read_ms", "written_ms", "far_weight_ms"), 0.0)
SIGNALS = ("event_wait_cpu", "flag_wait_cpu")
#: Every term by its name.
TERMS: Mapping[str, Term] = {
    "inside": Term("ops take more inside a network than alone", inside=asdict(NOTHING)),
    "caches": Term("ops inside a network find weights and inputs farther away", inside=CACHES),
    "batch": Term("several images at once take less than one after another", _both("batch")),
    "contention": Term("each processor slows the other down", inside={"beside_ms": 0.0}),
    "net-calls": Term("nets and kernels are called", inside={"call_ms": 0.0}),
    "launches": Term("the CPU enqueues kernels", ("dispatch_gpu",)),
    "first-launch": Term("a launch is on its way to a GPU without work", ("first_launch_gpu",)),
    "waits": Term("the CPU learns of a kernel's end later, as measured by itself", SIGNALS),
    "sharing": Term("regions move between the processors", ways=("to_gpu", "to_cpu")),
    "packing": Term(
        "ncnn packs and unpacks tensors", ways=("load", "store"), inside={"packed_ms": 0.0}
    ),
    "relayouts": Term("the GPU copies tensors from one storage to another", ways=("relayout",)),
    "added-inside": Term(
        "residual adds cost less inside a convolution's kernels", rules={"added_inside": 1.0}
    ),
    "joins-onnx": Term(
        "light layers are ONNX Runtime's where their neighbours are", rules={"joins_onnx": False}
    ),
    "merges": Term("neighbouring chains are tried as one", rules={"merges": False}),
    "image-splits": Term("whole images are tried on either processor", rules={"image_splits": 0}),
    "partial-sums": Term("products run as partial sums", rules={"adds_terms": False}),
    "wide-search": Term("networks of few chains are searched twice", rules={"few_chains": -1}),
    "worth": Term("one processor alone, unless two gain more than the error", rules={"worth": inf}),
}


@dataclass(frozen=True)
class SwitchedOff(Delegating):
    """Predictors that know nothing of some targets, and for which some ways take 0.

    `costs` inside a network are other ones.
    """

    without: frozenset[str]
    free: frozenset[Direction]
    costs: Mapping[str, float]

    @cached_property
    def inside(self) -> InNetworkCosts:
        known = self.predictors.inside
        return {side: replace(own, **self.costs) for side, own in known.items()}

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
    costs = {name: value for term in terms for name, value in term.inside.items()}
    if targets or ways or costs:
        cost = cost.with_predictors(SwitchedOff(cost.predictors, targets, ways, costs))
    rules = {name: value for term in terms for name, value in term.rules.items()}
    return cost.with_rules(**rules) if rules else cost
