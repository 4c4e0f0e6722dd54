"""Runs a small network on both processors of a target at once, and compares it with ONNX Runtime.

Every op is cut in half, one op a chain, along each dimension that it has; then each processor does
all of it. ONNX Runtime computes on this machine. It tells what is right, and never a latency.

    python scripts/check_target.py --serial ssh://pi@board.local
    python scripts/check_target.py --serial process --device pocl
"""

from __future__ import annotations

import argparse
import sys
from contextlib import closing

import numpy as np
import onnx
import onnxruntime as ort

from codl.engine.engine import Engine
from codl.frontend.convert import convert, simplify
from codl.frontend.graph.onnx_import import import_onnx
from codl.frontend.models.builder import ModelBuilder
from codl.ir import Layer, Network
from codl.ir.plan import Chain, Plan
from codl.ir.records.soc import Soc
from codl.ir.types import PROCESSORS
from codl.kernels import registry
from codl.measure.inputs import random_inputs
from codl.plan.build_plan import default_plan
from codl.targets.base import Target
from codl.targets.connect import connect
from codl.targets.detect import detect

#: Largest difference over the largest value of an output.
ALLOWED = 1e-3


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--serial", default="local")
    parser.add_argument("--device", help="an OpenCL device, by driver or name")
    args = parser.parse_args()
    proto = model()
    network = convert(simplify(import_onnx(proto, "small")))
    inputs = random_inputs(network)
    expected = by_onnx_runtime(proto, inputs)
    with closing(connect(args.serial)) as target:
        soc = detect(target, "checked", device=args.device)
    print(f"{args.serial}: {soc.cpu.name} beside {soc.gpu.name} ({soc.gpu.platform})")
    plans = {dim: halves(network, soc, dim) for dim in ("H", "OC")}
    plans |= {processor: default_plan(network, soc, processor) for processor in PROCESSORS}
    worst = 0.0
    with closing(connect(args.serial, soc)) as target:
        for name, plan in plans.items():
            error = error_of(network, plan, target, inputs, expected)
            print(f"{name:4s} largest error {error:.1e} of the largest value", flush=True)
            worst = max(worst, error)
    sys.exit(worst > ALLOWED)


def model() -> onnx.ModelProto:
    """Convolutions of several kinds, an addition, a pooling and a fully connected layer."""
    b = ModelBuilder("small")
    x = b.relu(b.conv(b.input("image", (1, 3, 24, 20)), 16, 3, pad=1))
    skip = x = b.max_pool(x, 2, 2)
    x = b.relu(b.conv(x, 16, 3, pad=1, groups=16))
    x = b.relu(b.add(b.conv(x, 16, 1, pad=0), skip))
    b.output(b.fully_connected(b.flatten(x), 10))
    return b.build()


def by_onnx_runtime(proto: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


def halves(network: Network, soc: Soc, dim: str) -> Plan:
    """Every op that has the dimension cut in half; the others on the GPU."""
    chains = tuple(half(layer, soc, dim) for layer in network.layers)
    plan = default_plan(network, soc, "gpu", chained=False)
    return Plan(plan.model, plan.digest, plan.soc, f"half-{dim}", "none", "missing", None, chains)


def half(layer: Layer, soc: Soc, dim: str) -> Chain:
    """A chain of one op; its variants are the first that take either part of it."""
    has_it = dim in layer.op.dims
    names = {
        processor: registry.variants(layer.op, processor, soc, include_unfit=True)[0].name
        for processor in PROCESSORS
    }
    own: str = dim if has_it else layer.op.dims[0]
    return Chain((layer.name,), own, 0.5 if has_it else 1.0, {layer.name: names})


def error_of(
    network: Network,
    plan: Plan,
    target: Target,
    inputs: dict[str, np.ndarray],
    expected: dict[str, np.ndarray],
) -> float:
    """Of an output: the largest difference over its largest value."""
    with Engine(network, plan, target) as engine:
        got = engine(inputs)
    return max(
        float(np.abs(got[name] - value).max() / np.abs(value).max())
        for name, value in expected.items()
    )


if __name__ == "__main__":
    main()
