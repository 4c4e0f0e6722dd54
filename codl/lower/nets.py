"""Lowers the CPU's shard of a chain to nets of ncnn, ONNX Runtime and OpenVINO.

This file writes ncnn's text format and weights; `codl.lower.onnx` writes ONNX models.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from codl.errors import CodlError
from codl.ir.constants import Arrays
from codl.ir.executable import (
    Access,
    Constant,
    Executable,
    NcnnNet,
    NcnnPart,
    Net,
    NetLayer,
    NetValue,
    OpenVinoNet,
)
from codl.ir.op_text import parse, to_text
from codl.ir.ops.base import Op, Weights
from codl.ir.ops.onnx_model import OnnxModel
from codl.ir.records.soc import Soc
from codl.ir.region import Region, Shape
from codl.ir.types import Direction
from codl.kernels import registry
from codl.kernels.base import LIBRARIES, Backend
from codl.kernels.cpu import NcnnLayer, Shifts, activation_layer
from codl.lower.assembly import Assembly, Numbered
from codl.lower.partition import Part, loading, net_level, packs, storing

MAGIC = "7767517"
#: ncnn reads a tag before an op's first array; zero means plain float32.
TAG = "tag"
PLAIN = np.zeros(1, np.float32)


class TensorRegion(NamedTuple):
    tensor: str
    region: Region


def lower_ncnn(group: Group, assembly: Assembly) -> NcnnNet:
    """Write layers as an ncnn net, with one part for each run of layers with the same options.

    ncnn computes one image at a time: each image of a batch runs through the same net.
    """
    tensors = assembly.tensors
    inputs = {TensorRegion(name, access.region): access for name, access in group.inputs.items()}
    outputs = {TensorRegion(name, access.region): access for name, access in group.outputs.items()}
    layers = group.layers
    constants = {x.name: _constants(x, assembly) for x in layers}
    values: Numbered[TensorRegion] = Numbered()
    for piece in inputs:
        values.number(piece)
    widths = {piece: tensors[access.tensor].shape.w for piece, access in inputs.items()}
    parts, copied = [], set[TensorRegion]()
    runs = _by_options(layers)
    for index, (run, options) in enumerate(runs):
        made = {TensorRegion(x.output, x.region): x.op.output.w for x in run}
        later = {name for rest, _ in runs[index + 1 :] for x in rest for name, _ in x.inputs}
        names = {x.output for x in run}
        kept = dict.fromkeys(piece for piece in made if piece.tensor in later)
        kept |= dict.fromkeys(piece for piece in outputs if piece.tensor in names)
        read = {name for x in run for name, _ in x.inputs} - names
        read_widths = {piece: width for piece, width in widths.items() if piece.tensor in read}
        text = NetText(run, read_widths, kept, constants)
        parts.append(text.part(options, values))
        copied |= text.copied & inputs.keys()
        widths |= made
    return NcnnNet(
        label=group.label,
        layers=tuple(x.net_layer(constants[x.name]) for x in layers),
        inputs=_numbered(inputs, values),
        outputs=_numbered(outputs, values),
        copied=tuple(sorted(values.number(piece) for piece in copied)),
        parts=tuple(parts),
        values=tuple(NetValue(*piece) for piece in values.values),
    )


def _numbered(
    accesses: Mapping[TensorRegion, Access], values: Numbered[TensorRegion]
) -> tuple[tuple[int, Access], ...]:
    return tuple((values.number(piece), access) for piece, access in accesses.items())


def _by_options(layers: Sequence[CpuLayer]) -> list[tuple[list[CpuLayer], dict[str, bool]]]:
    """Split layers into runs of the same images and ncnn options; returns both by run."""
    runs: list[tuple[list[CpuLayer], dict[str, bool]]] = []
    for layer in layers:
        wanted = layer.plan.options
        images, options = layer.region.images, runs[-1][1] if runs else {}
        is_alike = runs and runs[-1][0][0].region.images == images
        if not is_alike or any(options.get(k, v) != v for k, v in wanted.items()):
            runs.append(([], {}))
        runs[-1][0].append(layer)
        runs[-1][1].update(wanted)
    return runs


def _constants(layer: CpuLayer, assembly: Assembly) -> int | None:
    """Add the arrays of a layer to the constants; None for a layer without weights."""
    plan: NcnnLayer = layer.plan
    if not plan.weights:
        return None

    def pack() -> Arrays:
        arrays = plan.arrange(layer.weights)
        dense = {name: np.ascontiguousarray(arrays[name], np.float32) for name in plan.weights}
        return {TAG: PLAIN, **dense}

    how = json.dumps({"ncnn": to_text(layer.op), "variant": layer.variant.name})
    return assembly.add_constants(how, layer.weights, pack)


class NetText:
    """Writes the text of one ncnn net, line by line.

    `inputs` maps each input region to the width of its tensor; `outputs` are the output regions.
    ncnn needs an explicit Split for a blob with several readers, and a Crop for a reader of a part.
    """

    def __init__(
        self,
        layers: Sequence[CpuLayer],
        inputs: Mapping[TensorRegion, int],
        outputs: Iterable[TensorRegion],
        constants: Mapping[str, int | None],
    ) -> None:
        self._inputs, self._constants = tuple(inputs), constants
        self._images = layers[0].region.images
        outputs = tuple(outputs)
        self._regions = dict(self._inputs)
        self._regions |= {layer.output: layer.region for layer in layers}
        self._widths = {piece.tensor: width for piece, width in inputs.items()}
        self._widths |= {layer.output: layer.op.output.w for layer in layers}
        self._reads = Counter(name for layer in layers for name, _ in layer.inputs)
        self._reads.update(piece.tensor for piece in outputs)
        self._taken: Counter[str] = Counter()
        self._blobs: Numbered[str] = Numbered()
        self._lines: list[str] = []
        self._weights: list[Constant] = []
        #: Inputs that must be copied, because a layer cannot read them in place.
        self.copied: set[TensorRegion] = set()
        for name, _ in self._inputs:
            self._write("Input", [], name, {})
        for layer in layers:
            self._add(layer)
        self._results = {piece: self._read(*piece) for piece in outputs}

    def part(self, options: Mapping[str, bool], values: Numbered[TensorRegion]) -> NcnnPart:
        blobs = sum(int(line.split()[3]) for line in self._lines)
        return NcnnPart(
            param="\n".join([MAGIC, f"{len(self._lines)} {blobs}", *self._lines, ""]),
            weights=tuple(self._weights),
            options=dict(options),
            images=self._images,
            inputs=tuple((self._blob(p.tensor), values.number(p)) for p in self._inputs),
            outputs=tuple((blob, values.number(p)) for p, blob in self._results.items()),
        )

    def _blob(self, tensor: str) -> str:
        """The blob name of a tensor; it has no spaces."""
        return f"t{self._blobs.number(tensor)}"

    def _add(self, layer: CpuLayer) -> None:
        sources = [self._read(name, region) for name, region in layer.inputs]
        plan: NcnnLayer = layer.plan
        if plan.copies_input:
            names = {name for name, _ in layer.inputs}
            self.copied.update(piece for piece in self._inputs if piece.tensor in names)
        if plan.shifts is not None:
            sources = [self._shifted(sources[0], plan.shifts)]
        if len({(*shape,) for shape in layer.op.inputs}) > 1:
            shapes = zip(sources, layer.op.inputs, strict=True)
            sources = [self._by_channels(source, shape) for source, shape in shapes]
        after = activation_layer(plan.after)
        if after is None:
            self._write(plan.type, sources, layer.output, plan.parameters)
        else:
            before = f"{self._blob(layer.output)}_raw"
            self._line(plan.type, sources, [before], plan.parameters)
            self._write(after.type, [before], layer.output, after.parameters)
        constants = self._constants[layer.name]
        if constants is not None:
            self._weights += [Constant(constants, name) for name in (TAG, *plan.weights)]

    def _by_channels(self, source: str, shape: Shape) -> str:
        """A blob with one channel for each element of a vector, as the tensor has.

        Products and means write one row, along which ncnn would broadcast other inputs.
        """
        if (shape.h, shape.w) != (1, 1):
            return source
        self._line("Reshape", [source], [f"{source}_channels"], {0: 1, 1: 1, 2: shape.c})
        return f"{source}_channels"

    def _shifted(self, source: str, shifts: Shifts) -> str:
        """A blob with shifted copies of a blob, concatenated along its rows."""
        name = f"{source}_shifted"
        copies = [f"{name}_{index}" for index in range(len(shifts.crops))]
        self._line("Padding", [source], [f"{name}_padded"], shifts.padding)
        self._line("Split", [f"{name}_padded"], [f"{copy}_whole" for copy in copies], {})
        for copy, crop in zip(copies, shifts.crops, strict=True):
            self._line("Crop", [f"{copy}_whole"], [copy], crop)
        self._line("Concat", copies, [name], {0: 0})
        return name

    def _write(
        self, kind: str, sources: list[str], tensor: str, parameters: Mapping[int, object]
    ) -> None:
        """Write the line that makes `tensor`, and a Split if the tensor has several readers."""
        name, reads = self._blob(tensor), self._reads[tensor]
        self._line(kind, sources, [name], parameters)
        if reads > 1:
            self._line("Split", [name], [f"{name}_{i}" for i in range(reads)], {})

    def _read(self, tensor: str, region: Region) -> str:
        """The blob from which the next reader reads `region` of a tensor."""
        name = self._blob(tensor)
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
    """`key=value` for ncnn; an array has the key -23300 - key and starts with its length."""
    if isinstance(value, tuple):
        return f"{-23300 - key}={','.join([str(len(value)), *(repr(v) for v in value)])}"
    return f"{key}={value!r}"


@dataclass(frozen=True)
class CpuLayer:
    """An op of a net with the regions that it reads and writes; `plan` is its variant's plan."""

    name: str
    op: Op
    variant: Any
    plan: Any
    inputs: tuple[tuple[str, Region], ...]
    output: str
    region: Region
    weights: Weights

    @classmethod
    def of(cls, part: Part, variant: Any, soc: Soc) -> CpuLayer:
        layer = part.layer
        return cls(
            name=layer.name,
            op=part.op,
            variant=variant,
            plan=variant.plan(part.op, soc),
            inputs=tuple(zip(layer.inputs, part.needs, strict=True)),
            output=layer.output,
            region=part.region,
            weights=layer.op.restrict_weights(layer.weights, part.region),
        )

    @property
    def library(self) -> int:
        return LIBRARIES.index(self.variant.backend)

    def net_layer(self, constants: int | None) -> NetLayer:
        return NetLayer(
            name=self.name,
            op=to_text(self.op),
            variant=self.variant.name,
            inputs=self.inputs,
            output=self.output,
            region=self.region,
            constants=constants,
        )


def variant_of(part: Part, planned: str, soc: Soc) -> Any:
    """The planned variant, or another one where it accepts the whole op but not this part.

    A part that reads other images than it writes may belong to an op that the variant refuses.
    Raises `CodlError` where the planned variant refuses the whole op, or no variant accepts the
    part.
    """
    variant: Any = registry.find(part.op, planned, "cpu")
    refusal = _refusal(variant, part, soc)
    if refusal is None:
        return variant
    if part.moves_images or variant.refusal(part.layer.op, soc) is None:
        for other in registry.variants(part.op, "cpu", soc, include_unfit=True):
            if _refusal(other, part, soc) is None:
                return other
    raise CodlError(f"{planned} cannot run {part.layer.name!r}: {refusal}.")


def _refusal(variant: Any, part: Part, soc: Soc) -> str | None:
    if variant.backend == "ncnn" and part.moves_images:
        return f"images {part.needs[0].images} become {part.region.images}, one at a time"
    refusal: str | None = variant.refusal(part.op, soc)
    return refusal


@dataclass(frozen=True)
class Group:
    """Layers that one library runs together, with the memory of the group's inputs and outputs."""

    layers: tuple[CpuLayer, ...]
    inputs: Mapping[str, Access]
    outputs: Mapping[str, Access]

    @classmethod
    def of(cls, layers: tuple[CpuLayer, ...], places: Mapping[str, Access]) -> Group:
        """Group layers of a shard; `places` has the memory of tensors outside of groups."""
        made = {layer.output for layer in layers}
        read = dict.fromkeys(name for layer in layers for name, _ in layer.inputs)
        return cls(
            layers,
            inputs={name: places[name] for name in read if name not in made},
            outputs={x.output: places[x.output] for x in layers if x.output in places},
        )

    @property
    def label(self) -> str:
        """The names of the first and the last layer."""
        first, last = self.layers[0].name, self.layers[-1].name
        return first if len(self.layers) == 1 else f"{first} ... {last}"


def grouped(layers: Sequence[CpuLayer]) -> list[tuple[CpuLayer, ...]]:
    """The layers of each net, in running order; an ONNX subgraph has a net of its own."""
    nets: dict[tuple[int, str], list[CpuLayer]] = {}
    least: dict[str, int] = {}
    for layer in reversed(layers):
        output, is_model = layer.output, layer.op.kind == OnnxModel.kind
        level = net_level(
            least.get(output, 0), output in least, is_model=is_model, library=layer.library
        )
        nets.setdefault((-level, layer.name if is_model else ""), []).append(layer)
        for name, _ in layer.inputs:
            least[name] = max(least.get(name, 0), level + is_model)
    return [tuple(reversed(nets[key])) for key in sorted(nets)]


# Packing.


def library_of(net: Net) -> Backend:
    if isinstance(net, NcnnNet):
        return "ncnn"
    return "openvino" if isinstance(net, OpenVinoNet) else "ort"


def packed(executable: Executable, net: Net) -> list[tuple[Direction, Shape]]:
    """Each packing and unpacking of a tensor in one run of a net, with its direction and shape.

    ncnn packs all inputs of a net and unpacks all outputs. In nets of the other libraries, ops in
    blocks of channels (`packs`) pack tensors that no other such op of the net has made, and the
    outputs of such ops are unpacked.
    """

    def shape(access: Access) -> Shape:
        return access.region.shape(executable.tensors[access.tensor].shape)

    def name(access: Access) -> str:
        return executable.tensors[access.tensor].name

    if isinstance(net, NcnnNet):
        loads = [shape(access) for _, access in net.inputs]
        stores = [shape(access) for _, access in net.outputs]
    else:
        ops = {layer.output: parse(layer.op) for layer in net.layers}
        in_blocks = [layer for layer in net.layers if packs(ops[layer.output], -1)]
        made = {layer.output for layer in in_blocks}
        read = dict.fromkeys(n for x in in_blocks for n, _ in x.inputs if n not in made)
        outer = {name(end.access): shape(end.access) for end in net.inputs}
        loads = [outer[n] if n in outer else ops[n].output for n in read]
        stores = [shape(end.access) for end in net.outputs if name(end.access) in made]
    library = library_of(net)
    moves = [(loading(library), each) for each in loads]
    return [*moves, *((storing(library), each) for each in stores)]
