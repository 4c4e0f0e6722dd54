"""The latencies that measured facts were read from, as a CSV file beside the SoC's."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from codl import files
from codl.measure.facts.fact import Fact, Point
from codl.records.results import Latency

SUFFIX = ".measured.csv"
COLUMNS = ("key", "case", "size", "latency_ms", "p20_ms", "p80_ms", "runs")


def points_path(soc_file: Path) -> Path:
    """The file of the latencies of a SoC file."""
    return soc_file.with_name(soc_file.stem + SUFFIX)


def save_points(soc_file: Path, facts: Sequence[Fact]) -> Path | None:
    """Write the latencies of facts, a row each; None, and no file, where there are none.

    What an earlier run wrote is replaced. A crash leaves no half of a file.
    """
    path = points_path(soc_file)
    if not any(fact.points for fact in facts):
        return None
    with files.writing(path) as partial, partial.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(_row(fact, point) for fact in facts for point in fact.points)
    return path


def load_points(soc_file: Path) -> dict[str, list[Point]]:
    """The latencies beside a SoC file by the key of their fact; none where there is no file."""
    found: dict[str, list[Point]] = {}
    path = points_path(soc_file)
    if path.is_file():
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                median, p20, p80 = (float(row[name]) for name in COLUMNS[3:6])
                latency = Latency(median, p20, p80, int(row["runs"]))
                found.setdefault(row["key"], []).append(
                    Point(row["case"], int(row["size"]), latency)
                )
    return found


def _row(fact: Fact, point: Point) -> tuple[object, ...]:
    own = point.latency
    latencies = (f"{ms:.6g}" for ms in (own.median, own.p20, own.p80))
    return (fact.key, point.case, point.size, *latencies, own.runs)
