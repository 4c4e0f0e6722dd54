"""Kernels for an OpenCL device that is a CPU: for development on a machine without a GPU."""
