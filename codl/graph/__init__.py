"""ONNX in, passes, the DAG."""

from codl.graph.graph import Graph, Node
from codl.graph.onnx_import import import_onnx, session_options
from codl.graph.simplify import simplify

__all__ = ["Graph", "Node", "import_onnx", "session_options", "simplify"]
