"""Networks on a GPU through OpenCL, against PyTorch on the same GPU, in float32 and in halves.

    python scripts/bench/against_pytorch.py [--device nvidia] [--models vgg16,bert] [--json]

For a machine with a GPU that both see. Latencies are of one image: of tensors that stay on the GPU
and, `_io`, from a NumPy array to a NumPy array. TF32 is off and cuDNN chooses by measuring.
All are measured in turns of many runs, as going from one to the other costs the GPU about a
millisecond. Transformers attend by `scaled_dot_product_attention`, and both have them in halves
(`half`), too: ours store halves and compute in float32. The convolutions with the most operations
follow, each alone, with their share of the float32 peak that a kernel of multiply-adds reaches:
counted as a direct convolution has them (which Winograd's beats), and as the multiply-adds that the
variant really makes.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np

from codl.engine.engine import Engine
from codl.frontend.convert import load_network
from codl.ir import Network, to_text
from codl.ir.executable import Executable, Launch
from codl.ir.ops.convolution import Conv2d
from codl.ir.plan import Chain, Plan
from codl.kernels import registry
from codl.measure.op_runner import GpuWork
from codl.records.results import Latency
from codl.records.soc import Soc
from codl.runtime.drivers import cl_module
from codl.runtime.launch import BoundKernel
from codl.runtime.opencl import OpenClDevice
from codl.targets.connect import connect
from codl.targets.detect import detect
from codl.targets.local import LocalTarget

TORCHVISION = {"vgg16": "vgg16", "resnet50": "resnet50", "mobilenet_v2": "mobilenet_v2"}
TURNS, RUNS, WARM_UP, LARGEST, REPEATS = 4, 30, 10, 10, 50
#: Independent multiply-adds of a work-item and rounds of them.
CHAINS, LENGTH = 16, 4096
PEAK = """
kernel void peak(global float *out) {
    float x[CHAINS], y = get_global_id(0) * 1e-9f;
    for (int i = 0; i < CHAINS; i++) x[i] = i;
    for (int n = 0; n < LENGTH; n++)
        _Pragma("unroll") for (int i = 0; i < CHAINS; i++) x[i] = fma(x[i], y, 0.5f);
    for (int i = 1; i < CHAINS; i++) x[0] += x[i];
    out[get_global_id(0)] = x[0];
}
"""


@dataclass(frozen=True)
class NetworkRow:
    """Latencies of one network; `launches` of kernels in ours."""

    model: str
    launches: int
    latency_ms: Mapping[str, Latency]

    def share_of(self, other: str) -> float:
        """What ours takes of another's latency, each of one type, with the copies or without."""
        own = "codl" + "".join(end for end in ("_io", "_half") if end in other)
        return self.latency_ms[own].level / self.latency_ms[other].level


@dataclass(frozen=True)
class ConvRow:
    """One convolution alone; the fractions are of the measured peak."""

    op: str
    variant: str
    latency_us: float
    direct_fraction: float
    executed_fraction: float


def all_on_gpu(network: Network, soc: Soc) -> Plan:
    """Every layer on the GPU, in its default variant."""
    names = {
        layer.name: {"gpu": registry.variants(layer.op, "gpu", soc)[0].name}
        for layer in network.layers
    }
    chain = Chain(tuple(names), "H", 1.0, names)
    return Plan(network.name, network.digest, soc.name, "gpu", "none", "missing", None, (chain,))


def torch_model(model: str) -> Any:
    """A network of PyTorch's, or a transformer of the shapes of ours."""
    if model in TORCHVISION:
        import torchvision

        return getattr(torchvision.models, TORCHVISION[model])(weights=None)
    from torch_transformers import transformer

    return transformer(model)


def torch_runners(
    model: str, x: np.ndarray[Any, Any], *, half: bool = False
) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Eager and as a CUDA graph, each from and to NumPy (`_io`) and on tensors of the GPU."""
    import torch
    from torch_transformers import captured, without_tf32

    without_tf32()
    torch.backends.cudnn.benchmark = True
    torch.set_grad_enabled(False)
    net = torch_model(model).eval().cuda()
    x = x.astype(np.float16) if half else x
    net = net.half() if half else net
    pinned = torch.from_numpy(x).pin_memory()
    on_gpu = pinned.cuda()
    graph, y = captured(lambda: net(on_gpu))

    def eager_io() -> Any:
        pinned.copy_(torch.from_numpy(x))
        return net(pinned.cuda(non_blocking=True)).cpu().numpy()

    def graph_io() -> Any:
        pinned.copy_(torch.from_numpy(x))
        on_gpu.copy_(pinned, non_blocking=True)
        graph.replay()
        return y.cpu().numpy()

    def eager() -> None:
        net(on_gpu)
        torch.cuda.synchronize()

    def replay() -> None:
        graph.replay()
        torch.cuda.synchronize()

    end = "_half" if half else ""
    runs = {"eager": eager, "eager_io": eager_io, "graph": replay, "graph_io": graph_io}
    yield from ((f"{name}{end}", run) for name, run in runs.items())


def timed(run: Callable[[], Any]) -> float:
    start = perf_counter()
    run()
    return perf_counter() - start


def measure_network(model: str, target: LocalTarget, *, against: bool) -> NetworkRow:
    network = load_network(model)
    ((name, shape),) = network.inputs.items()
    x = np.random.default_rng(0).random(shape, np.float32)
    engine = Engine(network, all_on_gpu(network, target.soc), target)
    runners = dict(own_runners(engine, target.device, x))
    if model not in TORCHVISION:
        halves = in_halves(target)
        in_half = Engine(network, all_on_gpu(network, halves.soc), halves)
        runners |= dict(own_runners(in_half, halves.device, x, end="_half"))
    if against:
        shown = x.reshape(shape[:3]) if shape.w == 1 else x
        runners |= dict(torch_runners(model, shown))
        if model not in TORCHVISION:
            runners |= dict(torch_runners(model, shown, half=True))
    samples: dict[str, list[float]] = {name: [] for name in runners}
    for _ in range(TURNS):
        for name, run in runners.items():
            samples[name] += [timed(run) for _ in range(WARM_UP + RUNS)][WARM_UP:]
    launches = launches_of(engine.executable)
    engine.close()
    return NetworkRow(model, launches, {name: Latency.of(s) for name, s in samples.items()})


def own_runners(
    engine: Engine, gpu: OpenClDevice, x: np.ndarray[Any, Any], *, end: str = ""
) -> Iterator[tuple[str, Callable[[], Any]]]:
    """All kernels of an engine on tensors of the GPU, and from and to NumPy (`_io`)."""
    kernels = kernels_of(engine.loaded, engine.executable)
    yield f"codl{end}", lambda: gpu.run(kernels)
    yield f"codl_io{end}", lambda: engine(x)


def in_halves(target: LocalTarget) -> LocalTarget:
    """The same device, on which tensors are stored as halves."""
    return LocalTarget(replace(target.soc, gpu=replace(target.soc.gpu, element="float16")))


def kernels_of(session: Any, executable: Executable) -> list[BoundKernel]:
    """All that a loaded executable launches."""
    labels = dict.fromkeys(stage.label for stage in executable.stages)
    return [kernel for label in labels for kernel in session.kernels(label)]


def launches_of(executable: Executable) -> int:
    return sum(isinstance(command, Launch) for command in executable.commands)


def seconds(gpu: OpenClDevice, kernels: list[BoundKernel]) -> float:
    """What kernels take in the best of some runs of many repeats."""
    gpu.run(kernels * REPEATS)
    best = float("inf")
    for _ in range(5):
        start = perf_counter()
        gpu.run(kernels * REPEATS)
        best = min(best, perf_counter() - start)
    return best / REPEATS


def peak_flops(gpu: OpenClDevice) -> float:
    """Floating-point operations a second of nothing but multiply-adds."""
    options = [f"-DCHAINS={CHAINS}", f"-DLENGTH={LENGTH}"]
    program = cl_module().Program(gpu.context, PEAK).build(options)
    items = 2048 * gpu.soc.gpu.compute_units
    out = cl_module().Buffer(gpu.context, cl_module().mem_flags.READ_WRITE, 4 * items)
    sizes = (items,), (256,)
    kernel = BoundKernel("peak", cl_module().Kernel(program, "peak"), *sizes, [out])
    return 2.0 * items * CHAINS * LENGTH / seconds(gpu, [kernel])


def measure_conv(op: Conv2d, gpu: OpenClDevice, peak: float) -> ConvRow:
    variant: Any = registry.variants(op, "gpu", gpu.soc)[0]
    random = np.random.default_rng(0)
    weights = op.weights_of(lambda shape: random.standard_normal(shape, np.float32))
    inputs = [random.standard_normal(op.input, np.float32)]
    work = GpuWork(gpu, op, variant.plan(op, gpu.soc), weights, inputs)
    took = seconds(gpu, list(work.kernels))
    executed = 2 * macs(variant.features(op, gpu.soc))
    return ConvRow(
        to_text(op), variant.name, 1e6 * took, op.flops / took / peak, executed / took / peak
    )


def macs(features: Mapping[str, float]) -> float:
    """Multiply-adds that a variant makes, padding and all; some count them by their tile."""
    padded = [value for name, value in features.items() if name.startswith("padded_macs")]
    return sum(padded) if padded else features["macs"]


def largest_convs(models: list[str]) -> list[Conv2d]:
    layers = (layer for model in models for layer in load_network(model).layers)
    convs = {layer.op: None for layer in layers if isinstance(layer.op, Conv2d)}
    return sorted(convs, key=lambda op: -op.flops)[:LARGEST]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="nvidia", help="the OpenCL driver or device")
    parser.add_argument("--models", default=",".join(TORCHVISION))
    parser.add_argument("--no-pytorch", action="store_true", help="measure ours alone")
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else")
    options = parser.parse_args()
    models, soc = (
        options.models.split(","),
        detect(connect("local"), "bench", device=options.device),
    )
    target, networks = LocalTarget(soc), []
    for model in models:
        print(f"{model} ...", file=sys.stderr)
        networks.append(measure_network(model, target, against=not options.no_pytorch))
    gpu = target.device
    peak = peak_flops(gpu)
    convs = [measure_conv(op, gpu, peak) for op in largest_convs(models)]
    if options.json:
        rows = {"networks": [asdict(row) for row in networks], "convs": [asdict(c) for c in convs]}
        print(json.dumps({"soc": soc.to_dict(), "peak_tflops": peak / 1e12, **rows}, indent=1))
        return
    print(f"{soc.gpu.name}: {peak / 1e12:.1f} TFLOP/s of multiply-adds")
    for row in networks:
        print(f"{row.model}, {row.launches} launches")
        for name, latency in row.latency_ms.items():
            spread = f"{latency.level:8.3f} ms (median {latency.median:.3f}, p80 {latency.p80:.3f})"
            print(f"  {name:14s}{spread}, codl takes {row.share_of(name):.2f} of it")
    print("     us  direct  executed  of the peak")
    for conv in convs:
        fractions = f"{conv.direct_fraction:8.2f}{conv.executed_fraction:10.2f}"
        print(f"{conv.latency_us:7.1f}{fractions}  {conv.variant}  {conv.op}")


if __name__ == "__main__":
    main()
