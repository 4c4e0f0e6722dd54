"""`codl agent`: the side of a target that measures and runs, on the device."""

from __future__ import annotations

from time import perf_counter

import typer


def serve() -> None:
    """Measure and run for another codl, which speaks frames over standard input and output.

    Targets start it: `--serial process` on this machine, other serials on a device. It executes
    nothing that it is sent but kernels and nets. `python -m codl.targets.agent` is the same without
    this command line, and needs no extra.
    """
    from codl.targets.agent import main

    raise typer.Exit(main(perf_counter()))
