"""Tables of an ablation (`ablate.py`): a line for every changed plan, and for every variant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import exp, log
from statistics import fmean
from typing import Any

#: The planner with everything on.
FULL = "full"


def summary(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """By variant: changed plans, geometric means of ratios, and how far predictions are off."""
    by_variant: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["status"] == "ok":
            by_variant.setdefault(row["variant"], []).append(row)
    return [
        {
            "variant": name,
            "models": len(own),
            "changed": sum(row["changed"] for row in own),
            "predicted_ratio": mean(own, "predicted_ratio"),
            "full_plan_ratio": mean(own, "full_plan_ratio"),
            "full_plan_most": max((row["full_plan_ratio"] for row in own), key=away),
            "measured_ratio": mean(own, "measured_ratio"),
            "off": spread(own, "own_over_measured"),
            "full_plan_off": spread(own, "full_plan_over_measured"),
        }
        for name, own in by_variant.items()
    ]


def away(ratio: float) -> float:
    return abs(log(ratio))


def mean(rows: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """The geometric mean of what the rows have."""
    values = [log(row[name]) for row in rows if name in row]
    return exp(fmean(values)) if values else None


def spread(rows: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """By how much predictions are off, as a factor: the geometric mean of the larger over 1."""
    values = [away(row[name]) for row in rows if name in row]
    return exp(fmean(values)) if values else None


def table(rows: Sequence[Mapping[str, Any]], means: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A line for every changed plan, then one for every variant."""
    yield (
        f"{'variant':34} {'model':22} {'predicted ms':>12} {'ratio':>7} {'measured':>8} "
        f"{'pred/meas':>9}"
    )
    for row in rows:
        if row["status"] != "ok":
            yield f"{row['variant']:34} {row['model']:22} failed: {row['reason']}"
        elif row["changed"] or row["variant"] == FULL:
            yield (
                f"{row['variant']:34} {row['model']:22} {row['predicted_ms']:12.2f} "
                f"{row['predicted_ratio']:7.4f} {text(row.get('measured_ratio')):>8} "
                f"{text(row.get('predicted_over_measured')):>9}"
            )
    yield ""
    yield (
        f"{'variant':34} {'changed':>8} {'predicted':>9} {'full plan':>9} {'most':>7} "
        f"{'measured':>8} {'off':>6} {'of full':>7}"
    )
    for own in means:
        yield (
            f"{own['variant']:34} {own['changed']:3d} of {own['models']:d} "
            f"{own['predicted_ratio']:9.4f} {own['full_plan_ratio']:9.4f} "
            f"{own['full_plan_most']:7.4f} {text(own['measured_ratio']):>8} "
            f"{text(own['off']):>6} {text(own['full_plan_off']):>7}"
        )


def text(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.3f}"
