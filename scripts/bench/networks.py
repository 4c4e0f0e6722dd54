"""Whole networks on the GPU side alone against ncnn alone, one core each, in turns in one process.

Three engines of every model:

- `opencl`: all ops on the GPU side in one chain, each in its fastest variant;
- `ncnn`: all ops on the CPU side as one ncnn net, each in its fastest variant;
- `ncnn auto`: the same net with the algorithms that ncnn would choose itself.

An op's fastest variant is the one that was fastest when each was measured alone, right before. On a
device that is a CPU, time is what its threads, or ncnn's, have had on their core: neighbours on a
shared machine then hardly count. On any other it is the clock's.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter, thread_time
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from codl.engine.engine import Engine
from codl.frontend.convert import load_network
from codl.ir import Network, Op
from codl.ir.types import Processor
from codl.kernels import registry
from codl.measure import timing as rounds
from codl.measure.inputs import random_inputs
from codl.measure.runner import Bench, Prepared
from codl.measure.tasks import OpTask
from codl.measure.timing import Rounds
from codl.plan.build_plan import default_plan
from codl.provenance import provenance
from codl.records.statistic import level
from codl.runtime.opencl import OpenClDevice
from codl.runtime.placement import LocalSoc
from codl.targets.connect import connect
from codl.targets.detect import detect
from codl.targets.local import LocalTarget

Clock: TypeAlias = Callable[[], float]

MODELS = ("vgg16", "yolov2", "resnet50", "mobilenet_v2")
#: Quick, because a variant that is nearly the best will do.
QUICK = Rounds(visits=10, task_s=0.05, span_s=0.0)


@dataclass(frozen=True)
class Row:
    """Milliseconds of a model: the level of the samples of each engine, and their ratios.

    In each of the rounds every engine ran once.
    """

    model: str
    opencl_ms: float
    ncnn_ms: float
    ncnn_auto_ms: float
    ratio: float
    ratio_auto: float
    rounds: int


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", default=",".join(MODELS), help="names or .onnx files")
    parser.add_argument("--device", help="the OpenCL device, by driver or name")
    parser.add_argument("--seconds", type=float, default=20.0, help="for each model")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("-o", "--output", type=Path, help="write JSON to this file")
    args = parser.parse_args()
    soc = one_core_each(detect(connect("local"), "bench", device=args.device))
    target, rows = LocalTarget(soc), []
    for model in args.models.split(","):
        rows.append(measure(load_network(model), target, args.seconds))
        if not args.json:
            print(line(rows[-1]), flush=True)
    content = {**provenance(), "device": soc.gpu.name, "rows": [asdict(row) for row in rows]}
    text = json.dumps(content, indent=1)
    if args.output:
        args.output.write_text(text + "\n")
    if args.json:
        print(text)


def measure(network: Network, target: LocalTarget, seconds: float) -> Row:
    bench = Bench(target.device, "bench", QUICK)
    plans = {
        "opencl": default_plan(network, bench.soc, "gpu", variants=fastest(network, "gpu", bench)),
        "ncnn": default_plan(network, bench.soc, "cpu", variants=fastest(network, "cpu", bench)),
        "ncnn auto": default_plan(network, bench.soc, "cpu"),
    }
    engines = {name: Engine(network, plan, target) for name, plan in plans.items()}
    for engine in engines.values():
        engine.feed(random_inputs(network))
    clocks = dict.fromkeys(plans, thread_time) | {"opencl": device_clock(target.device)}
    if not bench.soc.gpu.is_cpu:
        clocks = dict.fromkeys(plans, perf_counter)
    samples = in_turns(engines, clocks, seconds)
    for engine in engines.values():
        engine.close()
    ms = {name: level(times) for name, times in samples.items()}
    ratio = {name: ms["opencl"] / own for name, own in ms.items()}
    return Row(
        model=network.name,
        opencl_ms=ms["opencl"],
        ncnn_ms=ms["ncnn"],
        ncnn_auto_ms=ms["ncnn auto"],
        ratio=ratio["ncnn"],
        ratio_auto=ratio["ncnn auto"],
        rounds=len(samples["opencl"]),
    )


def fastest(network: Network, processor: Processor, bench: Bench) -> dict[str, str]:
    """Every layer's fastest variant on a processor, each op's measured in turns."""
    pick: dict[Op, str] = {}
    for op in dict.fromkeys(layer.op for layer in network.layers):
        found = [variant.name for variant in registry.variants(op, processor, bench.soc)]
        if len(found) > 1:
            latency = latencies_ms(op, found, processor, bench)
            pick[op] = min(latency, key=latency.__getitem__)
    return {layer.name: pick[layer.op] for layer in network.layers if layer.op in pick}


def latencies_ms(
    op: Op, variants: list[str], processor: Processor, bench: Bench
) -> dict[str, float]:
    tasks = {name: OpTask((), name, processor, op, op.dims[0], 1.0, op) for name in variants}
    prepared = {name: bench.prepare(task) for name, task in tasks.items()}
    ready = {name: one for name, one in prepared.items() if isinstance(one, Prepared)}
    rounds.measure([one.timed for one in ready.values()], bench.rounds)
    found = {name: one.row().latency_ms for name, one in ready.items()}
    return {name: found.get(name, float("inf")) for name in variants}


def in_turns(
    engines: dict[str, Engine], clocks: dict[str, Clock], seconds: float
) -> dict[str, NDArray[np.float64]]:
    """Milliseconds of every engine in turns, round after round."""
    for engine in engines.values():
        engine.run()
    samples: dict[str, list[float]] = {name: [] for name in engines}
    order, begin = list(engines), perf_counter()
    while perf_counter() - begin < seconds or len(samples[order[0]]) < 5:
        for name in order:
            start = clocks[name]()
            engines[name].run()
            samples[name].append(1e3 * (clocks[name]() - start))
        order.append(order.pop(0))  # nobody always follows the same neighbour
    return {name: np.array(times) for name, times in samples.items()}


def one_core_each(soc: LocalSoc) -> LocalSoc:
    """One core for ncnn and one for an OpenCL device that is a CPU; a GPU stays whole."""
    own = soc.placement
    place = replace(own, cpu_cores=own.cpu_cores[:1], gpu_cores=own.gpu_cores[:1])
    gpu = replace(soc.gpu, compute_units=1) if soc.gpu.is_cpu else soc.gpu
    return replace(soc, cpu=replace(soc.cpu, threads=1), gpu=gpu, placement=place)


def device_clock(gpu: OpenClDevice) -> Clock:
    """Seconds that the threads of an OpenCL device that is a CPU have worked so far."""
    stats = [Path(f"/proc/self/task/{t}/schedstat") for t in gpu.worker_threads]
    return lambda: sum(int(stat.read_text().split()[0]) for stat in stats) / 1e9


def line(row: Row) -> str:
    return (
        f"{row.model:14s} opencl {row.opencl_ms:8.2f} ms   ncnn {row.ncnn_ms:8.2f} ms "
        f"(auto {row.ncnn_auto_ms:8.2f})   ratio {row.ratio:.2f} (auto {row.ratio_auto:.2f})   "
        f"{row.rounds} rounds"
    )


if __name__ == "__main__":
    main()
