"""An op as a layer of an ncnn net, described, not run: what ncnn's variants on the CPU return."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from codl.ir.ops.base import Activation, Array, Weights

#: ncnn's own parameter 31 switches an algorithm off for one layer.
NO_GEMM, NO_WINOGRAD = 1 << 5, 1 << 6

#: ncnn's own parameter 30 tells a layer the shape of its output before it runs.
SHAPE_HINT = 30

NcnnValue = int | float | tuple[int, ...] | tuple[float, ...]


@dataclass(frozen=True)
class Shifts:
    """Copies of an input as more channels: parameters of ncnn's Padding, and of a Crop for each."""

    padding: Mapping[int, NcnnValue]
    crops: tuple[Mapping[int, NcnnValue], ...]


@dataclass(frozen=True)
class NcnnLayer:
    """An ncnn layer: its type, its parameters by ncnn's numbers, and its weights in file order.

    `after` is an activation that ncnn cannot fuse into this layer; it becomes a layer of its own.
    `copies_input`: the layer takes channels to lie as ncnn itself would have put them, so that a
    tensor that ncnn did not allocate must be copied for it.
    `options` are those of ncnn's net options that the layer insists on; layers that want different
    ones run in nets of their own. `shifts` are copies of its one input that the layer reads instead
    of it, and `arrange` makes of the op's weights what it wants.
    """

    type: str
    parameters: Mapping[int, NcnnValue]
    weights: tuple[str, ...] = ()
    after: Activation = Activation()
    copies_input: bool = False
    options: Mapping[str, bool] = field(default_factory=dict)
    shifts: Shifts | None = None
    arrange: Callable[[Weights], Mapping[str, Array]] = dict


#: ncnn's layer for every activation, and its parameters by ncnn's numbers.
_LAYERS: Mapping[str, tuple[str, Callable[[Activation], Mapping[int, NcnnValue]]]] = {
    "relu": ("ReLU", lambda a: {0: 0.0}),
    "leaky_relu": ("ReLU", lambda a: {0: a.alpha}),
    "clip": ("Clip", lambda a: {0: a.alpha, 1: a.beta}),
    "sigmoid": ("Sigmoid", lambda a: {}),
    "tanh": ("TanH", lambda a: {}),
    "hard_sigmoid": ("HardSigmoid", lambda a: {0: a.alpha, 1: a.beta}),
    "hard_swish": ("HardSwish", lambda a: {0: 1 / 6, 1: 0.5}),
    "gelu": ("GELU", lambda a: {0: 0}),
    "gelu_tanh": ("GELU", lambda a: {0: 1}),
    "silu": ("Swish", lambda a: {}),
    "elu": ("ELU", lambda a: {0: a.alpha}),
    "erf": ("Erf", lambda a: {}),
}
#: The code of what ncnn fuses into a convolution or an inner product.
_FUSED = {"relu": 1, "leaky_relu": 2, "clip": 3, "sigmoid": 4, "hard_swish": 6}


def fuses(activation: Activation) -> bool:
    """Whether ncnn's convolution and inner product take this activation in."""
    return activation.kind == "none" or activation.kind in _FUSED


def fused_activation(activation: Activation) -> dict[int, NcnnValue]:
    """Parameters 9 and 10 of ncnn's convolution and inner product; none where it cannot fuse."""
    if activation.kind not in _FUSED:
        return {}
    values = (1 / 6, 0.5) if activation.kind == "hard_swish" else activation.parameters
    parameters = tuple(float(value) for value in values)
    return {9: _FUSED[activation.kind], **({10: parameters} if parameters else {})}


def left_over(activation: Activation) -> Activation:
    """What of an activation is still to do behind a convolution or an inner product."""
    return Activation() if fuses(activation) else activation


def activation_layer(activation: Activation) -> NcnnLayer | None:
    """The activation as a layer of its own; None for none."""
    if activation.kind == "none":
        return None
    name, parameters = _LAYERS[activation.kind]
    return NcnnLayer(name, parameters(activation))
