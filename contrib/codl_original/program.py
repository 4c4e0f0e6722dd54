"""The original CoDL's program `codl_op_run`: its command line and its output.

Its shapes are n, h, w, c for the input and o, i, h, w for weights. It pads nothing: an op with
padding is given as the op of the padded input, as the original does.

It prints a line of every round, and one of statistics that begins with `Stat:`.

    I mace/utils/op_delay_tool.h:147] [0.012,3.81,0.021]
    I test/codl_run/conv2d_test_v2.cc:229] Stat: si 10, stat [0.011,3.8,0.02], std_pect [9.1,2,4.2]

`stat` are the means in milliseconds of the parts of a kernel (such as padding, computing, cutting
off) over the rounds from `si` on; `std_pect` their standard deviations in percent. Both are empty
where nothing was measured.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from math import isfinite
from typing import Literal

from codl.errors import DeviceError
from codl.ir import Op, Pad
from codl.ir.ops.base import Activation
from codl.ir.ops.convolution import Conv2d
from codl.ir.ops.matmul import FullyConnected
from codl.ir.ops.window import Pool2d
from codl.ir.types import Processor

#: Where the original's scripts put the program on a phone.
PROGRAM = "/data/local/tmp/codl/codl_op_run"
#: Rounds at the start that the program leaves out of its statistics.
WARM_UP = 10
#: As many as the original's scripts run; one round is that of the first build.
ROUNDS = 21
#: The values of --gpu_memory_type, --part_dim, --cu_hint and --pooling_type.
MEMORY_TYPES = {"buffer": 1, "image": 2}
HEIGHT = 1
HINTS: dict[Processor, int] = {"cpu": 1, "gpu": 2}
POOLING_TYPES = {"avg": 1, "max": 2}
MemoryType = Literal["buffer", "image"]
STAT = re.compile(
    r"Stat: si (?P<si>\d+), stat (?P<stat>\S*), std_pect (?P<std>\S*)\s*$", re.MULTILINE
)
ROUND = re.compile(r"^I \S+\] (?P<parts>\[[^\]\s]*\])\s*$", re.MULTILINE)
#: An output is not longer than this, in bytes: more is not read.
MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class Options:
    """Options of the program; `threads` are the CPU's, `rounds` include the warm-up."""

    program: str = PROGRAM
    memory_type: MemoryType = "image"
    threads: int = 4
    rounds: int = ROUNDS
    limit_s: float = 120.0

    @property
    def counted(self) -> int:
        """The rounds that its statistics are of."""
        return self.rounds - WARM_UP


def as_run(op: Op) -> Op | None:
    """The op as the program runs it, of the padded input, with no activation; None for others.

    Those are convolutions without groups or dilation, pooling and fully connected layers, of one
    image.
    """
    if op.inputs[0].n != 1 or not isinstance(op, Conv2d | Pool2d | FullyConnected):
        return None
    plain = op.with_activation(Activation())
    if isinstance(plain, FullyConnected):
        return plain
    if not isinstance(plain, Conv2d | Pool2d) or plain.dilation != (1, 1):
        return None
    if isinstance(plain, Conv2d) and plain.groups != 1:
        return None
    (n, c, _, _), out = plain.input, plain.output
    h, w = (
        (size - 1) * stride + kernel
        for size, stride, kernel in zip((out.h, out.w), plain.stride, plain.kernel, strict=True)
    )
    shape = plain.input._replace(n=n, c=c, h=h, w=w)
    return replace(plain, inputs=(shape,), pad=Pad(0, 0, 0, 0))


def op_command(op: Op, processor: Processor, options: Options) -> tuple[str, ...]:
    """The program and its arguments for an op of `as_run`, the whole of it on one processor."""
    on_cpu = processor == "cpu"
    settings = ["MACE_DURATION_COLLECT_GRANULARITY=Fine", "MACE_DO_COMPUTE=1"]
    if not on_cpu:
        settings.append("MACE_OPENCL_PROFILING=1")
    return (
        "env",
        *settings,
        options.program,
        "--compute",
        "--cpu_affinity_policy=1",
        f"--rounds={options.rounds}",
        f"--gpu_memory_type={MEMORY_TYPES[options.memory_type]}",
        f"--num_threads={options.threads if on_cpu else 1}",
        f"--part_dim={HEIGHT}",
        f"--part_ratio={0.0 if on_cpu else 1.0:f}",
        f"--cu_hint={HINTS[processor]}",
        *_op_arguments(op),
    )


def _op_arguments(op: Op) -> list[str]:
    (_, c, h, w), out = op.inputs[0], op.output
    shape = f"--input_shape={_listed(1, h, w, c)}"
    if isinstance(op, FullyConnected):
        weights = _listed(op.out_channels, c, h, w)
        return ["--op_type=FullyConnected", shape, f"--weight_shape={weights}"]
    assert isinstance(op, Conv2d | Pool2d)  # nothing else is `as_run`
    weights = _listed(out.c, c, *op.kernel)
    window = [shape, f"--weight_shape={weights}", f"--strides={_listed(*op.stride)}"]
    if isinstance(op, Pool2d):
        return ["--op_type=Pooling", *window, f"--pooling_type={POOLING_TYPES[op.mode]}"]
    return ["--op_type=Conv2D", *window]


def _listed(*sizes: int) -> str:
    return ",".join(map(str, sizes))


@dataclass(frozen=True)
class Stat:
    """Means in milliseconds of the parts of a kernel, and their sums in the rounds that count.

    `rounds_ms` is empty where the program printed none.
    """

    parts_ms: tuple[float, ...]
    rounds_ms: tuple[float, ...] = ()

    @property
    def latency_ms(self) -> float:
        """The mean of the whole."""
        return sum(self.parts_ms)


def read_stat(output: bytes) -> Stat:
    """The statistics in the program's output.

    Raises `DeviceError` where there are none, or they are no latencies.
    """
    text = output[:MOST_BYTES].decode(errors="replace")
    lines = list(STAT.finditer(text))
    if len(lines) != 1:
        problem = "no line that begins with Stat:" if not lines else f"{len(lines)} lines of Stat:"
        last = text.strip().splitlines()[-1:]
        said = f"; its last line is {last[0].strip()[:200]!r}" if last else ""
        raise DeviceError(f"the program printed {problem}{said}")
    (line,) = lines
    parts = _numbers(line["stat"])
    if not parts:
        raise DeviceError(f"the program measured nothing: {line[0]!r}")
    if not all(isfinite(part) and part >= 0 for part in parts) or not sum(parts):
        raise DeviceError(f"the program printed {line[0]!r}, whose parts are no latencies")
    rounds = [_numbers(each["parts"]) for each in ROUND.finditer(text[: line.start()])]
    sums = [sum(each) for each in rounds if len(each) == len(parts)]
    return Stat(parts, tuple(sums[int(line["si"]) :]))


def _numbers(text: str) -> tuple[float, ...]:
    """The numbers of `[1,2.5]`, none of an empty text; raises `DeviceError` for anything else."""
    if not text:
        return ()
    try:
        if not (text.startswith("[") and text.endswith("]")):
            raise ValueError
        return tuple(float(part) for part in text[1:-1].split(","))
    except ValueError:
        problem = f"the program printed {text!r}, expected numbers such as [1,2.5]"
        raise DeviceError(problem) from None
