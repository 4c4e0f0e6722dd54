"""Which terms of the cost model, rules, searches and predictors pay: plans without each.

    python scripts/bench/ablate.py --soc host --predicted -o ablation.json
    python scripts/bench/ablate.py --soc host --budget 1h --resume -o ablation.json

Variants of the planner that plans by default (`full`: the search `dp`, the predictor `codl`, with
every term of `codl.plan.coverage`): one term off, or another search or predictor; with
`--cross` every term off in every search with every predictor. `--other NAME=FOLDER` is a variant by
predictors that were trained otherwise, as on rows that were chosen in another order.

For every variant and model: whether the plan runs something else, and how long it takes by the full
model, as a ratio to the full planner's plan; and what the variant's model says of the full
planner's plan. Without `--predicted` changed plans run, in turns with the full planner's and either
processor alone. Results are written after each group of plans; `--resume` measures the others only.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import Any, cast

from ablation_tables import FULL, summary, table

from codl.cli.output import note
from codl.engine.engine import Engine
from codl.errors import CodlError, UnknownNameError
from codl.frontend.convert import load_network
from codl.frontend.models import MEASURED
from codl.ir import Network
from codl.ir.executable import Executable
from codl.ir.plan import Plan
from codl.ir.types import PROCESSORS
from codl.jobs.options import read_models, read_seconds
from codl.lower import lower
from codl.measure import dataset as datasets
from codl.measure import drift
from codl.measure.drift import slowdown
from codl.measure.inputs import random_inputs
from codl.measure.timing import Effort
from codl.plan.build_plan import one_processor, unless_alone
from codl.plan.cost_model import CostModel
from codl.plan.coverage import TERMS, covered, without
from codl.plan.price import stage_times, walk
from codl.plan.profile_feedback import paced
from codl.plan.search import search
from codl.predict import DEFAULT, FOLDER
from codl.provenance import provenance
from codl.records import soc as socs
from codl.records.results import Latency
from codl.strategies import Context
from codl.targets.connect import connect
from codl.targets.detect import load_local

METHOD = "dp"
METHODS, PREDICTORS = f"{METHOD},greedy", f"{DEFAULT},gbdt,codl_linear"
#: So many changed plans are measured beside the full planner's and the single processors.
GROUP = 5
LEAST_ROUNDS = 5


@dataclass(frozen=True)
class Variant:
    """A planner: a search, a predictor in a folder, and the terms that are off."""

    name: str
    folder: Path
    method: str = METHOD
    predictor: str = DEFAULT
    off: tuple[str, ...] = ()

    def cost(self, network: Network, contexts: Mapping[Path, Context]) -> CostModel:
        cost = replace(contexts[self.folder], predictor=self.predictor).cost(DEFAULT)
        return covered(without(cost, *self.off), network)

    def plan(self, network: Network, cost: CostModel) -> Plan:
        found = search(network, cost, self.name, method=self.method)
        return unless_alone(found, network, cost)


@dataclass(frozen=True)
class Planned:
    """What a variant makes of a model: a plan, what runs, and how long that took to find."""

    variant: Variant
    cost: CostModel
    plan: Plan
    executable: Executable
    search_ms: float

    @property
    def digest(self) -> str:
        return self.executable.digest()


@dataclass
class Group:
    """Latencies of plans that were measured together, by digest, and of either processor alone.

    `slower` is how many times slower each processor was by the anchors, where there are any.
    """

    model: str
    full: str
    plans: dict[str, dict[str, float]]
    alone: dict[str, dict[str, float]]
    slower: dict[str, float] | None


def main() -> None:
    args = arguments()
    content = Ablation(args).run()
    for line in table(content["rows"], content["variants"]):
        print(line)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--soc", default="host")
    parser.add_argument("--models", default=",".join(MEASURED), help="names or .onnx files")
    parser.add_argument("--batch", type=int, help="images at a time")
    parser.add_argument("--searches", default=METHODS)
    parser.add_argument("--predictor", default=PREDICTORS, help="names")
    parser.add_argument("--terms", default=",".join(TERMS))
    parser.add_argument("--cross", action="store_true", help="terms in every search and predictor")
    parser.add_argument("--other", action="append", default=[], metavar="NAME=FOLDER")
    parser.add_argument("--predicted", action="store_true", help="measure nothing")
    parser.add_argument("--budget", default="30m", help="for measuring: 90s, 30m, 2h")
    parser.add_argument("--resume", action="store_true", help="keep what FILE has measured")
    parser.add_argument("--dataset", type=Path, default=datasets.FOLDER)
    parser.add_argument("--predictors", type=Path, default=FOLDER)
    parser.add_argument("-o", "--output", type=Path, default=Path("ablation.json"))
    return parser.parse_args()


def variants(args: argparse.Namespace) -> list[Variant]:
    """The full planner first."""
    folder, terms = args.predictors, [term for term in args.terms.split(",") if term]
    for term in terms:
        if term not in TERMS:
            raise UnknownNameError("term", term, TERMS)
    methods = dict.fromkeys((METHOD, *args.searches.split(",")))
    predictors = dict.fromkeys((DEFAULT, *args.predictor.split(",")))
    found = []
    for method, predictor in product(methods, predictors):
        is_full = (method, predictor) == (METHOD, DEFAULT)
        base = FULL if is_full else f"{method} {predictor}"
        found.append(Variant(base, folder, method, predictor))
        for term in terms if is_full or args.cross else ():
            name = f"without {term}" if is_full else f"{base} without {term}"
            found.append(Variant(name, folder, method, predictor, (term,)))
    for text in args.other:
        name, _, other = text.partition("=")
        if not (name and other):
            raise CodlError(f"--other must be like rows-chosen=predictors-chosen, got {text!r}.")
        found.append(Variant(name, Path(other)))
    return found


class Ablation:
    """All models, one after another: planned by every variant, then measured."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args, self._variants = args, variants(args)
        soc = socs.load(args.soc) if args.predicted else load_local(args.soc)
        self._context = Context.of(
            soc,
            args.dataset,
            predictors_folder=args.predictors,
            target=None if args.predicted else connect("local", soc),
        )
        #: Which load predictors once.
        self._contexts = {
            own.folder: replace(self._context, predictors_folder=own.folder)
            for own in self._variants
        }
        self._left_s = read_seconds(args.budget)
        self._rows: list[dict[str, Any]] = []
        self._groups = kept(args.output) if args.resume else []

    def run(self) -> dict[str, Any]:
        models = read_models(self._args.models)
        done: list[dict[str, Any]] = []
        for at, model in enumerate(models):
            network = load_network(model, self._args.batch)
            planned, failed = self._planned(network, f"{network.name} ({at + 1} of {len(models)})")
            for took_s in self._measured(network, planned, self._left_s / (len(models) - at)):
                self._left_s -= took_s
                self._write([*done, *failed, *self._rows_of(network, planned)])
            done += [*failed, *self._rows_of(network, planned)]
            self._write(done)
        return self._write(done)

    def _planned(self, network: Network, title: str) -> tuple[list[Planned], list[dict[str, Any]]]:
        """What every variant makes of a model, the full planner first, and rows of failures."""
        planned, failed = [], []
        for at, variant in enumerate(self._variants):
            note(f"{title}: planning {variant.name} ({at + 1} of {len(self._variants)})")
            try:
                cost = variant.cost(network, self._contexts)
                start = perf_counter()
                plan = variant.plan(network, cost)
                search_ms = 1e3 * (perf_counter() - start)
                executable = lower(network, plan, self._context.soc, self._context.tuning)
                planned.append(Planned(variant, cost, plan, executable, search_ms))
            except CodlError as error:
                if variant.name == FULL:
                    raise
                row = {"variant": variant.name, "model": network.name, "status": "failed"}
                failed.append({**row, "reason": str(error)})
        return planned, failed

    # Measuring.

    def _measured(
        self, network: Network, planned: Sequence[Planned], budget_s: float
    ) -> Iterator[float]:
        """Measure what is not measured yet, group by group; the seconds that each took."""
        full = planned[0]
        known = {digest for own in self._of(network, full) for digest in own.plans}
        by_digest = {one.digest: one.plan for one in planned[1:] if one.digest not in known}
        by_digest.pop(full.digest, None)
        if self._context.target is None or not (by_digest or full.digest not in known):
            return
        digests = list(by_digest)
        parts = [digests[at : at + GROUP] for at in range(0, max(len(digests), 1), GROUP)]
        for at, part in enumerate(parts):
            if budget_s <= 0:
                note(f"{network.name}: the budget is over; --resume measures the others")
                return
            note(f"{network.name}: measuring group {at + 1} of {len(parts)}")
            start, share_s = perf_counter(), budget_s / (len(parts) - at)
            plans = {full.digest: full.plan, **{digest: by_digest[digest] for digest in part}}
            self._groups.append(self._timed(network, full, plans, share_s))
            took_s = perf_counter() - start
            budget_s -= took_s
            yield took_s

    def _timed(
        self, network: Network, full: Planned, plans: Mapping[str, Plan], seconds: float
    ) -> Group:
        """Plans and either processor alone, in turns, in about so many seconds."""
        context, start = self._context, perf_counter()
        alone = {p: one_processor(network, full.cost, p, strategy=p) for p in PROCESSORS}
        usual_ms = drift.first_ms(context.dataset)
        with ExitStack() as stack:
            loaded = {}
            for name, plan in {**plans, **alone}.items():
                engine = stack.enter_context(Engine(network, plan, context.device, context.tuning))
                engine.feed(random_inputs(network))
                loaded[name] = engine.loaded
            left_s = max(0.0, seconds - (perf_counter() - start))
            effort = Effort(min_rounds=LEAST_ROUNDS, min_seconds=left_s)
            anchors = context.tuning if usual_ms else None
            times = context.device.time(loaded, effort, anchors=anchors)
        found = {name: asdict(latency) for name, latency in times.latency_ms.items()}
        slower = slowdown(times.anchors, usual_ms)
        return Group(
            key(network),
            full.digest,
            {name: found[name] for name in plans if name in found},
            {side: found[side] for side in PROCESSORS if side in found},
            None if slower is None else dict(slower),
        )

    def _of(self, network: Network, full: Planned) -> list[Group]:
        return [own for own in self._groups if (own.model, own.full) == (key(network), full.digest)]

    # Results.

    def _rows_of(self, network: Network, planned: Sequence[Planned]) -> list[dict[str, Any]]:
        full, groups = planned[0], self._of(network, planned[0])
        return [self._row(network, one, full, groups) for one in planned]

    def _row(
        self, network: Network, one: Planned, full: Planned, groups: Sequence[Group]
    ) -> dict[str, Any]:
        """A variant's plan; `full_plan_ms` is what its model says of the full planner's plan."""
        predicted_ms, full_ms = priced(one, full.cost), priced(full, full.cost)
        full_plan_ms = priced(full, one.cost)
        row = {
            "variant": one.variant.name,
            "model": network.name,
            "status": "ok",
            "changed": one.digest != full.digest,
            "predicted_ms": predicted_ms,
            "predicted_ratio": predicted_ms / full_ms,
            "own_ms": priced(one, one.cost),
            "full_plan_ms": full_plan_ms,
            "full_plan_ratio": full_plan_ms / full_ms,
            "search_ms": one.search_ms,
            "chains": len(one.plan.chains),
            "method": one.plan.method,
        }
        group = next((own for own in groups if one.digest in own.plans), None)
        return row if group is None else {**row, **measured(one, full, group)}

    def _write(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        content = {
            "command": "ablate",
            **provenance(),
            "soc": self._context.soc.name,
            "batch": self._args.batch,
            "rows": rows,
            "variants": summary(rows),
            "groups": [asdict(group) for group in self._groups],
        }
        partial = self._args.output.with_name(self._args.output.name + ".tmp")
        partial.write_text(json.dumps(content, indent=1) + "\n")
        partial.replace(self._args.output)
        return content


def key(network: Network) -> str:
    return f"{network.name} {network.digest}"


def kept(path: Path) -> list[Group]:
    """What a former run has measured; nothing where there was none."""
    try:
        return [Group(**own) for own in json.loads(path.read_text())["groups"]]
    except FileNotFoundError:
        return []
    except (ValueError, TypeError, KeyError) as error:
        raise CodlError(f"{path} is no result of this script: {error!r}.") from error


def priced(one: Planned, cost: CostModel, slower: Mapping[str, float] | None = None) -> float:
    """Milliseconds of a plan by a model, on a machine that is so many times slower."""
    times = stage_times(one.executable, cost)
    return walk(one.executable, paced(times, slower or {})).latency_ms


def measured(one: Planned, full: Planned, group: Group) -> dict[str, Any]:
    """Latencies of one group: ratios to the full planner's plan and to the faster processor.

    And predictions over them, of the very speed that the machine had: by the full model, by the
    variant's, and by the variant's of the full planner's plan.
    """
    own, full_own = (Latency(**cast(Any, group.plans[x.digest])) for x in (one, full))
    alone = {side: Latency(**cast(Any, ms)).level for side, ms in group.alone.items()}
    return {
        "latency_ms": asdict(own),
        "measured_ratio": own.level / full_own.level,
        "alone_ms": alone,
        "speedup": min(alone.values()) / own.level if alone else None,
        "slowdown": group.slower,
        "predicted_over_measured": priced(one, full.cost, group.slower) / own.level,
        "own_over_measured": priced(one, one.cost, group.slower) / own.level,
        "full_plan_over_measured": priced(full, one.cost, group.slower) / full_own.level,
    }


if __name__ == "__main__":
    try:
        main()
    except CodlError as error:
        raise SystemExit(f"error: {error}") from error
