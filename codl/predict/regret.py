"""Regret of a split that is chosen by predictions: how far it is from the best measured one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from codl.collect.tasks import SHARES, part_of
from codl.kernels.base import Processor
from codl.ops import Activation, Op
from codl.soc import Soc


@dataclass(frozen=True)
class Part:
    """A part of an op in one kernel variant, its latency and what was predicted for it; in ms."""

    op: Op
    processor: Processor
    part: Op
    latency_ms: float
    predicted_ms: float


@dataclass(frozen=True)
class Regret:
    """Percent over so many ops; data sharing is left out, as in the ideal of the paper."""

    ops: int
    mean: float
    p95: float


@dataclass(frozen=True)
class _Half:
    """A processor's part: predicted and measured latency of the variant chosen, and the best."""

    predicted: float
    chosen: float
    best: float


_NOTHING = _Half(0.0, 0.0, 0.0)


def regret(parts: Iterable[Part], soc: Soc) -> Regret | None:
    """Over all ops with a split that was measured on both sides; None where there is none."""
    halves: dict[tuple[Processor, Op], list[Part]] = {}
    for part in parts:
        halves.setdefault((part.processor, _plain(part.part)), []).append(part)
    ops = dict.fromkeys(_plain(part.op) for own in halves.values() for part in own)
    known = {key: _half(own) for key, own in halves.items()}
    found = [value for op in ops if (value := _of(op, known, soc)) is not None]
    if not found:
        return None
    mean, p95 = 100 * float(np.mean(found)), 100 * float(np.percentile(found, 95))
    return Regret(len(found), round(mean, 2), round(p95, 2))


def _plain(op: Op) -> Op:
    return op.with_activation(Activation())


def _half(own: Sequence[Part]) -> _Half:
    chosen = min(own, key=lambda part: part.predicted_ms)
    best = min(part.latency_ms for part in own)
    return _Half(chosen.predicted_ms, chosen.latency_ms, best)


def _of(op: Op, known: dict[tuple[Processor, Op], _Half], soc: Soc) -> float | None:
    """Latency of the split with the lowest prediction over the lowest latency, less 1."""
    splits = [
        (cpu, gpu)
        for dim in op.dims
        for share in SHARES[:-1]
        if (cpu := _find(op, "cpu", dim, round(1 - share, 6), known, soc)) is not None
        and (gpu := _find(op, "gpu", dim, share, known, soc)) is not None
    ]
    if not splits:
        return None
    whole = [(known.get(("cpu", op)), _NOTHING), (_NOTHING, known.get(("gpu", op)))]
    splits += [(cpu, gpu) for cpu, gpu in whole if cpu is not None and gpu is not None]
    cpu, gpu = min(splits, key=lambda pair: max(pair[0].predicted, pair[1].predicted))
    best = min(max(one.best, other.best) for one, other in splits)
    return max(cpu.chosen, gpu.chosen) / best - 1


def _find(
    op: Op,
    processor: Processor,
    dim: str,
    share: float,
    known: dict[tuple[Processor, Op], _Half],
    soc: Soc,
) -> _Half | None:
    part = part_of(op, processor, dim, share, soc)  # type: ignore[arg-type]
    return None if part is None else known.get((processor, _plain(part)))
