"""Models: a built-in name, or the path of an ONNX or YAML file in, an ONNX model out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from codl.errors import InvalidFileError, UnknownNameError, UnsupportedError
from codl.files import BUNDLE as BUNDLE
from codl.files import printable
from codl.frontend.models import deployment
from codl.frontend.models.deployment import Deployment
from codl.frontend.models.reading import Section, read_yaml

# What is called and checked by name has to do without ONNX, as bundles and most commands have.
if TYPE_CHECKING:
    import onnx

    from codl.frontend.graph.weights import Model
    from codl.frontend.models.builder import ModelBuilder

#: What model files in YAML end in.
YAML = (".yaml", ".yml")

#: The built-in models, each described layer by layer in a function of its name. The first five are
#: the paper's.
BUILT_IN = (
    "retinaface",
    "yolov2",
    "vgg16",
    "posenet",
    "fast_style_transfer",
    "alexnet",
    "mobilenet_v1",
    "mobilenet_v2",
    "resnet50",
    "resnet50_v2",
    "bert",
    "vit_base",
    "deit_tiny",
    "whisper_tiny_encoder",
    "sd_unet_block",
    "matmul",
    "op_chain",
)
#: Those whose ops are measured and tuned where none are named: the paper's, and two whose
#: convolutions the paper's have few of.
MEASURED = (*BUILT_IN[:5], "mobilenet_v2", "resnet50")


@dataclass(frozen=True)
class ModelSource:
    """An ONNX model and the name that plans and reports give it."""

    name: str
    model: Model

    @property
    def proto(self) -> onnx.ModelProto:
        """The whole model, made anew."""
        return self.model.whole()


def description(name: str) -> Callable[[ModelBuilder], None]:
    """What describes a built-in model to a builder."""
    from codl.frontend.models import convolutional, transformers

    where = convolutional if hasattr(convolutional, name) else transformers
    describe: Callable[[ModelBuilder], None] = getattr(where, name)
    return describe


def described(name: str, *, weights: bool = True, drawn: bool = True) -> ModelBuilder:
    """The builder of a built-in model; see `ModelBuilder` for one without weights."""
    from codl.frontend.models.builder import ModelBuilder

    builder = ModelBuilder(name, weights=weights, drawn=drawn)
    description(name)(builder)
    return builder


def load(model: str | Path, batch: int | None = None, *, drawn: bool = True) -> ModelSource:
    """Load a built-in model by name, or by path an `.onnx` file, a model in YAML, or a model of a
    deployment file (`deploy.yaml#name` where it has several); for `batch` images at a time.

    The large weights of a built-in model that are not `drawn` are 0.

    Raises `UnknownNameError` where it is none of these, `InvalidFileError` where the file is wrong.
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
    file, _, part = name.partition("#")
    if Path(file).suffix in YAML:
        return _from_yaml(_existing(file), part)
    if Path(name).suffix == BUNDLE:
        raise UnsupportedError(
            f"{name} is a bundle, a model that is planned and compiled: `codl run {name}` and "
            "`codl.load` take it; everything else wants the model that it was made from."
        )
    from codl.frontend.graph.weights import Model

    path = _existing(name)
    return ModelSource(printable(path.stem), Model.of(deployment.load_onnx(path)))


def check_is_there(model: str) -> None:
    """Raise, as `load` does, for a name that is none and a file that is not there; reads nothing.

    For commands that do long work on one model after another.
    """
    file, _, _ = model.partition("#")
    if model not in BUILT_IN:
        _existing(file if Path(file).suffix in YAML else model)


def choices(model: str) -> tuple[str, ...]:
    """What `load` loads one by one: every model of a deployment file, else the model itself."""
    if Path(model).suffix in YAML:
        top = read_yaml(_existing(model))
        if deployment.is_deployment(top):
            return tuple(f"{model}#{name}" for name in deployment.read(top))
    return (model,)


def deployment_of(model: str) -> Deployment | None:
    """How a deployment file wants a model run; None for what is no part of one."""
    file, _, part = model.partition("#")
    if model in BUILT_IN or Path(file).suffix not in YAML:
        return None
    top = read_yaml(_existing(file))
    return _chosen(top, part) if deployment.is_deployment(top) else None


def _existing(file: str) -> Path:
    path = Path(file)
    if path.is_dir():
        raise InvalidFileError(path, "this is a folder, and a model is a file.")
    if not path.is_file() and (path.suffix or len(path.parts) > 1):
        raise InvalidFileError(path, "there is no such file.")
    if not path.is_file():
        fix = "An ONNX or YAML file is given by its path."
        raise UnknownNameError("model", file, BUILT_IN, fix=fix)
    return path


def _from_yaml(path: Path, part: str) -> ModelSource:
    from codl.frontend.graph.weights import Model
    from codl.frontend.models import custom

    top = read_yaml(path)
    if not deployment.is_deployment(top):
        if part:
            raise InvalidFileError(path, f"has no models, of which {part!r} could be one.")
        proto = custom.build(top)
        return ModelSource(proto.graph.name, Model.of(proto))
    chosen = _chosen(top, part)
    return ModelSource(chosen.name, Model.of(chosen.load()))


def _chosen(top: Section, part: str) -> Deployment:
    models, path = deployment.read(top), top.path
    if not part and len(models) > 1:
        raise InvalidFileError(
            path,
            f"has the models {', '.join(models)}: name one, such as {path}#{next(iter(models))}.",
        )
    if part and part not in models:
        raise UnknownNameError(f"model of {path}", part, models)
    return models[part] if part else next(iter(models.values()))
