"""Every kernel variant that codl knows; a new one is added to this list and nowhere else."""

from __future__ import annotations

from typing import Any

from codl.errors import UnknownNameError
from codl.kernels.base import (
    BLOCKED_HALF,
    IMAGE,
    IMAGE_HALF,
    PLANAR,
    Layout,
    Processor,
    Storage,
    Variant,
)
from codl.kernels.concat import cpu as concat_cpu
from codl.kernels.concat import gpu_copy as concat_gpu
from codl.kernels.concat import gpu_image as concat_image
from codl.kernels.concat import gpu_rows as concat_nd_gpu
from codl.kernels.conv2d import cpu as conv2d_cpu
from codl.kernels.conv2d import (
    gpu_depthwise,
    gpu_depthwise_pixels,
    gpu_direct,
    gpu_gemm,
    gpu_grouped,
    gpu_image,
    gpu_image_depthwise,
    gpu_image_grouped,
    gpu_image_winograd,
    gpu_narrow,
    gpu_winograd,
    gpu_winograd_gemm,
)
from codl.kernels.conv_transpose2d import cpu as conv_transpose2d_cpu
from codl.kernels.conv_transpose2d import gpu_direct as conv_transpose2d_gpu
from codl.kernels.eltwise import cpu as eltwise_cpu
from codl.kernels.eltwise import gpu_direct as eltwise_gpu
from codl.kernels.eltwise import gpu_image as eltwise_image
from codl.kernels.fc import cpu as fc_cpu
from codl.kernels.fc import gpu_direct as fc_gpu
from codl.kernels.fc import gpu_image as fc_image
from codl.kernels.fc import gpu_rows as fc_gpu_rows
from codl.kernels.gather import gpu_rows as gather_gpu
from codl.kernels.matmul import gpu_direct as matmul_direct
from codl.kernels.matmul import gpu_tiled as matmul_tiled
from codl.kernels.norm import gpu_direct as norm_gpu
from codl.kernels.pooling import cpu as pooling_cpu
from codl.kernels.pooling import gpu_direct as pooling_gpu
from codl.kernels.pooling import gpu_global as pooling_gpu_global
from codl.kernels.pooling import gpu_image as pooling_image
from codl.kernels.pooling import gpu_indices
from codl.kernels.reduce import gpu_direct as reduce_gpu
from codl.kernels.reshape import cpu as reshape_cpu
from codl.kernels.reshape import gpu_copy as reshape_gpu
from codl.kernels.resize import cpu as resize_cpu
from codl.kernels.resize import gpu_direct as resize_gpu
from codl.kernels.softmax import gpu_direct as softmax_gpu
from codl.kernels.strided import gpu_copy as strided_gpu
from codl.ops.base import Op
from codl.soc import Soc

#: In order of preference: the first that accepts an op is its default.
VARIANTS: tuple[Variant, ...] = (
    conv2d_cpu.CpuWinograd(),
    conv2d_cpu.CpuGemm(),
    conv2d_cpu.CpuDirect(),
    *(conv2d_cpu.CpuWinograd(tile=tile) for tile in conv2d_cpu.TILES),
    *(conv2d_cpu.CpuWinograd(packed=False, tile=tile) for tile in conv2d_cpu.TILES),
    conv2d_cpu.CpuGemm(packed=False),
    conv2d_cpu.CpuDirect(packed=False),
    gpu_winograd_gemm.GpuWinogradGemm(),
    gpu_depthwise_pixels.GpuDepthwisePixels(),
    gpu_gemm.GpuGemm(),
    gpu_winograd.GpuWinograd(),
    gpu_depthwise.GpuDepthwise(),
    gpu_narrow.GpuNarrow(),
    gpu_direct.GpuDirect(),
    gpu_grouped.GpuGrouped(),
    gpu_winograd.GpuWinograd(BLOCKED_HALF),
    gpu_depthwise.GpuDepthwise(BLOCKED_HALF),
    gpu_narrow.GpuNarrow(BLOCKED_HALF),
    gpu_direct.GpuDirect(BLOCKED_HALF),
    gpu_grouped.GpuGrouped(BLOCKED_HALF),
    gpu_image_winograd.GpuImageWinograd(IMAGE),
    gpu_image_depthwise.GpuImageDepthwise(IMAGE),
    gpu_image.GpuImage(IMAGE),
    gpu_image_grouped.GpuImageGrouped(IMAGE),
    gpu_image_winograd.GpuImageWinograd(IMAGE_HALF),
    gpu_image_depthwise.GpuImageDepthwise(IMAGE_HALF),
    gpu_image.GpuImage(IMAGE_HALF),
    gpu_image_grouped.GpuImageGrouped(IMAGE_HALF),
    conv_transpose2d_cpu.CpuDirect(),
    conv_transpose2d_gpu.GpuDirect(),
    conv_transpose2d_gpu.GpuDirect(BLOCKED_HALF),
    pooling_cpu.CpuDirect(),
    pooling_gpu_global.GpuGlobal(),
    pooling_gpu.GpuDirect(),
    pooling_gpu.GpuDirect(BLOCKED_HALF),
    pooling_image.GpuImage(IMAGE),
    pooling_image.GpuImage(IMAGE_HALF),
    fc_cpu.CpuGemv(),
    fc_gpu_rows.GpuRows(),
    fc_gpu.GpuDirect(),
    fc_gpu.GpuDirect(BLOCKED_HALF),
    fc_image.GpuImage(IMAGE),
    fc_image.GpuImage(IMAGE_HALF),
    concat_cpu.CpuCopy(),
    concat_gpu.GpuCopy(),
    concat_gpu.GpuCopy(BLOCKED_HALF),
    concat_image.GpuImage(IMAGE),
    concat_image.GpuImage(IMAGE_HALF),
    eltwise_cpu.CpuDirect(),
    eltwise_gpu.GpuDirect(),
    eltwise_gpu.GpuDirect(BLOCKED_HALF),
    eltwise_image.GpuImage(IMAGE),
    eltwise_image.GpuImage(IMAGE_HALF),
    reshape_cpu.CpuCopy(),
    reshape_gpu.GpuCopy(),
    resize_cpu.CpuDirect(),
    resize_gpu.GpuDirect(),
    resize_gpu.GpuDirect(BLOCKED_HALF),
    matmul_direct.GpuDirect(),
    matmul_tiled.GpuTiled(),
    softmax_gpu.GpuDirect(),
    norm_gpu.GpuDirect(),
    reduce_gpu.GpuDirect(),
    strided_gpu.TransposeCopy(),
    strided_gpu.SliceCopy(),
    strided_gpu.TileCopy(),
    strided_gpu.PadCopy(),
    strided_gpu.WindowsCopy(),
    concat_nd_gpu.GpuRows(),
    gather_gpu.GpuRows(),
    gpu_indices.GpuIndices(),
)


def target(variant: Variant, op: Op) -> str:
    """What is measured and predicted together, such as `conv2d_cpu_gemm`, `pooling_gpu_direct_max`.

    The name of a dataset's table and of a predictor.
    """
    return "_".join(filter(None, (op.kind, variant.name, op.flavor)))


def variants(op: Op, processor: Processor, soc: Soc, *, every: bool = False) -> list[Variant]:
    """The variants that accept `op` on a processor, the default first.

    Where the SoC's memory types have none (or an image would be too large), those of any other.
    `every` includes all that are right but not for this SoC: written for another type of device,
    or with tensors in memory, or of an element type, that its file does not name; or never best.
    """
    known: list[Any] = [v for v in VARIANTS if v.op_kind == op.kind and v.processor == processor]
    if every:
        return _accepting(op, known, soc)
    if processor == "cpu":
        return _accepting(op, [v for v in known if getattr(v, "usual", True)], soc)
    meant = [v for v in known if soc.gpu.type in v.meant_for]
    # Planar variants have neither images nor half storage, whatever the rest of a network has.
    usual = [v for v in meant if v.storage in (PLANAR, *storages(soc))]
    others = [v for v in meant if v.storage.element == soc.gpu.element]
    return _accepting(op, usual, soc) or _accepting(op, others, soc)


def _accepting(op: Op, known: list[Any], soc: Soc) -> list[Variant]:
    return [variant for variant in known if variant.refusal(op, soc) is None]


def storages(soc: Soc) -> tuple[Storage, ...]:
    """What the SoC's tensors may be stored as, its usual storage first."""
    layouts: dict[str, Layout] = {"buffer": "blocked", "image2d": "image"}
    element: Any = soc.gpu.element
    return tuple(Storage(layouts[memory], element) for memory in soc.gpu.memory_types)


def find(op: Op, name: str) -> Variant:
    """The variant of an op's kind by its name, such as `cpu_gemm`."""
    known = {variant.name: variant for variant in VARIANTS if variant.op_kind == op.kind}
    if name not in known:
        raise UnknownNameError(f"kernel variant of {op.kind}", name, known)
    return known[name]
