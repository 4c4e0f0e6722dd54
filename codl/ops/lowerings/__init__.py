"""What each ONNX node means: one module a family, each with its `LOWERINGS` by node type."""

from __future__ import annotations

from codl.ops.lowerings import elementwise, vision
from codl.ops.lowerings.base import Lowering

LOWERINGS: dict[str, Lowering] = {**vision.LOWERINGS, **elementwise.LOWERINGS}
