"""A stage: an NVIDIA GPU of which only some multiprocessors are left to codl.

A plugin of codl. `--serial stage:4` is this machine with four multiprocessors of its GPU; what is
measured there is measured, on a GPU of another size. `scripts/bench/stage.py` uses it.
"""

from . import target

__all__ = ["target"]
