"""Sources of kernels."""
