"""ONNX's node conformance suite on codl's kernels: `codl conformance`, and ONNX's backend API."""

from codl.plugins import COMMANDS

COMMANDS.add_lazy("conformance", "codl.contrib.conformance.command:run_conformance")
