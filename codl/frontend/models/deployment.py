"""Deployment files: models to run, their targets and options, with MACE's keys where equal.

A file names one or more models. Each is an ONNX file, checked against a checksum, or the part of
one between named tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import msgspec

from codl.errors import InvalidFileError, UnknownNameError
from codl.ir import yaml_file
from codl.ir.records.gpu_limits import GpuLimits, LimitError

if TYPE_CHECKING:
    import onnx

#: Most elements of a tensor.
MOST_ELEMENTS = (1 << 31) - 1
#: Programs that convert models of MACE's other platforms to ONNX.
CONVERTERS = {"tensorflow": "tf2onnx", "caffe": "caffe2onnx"}
#: Strategy by runtime; MACE's own `cpu+gpu` leaves the choice open.
RUNTIMES = {"cpu": "cpu", "gpu": "gpu", "cpu_gpu": "", "cpu+gpu": ""}
#: Element type of the GPU's tensors; all computation is in float32.
DATA_TYPES = {"fp16_fp32": "float16", "fp32_fp32": "float32"}
#: MACE's keys for its converter and for building its programs, which have no effect here.
WITHOUT_EFFECT = (
    *("backend", "build_type", "embed_model_data", "input_ranges", "library_name", "linkshared"),
    *("model_data_format", "model_graph_format", "nnlib_graph_mode", "obfuscate", "preprocessing"),
    *("target_abis", "target_socs", "weight_file_path", "weight_sha256_checksum"),
)

#: MACE writes booleans as numbers.
Flag: TypeAlias = bool | Literal[0, 1]
Names: TypeAlias = str | tuple[str, ...]
Shapes: TypeAlias = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class _Subgraph:
    input_tensors: Names
    input_shapes: tuple[str | tuple[int, ...], ...]
    output_tensors: Names
    output_shapes: tuple[str | tuple[int, ...], ...]
    input_files: Names | dict[str, str] = ()
    input_ranges: Any = None

    def shapes(self, side: str) -> Shapes:
        """Shapes by tensor of a side; raises `ValueError` unless each tensor has one."""
        names = _listed(getattr(self, f"{side}_tensors"))
        shapes = getattr(self, f"{side}_shapes")
        if len({*names}) != len(shapes) or len(names) != len(shapes):
            raise ValueError(
                f"{side}_shapes must have a shape for each of the {side}_tensors "
                f"{', '.join(names)}, got {len(shapes)}"
            )
        return dict(zip(names, map(_sizes, shapes), strict=True))


@dataclass(frozen=True, kw_only=True)
class _Model:
    platform: Literal["onnx", "tensorflow", "caffe"]
    model_file_path: str
    model_sha256_checksum: Annotated[str, msgspec.Meta(pattern="^[0-9a-fA-F]{64}$")] | None = None
    subgraphs: Annotated[tuple[_Subgraph, ...], msgspec.Meta(max_length=1)] = ()
    runtime: Literal["cpu", "gpu", "cpu_gpu", "cpu+gpu"] = "cpu_gpu"
    data_type: Literal["fp16_fp32", "fp32_fp32"] | None = None
    #: MACE's key for kernels of at most 1 ms.
    limit_opencl_kernel_time: Flag = False
    max_kernel_ms: float | None = None
    gpu_duty: float = 1.0
    #: MACE's 2 and 4 are tile sizes, which codl chooses by measurement.
    winograd: bool | Literal[0, 1, 2, 4] = True
    input_files: Names | dict[str, str] = ()

    @property
    def limits(self) -> GpuLimits:
        longest_ms = self.max_kernel_ms
        if longest_ms is None and self.limit_opencl_kernel_time:
            longest_ms = 1.0
        return GpuLimits(longest_ms, self.gpu_duty)


@dataclass(frozen=True)
class _File:
    models: dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Deployment:
    """One model of a deployment file.

    `inputs` and `outputs` bound the part that runs; empty for the whole model. `strategy` is "" for
    the default; `element` is None for the SoC's default. `limits` are the GPU's. `input_files` are
    input data by input. `ignored` are keys without effect.
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
    ignored: tuple[str, ...]

    def load(self) -> onnx.ModelProto:
        """Load the model; raises `InvalidFileError` where it differs from the deployment file."""
        from codl.frontend.models.onnx_file import cut_out, load_onnx

        if self.checksum is not None:
            _check_sum(self.path, self.checksum)
        proto = load_onnx(self.path)
        if not self.inputs and not self.outputs:
            return proto
        return cut_out(proto, self.inputs, self.outputs, f"{self.file}, models.{self.name}")


def read(path: Path) -> dict[str, Deployment]:
    """Models of a deployment file by name; raises `InvalidFileError` with the key."""
    content = yaml_file.read_content(path)
    known, ignored = _split(content)
    models = yaml_file.convert(known, _File, path).models
    if not models:
        raise InvalidFileError(path, "expected at least one model.", where="models")
    return {name: _model(path, name, model, ignored) for name, model in models.items()}


def _split(content: Any) -> tuple[Any, list[str]]:
    """A mapping without the keys that have no effect, and these keys."""
    if not isinstance(content, Mapping):
        return content, []
    known = {key: value for key, value in content.items() if key not in WITHOUT_EFFECT}
    return known, [key for key in content if key in WITHOUT_EFFECT]


def _model(path: Path, name: str, content: Any, ignored: list[str]) -> Deployment:
    place = f"{path}, models.{name}"
    known, own = _split(content)
    model = yaml_file.convert(known, _Model, place)
    subgraph = model.subgraphs[0] if model.subgraphs else None
    file = path.parent / model.model_file_path
    try:
        _check_file(model, file)
        inputs = subgraph.shapes("input") if subgraph else {}
        return Deployment(
            file=path,
            name=name,
            path=file,
            checksum=model.model_sha256_checksum,
            inputs=inputs,
            outputs=subgraph.shapes("output") if subgraph else {},
            strategy=RUNTIMES[model.runtime],
            element=DATA_TYPES.get(model.data_type or ""),
            limits=model.limits,
            winograd=bool(model.winograd),
            input_files=_input_files(path.parent, model, subgraph, inputs),
            ignored=(*ignored, *own),
        )
    except LimitError as error:
        raise InvalidFileError(place, str(error)) from error
    except ValueError as error:
        raise InvalidFileError(place, f"{error}.") from error


def _check_file(model: _Model, file: Path) -> None:
    if model.platform != "onnx":
        raise ValueError(
            f"platform {model.platform} is not read, only onnx: convert the model with "
            f"{CONVERTERS[model.platform]}, then list the input_shapes of the ONNX model"
        )
    if "://" in model.model_file_path:
        raise ValueError("model_file_path must be a file: codl downloads nothing")
    if not file.is_file():
        raise ValueError(f"model_file_path: there is no file {str(file)!r}")


def _check_sum(path: Path, expected: str) -> None:
    digest = sha256(path.read_bytes()).hexdigest()
    if digest != expected.lower():
        raise InvalidFileError(
            path,
            f"its SHA-256 is {digest}, the deployment file says {expected.lower()}.",
            fix="Get the right file, or correct model_sha256_checksum.",
        )


def _listed(names: Names) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else names


def _sizes(shape: str | tuple[int, ...]) -> tuple[int, ...]:
    """A shape from a list, or from text such as `1,3,224,224`."""
    parts = shape.split(",") if isinstance(shape, str) else map(str, shape)
    sizes = tuple(int(part) if part.strip().isdecimal() else 0 for part in parts)
    if not sizes or min(sizes) < 1 or prod(sizes) > MOST_ELEMENTS:
        raise ValueError(f"expected sizes above 0 such as 1,3,224,224, got {shape!r:.60}")
    return sizes


def _input_files(
    folder: Path, model: _Model, subgraph: _Subgraph | None, inputs: Shapes
) -> Mapping[str, Path]:
    """One `.npz` file for all inputs (named ""), a file per input in order, or files by name."""
    given = model.input_files or (subgraph.input_files if subgraph else ())
    if isinstance(given, dict):
        for name in given:
            if inputs and name not in inputs:
                raise ValueError(f"input_files: {UnknownNameError('input tensor', name, inputs)}")
        return {name: folder / file for name, file in given.items()}
    files = [folder / file for file in _listed(given)]
    if len(files) == 1 and files[0].suffix == ".npz":
        return {"": files[0]}
    if files and len(files) != len(inputs):
        raise ValueError(
            f"input_files must be one .npz file, or a file for each of the {len(inputs)} "
            f"input_tensors, got {len(files)}"
        )
    return dict(zip(inputs, files, strict=False))
