"""Loading of models as ONNX: built-in names, ONNX files and deployment files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from codl.errors import InvalidFileError, UnknownNameError, UnsupportedError
from codl.files import BUNDLE as BUNDLE
from codl.files import printable

# Names are checked without importing ONNX, which most commands and bundles do not need. YAML
# readers are imported on use.
if TYPE_CHECKING:
    import onnx

    from codl.frontend.graph.weights import Model
    from codl.frontend.models.builder import ModelBuilder
    from codl.frontend.models.deployment import Deployment

#: Suffixes of deployment files.
YAML = (".yaml", ".yml")

TRANSFORMERS = (
    *("bert", "vit_base", "deit_tiny", "whisper_tiny_encoder", "sd_unet_block"),
    "matmul",
)
#: Built-in models, each described by a function of its name; the first five are the paper's.
BUILT_IN = (
    *("retinaface", "yolov2", "vgg16", "posenet", "fast_style_transfer", "alexnet"),
    *("mobilenet_v1", "mobilenet_v2", "resnet50", "resnet50_v2", *TRANSFORMERS, "op_chain"),
)
#: Models measured and tuned by default: the paper's, and two with convolutions rare in these.
MEASURED = (*BUILT_IN[:5], "mobilenet_v2", "resnet50")


@dataclass(frozen=True)
class ModelSource:
    """An ONNX model, and its name in plans and reports."""

    name: str
    model: Model

    @property
    def proto(self) -> onnx.ModelProto:
        """The whole model, built on each access."""
        return self.model.whole()


def description(name: str) -> Callable[[ModelBuilder], None]:
    """The function that describes a built-in model to a builder."""
    module = "transformers" if name in TRANSFORMERS else "convolutional"
    describe: Callable[[ModelBuilder], None]
    describe = getattr(import_module(f"{__name__}.{module}"), name)
    return describe


def described(name: str, *, weights: bool = True, drawn: bool = True) -> ModelBuilder:
    """The builder of a built-in model; `ModelBuilder` explains `weights` and `drawn`."""
    from codl.frontend.models.builder import ModelBuilder

    builder = ModelBuilder(name, weights=weights, drawn=drawn)
    description(name)(builder)
    return builder


def load(model: str | Path, batch: int | None = None, *, drawn: bool = True) -> ModelSource:
    """Load a model by built-in name or path, for `batch` images at a time.

    Paths are ONNX files, or deployment files (`deploy.yaml#name` if it has several models). Large
    weights of a built-in model that is not `drawn` are 0. Raises `UnknownNameError` for any other
    name, `InvalidFileError` for a wrong file.
    """
    source = _load(model, drawn=drawn)
    if batch is not None:
        from codl.frontend.graph.shapes import set_batch

        set_batch(source.model.proto, batch)
    return source


def _load(model: str | Path, *, drawn: bool) -> ModelSource:
    name = str(model)
    if name in BUILT_IN:
        return ModelSource(name, described(name, drawn=drawn).model())
    deployment = deployment_of(name)
    if deployment is None and Path(name).suffix == BUNDLE:
        raise UnsupportedError(
            f"{name} is a bundle, a model that is planned and compiled: `codl run {name}` and "
            "`codl.load` take it; everything else wants the model that it was made from."
        )
    from codl.frontend.graph.weights import Model
    from codl.frontend.models.onnx_file import load_onnx

    if deployment is not None:
        return ModelSource(deployment.name, Model.of(deployment.load()))
    path = _existing(name)
    return ModelSource(printable(path.stem), Model.of(load_onnx(path)))


def check_is_there(model: str) -> None:
    """Raise as `load` for an unknown name or missing file, before long work; reads nothing."""
    file, _, _ = model.partition("#")
    if model not in BUILT_IN:
        _existing(file if Path(file).suffix in YAML else model)


def choices(model: str) -> tuple[str, ...]:
    """Names for `load`: each model of a deployment file, else the model itself."""
    if Path(model).suffix not in YAML:
        return (model,)
    from codl.frontend.models.deployment import read

    return tuple(f"{model}#{name}" for name in read(_existing(model)))


def deployment_of(model: str) -> Deployment | None:
    """The deployment of a model in a deployment file; None for other models."""
    file, _, part = model.partition("#")
    if model in BUILT_IN or Path(file).suffix not in YAML:
        return None
    from codl.frontend.models.deployment import read

    models = read(_existing(file))
    if not part and len(models) > 1:
        raise InvalidFileError(
            file,
            f"has the models {', '.join(models)}: name one, such as {file}#{next(iter(models))}.",
        )
    if part and part not in models:
        raise UnknownNameError(f"model of {file}", part, models)
    return models[part] if part else next(iter(models.values()))


def _existing(file: str) -> Path:
    path = Path(file)
    if path.is_dir():
        raise InvalidFileError(path, "this is a folder, and a model is a file.")
    if not path.is_file() and (path.suffix or len(path.parts) > 1):
        raise InvalidFileError(path, "there is no such file.")
    if not path.is_file():
        fix = "An ONNX or deployment file is given by its path."
        raise UnknownNameError("model", file, BUILT_IN, fix=fix)
    return path
