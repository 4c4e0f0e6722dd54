"""ONNX and YAML in: models, graph passes, and conversion to a network of operators."""
