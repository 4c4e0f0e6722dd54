"""The original CoDL's program `codl_op_run`, which measures kernels of its own on a device."""

from codl.plugins import RUNNERS

RUNNERS.add_lazy("codl_op_run", "codl.contrib.original.collector:collect_original")
