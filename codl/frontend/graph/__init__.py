"""The ONNX graph: import, shape inference, rewrites and constant folding."""
