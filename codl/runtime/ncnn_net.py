"""ncnn nets on fixed input and output arrays, with their memory pools and weights."""

from __future__ import annotations

import ctypes
import os
import platform
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from time import perf_counter
from typing import Any, TypeAlias
from weakref import finalize

import numpy as np

from codl.errors import DeviceError
from codl.ir.constants import Arrays
from codl.ir.executable import NcnnNet, NcnnPart, NetValue
from codl.ir.ops.base import Array
from codl.machine.placement import LocalSoc
from codl.machine.threads import ImageParallel

#: Number of polls after which an idle thread of GNU OpenMP sleeps. The default of 300,000 takes
#: some ten milliseconds on x86, where a poll pauses for up to 140 clocks: idle ncnn threads then
#: block cores for another library of the same plan. 1,000 polls take ten to fifty microseconds. On
#: Arm 300,000 polls take no longer.
SPINS, X86_SPINS = "GOMP_SPINCOUNT", "1000"


@contextmanager
def brief_waits() -> Iterator[None]:
    """Set OpenMP's polls for libraries loaded inside; keeps variables set by the user."""
    is_set = SPINS in os.environ or "OMP_WAIT_POLICY" in os.environ
    if is_set or platform.machine().lower() not in ("x86_64", "amd64"):
        yield
        return
    os.environ[SPINS] = X86_SPINS
    try:
        yield
    finally:
        del os.environ[SPINS]


with brief_waits():
    import ncnn

#: Names of blobs that are tensors; other blobs are intermediate results (`codl.lower.nets`).
TENSOR = re.compile(r"t\d+")
#: ncnn matrices of each image, by value number.
Mats: TypeAlias = Mapping[int, list[ncnn.Mat]]


def matrices(view: Array) -> list[ncnn.Mat]:
    """ncnn matrices over the images of a view shaped (images, channels, rows, columns).

    ncnn misreads strided NumPy arrays, so it gets contiguous arrays of the same size, and then the
    channel step of the strided view.
    """
    _, _, rows, columns = view.shape
    strides = (4 * rows * columns, 4 * columns, 4)
    mats = [
        ncnn.Mat(np.lib.stride_tricks.as_strided(image, image.shape, strides)) for image in view
    ]
    for mat in mats:
        mat.cstep = view.strides[1] // 4
    return mats


class NcnnSession:
    """An ncnn net on fixed arrays, which it keeps alive.

    Inputs are read in place, and outputs are unpacked to their arrays. Images of a batch run
    through the same nets, several in parallel if the CPU side has enough threads.

    With `own_memory`, the session has its own pools: the cache state of shared pools depends on
    earlier runs of other nets.
    """

    def __init__(
        self,
        net: NcnnNet,
        views: Sequence[Array],
        results: Sequence[Array],
        packed: Callable[[int], Arrays],
        soc: LocalSoc,
        *,
        own_memory: bool = False,
    ) -> None:
        self.label = net.label
        # ncnn counts no references to NumPy's memory.
        self._views = (*views, *results)
        self._inputs = {
            value: matrices(view) for (value, _), view in zip(net.inputs, views, strict=True)
        }
        #: The images' arrays and matrices of each output, with its value.
        self._outputs = [
            (value, list(zip(view, matrices(view), strict=True)))
            for (value, _), view in zip(net.outputs, results, strict=True)
        ]
        packs = all(part.options.get("use_packing_layout", True) for part in net.parts)
        # Layers that read some channels, such as Crop, assume the channel step of ncnn's own
        # allocations. A net that packs copies channels first if they are a multiple of four.
        misread = [
            value
            for value, (mat, *_) in self._inputs.items()
            if mat.c > 1 and (mat.c % 4 or not packs) and mat.cstep != -(-mat.w * mat.h // 4) * 4
        ]
        self._copied = tuple(dict.fromkeys((*net.copied, *misread)))
        self._simd = soc.cpu.simd_floats
        self._layers = [layer.name for layer in net.layers]
        self._images = images = max(part.images.size for part in net.parts)
        place = soc.placement
        self._lanes = ImageParallel.of(place.cpu_cores, place.threads, images)
        self._pools = Pools.lent(self) if own_memory else Pools.shared()
        # With an allocator, ncnn would not write to the memory of the arrays.
        unpacking, self._packing = ncnn.Option(), ncnn.Option()
        unpacking.num_threads = self._packing.num_threads = self._lanes.threads
        self._unpack = partial(_unpack, unpacking)
        self._packing.blob_allocator = self._pools.blobs
        self._parts = [self._load(net, part, packed) for part in net.parts]
        #: The run of a single net on a single image; None for others.
        self._single = self._single_run() if images == len(self._parts) == 1 else None

    def _single_run(self) -> Callable[[], None]:
        """A function for one net on one image, without look-ups and without a reference to `self`.

        Saves 2.5 to 3 us when other data has displaced Python's from the caches.
        """
        (part,), unpack = self._parts, self._unpack
        copied = {*self._copied}
        entering = part.entering(self._inputs)
        inputs = [(blob, mat, value in copied) for blob, value, mat in entering]
        blobs = {value: blob for blob, value in part.outputs}
        outlets = [(blobs[value], images[0]) for value, images in self._outputs]
        create = part.net.create_extractor

        def run() -> None:
            extractor = create()
            for blob, mat, is_copied in inputs:
                extractor.input(blob, mat.clone() if is_copied else mat)
            results = [(target, extracted(extractor, blob)) for blob, target in outlets]
            for pair in results:
                unpack(pair)

        return run

    def _load(self, net: NcnnNet, part: NcnnPart, packed: Callable[[int], Arrays]) -> _LoadedPart:
        weights = (packed(weight.constants)[weight.name] for weight in part.weights)
        threads, pools = self._lanes.threads, self._pools
        loaded = _load(part.options, part.param, weights, threads=threads, pools=pools)
        return _LoadedPart(part, net.values, loaded, lanes=self._lanes)

    def run(self) -> None:
        if self._single is not None:
            self._single()
        else:
            self.unpack(self.compute())

    def compute(self) -> Mats:
        """Run the net; returns results in ncnn's packed layout."""
        values = self._entering()
        for part in self._parts:
            values |= part.run(values)
        return values

    def _entering(self) -> dict[int, list[ncnn.Mat]]:
        values: dict[int, list[ncnn.Mat]] = dict(self._inputs)
        for value in self._copied:
            values[value] = [mat.clone() for mat in values[value]]
        return values

    def run_layers(self) -> Mapping[str, float]:
        """Run layer by layer; returns the end of each layer in seconds of `perf_counter`.

        Computes the same as `run`. Empty for several images.
        """
        blobs = [part.blobs for part in self._parts]
        if self._images > 1 or sum(map(len, blobs)) != len(self._layers):
            return {}
        values, ends = self._entering(), list[float]()
        for part in self._parts:
            values |= part.run_layers(values, ends)
        self.unpack(values)
        return dict(zip(self._layers, [*ends[:-1], perf_counter()], strict=True))

    def unpack(self, results: Mats) -> None:
        """Write the results of `compute` to the output arrays."""
        for value, images in self._outputs:
            pairs = list(zip(images, results[value], strict=True))
            self._lanes.each(self._unpack, pairs)

    def packed(self) -> Mats:
        """The present inputs in ncnn's packed layout, as preceding layers would leave them."""
        packed_inputs = {}
        for value, mats in self._inputs.items():
            size = next(size for size in (self._simd, 8, 4, 1) if mats[0].c % size == 0)
            pack = partial(ncnn.convert_packing, elempack=size, opt=self._packing)
            packed_inputs[value] = self._lanes.each(pack, mats)
        return packed_inputs

    def pack_inputs(self) -> None:
        """Pack the present inputs once, for all later calls of `compute`."""
        self._inputs = dict(self.packed())
        self._copied, self._single = (), None

    def close(self) -> None:
        self._single = None
        self._parts.clear()


def _unpack(option: ncnn.Option, pair: tuple[tuple[Array, ncnn.Mat], ncnn.Mat]) -> None:
    """Write a result to an array and its matrix."""
    (target, mat), result = pair
    if result.elempack > 1 and result.dims == 3:
        ncnn.convert_packing(result, mat, 1, option)
    else:
        if result.elempack > 1:
            result = ncnn.convert_packing(result, 1, option)
        np.copyto(target, np.asarray(result).reshape(target.shape))


class _LoadedPart:
    """A loaded ncnn net, which runs once per image."""

    def __init__(
        self,
        part: NcnnPart,
        values: Sequence[NetValue],
        net: ncnn.Net,
        *,
        lanes: ImageParallel,
    ) -> None:
        self._images, self._lanes = part.images, lanes
        #: Input values by their names in the net, with the first image of each.
        self._inputs = [
            (blob, value, values[value].region.images.start) for blob, value in part.inputs
        ]
        self.outputs = part.outputs
        self.net = net
        #: The blob of each layer, in order.
        self.blobs = layer_blobs(part.param)

    def run(self, inputs: Mats) -> dict[int, list[ncnn.Mat]]:
        """Run on all images; returns packed results by value number."""
        images = self._lanes.each(
            lambda image: self._results(self._extractor(inputs, image)), range(*self._images)
        )
        return {value: [mats[at] for mats in images] for at, (_, value) in enumerate(self.outputs)}

    def run_layers(self, inputs: Mats, ends: list[float]) -> dict[int, list[ncnn.Mat]]:
        """Run on one image blob by blob; returns results, and appends each blob's end to `ends`."""
        extractor = self._extractor(inputs, self._images.start)
        for blob in self.blobs:
            # The matrix is freed at once, as ncnn computes in place only without references.
            extractor.extract(blob, 1)
            ends.append(perf_counter())
        results = self._results(extractor)
        return {value: [mat] for (_, value), mat in zip(self.outputs, results, strict=True)}

    def _extractor(self, inputs: Mats, image: int) -> Any:
        """An extractor with the inputs of an image."""
        extractor = self.net.create_extractor()
        for blob, _, mat in self.entering(inputs, image):
            extractor.input(blob, mat)
        return extractor

    def entering(
        self, inputs: Mats, image: int | None = None
    ) -> Iterator[tuple[str, int, ncnn.Mat]]:
        """Name, value number and matrix of each input of an image; a single image serves all."""
        image = self._images.start if image is None else image
        for blob, value, first in self._inputs:
            mats, index = inputs[value], image - first
            yield blob, value, mats[index if index < len(mats) else 0]

    def _results(self, extractor: Any) -> list[ncnn.Mat]:
        return [extracted(extractor, blob) for blob, _ in self.outputs]


def extracted(extractor: ncnn.Extractor, blob: str) -> ncnn.Mat:
    """A packed blob; raises `DeviceError` if ncnn fails."""
    code, mat = extractor.extract(blob, 1)
    if code:
        raise DeviceError(f"ncnn failed with code {code} at {blob!r}.")
    return mat


def layer_blobs(param: str) -> list[str]:
    """Names of the blobs in a net's text that are tensors of the network, in order."""
    blobs = []
    for line in param.splitlines()[2:]:
        kind, _, inputs, _, *names = line.split()
        made = names[int(inputs)]
        if kind not in ("Input", "Split") and TENSOR.fullmatch(made):
            blobs.append(made)
    return blobs


def _load(
    options: Mapping[str, bool],
    param: str,
    arrays: Iterable[Array],
    *,
    threads: int,
    pools: Pools,
) -> ncnn.Net:
    """A net from its text and weights; raises `DeviceError` if ncnn refuses either."""
    net = ncnn.Net()
    option = net.opt
    option.num_threads = threads
    option.use_vulkan_compute = False
    option.use_fp16_packed = option.use_fp16_storage = False
    option.use_fp16_arithmetic = option.use_bf16_storage = False
    option.blob_allocator = pools.blobs
    option.workspace_allocator = pools.workspaces
    for name, value in options.items():
        setattr(option, name, value)
    if net.load_param_mem(param):
        raise DeviceError(f"ncnn cannot read the net that codl wrote:\n{param}")
    weights = WeightReader(arrays)
    if net.load_model(weights) or weights.left:
        raise DeviceError(
            f"ncnn could not load a net and its {weights.bytes} bytes of weights ({weights.left} "
            "were not read). There may be too little memory for it: take a smaller batch or model, "
            "or free some."
        )
    return net


@dataclass(frozen=True)
class Pools:
    """ncnn memory pools for tensors and scratch.

    Pools must outlive every matrix from them, so they are never freed, not even at interpreter
    exit.
    """

    blobs: ncnn.PoolAllocator
    workspaces: ncnn.PoolAllocator

    @classmethod
    def new(cls) -> Pools:
        pools = cls(ncnn.PoolAllocator(), ncnn.PoolAllocator())
        for pool in (pools.blobs, pools.workspaces):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(pool))
        return pools

    @classmethod
    def lent(cls, owner: object) -> Pools:
        """Pools reserved for `owner` during its lifetime; idle ones serve other owners."""
        pools = _idle().pop() if _idle() else cls.new()
        pools.clear()  # memory of other matrices than the last owner's
        finalize(owner, pools._return).atexit = False
        return pools

    def _return(self) -> None:
        self.clear()
        _idle().append(self)

    @staticmethod
    @cache
    def shared() -> Pools:
        """The pools shared by all nets without their own."""
        return Pools.new()

    def clear(self) -> None:
        """Free the memory that no matrix uses."""
        self.blobs.clear()
        self.workspaces.clear()


@cache
def _idle() -> list[Pools]:
    """Pools without an owner."""
    return []


class WeightReader(ncnn.DataReader):  # type: ignore[misc]  # ncnn comes without types
    """A source from which ncnn copies weight arrays as if it read a file."""

    def __init__(self, arrays: Iterable[Array]) -> None:
        super().__init__()
        # Arrays are float32, contiguous, and may lie in a memory-mapped file.
        self._left = [array.reshape(-1).view(np.uint8) for array in arrays]
        self._left.reverse()
        self.bytes = self.left

    @property
    def left(self) -> int:
        """Number of unread bytes."""
        return sum(piece.size for piece in self._left)

    def read(self, target: Any, size: int) -> int:
        """Copy the next bytes to the address of a capsule."""
        start, at = _pointer(target, None), 0
        while at < size and self._left:
            piece = self._left.pop()
            taken = min(piece.size, size - at)
            ctypes.memmove(start + at, piece.ctypes.data, taken)
            at += taken
            if taken < piece.size:
                self._left.append(piece[taken:])
        return at


_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
