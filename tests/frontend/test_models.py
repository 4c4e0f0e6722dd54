"""The built-in models: their operators, and that every side computes what ONNX Runtime does."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest
from onnx import shape_inference
from support.references import converted

from codl.frontend import models

#: The convolutions that the original CoDL profiles, by "kernel/stride": input and output channels,
#: rows of the output, and how many there are of the same shape.
PUBLISHED = {
    "yolov2": {
        "3/1": "3>32@416 32>64@208 64>128@104*2 128>256@52*2 256>512@26*3 512>1024@13*3 "
        "1024>1024@13*2 1536>1024@13",
        "1/1": "128>64@104 256>128@52 512>256@26*2 1024>512@13*2 1024>125@13",
    },
    "posenet": {
        "3/1": "3>64@256 64>64@256 64>128@128 128>128@128 128>256@64 256>256@64*3 256>512@32 "
        "512>512@32 512>256@32 256>256@32*3 256>128@32",
        "1/1": "128>512@32 512>21@32 128>128@32*2 128>21@32*2",
        "7/1": "149>128@32*2 128>128@32*8",
    },
    "vgg16": {
        "3/1": "3>64@224 64>64@224 64>128@112 128>128@112 128>256@56 256>256@56*2 256>512@28 "
        "512>512@28*2 512>512@14*3"
    },
    "fast_style_transfer": {
        "9/1": "3>32@480 32>3@480",
        "3/2": "32>64@240 64>128@120",
        "3/1": "128>128@120*10",
    },
    "retinaface": {
        "7/2": "3>64@320",
        "1/1": "64>256@160*3 64>64@160 256>64@160*2 64>256@80 256>512@80 256>128@80 "
        "128>512@80*3 512>128@80*3 128>512@40 512>1024@40 512>256@40*2 256>1024@40*5 "
        "1024>256@40*5 256>1024@20 1024>2048@20 1024>512@20 512>2048@20*3 2048>512@20*2 "
        "2048>256@20 256>256@80 256>256@160",
        "3/1": "64>64@160*2 128>128@80*3 256>256@40*7 512>512@20*3 256>256@80*2 256>256@160*2 "
        "256>128@160 256>64@160*2 256>12@160 256>128@80 256>64@80*2 256>12@80 "
        "256>128@40 256>64@40*2 256>12@40 256>128@20 256>64@20*2 256>256@20 256>12@20 "
        "256>128@10 256>64@10*2 256>256@10 256>12@10 256>6@160 256>6@80 256>6@40 "
        "256>6@20 256>6@10",
        "3/2": "64>64@80 128>128@40 256>256@20 256>256@10",
    },
}


def nodes(name: str, kind: str) -> list[tuple[dict[str, int], list[tuple[int, ...]]]]:
    """Kernel and stride of a built-in model's nodes, and the shapes of what they read and make."""
    builder = models.described(name, weights=False)
    found = []
    for node in builder.build().graph.node:
        if node.op_type == kind:
            first = {a.name: a.ints[0] for a in node.attribute if a.ints}
            shapes = [builder.shapes[tensor] for tensor in (*node.input, *node.output)]
            found.append((first, shapes))
    return found


@pytest.mark.parametrize("name", PUBLISHED)
def test_convolutions_are_those_that_the_original_profiles(name: str) -> None:
    found: Counter[str] = Counter()
    for window, (x, *_, y) in nodes(name, "Conv"):
        found[f"{x[1]}>{y[1]}@{y[2]} {window['kernel_shape']}/{window['strides']}"] += 1
    published: Counter[str] = Counter()
    for window, texts in PUBLISHED[name].items():
        for text in texts.split():
            shape, _, times = text.partition("*")
            published[f"{shape} {window}"] += int(times or 1)
    assert found == published


@pytest.mark.parametrize("name", models.BUILT_IN)
def test_a_structure_without_weights_is_the_models_own(name: str) -> None:
    """ONNX's checker and shape inference agree with the builder, for every model at once."""
    builder = models.described(name, weights=False)
    proto = builder.build()
    onnx.checker.check_model(proto, full_check=True)
    inferred = shape_inference.infer_shapes(proto, strict_mode=True).graph
    for info in (*inferred.value_info, *inferred.output):
        shape = tuple(dim.dim_value for dim in info.type.tensor_type.shape.dim)
        assert shape == builder.shapes[info.name]
    sizes = sum(np.prod(builder.shapes[info.name]) for info in proto.graph.input)
    given = sum(np.prod(builder.shapes[name]) for name in builder.inputs)
    assert sizes - given == builder.parameters


def test_the_list_of_models_counts_what_networks_compute() -> None:
    """Work, against the operators' own count; inputs and weights, against the model's."""
    for name in ("mobilenet_v1", "op_chain", "matmul"):
        builder = models.described(name)
        proto = builder.build()
        listed = models.described(name, weights=False)
        network = converted(proto, name)
        products = [layer.op for layer in network.layers if layer.op.is_product]
        assert listed.gflops == pytest.approx(sum(op.flops for op in products) / 1e9)
        assert listed.parameters == builder.parameters
        assert listed.inputs == list(network.inputs)
        assert len(listed.build().graph.node) == len(proto.graph.node)
