"""What lies in the folder that codl works in (CODL_HOME, or the current one)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime

from codl.errors import CodlError
from codl.measure import dataset as datasets
from codl.measure.dataset import Dataset
from codl.predict import FOLDER as PREDICTORS
from codl.provenance import shipped
from codl.records import soc as socs
from codl.runtime.placement import beside

#: Names the SoC of commands that name none.
VARIABLE = "CODL_SOC"
#: `codl soc detect` calls a machine this where no name is given.
HOST = "host"


@dataclass(frozen=True)
class UsualSoc:
    """The SoC of a command that names none, and why it is that one."""

    name: str
    reason: str


def usual_soc(*, runs: bool) -> UsualSoc:
    """What CODL_SOC names, or the SoC described here that was measured last.

    Where none was measured it is `host`, or the only one described here. Where none is described
    and nothing `runs` on it, it is one that comes with codl. Raises `CodlError` without any.
    """
    if name := os.environ.get(VARIABLE):
        return UsualSoc(name, f"as {VARIABLE} says")
    here = [path.stem for path in sorted(socs.FOLDER.glob("*.yaml")) if beside(path).is_file()]
    if measured := {name: at for name in here if (at := _measured_at(name)) is not None}:
        last = max(measured, key=lambda name: measured[name])
        day = datetime.fromtimestamp(measured[last]).strftime("%Y-%m-%d %H:%M")
        return UsualSoc(last, f"measured here last ({day})")
    if HOST in here or len(here) == 1:
        return UsualSoc(HOST if HOST in here else here[0], "described here")
    if here:
        raise CodlError(f"Name one of the SoCs described here by --soc: {', '.join(here)}.")
    coming = sorted(path.name for path in shipped(PREDICTORS).iterdir() if path.is_dir())
    if not runs and coming:
        return UsualSoc(coming[0], "it comes with codl, nothing was measured here")
    raise CodlError(
        f"No SoC is described in {socs.FOLDER.absolute()}: `codl soc detect` describes this "
        "machine, then `codl collect` measures it and `codl train` learns from that. --soc names "
        "another."
    )


def _measured_at(name: str) -> float | None:
    """When a SoC's dataset was written last, in seconds since 1970; None without one."""
    manifest = Dataset(datasets.FOLDER / name).manifest_path
    return manifest.stat().st_mtime if manifest.is_file() else None
