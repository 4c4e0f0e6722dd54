"""What codl reads from strangers: each reader, which does nothing else, and sound files."""

from __future__ import annotations

import io
import json
import os
import random
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
import onnx
import yaml
from onnx import TensorProto, helper

from codl.errors import CodlError, boundary
from codl.files import own_or_shipped
from codl.frontend import models
from codl.frontend.convert import load_network
from codl.frontend.models.builder import ModelBuilder
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
from codl.machine import placement
from codl.machine.placement import Placement
from codl.measure import tuning_file
from codl.measure.dataset import Dataset
from codl.measure.inputs import read_npz
from codl.predict import DEFAULT, FOLDER, model_set
from codl.report.results import load_result
from codl_published.mapped_tables import load_mapping
from codl_published.replay import Recording
from support.executables import executables, small_network, small_plan
from support.frame_fuzz import frames, replies, requests
from support.fuzzing import Subject
from support.mutations import BYTES, TEXT, TREE, Maker
from support.onnx_models import floats, model, node
from support.simulated import GEMM, SOC, write_dataset

#: Names of audit events, beside files that are opened to be written.
ACTS = frozenset(
    (
        *("os.chmod", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink"),
        *("os.truncate", "os.exec", "os.fork", "os.posix_spawn", "os.system", "shutil.rmtree"),
        *("subprocess.Popen", "pickle.find_class", "socket.connect", "socket.bind"),
    )
)
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


#: They go on from a folder that is removed, which is told by itself.
OF_TREES = ("os.remove", "os.rmdir")


class _Watch:
    """The one hook of a process: Python takes none away again. Other threads are seen too."""

    def __init__(self) -> None:
        self.acts: list[str] | None = None
        self.scratch = ""
        sys.addaudithook(self._note)

    def _note(self, event: str, args: tuple[Any, ...]) -> None:
        if self.acts is None:
            return
        is_act = event in ACTS or (event == "open" and (args[2] or 0) & WRITES)
        if not is_act or str(args[0]).startswith(self.scratch):
            return
        if event not in OF_TREES or args[-1] == -1:
            self.acts.append(f"{event} {args!r:.300}")


@cache
def _watch() -> _Watch:
    return _Watch()


@contextmanager
def watched(scratch: Path) -> Iterator[list[str]]:
    """What is done inside, as it comes, but for temporary files, which lie in a folder."""
    watch, usual = _watch(), tempfile.tempdir
    watch.scratch = tempfile.tempdir = str(scratch)
    watch.acts = acts = []
    try:
        yield acts
    finally:
        watch.acts, tempfile.tempdir = None, usual


#: Ops that stand in the place of others, and numbers in that of attributes and sizes.
OPS = ("Resize", "Gather", "Loop", "Einsum", "MatMul", "Conv", "Softmax", "Split", "Reshape", "X")
NUMBERS = (0, -1, 2, 1 << 31, -(1 << 63), (1 << 63) - 1)
SIZES = (0, 1, -1, 3, 7, 1 << 20, 1 << 40, 1 << 62)


def model_seeds() -> list[bytes]:
    made = [_convolutions(), _attention(), _packed(), _shapes(), _branches()]
    return [proto.SerializeToString() for proto in made]


def _convolutions() -> onnx.ModelProto:
    b = ModelBuilder("small")
    x = b.relu(b.batch_norm(b.conv(b.input("image", (1, 3, 12, 10)), 8, 3, pad=1, bias=False)))
    x = b.max_pool(x, 2, 2)
    b.output(b.fully_connected(b.flatten(x), 5))
    return b.build()


def _attention() -> onnx.ModelProto:
    nodes = [
        node("LayerNormalization", "x scale", "n", axis=-1),
        node("MatMul", "n w", "q"),
        node("Reshape", "q heads", "r"),
        node("Transpose", "r", "t", perm=[0, 2, 1, 3]),
        node("Transpose", "r", "k", perm=[0, 2, 3, 1]),
        node("MatMul", "t k", "s"),
        node("Mul", "s half", "m"),
        node("Softmax", "m", "p", axis=-1),
        node("MatMul", "p t", "o"),
        node("Transpose", "o", "b", perm=[0, 2, 1, 3]),
        node("Reshape", "b tokens", "j"),
        node("Add", "j x", "y"),
    ]
    constants = {"scale": floats(8), "w": floats(8, 8), "half": np.float32(0.5)}
    sizes = {"heads": np.array([1, 5, 2, 4]), "tokens": np.array([1, 5, 8])}
    return model(nodes, {"x": [1, 5, 8]}, ["y"], {**constants, **sizes})


def _packed() -> onnx.ModelProto:
    nodes = [
        node("DequantizeLinear", "w scale zero", "f", axis=1),
        node("MatMul", "x f", "a"),
        node("Gelu", "a", "g"),
        node("ReduceMean", "g axes", "y", keepdims=0),
    ]
    constants = {
        "w": np.arange(32 * 6, dtype=np.uint8).reshape(32, 6),
        "scale": floats(6),
        "zero": np.full(6, 128, np.uint8),
        "axes": np.array([-1]),
    }
    return model(nodes, {"x": [4, 32]}, ["y"], constants, opset=21)


def _shapes() -> onnx.ModelProto:
    nodes = [
        node("Split", "x parts", "a b", axis=1),
        node("Concat", "b a", "c", axis=1),
        node("Slice", "c from to", "s"),
        node("Gather", "s rows", "g", axis=1),
        node("Pad", "g pads", "p"),
        node("Resize", "p  factors", "r", mode="nearest"),
        node("Unsqueeze", "r axes", "u"),
        node("Expand", "u wide", "e"),
        node("Einsum", "e w", "y", equation="abcde,ef->abcdf"),
    ]
    nodes[5].input[:] = ["p", "", "factors"]
    constants = {
        "parts": np.array([2, 4]),
        "from": np.array([0, 1]),
        "to": np.array([1, 5]),
        "rows": np.array([3, 0]),
        "pads": np.array([0, 0, 1, 0, 0, 1]),
        "factors": np.array([1, 1, 2], np.float32),
        "axes": np.array([0]),
        "wide": np.array([2, 1, 2, 10, 1]),
        "w": floats(1, 3),
    }
    constants["axes"] = np.array([0, 4])
    return model(nodes, {"x": [1, 6, 3]}, ["y"], constants)


def _branches() -> onnx.ModelProto:
    """A graph in a node, and a part that is not there."""
    parts = []
    for kind in ("Relu", "Neg"):
        out = helper.make_tensor_value_info(kind, TensorProto.FLOAT, [3])
        parts.append(helper.make_graph([helper.make_node(kind, ["x"], [kind])], kind, [], [out]))
    nodes = [
        node("ReduceSum", "x", "s", keepdims=0),
        node("Greater", "s zero", "c"),
        node("If", "c", "y", then_branch=parts[0], else_branch=parts[1]),
    ]
    return model(nodes, {"x": [3]}, ["y"], {"zero": np.float32(0)})


def other_model(dice: random.Random, content: bytes) -> bytes:
    """A model with a node, an operand, an attribute, a constant or a shape changed."""
    try:
        proto = onnx.ModelProto.FromString(content)
        _CHANGES[dice.randrange(len(_CHANGES))](dice, proto.graph)
        return proto.SerializeToString()
    except Exception:  # of protobuf, of many unrelated types: no model any more, or a wrong value
        return content


def _other_op(dice: random.Random, graph: onnx.GraphProto) -> None:
    dice.choice(graph.node).op_type = dice.choice([dice.choice(graph.node).op_type, *OPS])


def _no_node(dice: random.Random, graph: onnx.GraphProto) -> None:
    graph.node.remove(dice.choice(graph.node))


def _twice(dice: random.Random, graph: onnx.GraphProto) -> None:
    """The same node again, with other names behind it."""
    one = dice.choice(graph.node)
    again = graph.node.add()
    again.CopyFrom(one)
    again.output[:] = [f"{name}_" for name in one.output]


def _other_operand(dice: random.Random, graph: onnx.GraphProto) -> None:
    one, other = dice.choice(graph.node), dice.choice(graph.node)
    constants = [item.name for item in graph.initializer]
    one.input[dice.randrange(len(one.input))] = dice.choice(
        [*other.input, *one.output, *other.output, *constants, ""]
    )


def _fewer_operands(dice: random.Random, graph: onnx.GraphProto) -> None:
    one = dice.choice(graph.node)
    del one.input[dice.randrange(len(one.input)) :]


def _other_attribute(dice: random.Random, graph: onnx.GraphProto) -> None:
    own, value = dice.choice(dice.choice(graph.node).attribute), dice.choice(NUMBERS)
    own.i = value
    if own.ints:
        own.ints[dice.randrange(len(own.ints))] = value
        own.ints[:] = [*own.ints] * dice.choice([1, 1, 2])


def _other_constant(dice: random.Random, graph: onnx.GraphProto) -> None:
    """Other sizes, other numbers, or those of another constant."""
    own, kind = dice.choice(graph.initializer), dice.randrange(3)
    if kind == 0:
        own.dims[dice.randrange(len(own.dims))] = dice.choice(SIZES)
    elif kind == 1:
        own.raw_data = dice.randbytes(len(own.raw_data))
    else:
        name = own.name
        own.CopyFrom(dice.choice(graph.initializer))
        own.name = name


def _elsewhere(dice: random.Random, graph: onnx.GraphProto) -> None:
    """A constant in another file, which is not there or is not to be read."""
    own = dice.choice(graph.initializer)
    own.data_location = TensorProto.EXTERNAL
    place = {"location": dice.choice(["../m.onnx", "/etc/passwd", "m.onnx", "none"])}
    place["length"] = str(dice.choice([4, *SIZES]))
    for key, value in place.items():
        entry = own.external_data.add()
        entry.key, entry.value = key, value


def _other_shape(dice: random.Random, graph: onnx.GraphProto) -> None:
    sizes = dice.choice(graph.input).type.tensor_type.shape.dim
    dice.choice(sizes).dim_value = dice.choice(SIZES)


def _other_type(dice: random.Random, graph: onnx.GraphProto) -> None:
    dice.choice(graph.input).type.tensor_type.elem_type = dice.randrange(26)


_CHANGES = (
    *(_other_op, _no_node, _twice, _other_operand, _other_operand, _fewer_operands),
    *(_other_attribute, _other_attribute, _other_constant, _other_constant, _elsewhere),
    *(_other_shape, _other_type),
)


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
PLACEMENT = "cpu_cores: [0, 1]\ngpu_cores: []\nicd: none\ncpu_threads: 1\n"
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
    run = {"calibration": {"cpu": 1.0}, "protocol": {"statistic": "x"}}
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
    "SoCs": _text("soc.yaml", yaml.safe_dump(SOC.to_dict(), sort_keys=False), socs.read),
    "placements": _text(
        "soc.local.yaml",
        PLACEMENT,
        lambda path: placement.read(SOC, path.with_name("soc.yaml"), is_here=False),
    ),
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


#: Everything that takes bytes from strangers, by name.
SUBJECTS: Mapping[str, Make] = {
    **READERS,
    "executables": lambda folder: executables(),
    "frames": lambda folder: frames(),
    "requests": lambda folder: requests(),
    "replies": lambda folder: replies(),
}
