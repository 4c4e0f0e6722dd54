"""Verdicts of plans compared with their references, kept in codl's cache.

An entry is known by all that it rests on: the model with its weights, what the plan was lowered to
(kernels with their sources, variants and choices), the device, its driver, the libraries that
compute there, those here that say what is right, and codl's own code. No library is imported here
that an engine of a bundle needs not.
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
#: Packages that say what is right.
REFERENCES = ("numpy", "onnx", "onnxruntime")


def slot_of(model: str, executables: Iterable[Executable], target: Target) -> Slot:
    """Where the cache has what is known of a model, by its digest, in these executables."""
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
    """What is known; it took no time now."""
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
