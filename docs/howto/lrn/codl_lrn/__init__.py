"""Local response normalization for codl."""

from . import convert, kernels, nice, op, power_law, rows

__all__ = ["convert", "kernels", "nice", "op", "power_law", "rows"]
