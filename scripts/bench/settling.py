"""Replays a dataset and says where `codl collect` would end it, and what its plans would lose.

    python scripts/bench/settling.py --soc host --ops yolov2 [--folder lat_datasets] \
        [--tolerances 1,2,5]

The default collection is replayed from the rows of a dataset, once for each tolerance. When it
ends, predictors are trained and models planned, as its user would do next. That plan is priced by
predictors of all rows of the dataset, and compared with the plan of those: so many percent longer
does it take. Seconds are those that measuring took when the dataset was made. All latencies are the
dataset's: nothing is measured.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from codl.errors import CodlError
from codl.evaluation.plan_convergence import PlanConvergence, longer
from codl.ir import Network
from codl.measure import tuning_file
from codl.measure.collector import collect
from codl.measure.dataset import Dataset
from codl.measure.measurement_order import OpSelection, Scope, wholes_first
from codl.measure.recording import Recording
from codl.measure.tasks import SHARES, load_sources
from codl.predict.training import fitted
from codl.records import soc as socs
from codl.records.soc import Soc
from codl.strategies import DEFAULT, Context, find
from codl.targets.connect import connect


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--soc", required=True)
    parser.add_argument("--ops", default="yolov2", help="models, separated by commas")
    parser.add_argument("--folder", type=Path, default=Path("lat_datasets"))
    parser.add_argument("--tolerances", default="1,2,5", help="percent")
    options = parser.parse_args()
    soc = socs.load(options.soc)
    recorded = Dataset.found(soc.name, options.folder)
    ops, networks = load_sources(options.ops.split(","))
    tasks, tiers = wholes_first(Scope(ops, SHARES), soc)
    recording = Recording.read(recorded.folder)
    selection = OpSelection([task for task in tasks if recording.has(task)], tiers)
    names = " ".join(f"{network.name:>12}" for network in networks)
    print(f"{len(selection.tasks)} measurements of {soc.name}; percent that plans lose")
    print(f"{'tolerance':>9} {'measured':>8} {'s':>5} {'looks':>5} {names}")
    for percent in map(float, options.tolerances.split(",")):
        print(f"{percent:8g}% " + ended(percent / 100, selection, networks, recorded, soc))


def ended(
    tolerance: float,
    selection: OpSelection,
    networks: Sequence[Network],
    recorded: Dataset,
    soc: Soc,
) -> str:
    """After how many measurements, seconds and looks it ends, and what each model's plan loses."""
    tuning = tuning_file.read(recorded, soc)
    context = Context(soc, tuning)
    everything = context.with_predictors(fitted(soc, recorded, tuning))
    with tempfile.TemporaryDirectory() as folder:
        dataset = Dataset.of(soc.name, Path(folder))
        chooser = PlanConvergence(
            models=lambda: networks,
            context=context,
            dataset=dataset,
            tiers=selection.tiers,
            total=len(selection.tasks),
            tolerance=tolerance,
        )
        target = connect(f"replay:{recorded.folder}", soc)
        done = collect(target, dataset, selection.tasks, tuning, chooser=chooser)
        known = context.with_predictors(fitted(soc, dataset, tuning))
    plan = find(DEFAULT).plan
    losses = (
        longer(plan(network, known), plan(network, everything), network, everything)
        for network in networks
    )
    measured = len(selection.tasks) - done.left
    numbers = " ".join(f"{loss:12.1%}" for loss in losses)
    return f"{measured:8} {done.seconds:5.0f} {len(chooser.looks):5} {numbers}"


if __name__ == "__main__":
    try:
        main()
    except CodlError as error:
        raise SystemExit(f"error: {error}") from error
