"""Models in a few lines of YAML: what they compute, and what is said of those that are wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from codl.errors import InvalidFileError
from codl.frontend import models
from codl.frontend.convert import convert, simplify
from codl.frontend.graph.integer_products import session_options
from codl.frontend.graph.onnx_import import import_onnx
from codl.frontend.models.custom import ACTIVATIONS, LAYERS
from codl.ir import parse

SMALL = """
name: small
inputs: [1, 3, 16, 12]
layers:
  - {op: conv, channels: 8, kernel: 3, stride: 2, batch_norm: true, activation: relu}
  - {op: depthwise_conv, name: inner, kernel: 3, activation: relu6}
  - {op: conv, channels: 8, kernel: 1}
  - {op: add, from: [conv1, conv2], activation: relu}
  - {op: concat, name: both, from: [add1, inner]}
  - {op: average_pool, kernel: 2}
  - {op: fc, features: 10}
outputs: [fc1, both]
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "model.yaml"
    path.write_text(text)
    return path


def load(folder: Path, text: str) -> onnx.ModelProto:
    return models.load(written(folder, text)).proto


def test_a_model_is_what_its_layers_say(tmp_path: Path) -> None:
    source = models.load(written(tmp_path, SMALL))
    network = convert(simplify(import_onnx(source.proto, source.name)))
    assert source.name == network.name == "small"
    texts = [
        "conv2d in=1x3x16x12 oc=8 kernel=3x3 stride=2 pad=0,0,1,1 act=relu",
        "conv2d in=1x8x8x6 oc=8 kernel=3x3 pad=1 groups=8 act=clip:0:6",
        "conv2d in=1x8x8x6 oc=8 kernel=1x1",
        "eltwise in=1x8x8x6,1x8x8x6 act=relu",
        "concat in=1x8x8x6,1x8x8x6",
        "pooling in=1x16x8x6 kernel=2x2 stride=2 mode=avg",
        "fc in=1x16x4x3 oc=10",
    ]
    assert [layer.op for layer in network.layers] == [parse(text) for text in texts]
    assert list(network.outputs) == ["fc1", "both"]
    names = [layer.name for layer in network.layers]
    assert names[:2] == ["conv1/conv", "inner/conv"]


def test_outputs_are_those_of_the_layers_they_are_named_after(tmp_path: Path) -> None:
    proto = load(tmp_path, SMALL)
    onnx.checker.check_model(proto, full_check=True)
    session = ort.InferenceSession(proto.SerializeToString(), session_options(1))
    x = np.random.default_rng(0).random((1, 3, 16, 12), np.float32)
    last, both = session.run(None, {"input": x})
    weights = {item.name: numpy_helper.to_array(item) for item in proto.graph.initializer}
    pooled = both.reshape(1, 16, 4, 2, 3, 2).mean((3, 5)).reshape(-1)
    expected = weights["fc1/fc.weight"] @ pooled + weights["fc1/fc.bias"]
    np.testing.assert_allclose(last[0], expected, atol=1e-5)


def test_every_layer_and_activation_can_be_written(tmp_path: Path) -> None:
    """Each computes something of a healthy size; none is missing here."""
    image = {
        "conv": "channels: 4, kernel: [3, 1], pad: [1, 0, 1, 0], dilation: 1, groups: 2",
        "conv_transpose": "channels: 4, kernel: 4, stride: 2",
        "depthwise_conv": "kernel: 3, bias: false",
        "max_pool": "kernel: 3, stride: 2, pad: 1",
        "average_pool": "kernel: 2",
        "upsample": "factor: [2, 1]",
        "reshape": "shape: [1, 4, 64]",
        "transpose": "order: [0, 2, 3, 1]",
        "fc": "features: 5",
        "linear": "features: 5",
    }
    pairs = ("add", "concat", "matmul", "mul")
    lines = ["inputs: {a: [1, 4, 8, 8], b: '1,4,8,8'}", "layers:"]
    for op in LAYERS:
        source = "[a, b]" if op in pairs else "a"
        more = ", activation: tanh" if op == "activation" else f", {image.get(op, '')}"
        lines.append(f"- {{op: {op}, name: of_{op}, from: {source}{more.rstrip(', ')}}}")
    for kind in ACTIVATIONS:
        lines.append(f"- {{op: conv, name: as_{kind}, from: a, channels: 2, kernel: 1, "
                     f"activation: {kind}}}")  # fmt: skip
    names = [f"of_{op}" for op in LAYERS] + [f"as_{kind}" for kind in ACTIVATIONS]
    proto = load(tmp_path, "\n".join([*lines, f"outputs: [{', '.join(names)}]"]))
    onnx.checker.check_model(proto, full_check=True)
    random = np.random.default_rng(0)
    given = {name: random.standard_normal((1, 4, 8, 8)).astype(np.float32) for name in "ab"}
    session = ort.InferenceSession(proto.SerializeToString(), session_options(1))
    for name, output in zip(names, session.run(names, given), strict=True):
        assert 0.01 < output.std() < 100, name


LINES = "inputs: [1, 3, 8, 8]\nlayers:\n"


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ("- {op: conv, channels: 4, kernal: 3}", "line 3, layers.0..kernal: .*mean 'kernel'"),
        ("- {op: cnv}", "line 3, layers.0..op: Unknown op 'cnv'. Did you mean 'conv'"),
        ("- {channels: 4}", "layers.0.: the key 'op' is missing"),
        ("- {op: conv, kernel: 3}", "layers.0.: the key 'channels' is missing"),
        ("- {op: conv, channels: 0, kernel: 3}", "channels: expected a whole number of 1 .*got 0"),
        ("- {op: conv, channels: 6, kernel: 1, groups: 2}", "groups must divide the input's 3"),
        ("- {op: max_pool, kernel: 9}", "a window of 9x9 does not fit the input of 8x8"),
        ("- {op: conv, channels: 3, kernel: 3, pad: [1]}", "pad: expected same, .* got .1."),
        ("- {op: add}", "add reads two or more, got 1"),
        ("- {op: add, from: [input, later]}", "Unknown layer before this one 'later'"),
        ("- {op: fc, features: 3}\n- {op: conv, channels: 3, kernel: 1}",
         "line 4, layers.1.: needs images .*, its input is 1x3"),
        ("- {op: conv, name: wide, channels: 8, kernel: 1}\n- {op: add, from: [wide, input]}",
         "add cannot be done on 1x8x8x8, 1x3x8x8"),
        ("- {op: conv, channels: 3, kernel: 1, activation: rellu}", "Did you mean 'relu'"),
        ("- {op: fc, name: input, features: 3}", "name: the name 'input' is taken"),
        ("- {op: reshape, shape: [1, 5]}", "shape: 1x5 has other elements than 1x3x8x8"),
        ("- {op: conv, op: fc}", "line 3: not YAML: the key 'op' is there twice"),
        ("- {op: conv, channels: 3", "not YAML: expected ',' or '}'"),
        ("- conv", "layers.0.: expected keys with values, got 'conv'"),
        ("- {op: upsample, factor: 1000000}", "upsample makes more than 2147483647 numbers"),
        ("- {op: upsample, factor: 9999999999}", "factor: expected one or two whole numbers"),
        ("- {op: flatten}\noutputs: [flaten1]", "line 4, outputs: .*mean 'flatten1'"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_line_and_key(
    layers: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidFileError, match=message):
        load(tmp_path, LINES + layers)


@pytest.mark.parametrize("shape", [[1 << 63, 3, 8, 8], [1, 70_000, 70_000]])
def test_no_input_is_larger_than_a_tensor_may_be(shape: list[int], tmp_path: Path) -> None:
    with pytest.raises(InvalidFileError, match="inputs: expected a tensor of at most 2147483647"):
        load(tmp_path, f"inputs: {shape}\nlayers:\n- {{op: flatten}}")


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidFileError, match="line 1, cores: Unknown key 'cores'"):
        load(tmp_path, "cores: 3")
    with pytest.raises(InvalidFileError, match="expected keys with values, got 'vgg16'"):
        load(tmp_path, "vgg16")
    with pytest.raises(InvalidFileError, match="has no models, of which 'a' could be one"):
        models.load(f"{written(tmp_path, SMALL)}#a")
