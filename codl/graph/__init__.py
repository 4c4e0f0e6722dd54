"""ONNX in, passes, the DAG."""

from codl.graph.graph import Graph, Node
from codl.graph.onnx_import import fix_batch, import_onnx, session_options
from codl.graph.passes import simplify

__all__ = ["Graph", "Node", "fix_batch", "import_onnx", "session_options", "simplify"]
