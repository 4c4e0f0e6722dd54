"""ONNX in, passes, the DAG."""

from codl.graph.graph import Graph, Node
from codl.graph.onnx_import import import_onnx, session_options
from codl.graph.shapes import fix_batch
from codl.graph.simplify import simplify

__all__ = ["Graph", "Node", "fix_batch", "import_onnx", "session_options", "simplify"]
