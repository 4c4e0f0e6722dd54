"""The CPU's shard of a chain, lowered to nets: runs of ops that ncnn or ONNX Runtime has.

ncnn reads its own text, and the arrays of its weights file. ONNX Runtime has `codl.lower.onnx`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from codl.errors import CodlError
from codl.ir.constants import Arrays
from codl.ir.executable import Access, Constant, NcnnNet, NcnnPart, NetLayer, NetValue
from codl.ir.op_text import to_text
from codl.ir.ops.base import Op, Weights
from codl.ir.ops.onnx_model import OnnxModel
from codl.ir.region import Region, Shape
from codl.kernels import registry
from codl.kernels.base import LIBRARIES
from codl.kernels.ncnn import SHAPE_HINT, NcnnLayer, Shifts, activation_layer
from codl.lower.assembly import Assembly, Numbered
from codl.lower.partition import Part
from codl.lower.rules import net_level
from codl.records.soc import Soc

MAGIC = "7767517"
#: In front of an op's first array ncnn wants a tag; this one says that plain float32 follows.
TAG = "tag"
PLAIN = np.zeros(1, np.float32)
#: What a net's text tells of shapes in advance.
HINTS = re.compile(rf" {-23300 - SHAPE_HINT}=\S+")


def without_hints(param: str) -> str:
    """The text of a net without shapes: nets that are alike in it compute the same of any input."""
    return HINTS.sub("", param)


class TensorRegion(NamedTuple):
    """A region of a tensor."""

    tensor: str
    region: Region


def lower_ncnn(group: Group, assembly: Assembly) -> NcnnNet:
    """Layers as ncnn nets: one for every run of layers that want the same options.

    ncnn knows one image only: of a batch each runs through the same net.
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
    """Runs of layers that can share a net, each with the options that its layers insist on.

    Those of a net run for the same images.
    """
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
    """The arrays that a layer adds to the weights file; None where it has no weights."""
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
    """ncnn's text of one net, line by line.

    `inputs` are what enters, with the tensor's width, and `outputs` what leaves. ncnn wants an
    explicit Split where a blob has several readers, and a Crop where a reader needs less of a
    tensor than another one does.
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
        #: Inputs that a layer reads which cannot read them in place.
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
        """A name without spaces for a tensor."""
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
        """The blob with a channel for each element of a vector, as its tensor has them.

        Products and means make one row of them, along which ncnn would stretch other inputs.
        """
        if (shape.h, shape.w) != (1, 1):
            return source
        self._line("Reshape", [source], [f"{source}_channels"], {0: 1, 1: 1, 2: shape.c})
        return f"{source}_channels"

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

    def _write(
        self, kind: str, sources: list[str], tensor: str, parameters: Mapping[int, object]
    ) -> None:
        """A layer that makes `tensor`, and a Split behind it for several readers."""
        name, reads = self._blob(tensor), self._reads[tensor]
        self._line(kind, sources, [name], parameters)
        if reads > 1:
            self._line("Split", [name], [f"{name}_{i}" for i in range(reads)], {})

    def _read(self, tensor: str, region: Region) -> str:
        """The blob from which one more reader reads `region` of a tensor."""
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
    """ncnn's `key=value`; arrays have a key of -23300 - key, and their length in front."""
    if isinstance(value, tuple):
        return f"{-23300 - key}={','.join([str(len(value)), *(repr(v) for v in value)])}"
    return f"{key}={value!r}"


@dataclass(frozen=True)
class CpuLayer:
    """One op of a net: what it reads (tensor and the region it needs of it) and writes.

    `plan` is the variant's for the op.
    """

    name: str
    op: Op
    variant: Any
    plan: Any
    inputs: tuple[tuple[str, Region], ...]
    output: str
    region: Region
    weights: Weights

    @classmethod
    def of(cls, part: Part, planned: str, soc: Soc) -> CpuLayer:
        layer, variant = part.layer, _variant(part, planned, soc)
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
        """The number of the library that computes it."""
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


def _moves_images(part: Part) -> bool:
    """Whether an image of the output is not made of the same image of every input.

    ncnn's nets take one image at a time. An input with a single image is read for each.
    """
    shapes = zip(part.needs, part.layer.op.inputs, strict=True)
    return any(need.images != part.region.images and shape.n > 1 for need, shape in shapes)


def _variant(part: Part, planned: str, soc: Soc) -> Any:
    """The planned variant, or another one where it takes the op and not this part of it.

    A part that reads other images than it writes may be of an op that the variant does not take.
    Raises `CodlError` where it refuses the op, or no variant takes the part.
    """
    variant: Any = registry.find(part.op, planned, "cpu")
    refusal = _refusal(variant, part, soc)
    if refusal is None:
        return variant
    if _moves_images(part) or variant.refusal(part.layer.op, soc) is None:
        for other in registry.variants(part.op, "cpu", soc, include_unfit=True):
            if _refusal(other, part, soc) is None:
                return other
    raise CodlError(f"{planned} cannot run {part.layer.name!r}: {refusal}.")


def _refusal(variant: Any, part: Part, soc: Soc) -> str | None:
    if variant.backend == "ncnn" and _moves_images(part):
        return f"images {part.needs[0].images} become {part.region.images}, one at a time"
    refusal: str | None = variant.refusal(part.op, soc)
    return refusal


@dataclass(frozen=True)
class Group:
    """Layers that one library runs together, and where what enters and leaves lies."""

    layers: tuple[CpuLayer, ...]
    inputs: Mapping[str, Access]
    outputs: Mapping[str, Access]

    @classmethod
    def of(cls, layers: tuple[CpuLayer, ...], places: Mapping[str, Access]) -> Group:
        """Layers of a shard whose tensors lie in these `places`, as far as others see them."""
        made = {layer.output for layer in layers}
        read = dict.fromkeys(name for layer in layers for name, _ in layer.inputs)
        return cls(
            layers,
            inputs={name: places[name] for name in read if name not in made},
            outputs={x.output: places[x.output] for x in layers if x.output in places},
        )

    @property
    def label(self) -> str:
        """The first and the last layer, for people."""
        first, last = self.layers[0].name, self.layers[-1].name
        return first if len(self.layers) == 1 else f"{first} ... {last}"


def grouped(layers: Sequence[CpuLayer]) -> list[tuple[CpuLayer, ...]]:
    """Layers by net, first to last; a model of its own is alone in one."""
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
