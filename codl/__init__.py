"""codl runs a neural network on the CPU and the GPU of a device at the same time."""

__version__ = "0.1.0"
