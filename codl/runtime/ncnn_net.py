"""Nets of ncnn over arrays that stay in place, the memory they take, and the weights they read."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from codl.runtime.openmp import ncnn
from codl.runtime.placement import LocalSoc
from codl.runtime.threads import ImageParallel

#: What `codl.lower.nets` calls the blob of a tensor; others are steps on the way to one.
TENSOR = re.compile(r"t\d+")
#: The images of every value, each in a matrix of its own.
Mats: TypeAlias = Mapping[int, list[ncnn.Mat]]


def matrices(view: Array) -> list[ncnn.Mat]:
    """A view of an array shaped (images, channels, rows, columns), image by image, as ncnn's
    matrices over the same memory.
    """
    return [_matrix(image) for image in view]


def _matrix(view: Array) -> ncnn.Mat:
    """ncnn reads a strided NumPy array wrongly; given a contiguous one of the right size, its
    channel step can be set to the step of the larger array.
    """
    _, rows, columns = view.shape
    dense = np.lib.stride_tricks.as_strided(view, view.shape, (4 * rows * columns, 4 * columns, 4))
    mat = ncnn.Mat(dense)
    mat.cstep = view.strides[0] // 4
    return mat


def _is_misread(mat: ncnn.Mat, *, packs: bool) -> bool:
    """Whether layers that take some channels of a matrix, such as Crop, would miss them.

    They step by what ncnn would have allocated. A net that `packs` does so before where channels
    come by the four.
    """
    return bool(mat.c > 1 and (mat.c % 4 or not packs) and mat.cstep != -(-mat.w * mat.h // 4) * 4)


@dataclass(frozen=True)
class Outlet:
    """An array that a value is unpacked to, and the same memory image by image."""

    value: int
    images: list[tuple[Array, ncnn.Mat]]


class NcnnSession:
    """ncnn nets over arrays that live as long as it does.

    Inputs are read in place, without a copy; outputs are unpacked straight to their arrays. Of a
    batch each image runs through the same nets, several side by side where the CPU has threads for
    that.

    With `own_memory` it takes no memory that others have put back: what it gets from the common
    pools is in the caches or is not, depending on who ran before.
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
        self._outputs = [
            Outlet(value, list(zip(view, matrices(view), strict=True)))
            for (value, _), view in zip(net.outputs, results, strict=True)
        ]
        packs = all(part.options.get("use_packing_layout", True) for part in net.parts)
        inputs = self._inputs.items()
        misread = (value for value, mats in inputs if _is_misread(mats[0], packs=packs))
        self._copied = tuple(dict.fromkeys((*net.copied, *misread)))
        self._simd = soc.cpu.simd_floats
        self._layers = [layer.name for layer in net.layers]
        self._images = images = max(part.images.size for part in net.parts)
        place = soc.placement
        self._lanes = ImageParallel.of(place.cpu_cores, place.threads, images)
        self._pools = Pools.lent(self) if own_memory else Pools.shared()
        # With an allocator of its own ncnn would not write to memory that is there already.
        unpacking = ncnn.Option()
        unpacking.num_threads = self._lanes.threads
        self._unpack = partial(_unpack, unpacking)
        self._packing = ncnn.Option()
        self._packing.num_threads = self._lanes.threads
        self._packing.blob_allocator = self._pools.blobs
        self._parts = [
            _LoadedPart(part, net.values, self._net(part, packed), lanes=self._lanes)
            for part in net.parts
        ]
        #: What runs a single net on a single image; None of any others.
        self._single = self._single_run() if images == len(self._parts) == 1 else None

    def _single_run(self) -> Callable[[], None]:
        """The one net on the one image, with everything looked up once, and no reference back.

        A call takes 2.5 to 3 us less so: other data has gone through the caches since the last one.
        """
        (part,), unpack = self._parts, self._unpack
        copied = {*self._copied}
        entering = part.entering(self._inputs)
        inputs = [(blob, mat, value in copied) for blob, value, mat in entering]
        blobs = {value: blob for blob, value in part.outputs}
        outlets = [(blobs[outlet.value], outlet.images[0]) for outlet in self._outputs]
        create = part.net.create_extractor

        def run() -> None:
            extractor = create()
            for blob, mat, is_copied in inputs:
                extractor.input(blob, mat.clone() if is_copied else mat)
            results = [(target, extracted(extractor, blob)) for blob, target in outlets]
            for pair in results:
                unpack(pair)

        return run

    def _net(self, part: NcnnPart, packed: Callable[[int], Arrays]) -> ncnn.Net:
        weights = (packed(weight.constants)[weight.name] for weight in part.weights)
        options, threads = part.options, self._lanes.threads
        return _load(options, part.param, weights, threads=threads, pools=self._pools)

    def run(self) -> None:
        if self._single is not None:
            self._single()
        else:
            self.unpack(self.compute())

    def compute(self) -> Mats:
        """Compute and leave the results with ncnn in its own packed layout, image by image."""
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
        """Run layer by layer: when each was done, in seconds of `perf_counter`.

        Nothing else is computed than in a run, and values stay packed. Empty where several images
        are computed side by side.
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
        """Write what `compute` left with ncnn to the output arrays."""
        for outlet in self._outputs:
            pairs = list(zip(outlet.images, results[outlet.value], strict=True))
            self._lanes.each(self._unpack, pairs)

    def packed(self) -> Mats:
        """What the inputs hold now in ncnn's own packed layout, as layers before would leave it."""
        packed_inputs = {}
        for value, mats in self._inputs.items():
            size = next(size for size in (self._simd, 8, 4, 1) if mats[0].c % size == 0)
            pack = partial(ncnn.convert_packing, elempack=size, opt=self._packing)
            packed_inputs[value] = self._lanes.each(pack, mats)
        return packed_inputs

    def pack_inputs(self) -> None:
        """Keep what the inputs hold now `packed`; `compute` then reads that and not the arrays."""
        self._inputs = dict(self.packed())
        self._copied, self._single = (), None

    def close(self) -> None:
        self._single = None
        self._parts.clear()


def _unpack(option: ncnn.Option, pair: tuple[tuple[Array, ncnn.Mat], ncnn.Mat]) -> None:
    """Write a result to an array, whose memory is the matrix's."""
    (target, mat), result = pair
    if result.elempack > 1 and result.dims == 3:
        ncnn.convert_packing(result, mat, 1, option)
    else:
        if result.elempack > 1:
            result = ncnn.convert_packing(result, 1, option)
        np.copyto(target, np.asarray(result).reshape(target.shape))


class _LoadedPart:
    """One ncnn net, run once for each of some images."""

    def __init__(
        self,
        part: NcnnPart,
        values: Sequence[NetValue],
        net: ncnn.Net,
        *,
        lanes: ImageParallel,
    ) -> None:
        self._images, self._lanes = part.images, lanes
        #: By name in the net the values that enter, and the first image of each.
        self._inputs = [
            (blob, value, values[value].region.images.start) for blob, value in part.inputs
        ]
        self.outputs = part.outputs
        self.net = net
        #: The blob that each layer makes, in order.
        self.blobs = layer_blobs(part.param)

    def run(self, inputs: Mats) -> dict[int, list[ncnn.Mat]]:
        """The net's results, packed, from what enters it."""
        images = self._lanes.each(partial(self._run_image, inputs), range(*self._images))
        return {value: [mats[at] for mats in images] for at, (_, value) in enumerate(self.outputs)}

    def run_layers(self, inputs: Mats, ends: list[float]) -> dict[int, list[ncnn.Mat]]:
        """The results of the one image, blob by blob; `ends` gets when each was there."""
        extractor = self._extractor(inputs, self._images.start)
        for blob in self.blobs:
            # The matrix goes at once: where others have it, ncnn does not compute in place.
            extractor.extract(blob, 1)
            ends.append(perf_counter())
        results = self._results(extractor)
        return {value: [mat] for (_, value), mat in zip(self.outputs, results, strict=True)}

    def _run_image(self, inputs: Mats, image: int) -> list[ncnn.Mat]:
        """The results of one image."""
        return self._results(self._extractor(inputs, image))

    def _extractor(self, inputs: Mats, image: int) -> Any:
        """One that has what an image reads."""
        extractor = self.net.create_extractor()
        for blob, _, mat in self.entering(inputs, image):
            extractor.input(blob, mat)
        return extractor

    def entering(
        self, inputs: Mats, image: int | None = None
    ) -> Iterator[tuple[str, int, ncnn.Mat]]:
        """What an image reads, by default the first: by name in the net, and by value.

        A value of one image is read for every one.
        """
        image = self._images.start if image is None else image
        for blob, value, first in self._inputs:
            mats, index = inputs[value], image - first
            yield blob, value, mats[index if index < len(mats) else 0]

    def _results(self, extractor: Any) -> list[ncnn.Mat]:
        return [extracted(extractor, blob) for blob, _ in self.outputs]


def extracted(extractor: ncnn.Extractor, blob: str) -> ncnn.Mat:
    """A blob as its layer left it, packed; raises `DeviceError` where ncnn fails."""
    code, mat = extractor.extract(blob, 1)
    if code:
        raise DeviceError(f"ncnn failed with code {code} at {blob!r}.")
    return mat


def layer_blobs(param: str) -> list[str]:
    """The blobs that are tensors of the network, in the order in which a net's text makes them."""
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
    """A net of this text and weights; raises `DeviceError` where ncnn does not take them."""
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
    """Where nets take the memory of tensors and of scratch from, and put it back.

    Pools must outlive every matrix that came from them, so they are never freed, not even when the
    interpreter ends, in whatever order that happens. Those of nets that are gone give back their
    memory, and are lent to the next.
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
        """Pools of its own for as long as `owner` lives."""
        pools = _idle().pop() if _idle() else cls.new()
        pools.clear()  # what other matrices than the last owner's held
        finalize(owner, pools._return).atexit = False
        return pools

    def _return(self) -> None:
        self.clear()
        _idle().append(self)

    @staticmethod
    @cache
    def shared() -> Pools:
        """Those of all nets that get none of their own."""
        return Pools.new()

    def clear(self) -> None:
        """Give back what no matrix holds."""
        self.blobs.clear()
        self.workspaces.clear()


@cache
def _idle() -> list[Pools]:
    """Pools that nobody has now; all of them are kept."""
    return []


class WeightReader(ncnn.DataReader):  # type: ignore[misc]  # ncnn comes without types
    """Arrays, one after the other, as ncnn would read them from a file; it copies what it reads."""

    def __init__(self, arrays: Iterable[Array]) -> None:
        super().__init__()
        # Arrays are float32, contiguous, and may lie in a file that is mapped.
        self._left = [array.reshape(-1).view(np.uint8) for array in arrays]
        self._left.reverse()
        self.bytes = self.left

    @property
    def left(self) -> int:
        """Bytes that were not read yet."""
        return sum(piece.size for piece in self._left)

    def read(self, target: Any, size: int) -> int:
        """Copy the next bytes to where a capsule points."""
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
