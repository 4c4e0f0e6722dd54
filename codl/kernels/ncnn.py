"""What the CPU side's variants have in common: a layer of an ncnn net, described, not run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from codl.kernels.base import Variant
from codl.ops.base import Activation
from codl.soc import Soc

#: ncnn's own parameter 31 switches an algorithm off for one layer.
NO_GEMM, NO_WINOGRAD = 1 << 5, 1 << 6

Value = int | float | tuple[float, ...]


@dataclass(frozen=True)
class NcnnLayer:
    """An ncnn layer: its type, its parameters by ncnn's numbers, and its weights in file order.

    `after` is an activation that ncnn cannot fuse into this layer; it becomes a layer of its own.
    `copies_input`: the layer takes channels to lie as ncnn itself would have put them, so that a
    tensor of somebody else's must be copied for it.
    """

    type: str
    parameters: Mapping[int, Value]
    weights: tuple[str, ...] = ()
    after: Activation = Activation()
    copies_input: bool = False


class CpuVariant(Variant, Protocol):
    """A variant that is a layer of an ncnn net."""

    def plan(self, op: Any, soc: Soc) -> NcnnLayer: ...


def fused_activation(activation: Activation) -> dict[int, Value]:
    """Parameters 9 and 10 of ncnn's convolution and inner product."""
    if activation.kind == "none":
        return {}
    code = {"relu": 1, "leaky_relu": 2, "clip": 3}[activation.kind]
    if activation.kind == "relu":
        return {9: code}
    if activation.kind == "leaky_relu":
        return {9: code, 10: (activation.alpha,)}
    return {9: code, 10: (activation.alpha, activation.beta)}


def activation_layer(activation: Activation) -> NcnnLayer | None:
    """The activation as a layer of its own; None for none."""
    if activation.kind == "none":
        return None
    if activation.kind == "clip":
        return NcnnLayer("Clip", {0: activation.alpha, 1: activation.beta})
    return NcnnLayer("ReLU", {0: activation.alpha if activation.kind == "leaky_relu" else 0.0})


def round_up(value: int, step: int) -> int:
    return -(-value // step) * step
