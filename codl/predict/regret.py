"""Regret of a split that is chosen by predictions: how far it is from the best measured one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from codl.ir import Activation, Op
from codl.ir.types import Processor
from codl.measure.tasks import SHARES, part_of
from codl.records.soc import Soc

#: A part of an op without its activation, on a processor.
Key: TypeAlias = tuple[Processor, Op]


@dataclass(frozen=True)
class MeasuredPart:
    """A part of an op in one kernel variant, its latency and what was predicted for it; in ms."""

    op: Op
    processor: Processor
    part: Op
    latency_ms: float
    predicted_ms: float


@dataclass(frozen=True)
class Regret:
    """Percent over `ops` ops; data sharing is left out, as in the ideal of the paper."""

    ops: int
    mean: float
    p95: float


@dataclass(frozen=True)
class _ShardTimes:
    """A processor's part: predicted and measured latency of the variant chosen, and the best."""

    predicted: float
    chosen: float
    best: float


def regret(parts: Iterable[MeasuredPart], soc: Soc) -> Regret | None:
    """Over all ops with a split that was measured on both sides; None where there is none."""
    shards: dict[Key, list[MeasuredPart]] = {}
    for part in parts:
        shards.setdefault(key_of(part.processor, part.part), []).append(part)
    ops = dict.fromkeys(plain(part.op) for own in shards.values() for part in own)
    known = {key: _shard(own) for key, own in shards.items()}
    regrets = [value for op in ops if (value := _of(op, known, soc)) is not None]
    if not regrets:
        return None
    mean, p95 = 100 * float(np.mean(regrets)), 100 * float(np.percentile(regrets, 95))
    return Regret(len(regrets), round(mean, 2), round(p95, 2))


def plain(op: Op) -> Op:
    """The op without its activation, which makes no other shape."""
    return op.with_activation(Activation())


def key_of(processor: Processor, part: Op) -> Key:
    return processor, plain(part)


def splits(op: Op, soc: Soc) -> list[tuple[Key, ...]]:
    """What is run in every split of an op, one part on each processor; and whole on either one."""
    pairs: list[tuple[Key, ...]] = [(key_of("cpu", op),), (key_of("gpu", op),)]
    for dim in op.dims:
        for share in SHARES[:-1]:
            cpu = part_of(op, "cpu", dim, round(1 - share, 6), soc)
            gpu = part_of(op, "gpu", dim, share, soc)
            if cpu is not None and gpu is not None:
                pairs.append((key_of("cpu", cpu), key_of("gpu", gpu)))
    return pairs


def _shard(own: Sequence[MeasuredPart]) -> _ShardTimes:
    chosen = min(own, key=lambda part: part.predicted_ms)
    best = min(part.latency_ms for part in own)
    return _ShardTimes(chosen.predicted_ms, chosen.latency_ms, best)


def _of(op: Op, known: Mapping[Key, _ShardTimes], soc: Soc) -> float | None:
    """Latency of the split with the lowest prediction over the lowest latency, less 1."""
    pairs = [
        [known[key] for key in keys]
        for keys in splits(op, soc)
        if all(key in known for key in keys)
    ]
    if not any(len(pair) == 2 for pair in pairs):
        return None
    chosen = min(pairs, key=lambda pair: max(shard.predicted for shard in pair))
    best = min(max(shard.best for shard in pair) for pair in pairs)
    return max(shard.chosen for shard in chosen) / best - 1
