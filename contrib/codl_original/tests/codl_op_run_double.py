#!/usr/bin/env python3
"""A double of the original CoDL's codl_op_run: it takes its flags, measures nothing, and prints
recorded lines in its format with made-up numbers.

An input of 13 columns makes it fail, one of 14 columns makes it measure nothing, and one of 15
print the parts of another kernel. Its command lines are kept in the file that DOUBLE_LOG names.
"""

import os
import sys

FLAGS = {
    "compute", "cpu_affinity_policy", "rounds", "gpu_memory_type", "num_threads", "part_dim",
    "part_ratio", "cu_hint", "op_type", "input_shape", "weight_shape", "strides", "pooling_type",
}  # fmt: skip


def parts_of(given: dict[str, str]) -> list[float]:
    """Milliseconds, with the number of parts of the kernel that the program would choose."""
    if given["cu_hint"] == "2" or given["op_type"] != "Conv2D":
        return [2.5]
    oc, ic, *kernel = map(int, given["weight_shape"].split(","))
    if kernel == [3, 3] and given["strides"] == "1,1" and min(oc, ic) >= 8:
        return [0.25, 1.0, 2.0, 1.5, 0.125]
    return [0.5, 3.0, 0.25]


def main() -> int:
    log = os.environ.get("DOUBLE_LOG")
    if log:
        settings = [f"{k}={v}" for k, v in sorted(os.environ.items()) if k.startswith("MACE_")]
        with open(log, "a", encoding="utf-8") as file:
            file.write(" ".join([*settings, *sys.argv[1:]]) + "\n")
    given = dict((own.removeprefix("--").partition("=")[::2]) for own in sys.argv[1:])
    unknown = set(given) - FLAGS
    if unknown:
        print(f"ERROR: unknown command line flag {unknown.pop()!r}", file=sys.stderr)
        return 1
    columns = given["input_shape"].split(",")[2]
    if columns == "13":
        print("F mace/core/runtime/opencl/opencl_runtime.cc:830] out of memory", file=sys.stderr)
        return 134
    print("I test/codl_run/conv2d_test_v2.cc:83] is_debug_on: 0")
    print("I mace/core/runtime/opencl/opencl_runtime.cc:604] OpenCL device: a double")
    parts = parts_of(given) + ([9.0] if columns == "15" else [])
    rounds = int(given["rounds"])
    for number in range(rounds):
        scale = 10 if number < 10 else 1 + 0.01 * (number - 10)
        listed = ",".join(f"{scale * part:g}" for part in parts)
        print(f"I test/codl_run/conv2d_test_v2.cc:204] Round {number}, latency 9.9 ms")
        print(f"I mace/utils/op_delay_tool.h:147] [{listed}]")
    stat = "" if columns == "14" else f"[{','.join(f'{part:g}' for part in parts)}]"
    deviation = "" if columns == "14" else f"[{','.join('2' for _ in parts)}]"
    place = "I test/codl_run/conv2d_test_v2.cc:229]"
    print(f"{place} Stat: si 10, stat {stat}, std_pect {deviation}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
