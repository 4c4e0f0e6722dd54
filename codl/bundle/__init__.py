"""Bundles: a compiled model in one file, which runs without import, search and compilation.

`package` writes one, `load` makes an engine of it. The file is described in docs/bundle.md.
"""

from codl.bundle.loading import load

__all__ = ["load"]
