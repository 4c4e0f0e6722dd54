"""A model, planned and compiled, as one file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from codl.api.job import Job, told_of
from codl.bundle.packaging import Packaged
from codl.bundle.packaging import package as write_bundle
from codl.ir import Network
from codl.ir.plan import Plan


def package(job: Job, output: Path, *, check: bool) -> dict[str, Any]:
    """Write the job's model as a bundle, and return what `codl package --json` holds of it.

    Raises `CodlError` where something is missing or unknown, or where the bundle computes what the
    engine that made it does not.
    """
    network, source = job.read_with_source(check=check)
    with job.connected() as context:
        plan = job.plan_of(network, context)
        job.reporter.stage(f"Compiling {network.name}, and trying it in a process of its own")
        made = write_bundle(network, plan, context.device, output, context.tuning, source=source)
    job.reporter.note(f"Wrote {output}")
    return _result(network, plan, made, job.serial)


def _result(network: Network, plan: Plan, made: Packaged, serial: str) -> dict[str, Any]:
    times = made.cold_start
    return {
        "model": network.name,
        "soc": plan.soc,
        "serial": serial,
        "strategy": plan.strategy,
        "file": str(made.path),
        "bytes": made.bytes,
        "cold_start_ms": times.process_ms,
        "without_interpreter_ms": times.without_interpreter_ms,
        "import_ms": times.import_ms,
        "load_ms": times.load_ms,
        "first_run_ms": times.first_run_ms,
        "max_rel_err": made.max_rel_err,
        **told_of(made.checked),
        "source": "measured",
    }
