"""Import: what ONNX files mean, and what is said of those that cannot be read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from support import onnx_models
from support.references import converted

from codl.errors import CodlError, InvalidFileError, UnknownNameError, UnsupportedError
from codl.frontend import models
from codl.frontend.graph.onnx_import import import_onnx
from codl.frontend.models.builder import ModelBuilder
from codl.frontend.models.onnx_file import load_onnx
from codl.ir import to_text
from codl.jobs.options import read_shapes


def one_node(
    node: onnx.NodeProto, shape: list[int | str], **constants: np.ndarray
) -> onnx.ModelProto:
    """A model of one node over an input `x`."""
    return onnx_models.model([node], {"x": shape}, node.output[:1], constants)


def test_a_symbolic_batch_becomes_one_and_other_sizes_must_be_fixed() -> None:
    weight = np.ones((4, 3, 1, 1), np.float32)
    node = helper.make_node("Conv", ["x", "w"], ["y"])
    network = converted(one_node(node, ["batch", 3, 8, 8], w=weight))
    assert network.inputs["x"] == (1, 3, 8, 8)
    with pytest.raises(UnsupportedError, match=r"'x' has the shape 1x3xheightx8"):
        converted(one_node(node, [1, 3, "height", 8], w=weight))


def test_ceil_mode_becomes_padding() -> None:
    node = helper.make_node(
        "MaxPool", ["x"], ["y"], kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1
    )
    (layer,) = converted(one_node(node, [1, 4, 7, 7])).layers
    assert to_text(layer.op) == "pooling in=1x4x7x7 kernel=2x2 stride=2x2 pad=0,0,1,1"


def test_what_onnx_runtime_loads_but_does_not_optimise_needs_no_shape_of_outputs() -> None:
    """A rule of its basic level fails where a Clip of doubles follows a Relu."""
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Clip", ["r", "a", "b"], ["y"]),
    ]
    constants = {"a": np.array(0.1), "b": np.array(0.7)}
    types = {"x": "float64", "y": "float64"}
    proto = onnx_models.model(nodes, {"x": [2, 3]}, ["y"], constants, types)
    network = converted(proto)
    assert network.outputs["y"][1] == (2, 3)


def test_an_unknown_operator_is_named_with_its_node() -> None:
    node = helper.make_node("Hardmax", ["x"], ["y"], name="head", axis=1)
    with pytest.raises(
        UnsupportedError, match=r"The node 'head' \(Hardmax\): codl has no operator"
    ):
        converted(one_node(node, [1, 8, 4, 4]))


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.onnx"
    path.write_text("this is not a model")
    with pytest.raises(InvalidFileError, match=r"notes.onnx: not an ONNX model"):
        models.load(path)
    path.write_bytes(b"")
    with pytest.raises(InvalidFileError, match="no nodes"):
        models.load(path)
    with pytest.raises(UnknownNameError, match="Did you mean 'vgg16'"):
        models.load("vgg")


def apart(folder: Path) -> np.ndarray:
    """A model with its weights beside it, as `model.onnx` and `model.onnx_data`; the weights."""
    b = ModelBuilder("test")
    b.output(b.conv(b.input("x", (1, 3, 8, 8)), 4, 3, pad=1))
    proto = b.build()
    how = {"save_as_external_data": True, "location": "model.onnx_data", "size_threshold": 0}
    weight = numpy_helper.to_array(proto.graph.initializer[0])
    folder.mkdir(parents=True)
    onnx.save(proto, folder / "model.onnx", **how)
    return weight


def is_read(path: Path, weight: np.ndarray) -> bool:
    return np.array_equal(numpy_helper.to_array(load_onnx(path).graph.initializer[0]), weight)


def test_weights_that_do_not_lie_beside_a_model_are_named(tmp_path: Path) -> None:
    weight = apart(tmp_path / "real")
    path, beside = tmp_path / "real" / "model.onnx", tmp_path / "real" / "model.onnx_data"
    assert is_read(path, weight)
    beside.rename(tmp_path / "elsewhere")
    with pytest.raises(InvalidFileError, match=r"its weights lie in model\.onnx_data, which"):
        load_onnx(path)
    beside.write_bytes(b"short")
    with pytest.raises(InvalidFileError, match=r"model\.onnx: its weights cannot be read"):
        load_onnx(path)


@pytest.mark.parametrize("link", [Path.symlink_to, Path.hardlink_to])
def test_a_cache_of_links_is_read(link: Callable[[Path, Path], None], tmp_path: Path) -> None:
    """As Hugging Face keeps models: files by their hashes, and links of their names to these."""
    weight = apart(tmp_path / "blobs")
    snapshot = tmp_path / "snapshots" / "1f" / "onnx"
    snapshot.mkdir(parents=True)
    for name, blob in (("model.onnx", "aa"), ("model.onnx_data", "bb")):
        file = (tmp_path / "blobs" / name).rename(tmp_path / "blobs" / blob)
        link(snapshot / name, file if link is Path.hardlink_to else Path("../../../blobs", blob))
    assert is_read(snapshot / "model.onnx", weight)


def test_a_model_that_is_a_link_has_its_weights_beside_either(tmp_path: Path) -> None:
    weight = apart(tmp_path / "real")
    (tmp_path / "link.onnx").symlink_to("real/model.onnx")
    (tmp_path / "folder").symlink_to("real")
    assert is_read(tmp_path / "link.onnx", weight)
    assert is_read(tmp_path / "folder" / "model.onnx", weight)


def test_weights_outside_of_a_folder_are_not_read(tmp_path: Path) -> None:
    apart(tmp_path / "real")
    data, elsewhere = tmp_path / "real" / "model.onnx_data", tmp_path / "elsewhere"
    data.rename(elsewhere)
    data.symlink_to(elsewhere)
    wanted = f"cp --remove-destination {elsewhere} {data}"
    with pytest.raises(InvalidFileError, match=f"outside of its folder.*{wanted}"):
        load_onnx(tmp_path / "real" / "model.onnx")
    proto = onnx.load(tmp_path / "real" / "model.onnx", load_external_data=False)
    for name in ("../elsewhere", str(elsewhere)):
        proto.graph.initializer[0].external_data[0].value = name
        onnx.save(proto, tmp_path / "real" / "other.onnx")
        with pytest.raises(InvalidFileError, match=r"outside of its folder\. Save the model again"):
            load_onnx(tmp_path / "real" / "other.onnx")


def test_denormal_weights_of_products_are_zero() -> None:
    """CPUs multiply denormals a hundred times slower; normal numbers stay as they are."""
    weights = np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(np.float32)
    weights[0] *= np.float32(1e-39)
    conv = helper.make_node("Conv", ["x", "w"], ["y"], name="conv")
    (layer,) = converted(one_node(conv, [1, 3, 8, 8], w=weights)).layers
    kept = layer.weights["weight"].reshape(4, -1)
    assert not kept[0].any()
    np.testing.assert_array_equal(kept[1:], weights[1:].reshape(3, -1))


def model(**inputs: Any) -> onnx.ModelProto:
    """The sum of all inputs; sizes that are words are open."""
    return onnx_models.model([helper.make_node("Sum", list(inputs), ["y"])], inputs, ["y"])


def test_a_batch_is_one_where_nobody_says_otherwise() -> None:
    graph = import_onnx(model(x=["batch", 3, 4]), "test")
    assert graph.shapes["x"] == graph.shapes["y"] == (1, 3, 4)
    graph = import_onnx(model(x=["batch", 3, 4]), "test", {"x": (5, 3, 4)})
    assert graph.shapes["y"] == (5, 3, 4)


def test_sizes_of_one_name_are_the_same_everywhere() -> None:
    proto = model(x=["n", 3, "h", "w"], z=["n", 1, "h", "w"])
    graph = import_onnx(proto, "test", {"x": (2, 3, 7, 8)})
    assert graph.shapes["z"] == (2, 1, 7, 8)
    with pytest.raises(CodlError, match="w is 8, got 2x1x7x9"):
        import_onnx(proto, "test", {"x": (2, 3, 7, 8), "z": (2, 1, 7, 9)})


def test_what_is_still_open_is_named_with_the_option() -> None:
    with pytest.raises(UnsupportedError, match=r"1x3xheightx\?: height, axis 3 must be fixed"):
        import_onnx(model(x=["batch", 3, "height", None]), "test")
    with pytest.raises(UnsupportedError, match="--shape x=1x3x224x224"):
        import_onnx(model(x=["batch", 3, "height", None]), "test")


def test_sizes_that_contradict_the_model() -> None:
    proto = model(x=["batch", 3, 4])
    with pytest.raises(CodlError, match=r"has 3 axes \(batchx3x4\), got 1x3"):
        import_onnx(proto, "test", {"x": (1, 3)})
    with pytest.raises(CodlError, match="3, got 1x2x4"):
        import_onnx(proto, "test", {"x": (1, 2, 4)})
    with pytest.raises(UnknownNameError, match="image"):
        import_onnx(proto, "test", {"image": (1, 3, 4)})


def test_the_option() -> None:
    assert read_shapes(["x=1x3x224x224", "a/b=c=7"]) == {"x": (1, 3, 224, 224), "a/b=c": (7,)}
    for wrong in ("1x3", "x=", "x=1x0", "x=axb"):
        with pytest.raises(CodlError, match="must be like input=1x3x224x224"):
            read_shapes([wrong])
