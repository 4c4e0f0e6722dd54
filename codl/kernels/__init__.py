"""Kernel variants: what each implementation of an op is, compiled and run by `codl.runtime`.

Importing this package imports every module and package in it, and each registers its variants in
`codl.kernels.registry`; those of a CPU that plays the GPU come last.
"""

from codl.registry import import_modules

import_modules(__name__)
import_modules(f"{__name__}.cpu_device")
