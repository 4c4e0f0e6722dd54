"""The ops that ncnn runs on the CPU, but for convolutions (`codl.kernels.conv2d.cpu`)."""

from __future__ import annotations

from codl.ir.columns import FeatureColumns, rest
from codl.ir.ops.concat import Concat, ConcatColumns
from codl.ir.ops.convolution import ConvTranspose2d
from codl.ir.ops.eltwise import Eltwise, EltwiseColumns
from codl.ir.ops.fully_connected import FcColumns, FullyConnected
from codl.ir.ops.movement import Reshape
from codl.ir.ops.pooling import Pool2d, PoolColumns
from codl.ir.ops.resize import Resize
from codl.ir.ops.window import Size2
from codl.kernels.feature_columns import by_level, halvings, packed_vectors
from codl.kernels.kernel import CpuKernel
from codl.kernels.ncnn import NcnnLayer, NcnnValue, fused_activation, left_over
from codl.kernels.registry import register
from codl.kernels.tiling import ceil_div, round_up
from codl.records.soc import Soc

WEIGHTS = ("weight", "bias")

# Fully connected layers: an inner product, a matrix-vector product.


def _fc(op: FullyConnected) -> NcnnLayer:
    size = op.out_channels * op.in_features
    parameters = {0: op.out_channels, 1: 1, 2: size, **fused_activation(op.activation)}
    return NcnnLayer("InnerProduct", parameters, WEIGHTS, left_over(op.activation))


def _count_fc(ops: FcColumns, soc: Soc) -> FeatureColumns:
    """M rows of K columns, a vector of rows at a time; weights stream from where they are."""
    m, k = halvings(ops.oc, soc.cpu.simd_floats), ops.in_features
    return {
        "kernel_steps": m * k,
        "output_vectors": m,
        "planar_bytes": 4.0 * ops.images * k * (ops.ih * ops.iw > 1),
        **by_level("weight", 4.0 * ops.oc * k, soc.cpu.l2_cache_bytes),
    }


# Pooling: a sliding window.


def _refuse_pooling(op: Pool2d) -> str | None:
    if op.dilation != (1, 1):
        return f"ncnn's pooling has no dilation, got dilation={op.dilation}"
    return None


def _pooling(op: Pool2d) -> NcnnLayer:
    parameters = {
        0: 0 if op.mode == "max" else 1,
        1: op.kernel.w,
        11: op.kernel.h,
        2: op.stride.w,
        12: op.stride.h,
        3: op.pad.left,
        14: op.pad.right,
        13: op.pad.top,
        15: op.pad.bottom,
        5: 1,
        6: int(op.count_pad),
    }
    return NcnnLayer("Pooling", parameters, after=op.activation)


def _count_pooling(ops: PoolColumns, soc: Soc) -> FeatureColumns:
    """Reads of vectors of channels, and the bytes that they are of.

    ncnn has kernels of their own for windows of 2x2 and 3x3 at stride 2; they are the fast ones.
    Padding is written out first.
    """
    channels, packed = packed_vectors(ops.ic, soc.cpu.simd_floats), rest(ops.ic, 4) == 0
    outputs = ops.pixels * channels
    square = (ops.kh == ops.kw) & (ops.sh == 2) & (ops.sw == 2) & packed
    twos, threes = square & (ops.kh == 2), square & (ops.kh == 3)
    padded_bytes = 4.0 * ops.ic * ops.padded_h * ops.padded_w
    moved = 4.0 * ops.ic * (ops.ih * ops.iw + ops.pixels) + padded_bytes * ops.is_padded
    return {
        "steps_of_2": outputs * twos,
        "steps_of_3": outputs * threes,
        "steps": outputs * ops.window * (packed & ~(twos | threes)),
        "scalar_steps": outputs * ops.window * ~packed,
        "output_vectors": outputs,
        "rows": ops.oh * channels,
        "channels": channels,
        "padded_bytes": padded_bytes * ops.is_padded,
        **by_level("moved", moved, soc.cpu.l2_cache_bytes),
    }


# Element-wise operators of two inputs: ncnn stretches axes of size 1 as the op does.

#: ncnn's codes of BinaryOp.
BINARY = {"add": 0, "sub": 1, "mul": 2}
#: What ncnn computes otherwise than IEEE 754 has it.
INEXACT = {
    "div": "a reciprocal and one step of Newton, which is no number where the divisor is 0",
    "max": "keeping the other where one is not a number",
    "min": "keeping the other where one is not a number",
    "pow": "exp(y log x), which is wrong where x is not above 0",
}


def _refuse_eltwise(op: Eltwise) -> str | None:
    if op.mode in INEXACT:
        return f"ncnn computes {op.mode} by {INEXACT[op.mode]}"
    if op.mode not in BINARY and op.mode != "identity":
        return f"ncnn has no layer for {op.mode}"
    return None


def _eltwise(op: Eltwise) -> NcnnLayer:
    # With one input it runs in place, and ncnn crashes where it did not allocate that memory.
    parameters = {0: BINARY["add"], 1: 1, 2: 0.0} if op.mode == "identity" else {0: BINARY[op.mode]}
    return NcnnLayer("BinaryOp", parameters, after=op.activation, copies_input=True)


def _count_eltwise(ops: EltwiseColumns, soc: Soc) -> FeatureColumns:
    return {
        "input_bytes": 4.0 * ops.input_elements,
        "output_bytes": 4.0 * ops.output_elements,
        "activations": ops.output_elements * ops.is_active,
    }


# Concatenation and reshape: copies of tensors as they lie.


def _concat(op: Concat) -> NcnnLayer:
    return NcnnLayer("Concat", {0: 0}, after=op.activation, copies_input=True)


def _count_concat(ops: ConcatColumns, soc: Soc) -> FeatureColumns:
    return {"inputs": ops.inputs, "output_bytes": 4.0 * ops.output_elements}


def _refuse_reshape(op: Reshape) -> str | None:
    if op.input.n != op.output.n:
        return f"the batch must stay, got {op.input.n} and {op.output.n}"
    return None


def _reshape(op: Reshape) -> NcnnLayer:
    sizes = {0: op.output.w, 1: op.output.h, 2: op.output.c}
    return NcnnLayer("Reshape", sizes, after=op.activation, copies_input=True)


# Resize, where ncnn reads the same rows and columns: what a part of rows needs is often another.

#: ncnn's codes of Interp, and the coordinates that it has.
INTERP = {"nearest": 1, "linear": 2}
COORDS = {"nearest": ("asymmetric",), "linear": ("half_pixel", "align_corners")}


def _refuse_resize(op: Resize) -> str | None:
    if op.mode not in INTERP:
        return f"ncnn's cubic resize has other weights, got mode={op.mode}"
    if op.size == (op.input.h, op.input.w):
        return "ncnn hands out its input where sizes stay as they are"
    if op.mode == "linear" and min(op.input.h, op.input.w) < 2:
        return f"ncnn's linear resize needs 2 rows and columns, got {op.input}"
    if _coords(op) is None:
        return f"ncnn reads other rows or columns than coords={op.coords} of this size"
    return None


def _resize(op: Resize) -> NcnnLayer:
    corners = int(_coords(op) == "align_corners")
    parameters = {0: INTERP[op.mode], 3: op.size.h, 4: op.size.w, 6: corners}
    return NcnnLayer("Interp", parameters, after=op.activation)


def _coords(op: Resize) -> str | None:
    """The coordinates by which ncnn computes the same, if there are any."""
    for coords in COORDS[op.mode]:
        ncnns = Resize(
            inputs=op.inputs, size=Size2(*op.size), mode=op.mode, coords=coords, rounding="floor"
        )
        pairs = ((ncnns.rows, op.rows), (ncnns.columns, op.columns))
        if all(a.is_close(b, 1e-5) for a, b in pairs):
            return coords
    return None


def _count_resize(op: Resize, soc: Soc) -> dict[str, float]:
    blocks = ceil_div(op.output.c, soc.cpu.simd_floats)
    return {
        "tap_blocks": op.size.h * op.size.w * blocks * op.taps**2,
        "rows": op.size.h * blocks,
        "input_bytes": op.input.bytes,
        "output_bytes": op.output.bytes,
    }


# Transposed convolution: what the whole result is cut to must begin inside it.


def _refuse_transposed(op: ConvTranspose2d) -> str | None:
    return f"crop must not be negative, got {op.crop}" if min(op.crop) < 0 else None


def _transposed(op: ConvTranspose2d) -> NcnnLayer:
    whole = (
        (n - 1) * s + extent
        for n, s, extent in zip((op.input.h, op.input.w), op.stride, op.extent, strict=True)
    )
    # Rows and columns of it behind the output; negative where it is too short.
    below, beside = (w - crop - n for w, crop, n in zip(whole, op.crop, op.size, strict=True))
    parameters: dict[int, NcnnValue] = {
        0: op.out_channels,
        1: op.kernel.w,
        11: op.kernel.h,
        2: op.dilation.w,
        12: op.dilation.h,
        3: op.stride.w,
        13: op.stride.h,
        4: op.crop.w,
        15: max(beside, 0),
        14: op.crop.h,
        16: max(below, 0),
        18: max(-beside, 0),
        19: max(-below, 0),
        5: 1,
        6: op.out_channels * (op.input.c // op.groups) * op.kernel.h * op.kernel.w,
        **fused_activation(op.activation),
    }
    kind = "Deconvolution"
    if op.groups > 1:
        parameters[7], kind = op.groups, "DeconvolutionDepthWise"
    # ncnn cuts groups out of the input by its own channel step.
    cut = op.groups > 1 and not op.is_depthwise
    return NcnnLayer(kind, parameters, WEIGHTS, left_over(op.activation), copies_input=cut)


def _count_transposed(op: ConvTranspose2d, soc: Soc) -> dict[str, float]:
    lanes = soc.cpu.simd_floats
    oc, per_group = round_up(op.out_channels, lanes), op.input.c // op.groups
    taps = op.kernel.h * op.kernel.w
    return {
        "padded_macs": op.input.h * op.input.w * oc * per_group * taps,
        "output_blocks": op.size.h * op.size.w * oc // lanes,
        "depthwise": op.is_depthwise,
        "input_bytes": op.input.bytes,
        "weight_bytes": 4.0 * op.out_channels * per_group * taps,
        "output_bytes": op.output.bytes,
    }


register(
    CpuKernel("fc", _fc, _count_fc, FcColumns, name="cpu_gemv"),
    CpuKernel("pooling", _pooling, _count_pooling, PoolColumns, _refuse_pooling),
    CpuKernel("eltwise", _eltwise, _count_eltwise, EltwiseColumns, _refuse_eltwise),
    CpuKernel("concat", _concat, _count_concat, ConcatColumns, name="cpu_copy"),
    CpuKernel(
        "reshape",
        _reshape,
        lambda op, soc: {"output_bytes": op.output.bytes},
        refuse=_refuse_reshape,
        name="cpu_copy",
    ),
    CpuKernel("resize", _resize, _count_resize, refuse=_refuse_resize),
    CpuKernel("conv_transpose2d", _transposed, _count_transposed, refuse=_refuse_transposed),
)
