"""Stopping rule of a collection: it ends when more rows would change no plan.

Now and then predictors are fitted to the rows so far, and each model is planned by them. Its first
plan is kept. A later look that finds another plan prices the kept one by the newest predictors: as
long as that takes hardly longer than the new one, the plans count as unchanged; else the new one is
kept and counting begins anew. Some looks in a row without change end the collection. So plans may
not creep either: it is the plan from before the first of these looks that is as good as the last.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import msgspec

from codl import files
from codl.errors import CodlError
from codl.ir import Network
from codl.ir.plan import Plan, read_plan
from codl.lower import lower
from codl.measure.dataset import RESUMED, Dataset
from codl.measure.measurement_order import Tier
from codl.measure.tasks import Task
from codl.plan.coverage import covered
from codl.plan.price import price
from codl.predict import DEFAULT
from codl.strategies.base import STRATEGIES, Context

#: What plans; it must run nothing.
STRATEGY = "codl"
#: The part by which a kept plan may take longer than a new one and still count as unchanged.
TOLERANCE = 0.03
#: How many looks in a row at the end find the plans unchanged.
LOOKS = 3
#: A look comes with this share of more measurements than at the last one.
NEWS = 0.2
#: Where looks and plans are kept, beside the tables of the dataset, to go on after a kill.
FILE = "settling.json"
VERSION = 1


@dataclass(frozen=True)
class Look:
    """What came of a look when `measured` tasks were measured.

    `predicted_ms` is by model what its newest plan takes, and `behind` by how much longer the kept
    one does, as a part. The plans have been `unchanged` for that many looks, this one included.
    `problem` says why a model has no plan.
    """

    measured: int
    predicted_ms: Mapping[str, float]
    behind: Mapping[str, float]
    unchanged: int
    problem: str = ""


class _StoredLooks(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    of: dict[str, Any]
    looks: list[Look]
    plans: list[dict[str, Any]]


@dataclass
class PlanConvergence:
    """Chooser of a collection that ends when more would change no plan of some models.

    Tasks of the first tier are measured in any case, the others in the order given. `models` gives
    the networks, asked for once, at the first look. `total` tasks are there in all. Looks so far
    are read from the dataset's folder, where they are of the same models and rule.
    """

    models: Callable[[], Sequence[Network]]
    context: Context
    dataset: Dataset
    tiers: Mapping[Task, Tier]
    total: int
    tolerance: float = TOLERANCE
    looks: list[Look] = field(default_factory=list)
    _kept: dict[str, Plan] = field(default_factory=dict)
    _first_left: int | None = None
    _measured: int = 0
    _is_read: bool = False

    def choose(self, missing: Sequence[Task], seconds: float) -> Sequence[Task]:
        """Those of `missing` that come next; none once the plans have settled."""
        first = [task for task in missing if self.tiers.get(task) is Tier.WHOLE]
        self._first_left, self._measured = len(first), self.total - len(missing)
        if first:
            return first
        if not self._is_read:
            self._read()
        if not self.has_settled and self._measured >= self._next:
            self.look()
        return () if self.has_settled else missing

    @property
    def has_settled(self) -> bool:
        return bool(self.looks) and self.looks[-1].unchanged >= LOOKS

    def look(self) -> None:
        """Plan each model by predictors of all rows so far, and compare with the plan kept."""
        try:
            planned = self._planned()
        except CodlError as error:
            self.looks.append(Look(self._measured, {}, {}, 0, str(error)))
            return
        behind = {name: longer for name, (_, longer) in planned.items()}
        new = {
            name: plan
            for name, (plan, longer) in planned.items()
            if not longer <= self.tolerance or name not in self._kept
        }
        self._kept |= new
        before = self.looks[-1].unchanged if self.looks else -1
        unchanged = 0 if new else before + 1
        predicted = {name: plan.predicted_ms or 0.0 for name, (plan, _) in planned.items()}
        self.looks.append(Look(self._measured, predicted, behind, unchanged))
        self._write()

    def describe(self) -> str:
        """How far it is, as a line for people."""
        if not self.looks:
            more = f" after {self._first_left} more measurements" if self._first_left else ""
            return f"plans are looked at{more}"
        last, count = self.looks[-1], len(self._networks)
        if last.problem:
            return f"no plans yet: {last.problem}"
        models = f"{count} model" + ("s" if count > 1 else "")
        line = f"plans of {models} unchanged for {last.unchanged} of {LOOKS} looks"
        name = max(last.behind, key=lambda name: last.behind[name])
        if last.unchanged == 0 and last.behind[name] > self.tolerance:
            line += f"; {name} became {last.behind[name]:.1%} faster"
        if not self.has_settled:
            line += f"; next look after {max(0, self._next - self._measured)} more measurements"
        return line

    def to_json(self) -> dict[str, Any]:
        """The looks and the rule."""
        rule = {"tolerance": self.tolerance, "wanted": LOOKS, "has_settled": self.has_settled}
        return {**rule, "looks": [asdict(look) for look in self.looks]}

    @property
    def _next(self) -> int:
        """How many tasks are measured when the next look comes."""
        last = self.looks[-1].measured if self.looks else 0
        return round((1 + NEWS) * last)

    @cached_property
    def _networks(self) -> Sequence[Network]:
        return self.models()

    def _planned(self) -> dict[str, tuple[Plan, float]]:
        """By model the newest plan, and how much longer than that the kept one takes, as a part."""
        from codl.predict.training import fitted  # the libraries of predictors are slow to import

        soc, tuning = self.context.soc, self.context.tuning
        context = self.context.with_predictors(fitted(soc, self.dataset, tuning))
        planned = {}
        for network in self._networks:
            plan = STRATEGIES.find(STRATEGY).plan(network, context)
            kept = self._kept.get(network.name, plan)
            planned[network.name] = plan, longer(kept, plan, network, context)
        return planned

    @cached_property
    def _of(self) -> dict[str, Any]:
        """What looks must be of to be gone on with."""
        return {
            "models": {network.name: network.digest for network in self._networks},
            "tuning": self.context.tuning.fingerprint,
            "tolerance": self.tolerance,
            "news": NEWS,
        }

    def _read(self) -> None:
        """Go on with the looks in the file; where it is none or of something else, begin anew."""
        self._is_read, path = True, self.dataset.folder / FILE
        try:
            file = msgspec.convert(files.read_json(path), _StoredLooks)
            plans = [read_plan(plan, path) for plan in file.plans]
        except (msgspec.ValidationError, CodlError):
            return
        digests = {plan.model: plan.digest for plan in plans}
        if file.version != VERSION or file.of != self._of or digests != self._of["models"]:
            return
        if file.looks and file.looks[-1].measured <= self._measured:
            self.looks, self._kept = file.looks, {plan.model: plan for plan in plans}

    def _write(self) -> None:
        content = {
            "version": VERSION,
            "of": self._of,
            "looks": [asdict(look) for look in self.looks],
            "plans": [plan.to_json() for plan in self._kept.values()],
        }
        files.write(self.dataset.folder / FILE, json.dumps(content, indent=1) + "\n", fix=RESUMED)


def longer(kept: Plan, new: Plan, network: Network, context: Context) -> float:
    """By how much longer the kept plan takes than the new one, by the new one's predictors."""
    if kept.chains == new.chains:
        return 0.0
    cost = covered(context.cost(DEFAULT), network)
    kept_ms, new_ms = (
        price(lower(network, plan, context.soc, context.tuning), cost).latency_ms
        for plan in (kept, new)
    )
    return kept_ms / new_ms - 1
