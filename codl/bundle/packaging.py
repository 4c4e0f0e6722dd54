"""From a network and a plan to a bundle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from codl.bundle import network as networks
from codl.bundle.archive import to_json, write_archive
from codl.bundle.supply import Recorder
from codl.bundle.tensors import Tensors
from codl.device.opencl import open_device
from codl.device.programs import Binary
from codl.execute.engine import Engine
from codl.ops import Network
from codl.ops.plan import Plan
from codl.provenance import provenance
from codl.soc import Soc


def write(network: Network, plan: Plan, soc: Soc, path: Path) -> Engine:
    """Compile a network as a plan says and write what came of it; returns the engine.

    The bundle's plan names the variants that run, where those of `plan` fail on the device.
    """
    network, recorder, tensors = networks.as_written(network), Recorder(soc), Tensors()
    gpu = open_device(soc)
    with gpu.lock, gpu.programs.recording() as binaries:
        engine = Engine(network, plan, soc, supply=recorder)
    kernels = recorder.to_json(tensors)
    kernels["programs"], programs = _programs(binaries)
    constants = {name: tensors.add(f"constant/{name}", v) for name, v in network.constants.items()}
    models = {f"models/{key}.onnx": model for key, model in networks.models_of(network).items()}
    manifest = {
        **provenance(),
        "model": network.name,
        "soc": soc.to_dict(),
        "device": dict(gpu.programs.identity),
    }
    with TemporaryDirectory(dir=path.parent, prefix=".codl-") as folder:
        weights = Path(folder) / "weights.safetensors"
        manifest["weights_header"] = tensors.save(weights)
        parts: dict[str, bytes | Path] = {
            "plan.json": to_json(_as_run(plan, recorder).to_json()),
            "network.json": to_json({**networks.to_json(network), "constants": constants}),
            "kernels.json": to_json(kernels),
            **programs,
            **models,
            "weights.safetensors": weights,
        }
        write_archive(path, manifest, parts)
    return engine


def _as_run(plan: Plan, recorder: Recorder) -> Plan:
    """The plan with the GPU's variants that were taken in the end."""
    taken = {name: way.variant.name for name, (_, way) in recorder.ways_taken.items()}
    chains = [
        replace(
            chain,
            variants={
                layer: {**own, "gpu": taken[layer]} if layer in taken else dict(own)
                for layer, own in chain.variants.items()
            },
        )
        for chain in plan.chains
    ]
    return replace(plan, chains=tuple(chains))


def _programs(binaries: Sequence[Binary]) -> tuple[list[dict[str, Any]], dict[str, bytes]]:
    """What `kernels.json` says of compiled programs, and the parts with them."""
    listed, parts = [], {}
    for binary in binaries:
        name = f"programs/{sha256(repr(binary.key).encode()).hexdigest()[:16]}.bin"
        own = {key: value for key, value in asdict(binary).items() if key != "blob"}
        listed.append({**own, "part": name})
        parts[name] = binary.blob
    return listed, parts
