"""Deployment files: which models run, on what, and how; with MACE's keys where they mean the same.

A file names one or more models. Each is an ONNX file, checked against a checksum, or a part of one
between tensors that the file names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from codl.errors import InvalidFileError, UnknownNameError, UnsupportedError
from codl.frontend.models.reading import (
    Key,
    Section,
    ValueReader,
    anything,
    flag,
    number,
    one_of,
    sequence,
    sizes,
    text,
    whole,
)
from codl.records.gpu_limits import UNLIMITED, GpuLimits, LimitError

if TYPE_CHECKING:
    import onnx

#: Channels of an image in each order of them.
COLORS = {"rgb": 3, "bgr": 3, "gray": 1}
#: Names of image files end so.
SUFFIXES = (".bmp", ".jpeg", ".jpg", ".png", ".ppm", ".webp")


@dataclass(frozen=True)
class Preprocessing:
    """An input is `(pixel * scale - mean) / std`, of pixels from 0 to 255.

    `mean` and `std` are of each channel, or one of all. The shorter side of an image becomes
    `resize`, and the middle is cut out; with None the whole image is stretched to the input's size.
    `color` is None for that of the input's channels: rgb of three, gray of one.
    """

    resize: int | None = None
    filter: str = "bilinear"
    color: str | None = None
    layout: str = "nchw"
    scale: float = 1 / 255
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)


def _finite(value: Any) -> float:
    if isfinite(value_read := number(value)):
        return value_read
    raise ValueError("expected a finite number")


def _of_channels(value: Any) -> tuple[float, ...]:
    """One number, or one for each of three channels."""
    values = value if isinstance(value, list) else [value]
    if len(values) in COLORS.values():
        return tuple(map(_finite, values))
    raise ValueError("expected one number, or three in the order of the channels")


PREPROCESSING: Mapping[str, ValueReader[Any]] = {
    "resize": whole(1),
    "filter": one_of("nearest", "bilinear", "bicubic"),
    "color": one_of(*COLORS),
    "layout": one_of("nchw", "nhwc"),
    "scale": _finite,
    "mean": _of_channels,
    "std": _of_channels,
}


def read_preprocessing(section: Section) -> Preprocessing:
    """A section of a file; raises `InvalidFileError` with line and key."""
    section.check_keys(PREPROCESSING)
    values = {key: section.take(key, PREPROCESSING[key]) for key in section.content}
    preprocessing = Preprocessing(**values)
    if not all(preprocessing.std):
        section.refuse("nothing is divided by 0.", "std")
    return preprocessing


#: How each of MACE's other platforms becomes ONNX.
CONVERTERS = {
    "tensorflow": (
        "pip install tf2onnx && python -m tf2onnx.convert --graphdef {model} --output {onnx} "
        "--inputs {inputs} --outputs {outputs} (or --saved-model FOLDER, --tflite FILE)"
    ),
    "caffe": (
        "pip install caffe2onnx && python -m caffe2onnx.convert --prototxt {model} "
        "--caffemodel {weights} --onnx {onnx}"
    ),
}
#: Where a model runs, and the strategy that plans it. MACE's own `cpu+gpu` leaves the choice open.
RUNTIMES = {"cpu": "cpu", "gpu": "gpu", "cpu_gpu": "", "cpu+gpu": ""}
#: What the GPU's tensors are stored as. Everything is computed in float32.
DATA_TYPES = {"fp16_fp32": "float16", "fp32_fp32": "float32"}
#: Keys of MACE's that have no effect here: they are about how its programs are built.
WITHOUT_EFFECT = (
    "backend",
    "build_type",
    "embed_model_data",
    "input_ranges",
    "library_name",
    "linkshared",
    "model_data_format",
    "model_graph_format",
    "nnlib_graph_mode",
    "obfuscate",
    "target_abis",
    "target_socs",
)
SUBGRAPH_KEYS = (
    "input_tensors",
    "input_shapes",
    "output_tensors",
    "output_shapes",
    "input_files",
    "input_ranges",
)
Shapes: TypeAlias = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Deployment:
    """One model of a deployment file.

    `inputs` and `outputs` are the tensors between which it runs, empty for all of the model's own.
    `strategy` plans it, "" for the usual one; `element` is None where the SoC's own holds.
    `limits` are what the GPU is limited to, `input_files` what it is run on, by input.
    `preprocessing` is how images become its input, None where the file does not say. `ignored` are
    keys that have no effect.
    """

    file: Path
    name: str
    path: Path
    checksum: str | None
    inputs: Shapes
    outputs: Shapes
    strategy: str
    element: str | None
    limits: GpuLimits
    winograd: bool
    input_files: Mapping[str, Path]
    preprocessing: Preprocessing | None
    ignored: tuple[str, ...]

    def load(self) -> onnx.ModelProto:
        """The model, checked; raises `InvalidFileError` where it is not what the file says."""
        from codl.frontend.models.tensors import FilePlace, cut_out, fix_inputs

        if self.checksum is not None:
            check_sum(self.path, self.checksum)
        proto = load_onnx(self.path)
        if self.inputs or self.outputs:
            place = FilePlace(self.file, f"models.{self.name}.subgraphs[0]")
            proto = cut_out(proto, tuple(self.inputs), tuple(self.outputs), place)
            fix_inputs(proto, self.inputs, self.outputs, place)
        return proto


def load_onnx(path: Path) -> onnx.ModelProto:
    """An ONNX file; raises `InvalidFileError` where it is none."""
    import onnx

    try:
        proto = onnx.load(path, load_external_data=False)
        _check_texts(proto)
    except Exception as error:  # protobuf raises many unrelated types
        reason = str(error).strip().splitlines() or ["it cannot be parsed."]
        raise InvalidFileError(path, f"not an ONNX model: {reason[0]}") from error
    if not proto.graph.node:
        raise InvalidFileError(path, "not an ONNX model: its graph has no nodes.")
    return _with_weights(proto, path)


def _with_weights(proto: onnx.ModelProto, path: Path) -> onnx.ModelProto:
    """The model in its plain form, with what of its weights lies in other files beside it."""
    from onnx import TensorProto

    from codl.frontend.graph.plain_form import all_graphs, make_plain, tensors_of

    for tensor in tensors_of(all_graphs(proto.graph)):
        if tensor.data_location == TensorProto.EXTERNAL:
            locations = [entry.value for entry in tensor.external_data if entry.key == "location"]
            try:
                file = _file_of_weights(path, "".join(locations[-1:]))
                tensor.raw_data = _elements(tensor, file)
            except (OSError, ValueError) as error:
                raise InvalidFileError(path, f"its weights cannot be read: {error}.") from error
            tensor.data_location = TensorProto.DEFAULT
            del tensor.external_data[:]
    make_plain(proto)
    return proto


def _file_of_weights(path: Path, name: str) -> Path:
    """A file beside a model, or beside the file that the model is a link to.

    Links may lead to these two folders only: a model may not read what else is on a machine. In the
    cache of Hugging Face a model and its weights are links into one folder.
    """
    folders = [path.parent.resolve(), path.resolve().parent]
    found = [folder / name for folder in folders if (folder / name).is_file()]
    if not found:
        problem = f"its weights lie in {name}, which is not beside it."
        raise InvalidFileError(path, problem, fix="Copy that file there; it keeps its name.")
    real = found[0].resolve()
    if any(real.is_relative_to(folder) for folder in folders):
        return real
    problem = f"its weights lie in {name}, which is {real}, outside of its folder."
    if found[0].is_symlink() and ".." not in Path(name).parts:
        fix = f"Put the file itself there: cp --remove-destination {real} {found[0]}"
    else:
        fix = "Save the model again with its weights beside it, as onnx.save_model does."
    raise InvalidFileError(path, problem, fix=fix)


def _elements(tensor: onnx.TensorProto, file: Path) -> bytes:
    """What of a file a tensor is; raises `ValueError` where the file has no such place."""
    from onnx.external_data_helper import ExternalDataInfo

    place = ExternalDataInfo(tensor)
    first, size = place.offset or 0, file.stat().st_size
    length = max(size - first, 0) if place.length is None else place.length
    if first + length > size:
        raise ValueError(
            f"{tensor.name!r} ends at byte {first + length} of {file.name}, which has {size}"
        )
    with file.open("rb") as content:
        content.seek(first)
        return content.read(length)


def _check_texts(message: Any) -> None:
    """Raise `UnicodeDecodeError` for a text that is none, which protobuf leaves as bytes.

    Of tensors only the name is read: their data would be copied.
    """
    if message.DESCRIPTOR.full_name == "onnx.TensorProto":
        _check_text(message.name)
        return
    for field, value in message.ListFields():
        if field.message_type is not None:
            for item in [value] if hasattr(value, "ListFields") else value:
                _check_texts(item)
        elif field.type == field.TYPE_STRING:
            for item in [value] if isinstance(value, str | bytes) else value:
                _check_text(item)


def _check_text(text: str | bytes) -> None:
    if isinstance(text, bytes):
        text.decode()


def check_sum(path: Path, expected: str) -> None:
    """Raise `InvalidFileError` unless the file has that SHA-256."""
    with path.open("rb") as file:
        digest = sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    if digest.hexdigest() != expected.lower():
        raise InvalidFileError(
            path,
            f"its SHA-256 is {digest.hexdigest()}, the deployment file says {expected.lower()}.",
            fix="Get the right file, or correct model_sha256_checksum.",
        )


def is_deployment(top: Section) -> bool:
    return "models" in top.content


def read(top: Section) -> dict[str, Deployment]:
    """Every model of a deployment file by name; raises `InvalidFileError` with line and key."""
    top.check_keys(("models", *WITHOUT_EFFECT))
    models = top.section("models")
    if not models.content:
        models.refuse("expected at least one model.")
    ignored = tuple(key for key in top.content if key in WITHOUT_EFFECT)
    return {name: _model(models.section(name), name, ignored) for name in models.content}


def _model_path(value: Any) -> str:
    if "://" in text(value):
        raise ValueError("codl downloads nothing: fetch it and give its path")
    return text(value)


def _checksum(value: Any) -> str:
    digits = set("0123456789abcdef")
    if isinstance(value, str) and len(value) == 64 and set(value.lower()) <= digits:
        return value
    raise ValueError("expected a SHA-256 of 64 hexadecimal digits (in quotes)")


MODEL: Mapping[str, Key] = {
    "platform": Key(one_of("onnx", *CONVERTERS)),
    "model_file_path": Key(_model_path),
    "model_sha256_checksum": Key(_checksum, None),
    "weight_file_path": Key(text, None),
    "weight_sha256_checksum": Key(anything, None),
    "subgraphs": Key(anything, None),
    "runtime": Key(one_of(*RUNTIMES), "cpu_gpu"),
    "data_type": Key(one_of(*DATA_TYPES), None),
    # MACE's, which asks for kernels of at most a millisecond.
    "limit_opencl_kernel_time": Key(flag, False),
    "max_kernel_ms": Key(number, None),
    "gpu_duty": Key(number, UNLIMITED.gpu_duty),
    # MACE's 2 and 4 are tile sizes, which are chosen by measurement here.
    "winograd": Key(one_of(0, 1, 2, 4, True, False), 1),
    "input_files": Key(anything, None),
    "preprocessing": Key(anything, None),
    **dict.fromkeys(WITHOUT_EFFECT, Key(anything, None)),
}


def _model(section: Section, name: str, ignored: tuple[str, ...]) -> Deployment:
    section.check_keys(MODEL)
    values = section.values(MODEL)
    path = section.path.parent / values["model_file_path"]
    subgraph = _subgraph(section)
    inputs, outputs = (_tensors(subgraph, side) for side in ("input", "output"))
    if values["platform"] != "onnx":
        _refuse_platform(section, values, path, inputs, outputs)
    if not path.is_file():
        section.refuse(f"there is no file {str(path)!r}.", "model_file_path")
    longest_ms = 1.0 if values["limit_opencl_kernel_time"] else None
    if values["max_kernel_ms"] is not None:
        longest_ms = values["max_kernel_ms"]
    try:
        limits = GpuLimits(longest_ms, values["gpu_duty"])
    except LimitError as error:
        section.refuse(str(error))
    has_preprocessing = "preprocessing" in section.content
    return Deployment(
        file=section.path,
        name=name,
        path=path,
        checksum=values["model_sha256_checksum"],
        inputs=inputs,
        outputs=outputs,
        strategy=RUNTIMES[values["runtime"]],
        element=DATA_TYPES.get(values["data_type"]),
        limits=limits,
        winograd=bool(values["winograd"]),
        input_files=_input_files(section, subgraph, inputs),
        preprocessing=read_preprocessing(section.section("preprocessing"))
        if has_preprocessing
        else None,
        ignored=(*ignored, *(key for key in section.content if key in WITHOUT_EFFECT)),
    )


def _subgraph(section: Section) -> Section | None:
    if "subgraphs" not in section.content:
        return None
    parts = list(section.sections("subgraphs"))
    if len(parts) > 1:
        section.refuse(
            f"a model has one subgraph, got {len(parts)}; give each of the others a model of its "
            "own with the same model_file_path.",
            "subgraphs",
        )
    parts[0].check_keys(SUBGRAPH_KEYS)
    return parts[0]


def _tensors(subgraph: Section | None, side: str) -> Shapes:
    """Shapes by tensor; of the same order and number in the file."""
    if subgraph is None:
        return {}
    names = subgraph.take(f"{side}_tensors", _names)
    shapes = subgraph.take(f"{side}_shapes", sequence(sizes))
    if len(names) != len(shapes):
        subgraph.refuse(
            f"expected a shape for each of the {len(names)} {side}_tensors, got {len(shapes)}.",
            f"{side}_shapes",
        )
    if len(set(names)) != len(names):
        subgraph.refuse(f"a tensor is there twice: {', '.join(names)}.", f"{side}_tensors")
    return dict(zip(names, shapes, strict=True))


def _names(value: Any) -> tuple[str, ...]:
    """A list of names, or one name."""
    return (text(value),) if isinstance(value, str) else sequence(text)(value)


def _input_files(section: Section, subgraph: Section | None, inputs: Shapes) -> Mapping[str, Path]:
    """One `.npz` file for all inputs (named ""), a file for each in order, or files by name."""
    holders = [s for s in (section, subgraph) if s is not None and "input_files" in s.content]
    if not holders:
        return {}
    if len(holders) > 1:
        section.refuse("input_files is given here and in the subgraph: once is enough.")
    holder = holders[0]
    named = holder.take("input_files", anything)
    if isinstance(named, Mapping):
        by_name = {name: text(value) for name, value in named.items()}
        for name in by_name:
            if inputs and name not in inputs:
                reason = str(UnknownNameError("input tensor", name, inputs))
                holder.refuse(reason, "input_files")
        return {name: holder.path.parent / value for name, value in by_name.items()}
    files = holder.take("input_files", _names)
    paths = [holder.path.parent / file for file in files]
    if len(paths) == 1 and paths[0].suffix == ".npz":
        return {"": paths[0]}
    if len(paths) != len(inputs):
        holder.refuse(
            f"expected one .npz file, or a file for each of the {len(inputs)} input_tensors, got "
            f"{len(paths)}.",
            "input_files",
        )
    return dict(zip(inputs, paths, strict=True))


def _refuse_platform(
    section: Section, values: Mapping[str, Any], path: Path, inputs: Shapes, outputs: Shapes
) -> NoReturn:
    platform = values["platform"]
    command = CONVERTERS[platform].format(
        model=path,
        onnx=path.with_suffix(".onnx"),
        weights=values["weight_file_path"] or path.with_suffix(".caffemodel"),
        inputs=",".join(f"{name}:0" for name in inputs) or "NAMES",
        outputs=",".join(f"{name}:0" for name in outputs) or "NAMES",
    )
    raise UnsupportedError(
        f"{section.path}, {section.name}: platform {platform} is not read, only onnx. Convert the "
        f"model: {command}. Then set platform: onnx and model_file_path, and list the input_shapes "
        "as nchw, if the model has become that."
    )
