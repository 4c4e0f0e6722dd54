"""Drift of the machine: its speed while strategies are measured, against that in the dataset.

The anchors of the dataset's first run are measured again, once a round. If other programs or heat
slow a processor down by a tenth, its plans take a tenth longer than predicted, which is no error of
the predictor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from codl.ir.soc import Soc
from codl.kernels.tuning import Tuning
from codl.measure import drift as anchors
from codl.measure.dataset import Dataset
from codl.measure.runner import Bench, Prepared
from codl.measure.timing import WHOLE


@dataclass(frozen=True)
class Machine:
    """Anchors that are measured now, and what they took when the dataset was, in milliseconds."""

    prepared: tuple[Prepared, ...]
    usual_ms: Mapping[tuple[str, str], float]

    @classmethod
    def of(cls, soc: Soc, dataset: Dataset, tuning: Tuning = Tuning()) -> Machine | None:
        """None where the dataset has no anchors: it was imported, or there is none."""
        usual = anchors.first_ms(dataset)
        if not usual:
            return None
        bench = Bench(soc, "", tuning=tuning)
        prepared = tuple(one for one in anchors.prepare(bench) if anchors.key(one) in usual)
        return cls(prepared, usual) if prepared else None

    def visit(self) -> None:
        """Measure every anchor a few times."""
        for one in self.prepared:
            one.timed.visit()

    def slowdown(self) -> dict[str, float]:
        """By processor, how many times longer its anchors take now, in the median."""
        ratios: dict[str, list[float]] = {}
        for one in self.prepared:
            now_ms = 1e3 * median(one.timed.found[WHOLE])
            own = ratios.setdefault(anchors.key(one)[1], [])
            own.append(now_ms / self.usual_ms[anchors.key(one)])
        return {processor: median(own) for processor, own in ratios.items()}
