"""Bundles: a compiled model in one file, which runs without import, search and compilation.

`packaging.package` writes one, `load` makes an engine of it. docs/howto/bundle.md describes the
file.
"""

from codl.bundle.loading import load, soc_of

__all__ = ["load", "soc_of"]
