"""How well static costs rank what was measured: variants and tuning choices of a GPU's kernels.

    python scripts/bench/static_cost.py --measure FILE [--seconds 110]    # on a machine with a GPU
    python scripts/bench/static_cost.py FILE [--published gpu_ops_tflite.csv]

The first measures all GPU variants of convolutions alone, and all tuning choices of some, with a
phone's limits: 32 KiB of local memory, work-groups of 256. The second tells the rank correlation
(Spearman) of `codl.kernels.static_cost` with that, and what the variant that is first by its cost,
or by the registry, takes over the fastest. Published are the rows of TensorFlow Lite on an Adreno
640 of mobile-ml-benchmark, of which each is in one kernel: there costs rank ops.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import exp, log
from pathlib import Path
from statistics import mean, median
from time import perf_counter
from typing import Any

from scipy.stats import spearmanr

from codl.errors import CodlError
from codl.ir import parse
from codl.kernels import registry
from codl.kernels.static_cost import static_cost
from codl.phone_compilers import gpus
from codl.records.soc import Soc

#: The sides of maps, with channels of networks, and convolutions of one.
MAPS = ((7, 512), (14, 256), (28, 128), (56, 64), (112, 32))
SHAPES = (
    "conv2d in=1x{c}x{s}x{s} oc={c} kernel=3x3 pad=1 act=relu",
    "conv2d in=1x{c}x{s}x{s} oc={c} kernel=1x1 act=relu",
    "conv2d in=1x{h}x{t}x{t} oc={c} kernel=3x3 stride=2 pad=1 act=relu",
    "conv2d in=1x{c}x{s}x{s} oc={h} kernel=1x1",
    "conv2d in=1x{c}x{s}x{s} oc={c} kernel=3x3 pad=1 groups={c} act=relu",
    "conv2d in=1x{c}x{s}x{s} oc={c} kernel=5x5 pad=2 act=relu",
)
OPS = [shape.format(s=s, t=2 * s, c=c, h=c // 2) for s, c in MAPS for shape in SHAPES]
#: Of which all choices are measured.
FEW = [OPS[at] for at in (0, 13, 1, 19, 4, 18)]
MOST_CHOICES = 12
LIMITS = {"local_mem_bytes": 32 << 10, "max_work_group_size": 256}
MEMORY = ("buffer", "image2d")
#: Rows of an op of which fewer were measured tell no ranking.
FEWEST = 4


def plain(text: str, soc: Soc) -> list[Any]:
    """The GPU variants over floats that are written for GPUs."""
    every: list[Any] = registry.variants(parse(text), "gpu", soc, include_unfit=True)
    return [v for v in every if "gpu" in v.meant_for and v.storage.element == "float32"]


def measure(path: Path, seconds: float) -> None:
    """Write a line of JSON for every variant and choice; latencies are in milliseconds."""
    from codl.measure.op_runner import GpuWork, filler
    from codl.measure.timing import Protocol, measure_together
    from codl.records.statistic import level
    from codl.runtime.detect import describe
    from codl.targets.local import LocalTarget

    devices = [device for driver in LocalTarget().probe() for device in driver.devices]
    soc = min((describe("phone", device) for device in devices), key=lambda soc: soc.gpu.is_cpu)
    soc = replace(soc, gpu=replace(soc.gpu, memory_types=MEMORY, **LIMITS))
    gpu, begin = LocalTarget(soc).device, perf_counter()
    protocol = Protocol(warm_up=1, min_samples=5, min_time_s=0.006, max_time_s=0.03, spread=0.1)
    with path.open("w") as file:
        facts = {"gpu": soc.gpu.name, "units": soc.gpu.compute_units, "wave": soc.gpu.wave_size}
        print(json.dumps(facts), file=file)
        for text, variant, choice in _tasks(soc):
            if perf_counter() - begin > seconds:
                break
            op, row = parse(text), {"op": text, "variant": variant.name, "choice": dict(choice)}
            try:
                work = GpuWork(gpu, op, variant.plan(op, soc, choice), filler(op))
                row["ms"] = 1e3 * level(measure_together([work], protocol)[0])
            except CodlError as error:
                row["error"] = str(error)
            print(json.dumps(row), file=file, flush=True)


def _tasks(soc: Soc) -> Iterator[tuple[str, Any, Mapping[str, Any]]]:
    for text in OPS:
        for variant in plain(text, soc):
            yield text, variant, variant.choices(parse(text), soc)[0]
    for text in FEW:
        for variant in plain(text, soc):
            for choice in variant.choices(parse(text), soc)[1:MOST_CHOICES]:
                yield text, variant, choice


def rank_measured(path: Path) -> None:
    """Print how costs rank variants of an op and choices of a variant."""
    head, *lines = map(json.loads, path.read_text().splitlines())
    soc = gpus.soc_of("adreno630")
    limited = {
        **LIMITS,
        "name": head["gpu"],
        "compute_units": head["units"],
        "wave_size": head["wave"],
    }
    soc = replace(soc, gpu=replace(soc.gpu, **limited))
    by_op: dict[str, dict[str, tuple[float, float]]] = defaultdict(dict)
    by_variant: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for row in lines:
        variant: Any = registry.find(parse(row["op"]), row["variant"])
        if "ms" not in row:
            continue
        try:
            cost = static_cost(variant, parse(row["op"]), soc, row["choice"])
        except (CodlError, KeyError):  # a choice of another version
            continue
        if cost is not None:
            by_op[row["op"]].setdefault(row["variant"], (cost, row["ms"]))
            by_variant[row["op"], row["variant"]].append((cost, row["ms"]))
    print(f"{head['gpu']}, {len(lines)} rows, {len(by_op)} convolutions")
    pairs = [pair for rows in by_op.values() for pair in rows.values()]
    print(f"all variants of all ops: {correlation(pairs):.2f} over {len(pairs)}")
    each = [[*rows.values()] for rows in by_op.values() if len(rows) >= FEWEST]
    print(f"variants of an op, median: {median(map(correlation, each)):.2f} over {len(each)} ops")
    choices = {key: rows for key, rows in by_variant.items() if len(rows) >= FEWEST}
    for name in sorted({variant for _, variant in choices}):
        found = [correlation(rows) for (_, variant), rows in choices.items() if variant == name]
        print(f"  choices of {name}: {mean(found):.2f} over {len(found)} ops")
    tell_regret(by_op, soc)


def tell_regret(by_op: Mapping[str, Mapping[str, tuple[float, float]]], soc: Soc) -> None:
    """Print what the variant that comes first takes over the fastest, in geometric mean."""
    for what, layout in (("buffers", False), ("images", True)):
        logs: dict[str, list[float]] = {"registry": [], "cost": []}
        for text, rows in by_op.items():
            order = [v.name for v in plain(text, soc) if v.in_images == layout and v.name in rows]
            if len(order) < 2:
                continue
            best = min(rows[name][1] for name in order)
            logs["registry"].append(log(rows[order[0]][1] / best))
            logs["cost"].append(log(rows[min(order, key=lambda n: rows[n][0])][1] / best))
        if logs["cost"]:
            told = ", ".join(f"first by the {k} {exp(mean(v)):.2f}" for k, v in logs.items())
            print(f"{what}: {told} of the fastest ({len(logs['cost'])} ops)")


def rank_published(path: Path) -> None:
    """Print how costs of convolutions over images rank what others measured on an Adreno 640."""
    soc = gpus.soc_of("sdm855", "half")
    rows = []
    for row in csv.DictReader(path.open()):
        if row["operation"] not in ("CONV_2D", "DEPTHWISE_CONV_2D") or not row["pixel4_us"]:
            continue
        depthwise = row["operation"].startswith("DEPTH")
        size, channels = int(row["input_shape"]), int(row["input_channel"])
        kernel, stride = int(row["kernel"]), int(row["stride"])
        outs = channels if depthwise else int(row["filter"])
        groups = f" groups={channels}" if depthwise else ""
        text = f"conv2d in=1x{channels}x{size}x{size} oc={outs} kernel={kernel}x{kernel}"
        op = parse(f"{text} stride={stride} pad={kernel // 2}{groups}")
        name = "gpu_depthwise_image" if depthwise else "gpu_direct_image"
        variant: Any = registry.find(op, name)
        if variant.refusal(op, soc) is None:
            cost = static_cost(variant, op, soc)
            rows.append((row["operation"], cost, float(row["pixel4_us"]), float(op.flops)))
    for kind in ("CONV_2D", "DEPTHWISE_CONV_2D"):
        of_kind = [row for row in rows if row[0] == kind and row[1] is not None]
        costs = correlation([(cost, us) for _, cost, us, _ in of_kind])
        flops = correlation([(flops, us) for _, _, us, flops in of_kind])
        print(f"published, {kind}: {costs:.3f}, by FLOPs {flops:.3f}, over {len(of_kind)} rows")


def correlation(pairs: Sequence[tuple[Any, float]]) -> float:
    """Spearman's."""
    return float(spearmanr(*zip(*pairs, strict=True)).statistic)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("--measure", type=Path)
    parser.add_argument("--seconds", type=float, default=110.0)
    parser.add_argument("--published", type=Path)
    asked = parser.parse_args()
    if asked.measure:
        measure(asked.measure, asked.seconds)
    if asked.file:
        rank_measured(asked.file)
    if asked.published:
        rank_published(asked.published)


if __name__ == "__main__":
    main()
