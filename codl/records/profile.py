"""Profile of a network on a device: what plans took that ran there, part by part; a file to open.

A predictor knows ops of many networks; a profile knows those of one network, where they ran. It
holds for this network, on this device with its driver, and with these tuned kernels: a file of
others is refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from codl import files, yaml_file
from codl.errors import InvalidFileError, MismatchError
from codl.files import HOME
from codl.ir.plan import Plan
from codl.provenance import VERSION as CODL
from codl.provenance import now
from codl.records.results import Amount

#: Where profiles are kept, a folder for each SoC, and in it a file for each network.
FOLDER = HOME / "profiles"
VERSION = 1
FIX = "`codl run MODEL --soc SOC` without --profile makes a new one."


@dataclass(frozen=True, kw_only=True)
class PlanRun:
    """One plan that ran: milliseconds of the whole, and of its parts by kind and label.

    `latency_ms` is that of plain runs, in turns with the other plans of the profile. Kinds are
    those of spans (`net`, `layer`, `kernel`, ...); parts are as long as they are in a plain run.
    `executable` is the digest of what ran, without weights: a codl that lowers the plan to another
    one cannot use its parts.
    """

    plan: Plan
    executable: str
    latency_ms: Amount
    parts_ms: Mapping[str, Mapping[str, Amount]]

    @property
    def totals(self) -> dict[tuple[str, str], float]:
        """Milliseconds by kind and label, as `totals_ms` of a profile has them."""
        return {(k, label): ms for k, parts in self.parts_ms.items() for label, ms in parts.items()}


@dataclass(frozen=True, kw_only=True)
class NetworkProfile:
    """What is known of a network on a device by plans that ran; the last one is the newest.

    `network` is the digest of its structure, `device` what programs are compiled for (device and
    driver) and the CPU side, `tuning` the fingerprint of the tuned kernels. `slowdown` is how many
    times slower each processor was than when the dataset was measured, by anchors; empty where that
    is not known. `rounds` are those in which a plan was searched and ran since something else than
    such rounds had something to tell.
    """

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
        """Its place in a folder of profiles."""
        return Path(self.soc, f"{self.network}.json")

    def run_of(self, plan: Plan) -> PlanRun | None:
        """What is known of a plan."""
        same = (run for run in self.runs if run.plan.fingerprint == plan.fingerprint)
        return next(same, None)

    def with_runs(self, *runs: PlanRun) -> NetworkProfile:
        """With these runs, in the place of former ones of the same plans."""
        new = {run.plan.fingerprint for run in runs}
        kept = (run for run in self.runs if run.plan.fingerprint not in new)
        return replace(self, runs=(*kept, *runs))

    def unlike(self, other: NetworkProfile) -> Iterator[str]:
        """What another profile is not of, in words, with both values."""
        for name in ("network", "soc", "tuning"):
            if getattr(self, name) != getattr(other, name):
                yield f"the {name} {getattr(self, name)!r}, and not {getattr(other, name)!r}"
        for name in dict.fromkeys((*self.device, *other.device)):
            mine, its = self.device.get(name, ""), other.device.get(name, "")
            if mine != its:
                yield f"the {name} {mine!r}, and not {its!r}"

    def check(self, wanted: NetworkProfile, path: Path) -> None:
        """Raise `MismatchError` with what it is of, where that is not what is wanted."""
        if differences := "; ".join(self.unlike(wanted)):
            raise MismatchError(f"The profile {path} is of {differences}. {FIX}")

    def save(self, path: Path) -> Path:
        content = {"version": VERSION, **asdict(self)}
        return files.write(path, json.dumps(content, indent=1) + "\n")


def load_profile(path: Path) -> NetworkProfile:
    """Read a profile; raises `InvalidFileError` with the key that is missing, unknown or wrong."""
    content: Any = files.read_json(path, fix=FIX)
    if not isinstance(content, dict) or content.get("version") != VERSION:
        problem = f"expected a profile of version {VERSION}."
        raise InvalidFileError(path, problem, where="version", fix=FIX)
    fields = {key: value for key, value in content.items() if key != "version"}
    return yaml_file.convert(fields, NetworkProfile, path)
