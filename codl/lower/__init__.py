"""From a plan to an executable: partition, fusion, layout, memory and transfers; pure."""

from codl.lower.lowering import lower

__all__ = ["lower"]
