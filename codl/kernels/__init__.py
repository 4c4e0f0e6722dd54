"""Kernel variants: what each implementation of an op is, compiled and run by `codl.runtime`.

Importing this package imports every package in it, and each registers its variants in
`codl.kernels.registry`.
"""

from codl.registry import import_modules

import_modules(__name__)
