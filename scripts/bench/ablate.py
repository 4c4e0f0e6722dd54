"""Which terms of the cost model and predictors pay: plans without each.

    python scripts/bench/ablate.py --soc epyc2
    python scripts/bench/ablate.py --soc host --models vgg16,model.onnx --json

Variants of the planner that plans by default (`full`: the predictor `codl`, with all `TERMS`): one
term off, or another predictor; with `--cross` every term off with every predictor. Columns are
predicted by the full model: the latency of the variant's plan, and its ratio to the full planner's
plan. Nothing is measured.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from statistics import geometric_mean
from time import perf_counter
from typing import Any

from codl.cli.output import note
from codl.errors import CodlError, UnknownNameError
from codl.files import provenance
from codl.frontend.convert import load_network
from codl.frontend.models import MEASURED
from codl.ir import Network
from codl.ir.executable import Executable
from codl.ir.records import soc as socs
from codl.jobs.options import read_models
from codl.lower.lowering import lower
from codl.measure import dataset as datasets
from codl.plan.cost_model import CostModel
from codl.plan.coverage import covered, without
from codl.plan.predicted_plan import unless_alone
from codl.plan.price import stage_times, walk
from codl.plan.search import search
from codl.plan.strategies import Context
from codl.predict import DEFAULT, FOLDER
from codl.predict.in_network_cost import NOTHING, PACKING

FULL, PREDICTORS = "full", f"{DEFAULT},gbdt,codl_linear"
#: The terms of the cost model that can be left out, by name, as arguments of `without`.
TERMS: Mapping[str, dict[str, Any]] = {
    "inside": {"inside": asdict(NOTHING)},
    "caches": {"inside": dict.fromkeys(("weight_ms", "transformed_ms", "tensor_ms"), 0.0)},
    "contention": {"inside": {"beside_ms": 0.0}},
    "net-calls": {"inside": {"call_ms": 0.0}},
    "launches": {"targets": ("dispatch_gpu",)},
    "waits": {"targets": ("event_wait_cpu",)},
    "sharing": {"ways": ("to_gpu", "to_cpu")},
    "packing": {"ways": tuple(PACKING.values()), "inside": {"packed_ms": 0.0}},
    "relayouts": {"ways": ("relayout",)},
}


@dataclass(frozen=True)
class Variant:
    """A planner: a predictor, and the terms that are off."""

    name: str
    predictor: str
    off: tuple[str, ...] = ()

    def cost(self, network: Network, context: Context) -> CostModel:
        cost = replace(context, predictor=self.predictor).cost(DEFAULT)
        for term in self.off:
            cost = without(cost, **TERMS[term])
        return covered(cost, network)


@dataclass(frozen=True)
class Row:
    """A variant's plan of a model; latencies and ratio by the full planner's cost model."""

    variant: str
    model: str
    changed: bool
    predicted_ms: float
    ratio: float
    chains: int
    search_ms: float


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--soc", default="host")
    parser.add_argument("--models", default=",".join(MEASURED), help="names or .onnx files")
    parser.add_argument("--batch", type=int, help="images at a time")
    parser.add_argument("--predictor", default=PREDICTORS, help="names")
    parser.add_argument("--terms", default=",".join(TERMS))
    parser.add_argument("--cross", action="store_true", help="terms with every predictor")
    parser.add_argument("--dataset", type=Path, default=datasets.FOLDER)
    parser.add_argument("--predictors", type=Path, default=FOLDER)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def variants(args: argparse.Namespace) -> Iterator[Variant]:
    """The full planner first."""
    terms = [term for term in args.terms.split(",") if term]
    for term in terms:
        if term not in TERMS:
            raise UnknownNameError("term", term, TERMS)
    predictors = dict.fromkeys((DEFAULT, *args.predictor.split(",")))
    for predictor in predictors:
        is_full = predictor == DEFAULT
        base = FULL if is_full else predictor
        yield Variant(base, predictor)
        for term in terms if is_full or args.cross else ():
            name = f"without {term}" if is_full else f"{base} without {term}"
            yield Variant(name, predictor, (term,))


def rows_of(network: Network, context: Context, planners: Sequence[Variant]) -> Iterator[Row]:
    """What every planner makes of a model; one that fails is left out with a note."""
    full_cost = planners[0].cost(network, context)
    full: tuple[str, float] | None = None
    for planner in planners:
        note(f"{network.name}: planning {planner.name}")
        try:
            cost = planner.cost(network, context)
            start = perf_counter()
            found = search(network, cost, planner.name)
            plan = unless_alone(found, network, cost)
            search_ms = 1e3 * (perf_counter() - start)
            executable = lower(network, plan, context.soc, context.tuning)
        except CodlError as error:
            if planner.name == FULL:
                raise
            note(f"{network.name}, {planner.name}: {error}")
            continue
        ms, digest = priced_ms(executable, full_cost), executable.digest()
        full = full or (digest, ms)
        yield Row(
            planner.name,
            network.name,
            changed=digest != full[0],
            predicted_ms=ms,
            ratio=ms / full[1],
            chains=len(plan.chains),
            search_ms=search_ms,
        )


def priced_ms(executable: Executable, cost: CostModel) -> float:
    return walk(executable, stage_times(executable, cost)).latency_ms


def main() -> None:
    args = arguments()
    planners = list(variants(args))
    context = Context.of(socs.load(args.soc), args.dataset, predictors_folder=args.predictors)
    rows: list[Row] = []
    for model in read_models(args.models.split(",")):
        rows += rows_of(load_network(model, args.batch), context, planners)
    if args.json:
        print(json.dumps({**provenance(), "soc": args.soc, "rows": [asdict(row) for row in rows]}))
        return
    print(f"{'variant':34} {'model':22} {'predicted ms':>12} {'ratio':>7}")
    for row in rows:
        if row.changed or row.variant == FULL:
            print(f"{row.variant:34} {row.model:22} {row.predicted_ms:12.2f} {row.ratio:7.4f}")
    print(f"\n{'variant':34} {'changed':>8} {'mean ratio':>10}")
    for name, group in groupby(sorted(rows, key=lambda row: row.variant), lambda row: row.variant):
        own = list(group)
        changed = f"{sum(row.changed for row in own)} of {len(own)}"
        print(f"{name:34} {changed:>8} {geometric_mean(row.ratio for row in own):10.4f}")


if __name__ == "__main__":
    try:
        main()
    except CodlError as error:
        raise SystemExit(f"error: {error}") from error
