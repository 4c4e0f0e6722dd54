"""What each ONNX node means: converters to operators, one module a family.

Importing this package imports every module in it, and each adds its own to `base.CONVERTERS`.
"""

from codl.registry import import_modules

import_modules(__name__)
