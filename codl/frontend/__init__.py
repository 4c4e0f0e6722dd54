"""Readers of ONNX and YAML models, graph passes, and conversion to networks."""
