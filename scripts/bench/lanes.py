"""How many images a second the CPU side makes: threads of an image against images side by side.

    python scripts/bench/lanes.py --soc h200 --models mobilenet_v2,resnet50,vgg16

Whole networks in default variants. In every row so many images are under way at once, each on so
many threads; the result is milliseconds of all of them, and of one in the mean.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from time import perf_counter

import numpy as np

from codl.frontend.convert import load_network
from codl.ir import Network
from codl.ir.statistic import level
from codl.kernels.tuning import Tuning
from codl.lower import lower
from codl.plan.build_plan import default_plan
from codl.runtime import threads
from codl.runtime.ncnn_net import NcnnSession
from codl.runtime.opencl import OpenClDevice
from codl.runtime.placement import LocalSoc
from codl.runtime.session import Session
from codl.targets.detect import load_local

SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)


def one_image(network: Network, soc: LocalSoc) -> Callable[[], None]:
    """One inference on the CPU alone, with as many threads as the SoC's CPU side has.

    Its results stay with ncnn, so that any number may run at once.
    """
    plan = default_plan(network, soc, "cpu")
    session = Session(lower(network, plan, soc, Tuning()), OpenClDevice(soc))
    random = np.random.default_rng(0)
    for array in session.inputs.values():
        array[...] = random.random(array.shape, np.float32)

    def run() -> None:
        for net in session.nets:
            if isinstance(net, NcnnSession):
                net.compute()
            else:
                net.run()

    return run


def side_by_side_ms(run: Callable[[], None], images: int, seconds: float) -> float:
    """Milliseconds until so many images that begin at once have all ended."""
    found: list[float] = []
    with ThreadPoolExecutor(images) as pool:
        begin = perf_counter()
        while perf_counter() - begin < seconds or len(found) < 8:
            start = perf_counter()
            for each in [pool.submit(run) for _ in range(images)]:
                each.result()
            found.append(perf_counter() - start)
    return 1e3 * level(found[3:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--soc", default="host")
    parser.add_argument("--models", default="mobilenet_v2,resnet50,vgg16")
    parser.add_argument("--seconds", type=float, default=0.4)
    given = parser.parse_args()
    soc = load_local(given.soc)
    threads.pin([0], soc.placement.cpu_cores)
    print("| model | threads of an image | images | all, ms | each, ms |")
    print("| --- | --- | --- | --- | --- |")
    for model in given.models.split(","):
        network, most = load_network(model), len(soc.placement.cpu_cores)
        for count in (size for size in reversed(SIZES) if size <= most):
            run = one_image(
                network, replace(soc, placement=replace(soc.placement, cpu_threads=count))
            )
            for images in (size for size in SIZES if size * count <= most):
                ms = side_by_side_ms(run, images, given.seconds)
                print(
                    f"| {model} | {count} | {images} | {ms:.2f} | {ms / images:.2f} |", flush=True
                )


if __name__ == "__main__":
    main()
