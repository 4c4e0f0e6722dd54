"""Convolutions on a GPU with a phone's limits, by two checkouts of codl in turns.

    python scripts/bench/lanes.py OLD NEW [--variants V,W] [--ops FILE] [-o FILE]
    python scripts/bench/lanes.py NEW --choices [--variants V,W] [-o FILE]

A process of each checkout runs the same op in the same variant, as it would run untuned. The device
is this machine's first, as if its work-groups shared 32 KiB and had at most 256 work-items; tensors
lie in buffers and in images. Latencies are those of kernels by the device's clock, the medians of
`TURNS` turns. With `--choices` one checkout runs every size of tile, of teams and of
work-groups on a few convolutions.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

#: The sides of maps, with channels of networks.
MAPS = ((7, 512), (7, 320), (14, 256), (14, 512), (28, 128), (56, 64), (112, 32), (112, 24))
#: Convolutions of a map: `s` its side, `t` twice that, `c` its channels.
SHAPES = (
    "conv2d in=1x{c}x{s}x{s} oc={c} kernel=3x3 pad=1 act=relu",
    "conv2d in=1x{c}x{s}x{s} oc={c} kernel=1x1 act=relu",
    "conv2d in=1x{h}x{t}x{t} oc={c} kernel=3x3 stride=2 pad=1 act=relu",
    "conv2d in=1x{c}x{s}x{s} oc={h} kernel=1x1",
    "conv2d in=1x{c}x{s}x{s} oc={c} kernel=3x3 pad=1 groups={c} act=relu",
)
OPS = tuple(
    shape.format(s=side, t=2 * side, c=channels, h=channels // 2)
    for side, channels in MAPS
    for shape in SHAPES
)
#: What a phone's kernels have.
LIMITS = {"local_mem_bytes": 32 << 10, "max_work_group_size": 256}
TURNS, TURN_S = 5, 0.006
#: Of `--choices`.
FEW = tuple(OPS[at] for at in (0, 10, 20, 25, 30, 1, 11, 16, 26))
PIXELS, TEAMS, WIDTHS = (4, 2, 1), (1, 2, 4, 8, 16), (4, 16, 64)


class Server:
    """Runs ops as this process's checkout of codl would: a request and an answer a line."""

    def __init__(self) -> None:
        from dataclasses import replace

        from codl.runtime.detect import describe
        from codl.targets.local import LocalTarget

        devices = [device for driver in LocalTarget().probe() for device in driver.devices]
        socs = [describe("phone", device) for device in devices]
        soc = min(socs, key=lambda soc: soc.gpu.is_cpu)
        limits = {**LIMITS, "memory_types": ("buffer", "image2d")}
        if soc.gpu.is_cpu:  # to try the script
            limits |= {"type": "gpu", "vector_width": 4, "wave_size": 32, "compute_units": 16}
        self._gpu = LocalTarget(replace(soc, gpu=replace(soc.gpu, **limits))).device
        self._works: list[Any] = []

    def answer(self, request: dict[str, Any]) -> Any:
        return getattr(self, request.pop("call"))(**request)

    def variants(self, op: str) -> list[str]:
        from codl.ir import parse
        from codl.kernels import registry

        every = registry.variants(parse(op), "gpu", self._gpu.soc, include_unfit=True)
        return [v.name for v in every if v.meant_for != {"cpu"} and v.base_name != "gpu_grouped"]

    def load(self, op: str, variant: str, choices: Sequence[Any] = (None,)) -> list[Any]:
        """What each choice launches, or why it cannot."""
        from codl.ir import parse
        from codl.kernels import registry
        from codl.measure.op_runner import GpuWork, filler

        parsed, told = parse(op), []
        entry: Any = registry.find(parsed, variant)
        self._works = []
        for choice in choices:
            try:
                plan = entry.plan(parsed, self._gpu.soc, choice)
                self._works.append(GpuWork(self._gpu, parsed, plan, filler(parsed)))
                launches = [[x.kernel, x.global_size, x.local_size] for x in plan.launches]
                told.append({"launches": launches})
            except Exception as error:
                self._works.append(None)
                told.append({"failed": str(error)[:200]})
        return told

    def time(self) -> list[float | None]:
        """Milliseconds of each that was loaded."""
        return [work and self._ms(work) for work in self._works]

    def _ms(self, work: Any) -> float:
        """Of its kernels, by the device's clock: small ones take less than their launches."""
        from time import perf_counter

        work(2)
        begin = perf_counter()
        work(4)
        repeats = max(1, math.ceil(4 * TURN_S / (perf_counter() - begin)))
        with self._gpu.profiling():
            queue = self._gpu.queue
            runs = [[kernel.enqueue(queue) for kernel in work.kernels] for _ in range(repeats)]
        took = (sum(e.profile.end - e.profile.start for e in run) for run in runs)
        return 1e-6 * median(took)

    def grids(self, op: str, variant: str) -> list[Any]:
        """Choices of all sizes of tiles, teams and work-groups."""
        from codl.ir import parse
        from codl.ir.ops.convolution import ConvColumns
        from codl.kernels import registry

        parsed, soc = parse(op), self._gpu.soc
        entry: Any = registry.find(parsed, variant)
        usual = dict(entry.choices(parsed, soc)[0])
        every = [usual]
        for pixels in PIXELS if "pixels" in usual else (0,):
            for teams in TEAMS if "teams" in usual else (1,):
                for wide in WIDTHS:
                    base = {k: v for k, v in usual.items() if not k.startswith("local_")}
                    base |= {"pixels": pixels} if pixels else {}
                    base |= {"teams": teams} if "teams" in usual else {}
                    columns = {k: _column(v) for k, v in base.items()}
                    grouped = entry.grouped(ConvColumns.of([parsed]), soc, columns, wide=wide)
                    every.append({k: int(v[0]) for k, v in grouped.items()})
        return [choice for at, choice in enumerate(every) if choice not in every[:at]]


def _column(value: float) -> Any:
    import numpy as np

    return np.array([float(value)])


def serve() -> None:
    answers, sys.stdout = sys.stdout, sys.stderr
    server = Server()
    for line in sys.stdin:
        print(json.dumps(server.answer(json.loads(line))), file=answers, flush=True)


class Checkout:
    """A process of one."""

    def __init__(self, folder: Path) -> None:
        path = os.pathsep.join([str(folder.resolve()), os.environ.get("PYTHONPATH", "")])
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )

    def ask(self, call: str, **arguments: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps({"call": call, **arguments}), file=self._process.stdin, flush=True)
        if not (line := self._process.stdout.readline()):
            raise SystemExit(f"the process of a checkout ended at {call} {arguments}")
        return json.loads(line)


def compare(old: Checkout, new: Checkout, ops: Sequence[str], wanted: str) -> Iterator[Any]:
    """Rows of ops and variants, by both in turns."""
    for op in ops:
        theirs = old.ask("variants", op=op)
        for variant in new.ask("variants", op=op):
            if variant not in theirs or (wanted and variant not in wanted.split(",")):
                continue
            told = [each.ask("load", op=op, variant=variant)[0] for each in (old, new)]
            row: dict[str, Any] = {"op": op, "variant": variant, "old": told[0], "new": told[1]}
            if not any("failed" in each for each in told):
                taken = [(old.ask("time")[0], new.ask("time")[0]) for _ in range(TURNS)]
                row["old_ms"], row["new_ms"] = (median(times) for times in zip(*taken, strict=True))
                row["ratio"] = row["old_ms"] / row["new_ms"]
            yield row


def try_choices(new: Checkout, ops: Sequence[str], wanted: str) -> Iterator[Any]:
    """Rows of ops, variants and their choices, the usual choice first."""
    for op in ops:
        for variant in new.ask("variants", op=op):
            if wanted and variant not in wanted.split(","):
                continue
            choices = new.ask("grids", op=op, variant=variant)
            told = new.ask("load", op=op, variant=variant, choices=choices)
            turns = zip(*(new.ask("time") for _ in range(3)), strict=True)
            for choice, answer, times in zip(choices, told, turns, strict=True):
                ms = None if None in times else median(times)
                yield {"op": op, "variant": variant, "choice": choice, "ms": ms, **answer}


def show(row: dict[str, Any]) -> None:
    if "choice" in row:
        taken = f"{row['ms']:8.4f}" if row["ms"] else row.get("failed", "")
        print(f"{taken} {row['op'][7:]} {row['variant']} {row['choice']}", flush=True)
    elif "ratio" in row:
        times = f"{row['old_ms']:8.4f} {row['new_ms']:8.4f} {row['ratio']:6.2f}"
        local = " ".join(str(launch[2]) for launch in row["new"]["launches"])
        print(f"{times} {row['op'][7:]} {row['variant']} {local}", flush=True)
    else:
        print("failed", row["op"], row["variant"], row["old"], row["new"], flush=True)


def summary(rows: Sequence[dict[str, Any]]) -> None:
    """Old over new by the side of the output and the variant; over 1 is faster."""
    sides: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if "ratio" in row:
            size = row["op"].split("in=")[1].split()[0].split("x")[-1]
            side = int(size) // (2 if "stride=2" in row["op"] else 1)
            name = f"{side:3d} {'depthwise' if 'groups=' in row['op'] else row['variant']}"
            sides.setdefault(name, []).append(row)
            sides.setdefault(f"{side:3d} all", []).append(row)
    for name, some in sorted(sides.items()):
        ratios = [row["ratio"] for row in some]
        print(f"{name:40s} {geometric_mean(ratios):6.2f} least {min(ratios):6.2f} of {len(ratios)}")
    best: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        if "ratio" in row:
            storage = "image" if "_image" in row["variant"] else "buffer"
            half = "fp16" if "_fp16" in row["variant"] else "float"
            best.setdefault((row["op"], f"{storage} {half}"), []).append(row)
    print("the fastest variant of each, old and new, and their ratio")
    for (op, storage), some in best.items():
        old, new = (min(row[key] for row in some) for key in ("old_ms", "new_ms"))
        print(f"{old:8.4f} {new:8.4f} {old / new:6.2f} {op[7:]} {storage}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkouts", nargs="*", type=Path)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--choices", action="store_true")
    parser.add_argument("--variants", default="")
    parser.add_argument("--ops", type=Path)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    if options.serve:
        return serve()
    checkouts = [Checkout(folder) for folder in options.checkouts]
    ops = options.ops.read_text().splitlines() if options.ops else None
    if options.choices:
        measured = try_choices(checkouts[0], ops or FEW, options.variants)
    else:
        measured = compare(*checkouts, ops or OPS, options.variants)
    rows = []
    for row in measured:
        show(row)
        rows.append(row)
        if options.output:
            options.output.write_text(json.dumps(rows, indent=1))
    if not options.choices:
        summary(rows)


if __name__ == "__main__":
    main()
