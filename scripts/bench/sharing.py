"""Exchanges inside co-executed networks against what `codl collect` measures for the same ones.

    python scripts/bench/sharing.py --soc host [--models resnet50,yolov2] [--strategy codl-paper]

Every network runs by its plan, profiled; its transforms on the GPU are laid beside the `transform`
that the collection's protocol finds for the same regions, and beside repeating them at once, when
source and target lie in the GPU's caches. Prints the ratios of the sums and the median ratios.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TypeAlias

import numpy as np

import codl
from codl.ir import Shape
from codl.ir.statistic import level
from codl.ir.types import Direction
from codl.kernels import registry
from codl.lower import pieces
from codl.lower.partition import partition_plan
from codl.measure import timing as rounds
from codl.measure.dataset import SharingRow
from codl.measure.inputs import random_inputs
from codl.measure.runner import Bench, Prepared
from codl.measure.tasks import SharingTask
from codl.runtime.opencl import OpenClDevice
from codl.runtime.profiler import Timeline
from codl.runtime.session import Session
from codl.targets.detect import load_local

MODELS, PROFILES, REPEATS = "resnet50,yolov2", 7, 12
#: Which way a region went.
Exchange: TypeAlias = tuple[Direction, Shape]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--soc", default="host")
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--strategy", default="codl-paper")
    options = parser.parse_args()
    soc = load_local(options.soc)
    names = options.models.split(",")
    found = [e for name in names for e in inside_ms(name, options.soc, options.strategy)]
    exchanges = list(dict.fromkeys(exchange for exchange, _ in found))
    gpu = OpenClDevice(soc)
    measured = collected_ms(exchanges, gpu)
    again = {e: repeated_ms(*e, gpu) for e in exchanges} if soc.gpu.sees_host_memory else {}
    for way in ("to_gpu", "to_cpu"):
        own = [(exchange, ms) for exchange, ms in found if exchange[0] == way]
        inside = np.array([ms for _, ms in own])
        for name, others in (("collected", measured), ("repeated", again)):
            if others:
                other = np.array([others[exchange] for exchange, _ in own])
                print(
                    f"{way}, {len(own)} exchanges: inside / {name} "
                    f"{inside.sum() / other.sum():.2f} of sums, "
                    f"{np.median(inside / other):.2f} in the median"
                )


def inside_ms(model: str, soc: str, strategy: str) -> Iterator[tuple[Exchange, float]]:
    """Every exchange of a model, and the milliseconds that its transforms take there."""
    with codl.compile(model, soc=soc, strategy=strategy) as engine:
        shapes = engine.network.shapes
        engine.feed(random_inputs(engine.network))
        program = partition_plan(engine.network, engine.plan, engine.soc)
        stages = [*(segment.transfers for segment in program.segments), program.final]
        moves = [
            move
            for transfers in stages
            for way in ("to_cpu", "to_gpu")
            for move in transfers
            if move.direction == way
        ]
        profiles = []
        for _ in range(PROFILES):
            spans = engine.profile(1)
            profiles.append([s.end_ms - s.start_ms for s in spans if s.kind == "transform"])
        for move, ms in zip(moves, map(level, np.array(profiles).T), strict=True):
            yield (move.direction, move.region.shape(shapes[move.tensor])), float(ms)


def collected_ms(exchanges: list[Exchange], gpu: OpenClDevice) -> dict[Exchange, float]:
    bench, storage = Bench(gpu, "bench"), registry.storages(gpu.soc)[0]
    prepared = [bench.prepare(SharingTask(*exchange, storage)) for exchange in exchanges]
    able = [one for one in prepared if isinstance(one, Prepared)]
    rounds.measure([one.timed for one in able], bench.rounds)
    rows = [one.row() for one in able]
    assert len(rows) == len(exchanges)
    return {
        exchange: row.transform_ms
        for exchange, row in zip(exchanges, rows, strict=True)
        if isinstance(row, SharingRow)
    }


def repeated_ms(way: Direction, shape: Shape, gpu: OpenClDevice) -> float:
    """The transform of an exchange repeated at once, by the device's clock."""
    storage = registry.storages(gpu.soc)[0]
    session = Session(pieces.exchange(way, shape, storage, gpu.soc), gpu)
    found = []
    with gpu.profiling():
        for _ in range(REPEATS):
            timeline = Timeline()
            for action in session.stage(pieces.WORK):
                action.profile(timeline)
            gpu.queue.finish()
            found.append(1e3 * timeline.gpu_s())
    return level(found)


if __name__ == "__main__":
    main()
