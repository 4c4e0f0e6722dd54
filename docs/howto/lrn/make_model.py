import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

random = np.random.default_rng(0)
weight = random.standard_normal((16, 3, 3, 3)).astype(np.float32)
nodes = [
    helper.make_node("Conv", ["x", "weight"], ["a"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
    helper.make_node("Relu", ["a"], ["b"]),
    helper.make_node("LRN", ["b"], ["c"], size=5, alpha=0.5, beta=0.75, bias=1.0),
    helper.make_node("MaxPool", ["c"], ["y"], kernel_shape=[2, 2], strides=[2, 2]),
]
graph = helper.make_graph(
    nodes,
    "lrn",
    [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 40, 40])],
    [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 16, 20, 20])],
    [numpy_helper.from_array(weight, "weight")],
)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
onnx.save(model, "lrn.onnx")
np.savez("x.npz", x=random.standard_normal((1, 3, 40, 40)).astype(np.float32))
