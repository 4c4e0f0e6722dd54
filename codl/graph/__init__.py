"""ONNX in, passes, the DAG."""

from typing import TYPE_CHECKING

from codl.graph.graph import Graph, Node
from codl.later import imported_later

if TYPE_CHECKING:
    from codl.graph.onnx_import import import_onnx, session_options
    from codl.graph.shapes import fix_batch
    from codl.graph.simplifying import simplify

__getattr__ = imported_later(
    __name__,
    {
        "fix_batch": "shapes",
        "import_onnx": "onnx_import",
        "session_options": "onnx_import",
        "simplify": "simplifying",
    },
)

__all__ = ["Graph", "Node", "fix_batch", "import_onnx", "session_options", "simplify"]
