"""The frame of a benchmark that compares ops of a file on one core: its options, rows and JSON."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from interleaved import one_core_soc

from codl.ir import Op, Weights, parse
from codl.kernels import registry
from codl.kernels.base import KernelPlan
from codl.provenance import provenance
from codl.runtime.opencl import OpenClDevice

#: Measures one op, for about `args.seconds`: a row, which is a dataclass.
Measure: TypeAlias = Callable[[Op], Any]


def run(
    about: str,
    ops: Path,
    seconds: float,
    prepared: Callable[[OpenClDevice, argparse.Namespace], Measure],
    *,
    line: Callable[[Any], str],
    report: Callable[[Sequence[Any]], str],
    summary: Callable[[Sequence[Any]], dict[str, float]],
) -> None:
    """Measure every op of a file, by default `ops`, and print the rows as they come."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--ops", type=Path, default=ops, help="a file of op texts, one a line")
    parser.add_argument("--only", default="", help="only ops whose text has this in it")
    parser.add_argument("--variant", default="", help="only this OpenCL variant")
    parser.add_argument("--choices", action="store_true", help="every choice of parameters")
    parser.add_argument("--seconds", type=float, default=seconds, help="for each op, about")
    parser.add_argument("--device", help="the OpenCL device, by driver or name")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("-o", "--output", type=Path, help="write JSON to this file")
    args = parser.parse_args()

    gpu, rows = OpenClDevice(one_core_soc(args.device)), []
    measure = prepared(gpu, args)
    for text in args.ops.read_text().splitlines():
        if text and not text.startswith("#") and args.only in text:
            rows.append(measure(parse(text)))
            if not args.json:
                print(line(rows[-1]), flush=True)
    if not rows:
        raise SystemExit(f"No op of {args.ops} has {args.only!r} in it.")
    content = {**provenance(), "device": gpu.soc.gpu.name, "summary": summary(rows)}
    text = json.dumps({**content, "rows": [asdict(row) for row in rows]}, indent=1)
    if args.output:
        args.output.write_text(text + "\n")
    print(text if args.json else report(rows))


def choices(op: Op, gpu: OpenClDevice, only: str, every: bool) -> Iterator[tuple[str, KernelPlan]]:
    """Variants of the GPU side that are meant for it, in their first choice or in every one."""
    for variant in registry.variants(op, "gpu", gpu.soc):
        if only not in variant.name:
            continue
        known = variant.choices(op, gpu.soc)  # type: ignore[attr-defined]
        for choice in known if every else known[:1]:
            name = " ".join([variant.name, *(f"{k}={v}" for k, v in choice.items())])
            yield name, variant.plan(op, gpu.soc, choice)  # type: ignore[attr-defined]


def random_weights(op: Op) -> Weights:
    random = np.random.default_rng(1)
    return op.weights_of(lambda shape: random.standard_normal(shape, np.float32))


def geometric_mean(values: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(values))))
