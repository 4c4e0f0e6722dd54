"""The CPU side: a part of a network as one ncnn net."""

from __future__ import annotations

import ctypes
import os
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import ncnn
import numpy as np

from codl.errors import DeviceError
from codl.kernels.ncnn import CpuVariant, NcnnLayer, activation_layer
from codl.ops import Array, Op, Region, Shape, Weights
from codl.soc import Soc

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
        return cls(np.zeros(held.shape(shape), np.float32), held, held)

    def of(self, used: Region) -> Home:
        """The same array, of which only `used` counts."""
        return replace(self, used=used)

    def view(self) -> Array:
        """The array's part that `used` names."""
        part = self.used.within(self.held)
        return self.array[:, slice(*part.channels), slice(*part.rows)]

    def mat(self) -> ncnn.Mat:
        """The same part of the first image as an ncnn matrix over the same memory.

        ncnn reads a strided NumPy array wrongly; given a contiguous one of the right size, its
        channel step can be set to the step of the larger array.
        """
        view = self.view()[0]
        _, rows, columns = view.shape
        dense = np.lib.stride_tricks.as_strided(
            view, view.shape, (4 * rows * columns, 4 * columns, 4)
        )
        mat = ncnn.Mat(dense)
        mat.cstep = self.array.shape[2] * columns
        return mat


class CpuNet:
    """An ncnn net over NumPy arrays that live as long as it does.

    `inputs` and `outputs` name, for every tensor that enters or leaves, the array that holds it
    (float32, one image, contiguous), the region that the array covers, and the
    region that the net reads or writes. Inputs are read in place, without a copy.
    """

    def __init__(
        self,
        layers: Sequence[CpuLayer],
        inputs: Mapping[str, Home],
        outputs: Mapping[str, Home],
        soc: Soc,
    ) -> None:
        text = NetText(layers, inputs, outputs, soc)
        # ncnn counts no references to NumPy's memory.
        self._homes = (*inputs.values(), *outputs.values())
        self._net = self._build(text, soc)
        self._lanes = soc.cpu.simd_floats
        self._inputs = [
            (text.blob(name), home.mat(), name in text.copied) for name, home in inputs.items()
        ]
        self._outputs = [(text.results[name], home.view()) for name, home in outputs.items()]

    def run(self) -> None:
        """Compute the outputs from what the input arrays hold now."""
        extractor = self._extractor()
        for name, target in self._outputs:
            code, result = extractor.extract(name)
            if code:
                raise DeviceError(f"ncnn failed with code {code} at {name!r}.")
            np.copyto(target, np.asarray(result).reshape(target.shape))

    def compute(self, *, planar: bool = False) -> None:
        """Compute the outputs and leave them in the net, in ncnn's own packed layout or planar."""
        extractor = self._extractor()
        for name, _ in self._outputs:
            code, _ = extractor.extract(name, 0 if planar else 1)
            if code:
                raise DeviceError(f"ncnn failed with code {code} at {name!r}.")

    def pack_inputs(self) -> None:
        """Keep what the inputs hold now in ncnn's own packed layout, as layers before would.

        `compute` then reads that and not the input arrays any more.
        """
        self._inputs = [
            (name, ncnn.convert_packing(mat, _packing(mat.c, self._lanes), self._net.opt), False)
            for name, mat, _ in self._inputs
        ]

    def _extractor(self) -> ncnn.Extractor:
        extractor = self._net.create_extractor()
        for name, mat, copied in self._inputs:
            extractor.input(name, mat.clone() if copied else mat)
        return extractor

    def _build(self, text: NetText, soc: Soc) -> ncnn.Net:
        net = ncnn.Net()
        net.opt.num_threads = soc.cpu.threads
        net.opt.use_vulkan_compute = False
        net.opt.use_fp16_packed = net.opt.use_fp16_storage = False
        net.opt.use_fp16_arithmetic = net.opt.use_bf16_storage = False
        net.opt.blob_allocator = _allocator("blob")
        net.opt.workspace_allocator = _allocator("workspace")
        if net.load_param_mem(text.param):
            raise DeviceError(f"ncnn cannot read the net that codl wrote:\n{text.param}")
        with TemporaryDirectory(dir=_memory_folder(), prefix="codl-") as folder:
            path = Path(folder) / "weights.bin"
            with path.open("wb") as file:
                for array in text.weights:
                    array.tofile(file)
            if net.load_model(str(path)):
                raise DeviceError("ncnn cannot read the weights that codl wrote.")
        return net


class NetText:
    """ncnn's own text of a net, and its weights in order.

    ncnn wants an explicit Split where a blob has several readers, and a Crop where a reader needs
    less of a tensor than another one does.
    """

    def __init__(
        self,
        layers: Sequence[CpuLayer],
        inputs: Mapping[str, Home],
        outputs: Mapping[str, Home],
        soc: Soc,
    ) -> None:
        self._regions = {name: home.used for name, home in inputs.items()}
        self._regions |= {layer.output: layer.region for layer in layers}
        self._widths = {name: home.array.shape[3] for name, home in inputs.items()}
        self._widths |= {layer.output: layer.op.output.w for layer in layers}
        self._reads = Counter(name for layer in layers for name, _ in layer.inputs)
        self._reads.update(outputs.keys())
        self._taken: Counter[str] = Counter()
        self._numbers: dict[str, int] = {}
        self._lines: list[str] = []
        self.weights: list[Array] = []
        #: Inputs that a layer reads which cannot read them in place.
        self.copied: set[str] = set()
        for name in inputs:
            self._write("Input", [], name, {})
        for layer in layers:
            self._add(layer, soc)
        self.results = {name: self._read(name, home.used) for name, home in outputs.items()}
        blobs = sum(int(line.split()[3]) for line in self._lines)
        self.param = "\n".join([MAGIC, f"{len(self._lines)} {blobs}", *self._lines, ""])

    def blob(self, tensor: str) -> str:
        """A name without spaces for a tensor."""
        return f"t{self._numbers.setdefault(tensor, len(self._numbers))}"

    def _add(self, layer: CpuLayer, soc: Soc) -> None:
        sources = [self._read(name, region) for name, region in layer.inputs]
        plan = layer.variant.plan(layer.op, soc)
        if plan.copies_input:
            self.copied.update(name for name, _ in layer.inputs)
        after = activation_layer(plan.after)
        if after is None:
            self._write(plan.type, sources, layer.output, plan.parameters)
        else:
            before = f"{self.blob(layer.output)}_raw"
            self._line(plan.type, sources, [before], plan.parameters)
            self._write(after.type, [before], layer.output, after.parameters)
        self._keep(plan, layer.weights)

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
        if region == self._regions[tensor]:
            return name
        part = region.within(self._regions[tensor])
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


def _packing(channels: int, lanes: int) -> int:
    """Channels that ncnn packs together where its vectors have so many lanes."""
    return next(size for size in (lanes, 8, 4, 1) if channels % size == 0)


def _parameter(key: int, value: object) -> str:
    """ncnn's `key=value`; arrays have a key of -23300 - key, and their length in front."""
    if isinstance(value, tuple):
        return f"{-23300 - key}={','.join([str(len(value)), *(repr(float(v)) for v in value)])}"
    return f"{key}={value!r}"


@cache
def _allocator(purpose: str) -> ncnn.PoolAllocator:
    """The allocator of all nets: it must outlive every matrix that came from it.

    So it is never freed, not even when the interpreter ends, in whatever order that happens.
    """
    allocator = ncnn.PoolAllocator()
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(allocator))
    return allocator


def _memory_folder() -> str | None:
    """A folder in memory for the moment that weights are handed over, where there is one."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
