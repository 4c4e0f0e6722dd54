"""`ideal`, the paper's oracle: each op at its best measured split, without data sharing.

It is a number from measured rows to compare strategies with, and no plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from codl.errors import CodlError
from codl.ir import Dim, Network, Op, to_text
from codl.ir.records.soc import Soc
from codl.ir.types import PROCESSORS, Processor
from codl.kernels import registry
from codl.measure import SHARES
from codl.measure.dataset import Dataset

#: Milliseconds by (op, dimension, share), in the fastest variant of one processor.
Measured = Mapping[tuple[str, str, float], float]
NAME = "ideal"
#: The dimension in rows of an op that is never split.
WHOLE: Dim = "H"


@dataclass(frozen=True)
class IdealLatency:
    """Milliseconds of a network; `layers` has (name, dimension, GPU ratio, milliseconds) rows."""

    latency_ms: float
    layers: tuple[tuple[str, str, float, float], ...]


def bound(network: Network, soc: Soc, dataset: Dataset) -> IdealLatency:
    """The sum over ops of the best measured split; raises `CodlError` for an unmeasured op."""
    cpu, gpu = (_measured(network, side, soc, dataset) for side in PROCESSORS)
    layers = []
    for layer in network.layers:
        splits = _splits(layer.op, cpu, gpu)
        if not splits:
            raise CodlError(
                f"The dataset of {soc.name!r} has no measurement of {layer.name!r} "
                f"({to_text(layer.op)}). `codl collect --soc {soc.name} --serial local "
                f"--resume` with all of {network.name} measures it."
            )
        latency, dim, ratio = min(splits)
        layers.append((layer.name, dim, ratio, latency))
    return IdealLatency(sum(latency for *_, latency in layers), tuple(layers))


def _splits(op: Op, cpu: Measured, gpu: Measured) -> list[tuple[float, str, float]]:
    """(milliseconds, dimension, GPU ratio) of each split of an op measured on both processors.

    A batch counts as N times the measured latency of one image.
    """
    image, images = op.one_image, op.images
    if images > 1:
        splits = [(images * ms, dim, ratio) for ms, dim, ratio in _splits(image, cpu, gpu)]
        alone = {ratio: ms for ms, _, ratio in splits if ratio in (0.0, 1.0)}
        if len(alone) == 2:
            shares = (count / images for count in range(1, images))
            splits += [(max(alone[0.0] * (1 - r), alone[1.0] * r), "N", r) for r in shares]
        return splits
    text, whole = to_text(op), op.dims[0] if op.dims else WHOLE
    splits = []
    if (text, whole, 1.0) in cpu:
        splits.append((cpu[text, whole, 1.0], str(whole), 0.0))
    if (text, whole, 1.0) in gpu:
        splits.append((gpu[text, whole, 1.0], str(whole), 1.0))
    for dim in op.dims:
        for share in SHARES[:-1]:
            of_cpu, of_gpu = (text, dim, round(1 - share, 6)), (text, dim, share)
            if of_cpu in cpu and of_gpu in gpu:
                splits.append((max(cpu[of_cpu], gpu[of_gpu]), str(dim), share))
    return splits


def _measured(network: Network, processor: Processor, soc: Soc, dataset: Dataset) -> Measured:
    """The fastest successful row of each part of the network's ops, with calibrated runs."""
    best: dict[tuple[str, str, float], float] = {}
    tables = {
        registry.target(variant, layer.op)
        for layer in network.layers
        for variant in registry.variants(layer.op, processor, soc)
    }
    factors = dataset.calibration()
    for name in sorted(tables):
        for row in dataset.table(name).read():
            if row.status == "ok":
                key = (row.op, row.dim, row.share)
                latency_ms = row.latency_ms / factors.get(row.run, {}).get(processor, 1.0)
                best[key] = min(best.get(key, latency_ms), latency_ms)
    return best
