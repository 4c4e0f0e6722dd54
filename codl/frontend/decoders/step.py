"""One step of a decoder as a network: some new tokens, and caches of a capacity as its states."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from codl.errors import CodlError, UnsupportedError
from codl.frontend.convert import network_of
from codl.frontend.decoders.build import DecoderSource
from codl.frontend.graph.graph import PAST_LENGTH as PAST_LENGTH
from codl.frontend.graph.graph import Graph
from codl.frontend.graph.onnx_import import import_onnx
from codl.frontend.graph.weights import refill, with_fields
from codl.ir.constants import array_digest
from codl.ir.network import Layer, Network
from codl.ir.ops.base import Array, Op
from codl.ir.ops.nd import Sizes


def merge_equal(network: Network) -> Network:
    """The network without layers that compute what another does, nor equal constants.

    Every layer of a decoder turns queries and keys by the same angles, for one.
    """
    same = _equal_constants(network.constants)
    layers: list[Layer] = []
    outputs: dict[tuple[Op, tuple[str, ...]], str] = {}
    for layer in network.layers:
        inputs = tuple(same.get(name, name) for name in layer.inputs)
        if not layer.weights and not layer.op.states:
            first = outputs.setdefault((layer.op, inputs), layer.output)
            if first != layer.output:
                same[layer.output] = first
                continue
        layers.append(replace(layer, inputs=inputs))
    return replace(
        network,
        layers=tuple(layers),
        outputs={n: (same.get(held, held), sizes) for n, (held, sizes) in network.outputs.items()},
        constants={n: value for n, value in network.constants.items() if n not in same},
    )


def _equal_constants(constants: Mapping[str, Array]) -> dict[str, str]:
    """By the name of a constant that is there before, the first name of it."""
    first: dict[str, str] = {}
    same: dict[str, str] = {}
    for name, value in constants.items():
        earlier = first.setdefault(array_digest(value), name)
        if earlier != name:
            same[name] = earlier
    return same


#: The node whose cache is known, and where it has its past, its present and its counts of keys.
CACHED, PAST, PRESENT, COUNTS = "GroupQueryAttention", (3, 4), (1, 2), (5, 6)
#: Inputs that a step may have beside the tokens: what number each is of all, which of them the
#: logits are wanted of; and one of which nothing is left (what is there is known by the length).
POSITIONS, LAST_ROW, MASK = "position_ids", "last_row", "attention_mask"
#: Nodes that logits may go through behind the product that they are made by.
BEHIND = ("Identity", "Cast", "Mul", "Div", "Tanh")
FIX = (
    "codl keeps caches of GroupQueryAttention nodes (com.microsoft), as the model builder of "
    "onnxruntime-genai writes them, and Optimum with its optimiser: export it so."
)


class Cache(NamedTuple):
    """The cache of one node's keys or values: where it enters and leaves the model, its heads."""

    past: str
    present: str
    groups: int
    features: int


@dataclass(frozen=True)
class Step:
    """A network of `tokens` new tokens at a time; `words` is what the tokens' input is called."""

    network: Network
    tokens: int
    capacity: int
    words: str
    logits: str

    @property
    def vocabulary(self) -> int:
        """How many words there are logits of."""
        return self.network.outputs[self.logits][1][-1]


def step_of(source: DecoderSource, tokens: int, capacity: int) -> Step:
    """The network of a step.

    Its inputs are the new tokens, how many came before them (`PAST_LENGTH`), for several tokens
    which of them the logits are wanted of (`LAST_ROW`), and `POSITIONS` where the model has them.
    Raises `UnsupportedError` for a model whose cache is not recognised, and `CodlError` for more
    tokens than the cache has room for.
    """
    if not 0 < tokens <= capacity:
        raise CodlError(
            f"A step of {tokens} tokens does not go into a cache of {capacity}: give 1 to "
            f"{capacity} tokens, or a larger capacity."
        )
    model = source.model(tokens, capacity)
    proto = with_fields(model.proto)
    caches = list(caches_of(proto, source.name))
    shapes: dict[str, Sizes] = {kv.past: (1, kv.groups, capacity, kv.features) for kv in caches}
    _fix_counts(proto, capacity)
    words, logits = _ends(proto, source.name, caches)
    if tokens > 1:
        pick_row(proto, logits)
    _drop_unread(proto)
    inputs = {info.name for info in proto.graph.input}
    shapes |= {name: (1, tokens) for name in (words, POSITIONS) if name in inputs}
    graph = import_onnx(replace(model, proto=proto), source.name, shapes)
    network = network_of(_with_states(graph, logits, shapes, caches))
    return Step(merge_equal(network), tokens, capacity, words, logits)


def caches_of(proto: onnx.ModelProto, model: str) -> Iterator[Cache]:
    """Every cache; raises `UnsupportedError` where there is none, or one that is not known."""
    infos = {info.name: info for info in proto.graph.input}
    outputs = {info.name for info in proto.graph.output}
    nodes = [node for node in proto.graph.node if node.op_type == CACHED]
    if not nodes:
        named = [name for name in infos if "past" in name]
        first = ", ".join(named[:2])
        has = f"its inputs {first}, ... are read by others" if named else "it has none"
        raise UnsupportedError(f"The cache of {model!r} is not recognised: {has}. {FIX}")
    for node in nodes:
        for entry, exit_ in zip(PAST, PRESENT, strict=True):
            past = node.input[entry] if len(node.input) > entry else ""
            present = node.output[exit_] if len(node.output) > exit_ else ""
            dims = [*infos[past].type.tensor_type.shape.dim] if past in infos else []
            if len(dims) != 4 or present not in outputs:
                raise UnsupportedError(
                    f"The cache of {model!r} is not recognised at the node {node.name!r}: its "
                    f"past {past!r} must be an input of the model with 4 axes, and its present "
                    f"{present!r} an output. {FIX}"
                )
            if not dims[1].dim_value or not dims[3].dim_value:
                raise UnsupportedError(
                    f"The cache {past!r} of {model!r} must have a fixed number of heads and "
                    "features, its second and fourth size."
                )
            yield Cache(past, present, dims[1].dim_value, dims[3].dim_value)


def _fix_counts(proto: onnx.ModelProto, capacity: int) -> None:
    """Let nodes read constants in the place of counts: codl's attention knows the length."""
    counts = {"codl.last_keys": np.array([capacity - 1], np.int32),
              "codl.all_keys": np.array(capacity, np.int32)}  # fmt: skip
    for node in proto.graph.node:
        if node.op_type == CACHED:
            for index, name in zip(COUNTS, counts, strict=True):
                node.input[index] = name
    proto.graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in counts.items())


def _ends(proto: onnx.ModelProto, model: str, caches: list[Cache]) -> tuple[str, str]:
    """What the tokens' input and the logits are called."""
    _drop_unread(proto)
    others = {POSITIONS, *(cache.past for cache in caches)}
    fixed = {item.name for item in proto.graph.initializer}
    words = [i.name for i in proto.graph.input if i.name not in others | fixed]
    present = {cache.present for cache in caches}
    logits = [info.name for info in proto.graph.output if info.name not in present]
    if len(words) != 1 or len(logits) != 1:
        raise UnsupportedError(
            f"The decoder {model!r} must have one input for tokens beside its caches, "
            f"{POSITIONS} and {MASK}, and one output; got the inputs {', '.join(words) or 'none'} "
            f"and the outputs {', '.join(logits) or 'none'}."
        )
    return words[0], logits[0]


def _drop_unread(proto: onnx.ModelProto) -> None:
    """Take out nodes and inputs that no output depends on."""
    graph = proto.graph
    wanted, kept = {info.name for info in graph.output}, []
    for node in reversed(graph.node):
        if wanted.intersection(node.output):
            kept.append(node)
            wanted.update(node.input)
    refill(graph.node, kept[::-1])
    refill(graph.input, [info for info in graph.input if info.name in wanted])


def pick_row(proto: onnx.ModelProto, logits: str) -> None:
    """Let the last product compute the logits of one token, the one that is asked for."""
    graph = proto.graph
    makers = {name: node for node in graph.node for name in node.output}
    node = makers.get(logits)
    while node is not None and node.op_type in BEHIND:
        node = makers.get(node.input[0])
    if node is None or node.op_type not in ("MatMul", "MatMulNBits"):
        return
    row = helper.make_node("Gather", [node.input[0], LAST_ROW], [f"{LAST_ROW}.picked"], axis=1)
    node.input[0] = row.output[0]
    graph.node.insert([*graph.node].index(node), row)
    graph.input.append(helper.make_tensor_value_info(LAST_ROW, TensorProto.INT64, (1,)))
    for info in (*graph.output, *graph.value_info):
        info.type.tensor_type.ClearField("shape")


def _with_states(
    graph: Graph, logits: str, shapes: Mapping[str, Sizes], caches: list[Cache]
) -> Graph:
    """The graph with caches as states."""
    past = [cache.past for cache in caches]
    left = [name for name in graph.inputs if name not in past]
    return replace(
        graph,
        inputs=(*left, PAST_LENGTH),
        outputs=(logits,),
        shapes={**graph.shapes, PAST_LENGTH: (1,)},
        types={**graph.types, PAST_LENGTH: TensorProto.INT64},
        states={name: shapes[name] for name in past},
    )
