"""Verdicts of plans compared with their references, kept in codl's cache.

The key of an entry covers everything that the verdict depends on: the model with its weights, the
lowered plan (kernels with their sources, variants and choices), the device, its driver and
libraries, the libraries that compute the reference, and codl's own code. Only packages that an
engine of a bundle needs are imported here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from hashlib import sha256
from pathlib import Path

import msgspec

from codl.ir.constants import digest
from codl.ir.executable import Executable
from codl.records.results import Checked
from codl.runtime.cache import Slot
from codl.runtime.examination import version_of
from codl.targets.base import Target
from codl.targets.environment import identity_of, libraries_of

KIND = "checked"
#: Packages that compute the reference.
REFERENCES = ("numpy", "onnx", "onnxruntime")


def slot_of(model: str, executables: Iterable[Executable], target: Target) -> Slot:
    """The cache slot of a model, given by its digest, in these executables."""
    lowered = sorted(executable.digest(weights=False) for executable in executables)
    key = {
        **identity_of(target),
        "cpu": target.soc.cpu.name,
        "model": model,
        "executables": digest("\n".join(lowered)),
        "libraries": digest(libraries_of(target)),
        "references": digest({name: version_of(name) for name in REFERENCES}),
        "code": code(),
    }
    return Slot(KIND, key)


def load(slot: Slot) -> Checked | None:
    """The stored verdict, if any."""
    try:
        checked = msgspec.json.decode(slot.load() or b"", type=Checked)
    except msgspec.MsgspecError:
        return None
    slot.touch()
    return checked


def store(slot: Slot, checked: Checked) -> None:
    slot.store(msgspec.json.encode(replace(checked, ms=0.0)))


@cache
def code() -> str:
    """Changes with codl's files.

    Files count by size and time: to read them all would take longer than most comparisons.
    """
    root, hashed = Path(__file__).parent.parent, sha256()
    for path in sorted([*root.rglob("*.py"), *root.rglob("*.cl")]):
        status = path.stat()
        hashed.update(f"{path.relative_to(root)} {status.st_size} {status.st_mtime_ns}\n".encode())
    return hashed.hexdigest()
