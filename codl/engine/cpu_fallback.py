"""The CPU-only fallback of an engine, loaded when needed: where the GPU fails, and where a library
would turn NaN into numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from codl.errors import CodlError, DeviceError
from codl.ir import Network
from codl.ir.executable import Executable
from codl.ir.plan import Plan
from codl.lower.alternatives import on_cpu
from codl.runtime.loaded import Loaded
from codl.runtime.placement import LocalSoc

if TYPE_CHECKING:  # what a target measures is not loaded to run
    from codl.targets.base import Target


#: Libraries some of whose kernels make numbers of NaN: activations of ncnn, maxima of OpenVINO.
HIDING = ("ncnn", "openvino")


@dataclass(frozen=True)
class CpuFallback:
    """Loads a network on the CPU of a target; `lowering` makes executables of its plans."""

    network: Network
    soc: LocalSoc
    target: Target
    lowering: Callable[[Plan], Executable]

    def take_over(self, failed: Loaded, plan: Plan, why: DeviceError) -> tuple[Plan, Loaded]:
        """The plan without its GPU, loaded and fed as what has failed was, which is released.

        Raises `DeviceError` with both reasons where the CPU cannot do it alone, and where the
        failure took states with it, such as a decoder's caches.
        """
        if self.network.states:
            raise DeviceError(
                f"{why} What {self.network.name!r} keeps from run to run was lost with it: make a "
                "new engine."
            ) from why
        try:
            alone = on_cpu(self.network, plan, self.soc)
            loaded = self.target.load_on_cpu(self.lowering(alone))
        except CodlError as error:
            raise DeviceError(f"{why} The CPU cannot stand in: {error}") from why
        for name, array in failed.inputs.items():
            np.copyto(loaded.inputs[name], array.reshape(loaded.inputs[name].shape))
        failed.close()
        return alone, loaded

    def in_onnxruntime(self, plan: Plan) -> Loaded:
        """The network on the CPU, loaded a second time; ONNX Runtime runs all that it can.

        Raises `CodlError` where it cannot be loaded.
        """
        alone = on_cpu(self.network, plan, self.soc, but=HIDING)
        return self.target.load_on_cpu(self.lowering(alone))
