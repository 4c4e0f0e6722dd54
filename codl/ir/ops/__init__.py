"""Operators, a file for each family: shapes, work, needed ranges and a float64 reference.

Importing this package imports every module in it: each adds its op to `base.OP_TYPES`.
"""

from codl.registry import import_modules

import_modules(__name__)
