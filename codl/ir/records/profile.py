"""Profile of a network on a device: latencies of plans that ran, part by part, and its file.

A predictor covers ops of many networks; a profile covers one network as it ran. It is valid for
this network, device, driver and tuning; loading it for others is an error that names them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal, NamedTuple

from codl import files
from codl.errors import MismatchError
from codl.files import HOME, now
from codl.files import VERSION as CODL
from codl.ir import yaml_file
from codl.ir.executable import (
    Command,
    Copy,
    Executable,
    GpuOp,
    Launch,
    Relayout,
    RunNet,
    Transfer,
    Unmap,
    Wait,
)
from codl.ir.plan import Plan
from codl.ir.records.results import Amount, SpanKind

#: Folder of profiles, with a folder for each SoC and a file for each network.
FOLDER = HOME / "profiles"
FIX = "`codl run MODEL --soc SOC` makes a new one."


@dataclass(frozen=True, kw_only=True)
class PlanRun:
    """One plan that ran: milliseconds of the whole, and of its parts by kind and label.

    `latency_ms` is of plain runs, in turns with the profile's other plans. Kinds are those of spans
    (`net`, `layer`, `kernel`, ...); parts have their lengths in a plain run. `executable` is the
    digest of the executable without weights: parts apply only to a plan lowered to the same one.
    """

    plan: Plan
    executable: str
    latency_ms: Amount
    parts_ms: Mapping[str, Mapping[str, Amount]]

    @property
    def totals(self) -> dict[tuple[str, str], float]:
        """Milliseconds by kind and label, in the form of `codl.runtime.loaded.totals_ms`."""
        return {(k, label): ms for k, parts in self.parts_ms.items() for label, ms in parts.items()}


@dataclass(frozen=True, kw_only=True)
class NetworkProfile:
    """Plans of a network that ran on a device, the newest last.

    `network` is the digest of its structure, `tuning` the fingerprint of the tuned kernels.
    `device` identifies the device and driver that programs are compiled for, and the CPU side.
    `slowdown` is each processor's slowdown since the dataset was measured, by anchors; empty if
    unknown. `rounds` counts the improver's rounds; a run outside them lowers it by one.
    """

    version: Literal[1] = 1
    model: str
    network: str
    soc: str
    device: Mapping[str, str]
    tuning: str
    runs: tuple[PlanRun, ...] = ()
    slowdown: Mapping[str, Amount] = field(default_factory=dict)
    rounds: int = 0
    codl: str = CODL
    created: str = field(default_factory=now)

    @property
    def path(self) -> Path:
        """Relative path of its file in a folder of profiles."""
        return Path(self.soc, f"{self.network}.json")

    def run_of(self, plan: Plan) -> PlanRun | None:
        """The run of a plan; None if the plan did not run."""
        same = (run for run in self.runs if run.plan.fingerprint == plan.fingerprint)
        return next(same, None)

    def with_runs(self, *runs: PlanRun) -> NetworkProfile:
        """This profile with `runs` added, in place of former runs of the same plans."""
        new = {run.plan.fingerprint for run in runs}
        kept = (run for run in self.runs if run.plan.fingerprint not in new)
        return replace(self, runs=(*kept, *runs))

    def unlike(self, other: NetworkProfile) -> Iterator[str]:
        """Differences to another profile as text, with both values."""
        for name in ("network", "soc", "tuning"):
            if getattr(self, name) != getattr(other, name):
                yield f"the {name} {getattr(self, name)!r}, and not {getattr(other, name)!r}"
        for name in dict.fromkeys((*self.device, *other.device)):
            mine, its = self.device.get(name, ""), other.device.get(name, "")
            if mine != its:
                yield f"the {name} {mine!r}, and not {its!r}"

    def check(self, wanted: NetworkProfile, path: Path) -> None:
        """Raise `MismatchError` if this profile, read from `path`, differs from `wanted`."""
        if differences := "; ".join(self.unlike(wanted)):
            raise MismatchError(f"The profile {path} is of {differences}. {FIX}")

    def save(self, path: Path) -> Path:
        return files.write(path, json.dumps(asdict(self), indent=1) + "\n")


def load_profile(path: Path) -> NetworkProfile:
    """Read a profile; raises `InvalidFileError` for a missing, unknown or wrong key."""
    return yaml_file.convert(files.read_json(path, fix=FIX), NetworkProfile, path, fix=FIX)


# Names of an executable's commands in profiles, shared by engines and readers.


class SpanName(NamedTuple):
    kind: SpanKind
    label: str


def span_of(executable: Executable, command: Command) -> SpanName | None:
    """Kind and label of a command's span; None for a command without a span, such as a flush."""
    if isinstance(command, RunNet):
        return SpanName("net", executable.nets[command.net].label)
    if not isinstance(command, Launch | Copy | Unmap | Wait):
        return None
    step = executable.steps[command.step]
    if isinstance(command, Launch):
        if isinstance(step, GpuOp):
            return SpanName("kernel", step.label)
        kind: SpanKind = "transform" if isinstance(step, Transfer) else "kernel"
        return SpanName(kind, transform_label(executable, step))
    if isinstance(command, Copy):
        return SpanName("copy", step.label)
    if isinstance(command, Unmap):
        return SpanName("unmap", step.label)
    # The CPU waits for memory to fill, or for results of the GPU.
    is_to_gpu = isinstance(step, Transfer) and step.direction == "to_gpu"
    return SpanName("map" if is_to_gpu else "sync", step.label)


def transform_label(executable: Executable, step: Transfer | Relayout) -> str:
    return f"transform {executable.tensors[step.source.tensor].name}"
