"""Bundles: one compiled model a file, loaded without import, search or compilation.

`packaging.package` writes a bundle, `load` makes an engine of one. docs/howto/bundle.md describes
the file.
"""

from codl.jobs.bundle.loading import load, soc_of

__all__ = ["load", "soc_of"]
