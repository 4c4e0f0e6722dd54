"""Packaging of a network and a plan as a bundle, for `codl package`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from codl.engine.engine import Engine
from codl.errors import CodlError
from codl.files import provenance
from codl.frontend.convert import Source
from codl.ir import Network
from codl.ir.executable import Executable, GpuOp
from codl.ir.executable_json import encode
from codl.ir.plan import Plan
from codl.ir.records.results import Checked
from codl.jobs.bundle.archive import (
    CONSTANTS,
    EXECUTABLE,
    REFERENCE,
    Archive,
    ArrayStore,
    mapped,
    network_to_json,
    to_json,
    write_archive,
)
from codl.jobs.bundle.loading import compare, load
from codl.kernels.tuning import Tuning
from codl.machine.placement import require_local
from codl.measure.closeness import OF_WINOGRAD, max_rel_err
from codl.measure.inputs import random_inputs
from codl.runtime.loaded import Binary
from codl.targets.base import ColdStart, Target
from codl.targets.requests import Arrays
from codl.validate.first_check import checked_engine
from codl.validate.validation import usual_cosine

#: Largest `max_rel_err` between outputs of a bundle and of the engine that made it. Libraries with
#: several threads may add in another order each time.
TOLERANCE = 1e-5


@dataclass(frozen=True)
class Packaged:
    """A written bundle, whose outputs in another process equal the engine's."""

    path: Path
    bytes: int
    cold_start: ColdStart
    max_rel_err: float
    checked: Checked | None = None


def package(
    network: Network,
    plan: Plan,
    target: Target,
    path: Path,
    tuning: Tuning = Tuning(),
    *,
    source: Source | None = None,
) -> Packaged:
    """Write a bundle, test it in another process, then move it to its `path`.

    With a `source`, the plan is first checked against the model (`checked_engine`). Raises
    `CodlError` where the bundle's outputs differ from the engine's by more than `TOLERANCE`.
    """
    inputs = random_inputs(network)
    path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=path.parent, prefix=".codl-") as folder:
        untried = Path(folder) / path.name
        with write(network, plan, target, untried, tuning, source=source) as engine:
            expected, checked = engine(inputs), engine.checked
        cold_start, outputs = _tried(untried, target, inputs)
        error = max(max_rel_err(outputs[name], value) for name, value in expected.items())
        if not error <= TOLERANCE:
            raise CodlError(
                f"The bundle of {network.name!r} is not kept: its outputs are {error:.2g} off "
                f"those of the engine that made it, {TOLERANCE:g} is allowed."
            )
        untried.replace(path)
    return Packaged(path, path.stat().st_size, cold_start, error, checked)


def _tried(path: Path, target: Target, inputs: Arrays) -> tuple[ColdStart, Arrays]:
    """Load a bundle in a new process on the target, and run it once: times and outputs."""
    with (
        closing(target.fresh()) as fresh,
        load(path, connected=lambda soc: fresh, trusted=True, check=False) as engine,
    ):
        outputs, times = engine(inputs), fresh.cold_start()
        compare(engine, Archive(path), fresh)
        return times, outputs


def write(
    network: Network,
    plan: Plan,
    target: Target,
    path: Path,
    tuning: Tuning = Tuning(),
    *,
    source: Source | None = None,
) -> Engine:
    """Compile a network by a plan and write the bundle; returns the engine.

    Where a variant of `plan` fails on the device, the bundle's plan names its replacement.
    """
    soc, identity = require_local(target.soc), target.open()
    engine = checked_engine(network, plan, target, tuning, source=source)
    arrays = ArrayStore()
    executable = encode(engine.executable, arrays.put)
    listed, programs = _programs(target.binaries(engine.loaded))
    manifest: dict[str, Any] = {
        **provenance(),
        "model": network.name,
        "soc": soc.to_dict(),
        "placement": soc.placement.to_dict(),
        "device": dict(identity),
        "executable": engine.executable.digest(),
        "content": network.content_digest,
    }
    with TemporaryDirectory(dir=path.parent, prefix=".codl-") as folder:
        constants = Path(folder) / CONSTANTS
        manifest["constants_header"] = arrays.save(constants)
        reference = Path(folder) / REFERENCE
        manifest["reference"] = _reference(engine, reference)
        parts: dict[str, bytes | memoryview] = {
            "plan.json": to_json(_as_run(engine.plan, engine.executable).to_json()),
            "network.json": to_json(network_to_json(network)),
            EXECUTABLE: executable,
            "programs.json": to_json(listed),
            **programs,
            CONSTANTS: mapped(constants),
            **({REFERENCE: mapped(reference)} if manifest["reference"] else {}),
        }
        write_archive(path, manifest, parts)
    return engine


def _reference(engine: Engine, path: Path) -> dict[str, Any] | None:
    """Write reference inputs and outputs of a checked engine; returns their manifest entry.

    Outputs are the engine's, not the model's. The limit is wide, as another device may round to the
    other side of the model's.
    """
    checked = engine.checked
    if checked is None or not checked.reference:
        return None
    arrays, inputs = ArrayStore(), random_inputs(engine.network)
    outputs = {k: v for k, v in engine(inputs).items() if k not in checked.ignored}
    listed = {
        kind: {name: arrays.put(np.asarray(value, np.float32)) for name, value in values.items()}
        for kind, values in (("inputs", inputs), ("outputs", outputs))
    }
    cosine = 2 * usual_cosine(engine.network, engine.plan) ** 2 - 1
    header = arrays.save(path)
    limit = max(4 * checked.limit, OF_WINOGRAD)
    return {"header": header, "cosine": cosine, "limit": limit, **listed}


def _as_run(plan: Plan, executable: Executable) -> Plan:
    """The plan with the GPU variants of the executable; a fused add keeps its own."""
    taken = {s.layers[0]: s.variant for s in executable.steps if isinstance(s, GpuOp)}
    chains = [
        replace(
            chain,
            variants={
                layer: {**names, "gpu": taken[layer]} if layer in taken else dict(names)
                for layer, names in chain.variants.items()
            },
        )
        for chain in plan.chains
    ]
    return replace(plan, chains=tuple(chains))


def _programs(binaries: Sequence[Binary]) -> tuple[list[dict[str, Any]], dict[str, bytes]]:
    """Entries of `programs.json` for compiled programs, and the binaries by part name."""
    listed, parts = [], {}
    for binary in binaries:
        part = f"programs/{sha256(repr(binary.key).encode()).hexdigest()[:16]}.bin"
        name, source, options = binary.key
        listed.append({"name": name, "source": source, "options": options, "part": part})
        parts[part] = binary.blob
    return listed, parts
