"""What it takes the processors of a SoC to know of each other's work.

    python scripts/bench/signals.py --soc host [--rounds 200]

A first launch, from enqueueing a kernel on a queue that was empty for so long to its beginning; a
wait for an event, from the end of a kernel of such a length to the CPU's knowing it; and where both
sides see one memory the same by a flag that a kernel raises. All take turns. Microseconds: the
fastest, the percentiles 25, 50 and 90, and how many were taken.
"""

from __future__ import annotations

import argparse
import warnings
from dataclasses import replace

import numpy as np

from codl.errors import DeviceError
from codl.measure.sampling import signal_tasks
from codl.measure.signals import SignalTimer
from codl.measure.tasks import SignalTask
from codl.measure.timing import WHOLE
from codl.runtime.opencl import OpenClDevice
from codl.targets.detect import load_local

PERCENTILES = (0, 25, 50, 90)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--soc", default="host")
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()
    soc = load_local(options.soc)
    timer = SignalTimer(OpenClDevice(soc))
    # Also where detection saw no flag work: that is then told.
    able = replace(soc, gpu=replace(soc.gpu, svm_atomics=True))
    samples = {}
    for task in signal_tasks(able):
        try:
            samples[task] = timer.sample(task)
            samples[task](1)
        except DeviceError as error:
            warnings.warn(f"{task.kind}, {task.gap_ms} ms: {error}", stacklevel=1)
            samples.pop(task, None)
    found: dict[SignalTask, list[float]] = {task: [] for task in samples}
    for _ in range(options.rounds):
        for task, sample in samples.items():
            found[task].append(sample(1)[WHOLE])
    print(f"{soc.gpu.name}, signal: {soc.gpu.signal or 'event'}")
    for task, seconds in found.items():
        numbers = " ".join(f"{1e6 * us:9.2f}" for us in np.percentile(seconds, PERCENTILES))
        print(f"{task.kind:13} {task.gap_ms:5.1f} ms {numbers} {len(seconds):6}")


if __name__ == "__main__":
    main()
