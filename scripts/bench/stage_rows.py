"""What several stages have in common is measured once: time on a borrowed machine is short.

The CPU beside a GPU in part is the same whatever is left of that; so is the OpenCL side of divided
cores that has the same ones. A stage begins with the rows of its kernels, whose runs and anchors
stay beside them: what is measured later is brought to the same speed, as in any dataset.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Mapping
from typing import Any

from stage_socs import Stage

from codl.ir.types import Processor
from codl.measure import tuning_file
from codl.measure.dataset import Dataset

#: Of a run: what it says of each processor.
BY_PROCESSOR = ("anchors_ms", "reference_ms", "calibration")


def take_rows(stage: Stage, others: Iterable[Stage]) -> int:
    """Begin a dataset with the first one that has a side in common; returns the number of tables.

    Where there is a dataset already, it stays as it is.
    """
    own = Dataset.of(stage.name)
    if own.manifest_path.exists():
        return 0
    for other in others:
        side, known = common_side(stage, other), Dataset.of(other.name)
        if side is not None and known.manifest_path.exists():
            return _copy(known, own, stage, side)
    return 0


def common_side(stage: Stage, other: Stage) -> Processor | None:
    """The side whose kernels take equally long on both: the same hardware, settings and place."""
    one, two = stage.soc, other.soc
    places = one.placement, two.placement
    if one.gpu.is_cpu:
        is_same = one.gpu == two.gpu and places[0].gpu_cores == places[1].gpu_cores
        return "gpu" if is_same else None
    is_same = one.cpu == two.cpu and places[0].cpu_cores == places[1].cpu_cores
    return "cpu" if is_same else None


def _copy(known: Dataset, own: Dataset, stage: Stage, side: Processor) -> int:
    """The manifest comes last: without it there is no dataset yet."""
    manifest = known.manifest()
    paths = [t.path for t in known.tables().values() if re.search(f"_{side}(_|$)", t.path.stem)]
    if side == "gpu":
        paths += [path for path in [tuning_file.path_of(known)] if path.is_file()]
    own.folder.mkdir(parents=True, exist_ok=True)
    for path in paths:
        shutil.copy(path, own.folder)
    runs = {name: _of_side(run, side) for name, run in manifest["runs"].items()}
    own.write_manifest({**manifest, "soc": stage.soc.to_dict(), "runs": runs})
    return len(paths)


def _of_side(run: Mapping[str, Any], side: Processor) -> dict[str, Any]:
    """A run with what it knows of one processor."""
    of_side = {
        key: {name: value for name, value in run[key].items() if name == side}
        for key in BY_PROCESSOR
        if key in run
    }
    return {**run, **of_side}
