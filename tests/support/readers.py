"""What codl reads from strangers' files: each format's reader, and sound files to begin with."""

from __future__ import annotations

import io
import json
import random
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
import onnx

from codl.errors import CodlError, boundary
from codl.files import own_or_shipped
from codl.frontend import models
from codl.frontend.convert import load_network
from codl.ir.executable_json import encode
from codl.ir.plan import load_plan
from codl.ir.records import soc as socs
from codl.jobs import bundle
from codl.jobs.bundle.archive import (
    CONSTANTS,
    MANIFEST,
    Archive,
    ArrayStore,
    network_to_json,
    to_json,
    write_archive,
)
from codl.kernels.tuning import Tuning
from codl.lower.lowering import lower
from codl.machine.placement import Placement
from codl.measure import tuning_file
from codl.measure.dataset import Dataset
from codl.measure.inputs import read_npz
from codl.predict import DEFAULT, FOLDER, model_set
from codl.report.results import load_result
from codl_published.mapped_tables import load_mapping
from codl_published.replay import Recording
from support.executables import small_network, small_plan
from support.fuzzing import Subject
from support.model_seeds import model_seeds, other_model
from support.mutations import BYTES, TEXT, TREE, Maker
from support.side_effects import watched
from support.simulated import GEMM, SOC, write_dataset

DEPLOYMENT = """
models:
  small:
    platform: onnx
    model_file_path: m.onnx
    subgraphs:
    - input_tensors: [image]
      input_shapes: ["1,3,12,10"]
      output_tensors: [OUTPUT]
      output_shapes: ["1,5"]
    runtime: cpu_gpu
    data_type: fp16_fp32
    limit_opencl_kernel_time: 1
    gpu_duty: 0.7
    winograd: 2
    obfuscate: 0
"""
MAPPING = """
unit: us
latencies: [{column: t, processor: gpu}]
ops: [{kind: conv2d, in: [c, h, w], out: [o, p, q], kernel: 1}]
"""
#: The predictors that come with codl, and how many of each one's targets.
SHIPPED, TARGETS = "epyc2", 3
#: Makes the subject whose file lies in a folder, with what stands beside it.
Make: TypeAlias = Callable[[Path], Subject]


def _in_file(
    path: Path, seeds: Sequence[bytes], makers: Sequence[Maker], read: Callable[[Path], object]
) -> Subject:
    """A reader of files, which does nothing else: it changes no file and runs nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.parent / "scratch"
    scratch.mkdir()

    def take(content: bytes) -> None:
        path.write_bytes(content)
        before = _beside(path)
        with watched(scratch) as acts:
            try:
                read(path)
            finally:
                done = [*acts, *(_beside(path) ^ before), *scratch.iterdir()]
                assert not done, f"a reader of files does nothing else: {done}"

    return Subject(path.name, seeds, makers, take)


def _beside(path: Path) -> set[tuple[str, int, int]]:
    """The files of its folder, and when they were changed: Python does not tell all."""
    found = ((one.name, one.stat()) for one in path.parent.iterdir() if one.is_file())
    return {(name, own.st_size, own.st_mtime_ns) for name, own in found}


def _text(name: str, seed: str, read: Callable[[Path], object]) -> Make:
    return lambda folder: _in_file(folder / name, [seed.encode()], TREE, read)


@boundary()  # where what libraries and the system raise is told
def _load_model(path: Path) -> object:
    return models.load(str(path))


def _plans(folder: Path) -> Subject:
    seed = small_plan(small_network(), SOC).save(folder / "sound.json").read_bytes()
    return _in_file(folder / "plan.json", [seed], TREE, load_plan)


def _results(folder: Path) -> Subject:
    plan = small_plan(small_network(), SOC).to_json()
    result = {"command": "search", **plan, "version": 1, "search_ms": 1.0}
    return _in_file(folder / "result.json", [json.dumps(result).encode()], TREE, load_result)


def _deployments(folder: Path) -> Subject:
    model, *_ = model_seeds()
    (folder / "m.onnx").write_bytes(model)
    output = onnx.ModelProto.FromString(model).graph.output[0].name
    one = DEPLOYMENT.replace("OUTPUT", output).encode()
    return _in_file(folder / "deploy.yaml", [one], TREE, _load_model)


def _predictors(folder: Path) -> Subject:
    """Of every kind of target that comes with codl the first; what is read predicts something."""
    soc = socs.load(SHIPPED)
    tuning = tuning_file.read(Dataset.found(SHIPPED), soc)
    own = own_or_shipped(SHIPPED, FOLDER, FOLDER) / f"{DEFAULT}.json"
    content = json.loads(own.read_bytes())
    targets = list(content["targets"].items())[:TARGETS]
    has_members = [pair for pair in targets if pair[1]["estimator"]["ensemble"]["members"]]
    content["targets"] = dict(has_members)

    def read(path: Path) -> None:
        predictors = model_set.read(path, soc, tuning)
        for target in predictors.stored:
            predictors.check(target)

    return _in_file(folder / f"{DEFAULT}.json", [json.dumps(content).encode()], TREE, read)


def _models(folder: Path) -> Subject:
    @boundary()
    def read(path: Path) -> object:
        return load_network(str(path))

    return _in_file(folder / "m.onnx", model_seeds(), [*BYTES, *[other_model] * 20], read)


def _arrays(folder: Path) -> Subject:
    network, stream, packed = small_network(), io.BytesIO(), io.BytesIO()
    np.savez(stream, x=np.zeros(tuple(network.inputs["x"]), np.float32))
    np.savez_compressed(packed, x=np.zeros(tuple(network.inputs["x"]), np.float64))
    seeds = [stream.getvalue(), packed.getvalue()]
    makers = [*BYTES, *[_other_array] * 6]
    return _in_file(folder / "x.npz", seeds, makers, lambda path: read_npz(path, network))


def _other_array(dice: random.Random, content: bytes) -> bytes:
    """An archive whose members are others, and all of its sums right."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            parts = {one.filename: archive.read(one)[: 1 << 16] for one in archive.infolist()}
    except Exception:  # of many unrelated types: no archive any more
        return content
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", dice.choice([0, zipfile.ZIP_DEFLATED])) as archive:
        for name, part in parts.items():
            head = dice.choice(TEXT)(dice, part[:128])
            zeros = bytes(dice.choice([0, 0, 0, 1 << 20]))
            archive.writestr(dice.choice([name, name, "../y.npy"]), head + part[128:] + zeros)
    return stream.getvalue()


def _tables(folder: Path) -> Subject:
    path = _dataset(folder) / f"t_{GEMM}.csv"
    return _in_file(path, [path.read_bytes()], TEXT, lambda path: Recording.read(path.parent))


def _manifests(folder: Path) -> Subject:
    path = _dataset(folder) / "manifest.json"
    return _in_file(path, [path.read_bytes()], TREE, lambda path: Recording.read(path.parent))


def _tunings(folder: Path) -> Subject:
    path = _dataset(folder) / tuning_file.NAME
    return _in_file(
        path, [path.read_bytes()], TREE, lambda path: tuning_file.read(Dataset(path.parent), SOC)
    )


def _dataset(folder: Path) -> Path:
    """A dataset's folder, with a little of everything that one may hold."""
    dataset = write_dataset(folder / SOC.name)
    for path in dataset.folder.glob("*.csv"):
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:6]))
    run = {"clock_mhz": {"0": 1000.0}, "calibration": {"cpu": 1.0}, "protocol": {"statistic": "x"}}
    dataset.write_manifest({"source": "measured", "soc": SOC.to_dict(), "runs": {"run1": run}})
    tuning_file.add(dataset, SOC, [])
    return dataset.folder


def _bundles(folder: Path) -> Subject:
    network = small_network()
    plan = small_plan(network, SOC)
    arrays = ArrayStore()
    executable = encode(lower(network, plan, SOC, Tuning()), arrays.put)
    header = arrays.save(folder / "weights")
    manifest = {
        "model": "small",
        "soc": SOC.to_dict(),
        "placement": Placement("none", (0,)).to_dict(),
        "device": {"name": "x"},
        "constants_header": header,
    }
    parts = {
        "plan.json": to_json(plan.to_json()),
        "network.json": to_json(network_to_json(network)),
        "executable.json": executable,
        "programs.json": to_json([]),
        CONSTANTS: (folder / "weights").read_bytes(),
    }
    path = folder / "small.codl"
    write_archive(path, manifest, parts)
    return _in_file(path, [path.read_bytes()], [*BYTES, *[_other_part] * 12], _load)


def _load(path: Path) -> object:
    """Everything but the device."""
    return bundle.load(path, connected=lambda soc: _Target(soc))  # type: ignore[arg-type,return-value]


class _Target:
    def __init__(self, soc: Any) -> None:
        self.soc = soc

    def open(self, offer: object) -> dict[str, str]:
        return {"name": "x"}

    def load(self, executable: object, *, tries: bool) -> object:
        return SimpleNamespace(executable=executable)


def _other_part(dice: random.Random, content: bytes) -> bytes:
    """A bundle with another part, or another manifest, and all sums right."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.codl"
        path.write_bytes(content)
        try:
            archive = Archive(path)
            parts = {name: bytes(archive.part(name)) for name in archive.manifest["parts"]}
        except CodlError:
            return content
        head = {key: value for key, value in archive.manifest.items() if key != "parts"}
        name = dice.choice([MANIFEST, *parts])
        if name == MANIFEST:
            head = _other_json(dice, head)
        else:
            makers = BYTES if name == CONSTANTS else TREE
            parts[name] = dice.choice(makers)(dice, parts[name])
        write_archive(path, head, parts)
        return path.read_bytes()


def _other_json(dice: random.Random, head: dict[str, Any]) -> dict[str, Any]:
    try:
        changed = json.loads(dice.choice(TREE)(dice, json.dumps(head).encode()))
    except (ValueError, RecursionError):
        return head
    return changed if isinstance(changed, dict) else head


#: By the name of what they read.
READERS: Mapping[str, Make] = {
    "models": _models,
    "deployments": _deployments,
    "SoCs": _text("soc.yaml", SOC.to_yaml(), socs.read),
    "mappings": _text("map.yaml", MAPPING, lambda path: load_mapping(path, "x")),
    "plans": _plans,
    "results": _results,
    "bundles": _bundles,
    "tables": _tables,
    "manifests": _manifests,
    "tunings": _tunings,
    "predictors": _predictors,
    "arrays": _arrays,
}
