"""The CPU-only fallback of an engine, loaded when needed: where the GPU fails, and where a library
would turn NaN into numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from codl.errors import CodlError, DeviceError, UnsupportedError
from codl.ir import Layer, Network
from codl.ir.executable import Executable
from codl.ir.plan import Chain, Plan
from codl.kernels import registry
from codl.records.soc import Soc
from codl.runtime.loaded import Loaded
from codl.runtime.placement import LocalSoc

if TYPE_CHECKING:  # what a target measures is not loaded to run
    from codl.targets.base import Target


#: Libraries some of whose kernels make numbers of NaN: activations of ncnn, maxima of OpenVINO.
HIDING = ("ncnn", "openvino")
#: The strategy that the plans here bear.
STRATEGY = "cpu"


@dataclass(frozen=True)
class CpuFallback:
    """Loads a network on the CPU of a target; `lowering` makes executables of its plans."""

    network: Network
    soc: LocalSoc
    target: Target
    lowering: Callable[[Plan], Executable]

    def take_over(self, failed: Loaded, plan: Plan, why: DeviceError) -> tuple[Plan, Loaded]:
        """The plan without its GPU, loaded and fed as what has failed was, which is released.

        Raises `DeviceError` with both reasons where the CPU cannot do it alone.
        """
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


def on_cpu(network: Network, plan: Plan, soc: Soc, *, but: Collection[str] = ()) -> Plan:
    """Every layer on the CPU alone, in the variant that the plan has there, or else the default.

    None has a backend of `but` where another one has a variant. Raises `UnsupportedError` with the
    first layer that the CPU has no variant for.
    """
    planned = {
        name: sides.get("cpu") for chain in plan.chains for name, sides in chain.variants.items()
    }
    variants = {
        layer.name: {"cpu": _variant(layer, planned.get(layer.name), soc, but)}
        for layer in network.layers
    }
    whole = Chain(tuple(variants), "H", 0.0, variants)
    return replace(
        plan,
        strategy=STRATEGY,
        predictor="none",
        sharing="gather",
        predicted_ms=None,
        predicted_mj=None,
        chains=(whole,) if variants else (),
        sums={},
        method="the GPU failed",
    )


def _variant(layer: Layer, planned: str | None, soc: Soc, but: Collection[str]) -> str:
    """The planned one, if it takes the whole op too; what was planned may have been for a part."""
    variants = registry.variants(layer.op, "cpu", soc)
    if but and variants:
        fit = registry.variants(layer.op, "cpu", soc, include_unfit=True)
        variants = [variant for variant in fit if variant.backend not in but] or variants
    names = [variant.name for variant in variants]
    if not names:
        raise UnsupportedError(
            f"The CPU has no kernel variant for {layer.name!r} ({layer.op.kind})."
        )
    return planned if planned in names else names[0]
