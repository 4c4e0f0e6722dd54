"""Kernels for a CPU that plays the GPU (`gpu.type: cpu`), and what their tiles are tuned by.

They are for development and tests on machines without a GPU: no phone runs a line of them.
"""
