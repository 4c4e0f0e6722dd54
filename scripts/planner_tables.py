"""The tables of docs/concepts/planner.md: what the planner computes for a chain of three layers.

They are written by `scripts/render_docs.py` from the planner's own tables, with the shipped
predictors of `epyc2`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from codl.frontend.convert import load_structure
from codl.ir import Network, to_text
from codl.ir.records import soc as socs
from codl.ir.types import PROCESSORS
from codl.plan.beam_search import START, Transitions, fastest
from codl.plan.chain_costs import COLUMNS, CandidateChain, ChainCosts, ChainEvaluation
from codl.plan.coverage import covered
from codl.plan.parts import NONE, Walk
from codl.plan.search import Candidates
from codl.plan.strategies import Context
from codl.predict import DEFAULT
from codl.report.text_table import Column, TextRow, TextSection, TextTable

ROOT = Path(__file__).resolve().parent.parent
MODEL, LAYERS, RATIOS = "op_chain", 3, (0.0, 0.5, 1.0)
#: The columns of `COLUMNS` that are shown.
SHOWN = ("cpu_ms", "cpu_saved_ms", "packing_ms", "cpu_bytes", "gpu_ms", "gpu_bytes", "launches")


@dataclass(frozen=True)
class Example:
    """The first layers of a model, the costs of their chains, and a walk over all layers."""

    network: Network
    costs: ChainCosts
    walk: Walk

    @property
    def chains(self) -> list[CandidateChain]:
        """The chains that end after the last layer, the shortest first."""
        return self.costs.evaluate([self.walk])

    def region(self, number: int) -> str:
        return "none" if number == NONE else str(self.costs.regions.region(number))


@cache
def example() -> Example:
    context = Context.of(
        socs.load(str(ROOT / "socs" / "epyc2.yaml")),
        ROOT / "lat_datasets",
        predictors_folder=ROOT / "predictors",
    )
    network = load_structure(MODEL)
    layers = network.layers[:LAYERS]
    outputs = {"y": (layers[-1].output, tuple(layers[-1].op.output))}
    network = replace(network, layers=layers, outputs=outputs)
    costs = ChainCosts(network, covered(context.cost(DEFAULT), network), RATIOS)
    return Example(network, costs, Walk(LAYERS, "H", 1, frozenset(range(LAYERS))))


def _table(names: Sequence[str], rows: Sequence[Sequence[str]], text: int = 1) -> TextTable:
    """A table whose first `text` columns are no numbers."""
    columns = tuple(Column(name, numeric=at >= text) for at, name in enumerate(names))
    return TextTable("", columns, (TextSection("", tuple(TextRow(tuple(row)) for row in rows)),))


def parts() -> TextTable:
    """The parts of each layer that the walk computes, last layer first."""
    found, rows = example(), []
    table = found.costs.table
    for step in found.costs.halo([found.walk]).steps():
        for side, number in enumerate(step.parts[0].tolist()):
            rows.append(
                (
                    found.network.layers[step.layer].name,
                    PROCESSORS[side],
                    _rows(table.boxes[number].tolist()),
                    _rows(table.needs[number, 0].tolist()),
                    f"`{to_text(table.op(number))}`",
                    f"{table.fastest_ms(step.parts[0, [side]], side)[0]:.3f}",
                )
            )
    return _table(("layer", "processor", "output rows", "input rows", "part", "ms"), rows, 5)


def _rows(box: Sequence[int]) -> str:
    return f"{-box[4]}:{box[5]}"


def columns() -> TextTable:
    """The columns that are summed over the layers of a chain."""
    found = example()
    halo = found.costs.halo([found.walk])
    evaluation = ChainEvaluation(found.costs, [found.walk], halo, halo.steps())
    evaluation.candidates()
    sums = evaluation.columns()
    rows = []
    for at, layer in enumerate(reversed(found.network.layers)):
        values = dict(zip(COLUMNS, sums[at].tolist(), strict=True))
        shown = (
            f"{values[name]:.3f}" if "_ms" in name else f"{values[name]:.0f}" for name in SHOWN
        )
        rows.append((layer.name, *shown))
    return _table(("layer", *(f"`{name}`" for name in SHOWN)), rows)


def chains() -> TextTable:
    """The chains that end after the last layer."""
    found, rows = example(), []
    for chain in found.chains:
        reads = (
            f"{PROCESSORS[side]} {tensor} ({found.region(number)})"
            for tensor, side, number in found.costs.named(chain.start, chain.reads)
        )
        rows.append(
            (
                f"{chain.start} ... {chain.stop - 1}",
                "; ".join(reads),
                *(f"{ms:.3f}" for ms in (*chain.alone_ms, *chain.work_ms)),
                str(chain.launches),
            )
        )
    names = ("layers", "`reads`", "CPU alone ms", "GPU alone ms", "CPU ms", "GPU ms", "launches")
    return _table(names, rows, 2)


def transfers() -> TextTable:
    """The transfers that the longest chain needs at the start of the network, and after its end."""
    found, rows = example(), []
    transitions, chain = Transitions(found.costs, "missing"), found.chains[-1]
    _, resident = transitions.after(START, transitions.start, chain)
    for name, side, need in found.costs.named(chain.start, chain.reads):
        place = 2 * found.costs.live[0].index(name) + side
        rows += _moves(found, transitions, name, side, transitions.start[place], need)
    (name,) = found.costs.live[-1]
    rows += _moves(found, transitions, name, 0, resident[0], transitions.results[name])
    return _table(
        ("tensor", "processor", "holds", "needs", "transfers", "GPU ms", "wait ms", "CPU ms"),
        rows,
        5,
    )


def _moves(
    found: Example, transitions: Transitions, name: str, side: int, resident: int, need: int
) -> list[tuple[str, ...]]:
    move = transitions.region_transfer(side, resident, need)
    ms = [sum(cost[at] for cost in move.transfers) for at in (1, 2, 3)]  # type: ignore[misc]
    regions = (found.region(resident), found.region(need), str(len(move.transfers)))
    return [(name, PROCESSORS[side], *regions, *(f"{each:.3f}" for each in ms))]


def labels() -> TextTable:
    """The chains of the best plan over all candidates, with the clocks after each."""
    found = example()
    candidates = Candidates(found.network, found.costs.cost)
    best = fastest(candidates.costs, candidates.starting)
    transitions = Transitions(candidates.costs, "missing")
    clocks, resident, rows = START, transitions.start, []
    for chain in best.chains:
        clocks, resident = transitions.after(clocks, resident, chain)
        cut = (chain.dim, f"{chain.gpu_ratio:.2f}")
        rows.append((f"{chain.start} ... {chain.stop - 1}", *cut, *(f"{ms:.3f}" for ms in clocks)))
    end_ms = transitions.end_ms(clocks, resident)
    rows.append(("outputs", "", "", f"{end_ms:.3f}", f"{clocks[1]:.3f}"))
    return _table(("layers", "dimension", "GPU ratio", "CPU clock ms", "GPU clock ms"), rows, 2)


#: The tables by the names that pages use.
TABLES: Mapping[str, Callable[[], TextTable]] = {
    "planner-parts": parts,
    "planner-columns": columns,
    "planner-chains": chains,
    "planner-transfers": transfers,
    "planner-labels": labels,
}
