"""The CPU side: a part of a network as one ncnn net."""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, TypeAlias
from weakref import finalize

import ncnn
import numpy as np

from codl.errors import DeviceError
from codl.ir import Array, Op, Region, Shape, Span, Weights
from codl.ir.soc import Soc
from codl.kernels.ncnn import CpuVariant, NcnnLayer, Shifts, activation_layer
from codl.runtime.image_parallel import Lanes
from codl.runtime.memory import ALIGNMENT
from codl.runtime.ncnn_pools import Pools
from codl.runtime.ncnn_weights import WeightReader

MAGIC = "7767517"


@dataclass(frozen=True)
class CpuLayer:
    """One op of a net: what it reads (tensor and the region it needs of it) and writes."""

    name: str
    op: Op
    variant: CpuVariant
    inputs: tuple[tuple[str, Region], ...]
    output: str
    region: Region
    weights: Weights


@dataclass(frozen=True)
class Home:
    """Where a tensor lives on the CPU side: an array that covers `held`, of which `used` counts.

    The array is shaped (images, channels, rows, columns).
    """

    array: Array
    held: Region
    used: Region

    @classmethod
    def allocate(cls, shape: Shape, held: Region) -> Home:
        """A new array for a region of a tensor shaped `shape`, all of it used."""
        return cls(aligned_zeros(held.shape(shape)), held, held)

    def of(self, used: Region) -> Home:
        """The same array, of which only `used` counts."""
        return replace(self, used=used)

    def view(self) -> Array:
        """The array's part that `used` names."""
        return self.array[self.used.within(self.held).slices]

    def mats(self) -> list[ncnn.Mat]:
        """The same part, image by image, as ncnn's matrices over the same memory."""
        return [self._mat(view) for view in self.view()]

    def _mat(self, view: Array) -> ncnn.Mat:
        """ncnn reads a strided NumPy array wrongly; given a contiguous one of the right size, its
        channel step can be set to the step of the larger array.
        """
        _, rows, columns = view.shape
        dense = np.lib.stride_tricks.as_strided(
            view, view.shape, (4 * rows * columns, 4 * columns, 4)
        )
        mat = ncnn.Mat(dense)
        mat.cstep = self.array.shape[2] * columns
        return mat


class Piece(NamedTuple):
    """A region of a tensor."""

    tensor: str
    region: Region

    def of_image(self, mats: Sequence[ncnn.Mat], image: int) -> ncnn.Mat:
        """Of the matrices of this piece's images the one to read for `image` of a batch.

        A tensor of one image is read for every one.
        """
        index = image - self.region.images.start
        return mats[index if index < len(mats) else 0]


#: The images of every piece of a tensor, each in a matrix of its own.
Mats: TypeAlias = dict[Piece, list[ncnn.Mat]]


class CpuNet:
    """Layers over NumPy arrays that live as long as it does: one ncnn net, or several in turn.

    `inputs` and `outputs` name, for every tensor that enters or leaves, the array that holds it
    (float32, contiguous), the region that the array covers, and the region that the net reads or
    writes. Inputs are read in place, without a copy; outputs are unpacked straight to their arrays.
    Layers that want different options of ncnn run in nets of their own; between those, tensors
    stay in ncnn's packed layout.

    ncnn knows one image only: of a batch each runs through the same net, several side by side where
    the CPU has threads for that.

    A net with `own_memory` takes none that others have put back: what it gets from the common pools
    is in the caches or is not, depending on who ran before.
    """

    def __init__(
        self,
        layers: Sequence[CpuLayer],
        inputs: Mapping[str, Home],
        outputs: Mapping[str, Home],
        soc: Soc,
        *,
        own_memory: bool = False,
    ) -> None:
        # ncnn counts no references to NumPy's memory.
        self._homes = (*inputs.values(), *outputs.values())
        self._inputs = {Piece(name, home.used): home.mats() for name, home in inputs.items()}
        self._outputs = [
            (Piece(name, home.used), list(zip(home.view(), home.mats(), strict=True)))
            for name, home in outputs.items()
        ]
        self._lanes = soc.cpu.simd_floats
        images = max((x.region.images.size for x in layers), default=1)
        self._side_by_side = Lanes.of(soc, images)
        # With an allocator of its own ncnn would not write to memory that is there already.
        self._options = ncnn.Option()
        self._options.num_threads = self._side_by_side.threads
        pools = Pools.new() if own_memory else Pools.shared()
        if own_memory:
            finalize(self, pools.clear).atexit = False
        self._packing = ncnn.Option()
        self._packing.num_threads = self._side_by_side.threads
        self._packing.blob_allocator = pools.blobs
        self._parts: list[_Part] = []
        self._copied: set[Piece] = set()
        self._build(layers, soc, pools)

    def _build(self, layers: Sequence[CpuLayer], soc: Soc, pools: Pools) -> None:
        """A net for every run of layers that want the same options, with what others need of it."""
        known = {piece: mats[0].w for piece, mats in self._inputs.items()}
        wanted = [piece for piece, _ in self._outputs]
        groups = _by_options(layers, soc)
        for index, (group, options) in enumerate(groups):
            made = {Piece(x.output, x.region): x.op.output.w for x in group}
            later = {name for rest, _ in groups[index + 1 :] for x in rest for name, _ in x.inputs}
            kept = dict.fromkeys(piece for piece in made if piece.tensor in later)
            names = {x.output for x in group}
            kept |= dict.fromkeys(piece for piece in wanted if piece.tensor in names)
            read = {name for x in group for name, _ in x.inputs} - names
            text = NetText(group, {p: w for p, w in known.items() if p.tensor in read}, kept, soc)
            images_of = group[0].region.images
            self._parts.append(_Part(text, images_of, options, self._side_by_side, pools))
            self._copied |= text.copied & self._inputs.keys()
            known |= made

    def run(self) -> None:
        """Compute the outputs from what the input arrays hold now."""
        self.unpack(self.compute())

    def unpack(self, results: Mapping[str, list[ncnn.Mat]]) -> None:
        """Write what `compute` left with ncnn to the output arrays."""
        for piece, images in self._outputs:
            pairs = list(zip(images, results[piece.tensor], strict=True))
            self._side_by_side.each(self._unpack, pairs)

    def _unpack(self, pair: tuple[tuple[Array, ncnn.Mat], ncnn.Mat]) -> None:
        (target, mat), result = pair
        if result.elempack > 1 and result.dims == 3:
            ncnn.convert_packing(result, mat, 1, self._options)
        else:
            np.copyto(target, np.asarray(self._planar(result)).reshape(target.shape))

    def compute(self) -> dict[str, list[ncnn.Mat]]:
        """Compute and leave the results with ncnn in its own packed layout, image by image."""
        known = self._inputs
        if self._copied:
            copies = {piece: [mat.clone() for mat in known[piece]] for piece in self._copied}
            known = known | copies
        for part in self._parts:
            known = known | part.run(known)
        return {piece.tensor: known[piece] for piece, _ in self._outputs}

    def packed(self) -> Mats:
        """What the inputs hold now in ncnn's own packed layout, as layers before would leave it."""
        found = {}
        for piece, mats in self._inputs.items():
            lanes = next(size for size in (self._lanes, 8, 4, 1) if mats[0].c % size == 0)
            pack = partial(ncnn.convert_packing, elempack=lanes, opt=self._packing)
            found[piece] = self._side_by_side.each(pack, mats)
        return found

    def pack_inputs(self) -> None:
        """Keep what the inputs hold now `packed`.

        `compute` then reads that and not the input arrays any more.
        """
        self._inputs = self.packed()
        self._copied.clear()

    def _planar(self, mat: ncnn.Mat) -> ncnn.Mat:
        return mat if mat.elempack == 1 else ncnn.convert_packing(mat, 1, self._options)


class _Part:
    """One ncnn net, run once for each of some images."""

    def __init__(
        self, text: NetText, images: Span, options: Mapping[str, bool], lanes: Lanes, pools: Pools
    ) -> None:
        self._images, self._lanes = images, lanes
        self._inputs = [(text.blob(piece.tensor), piece) for piece in text.inputs]
        self._results = text.results
        self._net = ncnn.Net()
        option = self._net.opt
        option.num_threads = lanes.threads
        option.use_vulkan_compute = False
        option.use_fp16_packed = option.use_fp16_storage = False
        option.use_fp16_arithmetic = option.use_bf16_storage = False
        option.blob_allocator = pools.blobs
        option.workspace_allocator = pools.workspaces
        for name, value in options.items():
            setattr(option, name, value)
        if self._net.load_param_mem(text.param):
            raise DeviceError(f"ncnn cannot read the net that codl wrote:\n{text.param}")
        if self._net.load_model(WeightReader(text.weights)):
            raise DeviceError("ncnn cannot read the weights that codl gives it.")

    def run(self, known: Mats) -> Mats:
        """The net's results, packed, from what enters it."""
        images = self._lanes.each(partial(self._run_image, known), range(*self._images))
        return {piece: [mats[at] for mats in images] for at, piece in enumerate(self._results)}

    def _run_image(self, known: Mats, image: int) -> list[ncnn.Mat]:
        """The results of one image."""
        extractor = self._net.create_extractor()
        for blob, piece in self._inputs:
            extractor.input(blob, piece.of_image(known[piece], image))
        mats = []
        for blob in self._results.values():
            code, mat = extractor.extract(blob, 1)
            if code:
                raise DeviceError(f"ncnn failed with code {code} at {blob!r}.")
            mats.append(mat)
        return mats


def _by_options(
    layers: Sequence[CpuLayer], soc: Soc
) -> list[tuple[list[CpuLayer], dict[str, bool]]]:
    """Runs of layers that can share a net, each with the options that its layers insist on.

    Those of a net run for the same images.
    """
    groups: list[tuple[list[CpuLayer], dict[str, bool]]] = []
    for layer in layers:
        wanted = layer.variant.plan(layer.op, soc).options
        images, options = layer.region.images, groups[-1][1] if groups else {}
        alike = groups and groups[-1][0][0].region.images == images
        if not alike or any(options.get(k, v) != v for k, v in wanted.items()):
            groups.append(([], {}))
        groups[-1][0].append(layer)
        groups[-1][1].update(wanted)
    return groups


class NetText:
    """ncnn's own text of a net, and its weights in order.

    `inputs` are what enters, with the tensor's width, and `outputs` what leaves. ncnn wants an
    explicit Split where a blob has several readers, and a Crop where a reader needs less of a
    tensor than another one does.
    """

    def __init__(
        self,
        layers: Sequence[CpuLayer],
        inputs: Mapping[Piece, int],
        outputs: Iterable[Piece],
        soc: Soc,
    ) -> None:
        self.inputs = tuple(inputs)
        outputs = tuple(outputs)
        self._regions = dict(self.inputs)
        self._regions |= {layer.output: layer.region for layer in layers}
        self._widths = {piece.tensor: width for piece, width in inputs.items()}
        self._widths |= {layer.output: layer.op.output.w for layer in layers}
        self._reads = Counter(name for layer in layers for name, _ in layer.inputs)
        self._reads.update(piece.tensor for piece in outputs)
        self._taken: Counter[str] = Counter()
        self._numbers: dict[str, int] = {}
        self._lines: list[str] = []
        self.weights: list[Array] = []
        #: Inputs that a layer reads which cannot read them in place.
        self.copied: set[Piece] = set()
        for name, _ in self.inputs:
            self._write("Input", [], name, {})
        for layer in layers:
            self._add(layer, soc)
        self.results = {piece: self._read(*piece) for piece in outputs}
        blobs = sum(int(line.split()[3]) for line in self._lines)
        self.param = "\n".join([MAGIC, f"{len(self._lines)} {blobs}", *self._lines, ""])

    def blob(self, tensor: str) -> str:
        """A name without spaces for a tensor."""
        return f"t{self._numbers.setdefault(tensor, len(self._numbers))}"

    def _add(self, layer: CpuLayer, soc: Soc) -> None:
        sources = [self._read(name, region) for name, region in layer.inputs]
        plan = layer.variant.plan(layer.op, soc)
        if plan.copies_input:
            names = {name for name, _ in layer.inputs}
            self.copied.update(piece for piece in self.inputs if piece.tensor in names)
        if plan.shifts is not None:
            sources = [self._shifted(sources[0], plan.shifts)]
        after = activation_layer(plan.after)
        if after is None:
            self._write(plan.type, sources, layer.output, plan.parameters)
        else:
            before = f"{self.blob(layer.output)}_raw"
            self._line(plan.type, sources, [before], plan.parameters)
            self._write(after.type, [before], layer.output, after.parameters)
        self._keep(plan, plan.arrange(layer.weights))

    def _shifted(self, source: str, shifts: Shifts) -> str:
        """The blob that has the copies, one above the other."""
        name = f"{source}_shifted"
        copies = [f"{name}_{index}" for index in range(len(shifts.crops))]
        self._line("Padding", [source], [f"{name}_padded"], shifts.padding)
        self._line("Split", [f"{name}_padded"], [f"{copy}_whole" for copy in copies], {})
        for copy, crop in zip(copies, shifts.crops, strict=True):
            self._line("Crop", [f"{copy}_whole"], [copy], crop)
        self._line("Concat", copies, [name], {0: 0})
        return name

    def _keep(self, plan: NcnnLayer, weights: Weights) -> None:
        for index, name in enumerate(plan.weights):
            if index == 0:  # a tag in front of the first: plain float32 follows
                self.weights.append(np.frombuffer(struct.pack("<I", 0), np.float32))
            self.weights.append(np.ascontiguousarray(weights[name], np.float32))

    def _write(
        self, kind: str, sources: list[str], tensor: str, parameters: Mapping[int, object]
    ) -> None:
        """A layer that makes `tensor`, and a Split behind it for several readers."""
        name, reads = self.blob(tensor), self._reads[tensor]
        self._line(kind, sources, [name], parameters)
        if reads > 1:
            self._line("Split", [name], [f"{name}_{i}" for i in range(reads)], {})

    def _read(self, tensor: str, region: Region) -> str:
        """The blob from which one more reader reads `region` of a tensor."""
        name = self.blob(tensor)
        if self._reads[tensor] > 1:
            name = f"{name}_{self._taken[tensor]}"
            self._taken[tensor] += 1
        made = self._regions[tensor]
        if (region.channels, region.rows) == (made.channels, made.rows):
            return name
        part = region.within(made)
        sizes = {3: self._widths[tensor], 4: part.rows.size, 5: part.channels.size}
        offsets = {0: 0, 1: part.rows.start, 2: part.channels.start}
        self._line("Crop", [name], [f"{name}_crop"], {**offsets, **sizes})
        return f"{name}_crop"

    def _line(
        self, kind: str, sources: list[str], targets: list[str], parameters: Mapping[int, object]
    ) -> None:
        words = [kind, f"layer{len(self._lines)}", str(len(sources)), str(len(targets))]
        values = [_parameter(key, value) for key, value in parameters.items()]
        self._lines.append(" ".join([*words, *sources, *targets, *values]))


def _parameter(key: int, value: object) -> str:
    """ncnn's `key=value`; arrays have a key of -23300 - key, and their length in front."""
    if isinstance(value, tuple):
        return f"{-23300 - key}={','.join([str(len(value)), *(repr(v) for v in value)])}"
    return f"{key}={value!r}"


def aligned_zeros(shape: tuple[int, ...]) -> Array:
    """Zeros in memory that begins at a multiple of `ALIGNMENT`."""
    size = 4 * math.prod(shape)
    memory = np.zeros(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    zeros: Array = memory[start : start + size].view(np.float32).reshape(shape)
    return zeros
