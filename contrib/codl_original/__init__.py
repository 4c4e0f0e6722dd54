"""The original CoDL's program `codl_op_run`, which measures kernels of its own on a device."""

from codl.registry import COMMANDS

COMMANDS.add_lazy("collect-original", "codl_original.command:collect_original")
