"""What codl reads from strangers: each format's reader, and sound files to begin with."""

from __future__ import annotations

import io
import json
import random
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx

from codl import bundle
from codl.bundle import network as networks
from codl.bundle import tensors
from codl.bundle.archive import MANIFEST, Archive, to_json, write_archive
from codl.errors import CodlError
from codl.frontend import models
from codl.frontend.convert import convert
from codl.frontend.graph.onnx_import import import_onnx
from codl.frontend.graph.simplify_pipeline import simplify
from codl.frontend.models.builder import ModelBuilder
from codl.ir import soc as socs
from codl.ir.executable_json import decode, encode
from codl.ir.plan import load_plan
from codl.kernels.tuning import Tuning
from codl.lower import lower
from codl.measure import tuning_file
from codl.measure.dataset import Dataset
from codl.measure.importers.mapping import load_mapping
from codl.measure.inputs import read_npz
from codl.measure.recording import Recording
from codl.report.load import load_result
from codl.runtime.placement import Placement
from support.executables import small_network, small_plan
from support.reader_fuzz import GENERAL, Reader
from support.simulated import GEMM, SOC, write_dataset

LAYERS = """
inputs: [1, 3, 16, 12]
layers:
- {op: conv, channels: 8, kernel: 3, stride: 2, batch_norm: true, activation: relu}
- {op: conv, name: b, channels: 8, kernel: 1}
- {op: add, from: [conv1, b], activation: relu}
- {op: fc, features: 10}
outputs: [fc1, b]
"""
MAPPING = """
unit: us
latencies: [{column: t, processor: gpu}]
ops: [{kind: conv2d, in: [c, h, w], out: [o, p, q], kernel: 1}]
"""


def readers() -> list[Reader]:
    """Of models, YAML files, plans, results, datasets, arrays and bundles."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        return [*_text(folder), _onnx(), _npz(), *_datasets(folder), _bundle(folder)]


def _text(folder: Path) -> list[Reader]:
    network = small_network()
    plan = small_plan(network, SOC)
    saved = plan.save(folder / "plan.json").read_bytes()
    executable = lower(network, plan, SOC, Tuning())
    text = encode(executable, lambda array: "0")
    result = {"command": "search", **plan.to_json(), "version": 1, "search_ms": 1.0}
    return [
        Reader("plans", "plan.json", [saved], load_plan),
        Reader("executables", "e.json", [text], lambda path: decode(path.read_bytes(), _no_array)),
        Reader("results", "result.json", [json.dumps(result).encode()], load_result),
        Reader("SoCs", "soc.yaml", [SOC.to_yaml().encode()], socs.read),
        Reader("layers", "model.yaml", [LAYERS.encode()], lambda path: models.load(str(path))),
        Reader("mappings", "map.yaml", [MAPPING.encode()], lambda path: load_mapping(path, "x")),
    ]


def _no_array(digest: str) -> Any:
    raise CodlError("There are no arrays.")


def _onnx() -> Reader:
    b = ModelBuilder("small")
    x = b.relu(b.batch_norm(b.conv(b.input("image", (1, 3, 12, 10)), 8, 3, pad=1, bias=False)))
    x = b.max_pool(x, 2, 2)
    b.output(b.fully_connected(b.flatten(x), 5))
    proto = b.build()

    def read(path: Path) -> object:
        return convert(simplify(import_onnx(models.load(str(path)).proto, "m")))

    return Reader("models", "m.onnx", [proto.SerializeToString()], read, [_other_proto] * 6)


def _other_proto(dice: random.Random, content: bytes) -> bytes:
    """A model with a node, an attribute or a shape changed."""
    try:
        proto = onnx.ModelProto.FromString(content)
        graph = proto.graph
        one, other = dice.choice(graph.node), dice.choice(graph.node)
        kind = dice.randrange(6)
        if kind == 0:
            one.op_type = dice.choice([other.op_type, "Resize", "Gather", "Loop", "Einsum", "X"])
        elif kind == 1:
            graph.node.remove(one)
        elif kind == 2 and one.input:
            one.input[dice.randrange(len(one.input))] = dice.choice([*other.input, *one.output, ""])
        elif kind == 3 and one.attribute:
            own = dice.choice(one.attribute)
            value = dice.choice([0, -1, 2, 1 << 31, -(1 << 63), (1 << 63) - 1])
            own.i = value
            own.ints[:] = [value, *own.ints[1:]] * dice.choice([1, 1, 2])
        elif kind == 4 and graph.initializer:
            own = dice.choice(graph.initializer)
            own.dims[:] = [dice.choice([0, 1, -1, 7, 1 << 40]), *own.dims[1:]]
        else:
            sizes = graph.input[0].type.tensor_type.shape.dim
            dice.choice(sizes).dim_value = dice.choice([0, 1, -1, 3, 1 << 20, 1 << 62])
        return proto.SerializeToString()
    except Exception:  # of protobuf, of many unrelated types: no model any more, or a wrong value
        return content


def _npz() -> Reader:
    network, stream = small_network(), io.BytesIO()
    np.savez(stream, x=np.zeros(tuple(network.inputs["x"]), np.float32))
    packed = io.BytesIO()
    np.savez_compressed(packed, x=np.zeros(tuple(network.inputs["x"]), np.float64))
    seeds = [stream.getvalue(), packed.getvalue()]
    return Reader("arrays", "x.npz", seeds, lambda path: read_npz(path, network))


def _datasets(folder: Path) -> list[Reader]:
    dataset = write_dataset(folder / SOC.name)
    run = {"clock_mhz": {"0": 1000.0}, "calibration": {"cpu": 1.0}, "protocol": {"statistic": "x"}}
    dataset.write_manifest({"source": "measured", "soc": SOC.to_dict(), "runs": {"run1": run}})
    tuned = tuning_file.add(dataset, SOC, [])
    assert not tuned.results
    files = {path.name: path.read_bytes() for path in dataset.folder.iterdir()}

    def read(path: Path) -> object:
        for name, content in files.items():
            if name != path.name and not (path.parent / name).exists():
                (path.parent / name).write_bytes(content)
        return Recording.read(path.parent)

    table = f"t_{GEMM}.csv"
    some = b"".join(files[table].splitlines(keepends=True)[:6])
    return [
        Reader("tables", f"one/{table}", [some], read),
        Reader("manifests", "two/manifest.json", [files["manifest.json"]], read),
        Reader(
            "tunings",
            f"three/{tuning_file.NAME}",
            [files[tuning_file.NAME]],
            lambda path: tuning_file.read(Dataset(path.parent), SOC),
        ),
    ]


def _bundle(folder: Path) -> Reader:
    network = small_network()
    plan = small_plan(network, SOC)
    arrays = tensors.Arrays()
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
        "network.json": to_json(networks.to_json(network)),
        "executable.json": executable,
        "programs.json": to_json([]),
        "constants.safetensors": (folder / "weights").read_bytes(),
    }
    write_archive(folder / "small.codl", manifest, parts)
    seed = (folder / "small.codl").read_bytes()
    return Reader("bundles", "small.codl", [seed], _load, [_other_part] * 12)


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
        if name != MANIFEST:
            parts[name] = dice.choice(GENERAL)(dice, parts[name])
        else:
            try:
                changed = json.loads(dice.choice(GENERAL)(dice, json.dumps(head).encode()))
                head = changed if isinstance(changed, dict) else head
            except ValueError:
                return content
        write_archive(path, head, parts)
        return path.read_bytes()
