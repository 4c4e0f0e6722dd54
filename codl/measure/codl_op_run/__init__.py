"""The original CoDL's program `codl_op_run` on a device: it measures its own kernels for codl."""
