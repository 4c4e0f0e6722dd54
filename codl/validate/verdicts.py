"""Cached verdicts of plans that were compared with their references.

The key of an entry covers all inputs of the verdict: the model with its weights, the lowered plan
(kernels with sources, variants and choices), the device, its driver and libraries, the libraries of
the reference, and codl's own code. This module imports only packages that a bundle's engine needs.
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
from codl.ir.records.results import Checked
from codl.machine.cache import Slot
from codl.machine.hardware import version_of
from codl.targets.base import Target, identity_of

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
        "libraries": digest(target.libraries()),
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
    """A digest of codl's file sizes and times; reading the files would take too long."""
    root, hashed = Path(__file__).parent.parent, sha256()
    for path in sorted([*root.rglob("*.py"), *root.rglob("*.cl")]):
        status = path.stat()
        hashed.update(f"{path.relative_to(root)} {status.st_size} {status.st_mtime_ns}\n".encode())
    return hashed.hexdigest()
