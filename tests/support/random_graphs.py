"""Random ONNX graphs: what a graph is here, how it runs node by node, and how it is drawn.

Every node runs in ONNX Runtime as soon as it is drawn. So shapes, types and values of all tensors
are at hand, and what ONNX Runtime refuses never gets into a graph. The same nodes run again with a
little noise on every tensor: what that changes much nobody can compare. Nodes themselves are drawn
in `support.random_nodes`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from random import Random
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from codl.frontend.graph.integer_products import reference_session
from codl.frontend.graph.weights import Model

Values: TypeAlias = dict[str, NDArray[Any]]
#: What makes another one of a tensor, of the node that made it, and of all tensors before.
Change: TypeAlias = Callable[[NDArray[Any], "onnx.NodeProto | None", Values], NDArray[Any]]
FLOATS = (np.float16, np.float32, np.float64)
OPSETS = (13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23)
MICROSOFT = "com.microsoft"
#: Tensors have no more elements than this, and values of common graphs are no larger.
MOST_ELEMENTS, MOST_VALUE = 40_000, 1e6
#: Compiled nodes that are kept: graphs run again and again while they are drawn and compared.
MOST_SESSIONS = 400
SIZES = (1, 1, 2, 2, 3, 3, 4, 5, 7, 8, 8, 9, 13, 16, 17)
CHANNELS = (1, 2, 3, 3, 4, 4, 5, 6, 8, 8, 12, 16, 17, 24)
#: What numbers may be as they should not be.
ODD = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1e30, -1e30, 1e-30, 0.5, 1.5, -2.5, 1.0, -1.0)
ODD_INTS = (0, 1, -1, 127, 128, -128, 255, 2**24 + 1, -(2**24) - 1, 2**31 - 1, -(2**31), 2**53 + 1,
            2**63 - 1, -(2**63))  # fmt: skip
#: What takes the largest or least of some; of not-a-numbers every library takes another one.
LARGEST = {"MaxPool", "GlobalMaxPool", "ReduceMax", "ReduceMin", "ArgMax", "ArgMin", "TopK",
           "Hardmax"}  # fmt: skip
#: What adds up products.
SUMS = {"Conv", "ConvTranspose", "MatMul", "Gemm", "Einsum", "Resize", "Attention", "MatMulNBits",
        "MultiHeadAttention", "GroupQueryAttention", "CumSum", "MaxPool"}  # fmt: skip
#: Ops of which nothing is said where such a number comes in: a pixel whose weight is 0 may count or
#: not, and a byte may become any.
UNDEFINED = {"Resize", "QuantizeLinear", "DynamicQuantizeLinear", "DynamicQuantizeMatMul",
             "DynamicQuantizeLSTM", "MatMulIntegerToFloat"}  # fmt: skip


class Dropped(Exception):  # noqa: N818
    """ONNX Runtime refuses a node, or its result is of no use."""


@dataclass(frozen=True)
class Form:
    """How a model is written: see `support.random_forms`."""

    ir_version: int = 10
    sparse: tuple[str, ...] = ()
    external: bool = False


@dataclass
class RandomGraph:
    """A model in parts, with values for its inputs.

    `declared` are the sizes of inputs where these are not fixed: names stand for open ones.
    `overridable` constants are inputs too, as old exporters have them.
    """

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    feeds: Values = field(default_factory=dict)
    constants: Values = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)
    opset: int = 17
    profile: str = ""
    declared: dict[str, tuple[int | str, ...]] = field(default_factory=dict)
    overridable: tuple[str, ...] = ()
    shaped_outputs: bool = False
    form: Form = Form()

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the inputs whose sizes are open."""
        return {name: self.feeds[name].shape for name in self.declared if name in self.feeds}

    def model(self) -> onnx.ModelProto:
        infos = [_info(n, v.dtype, self.declared.get(n, v.shape)) for n, v in self.feeds.items()]
        infos += [_info(n, self.constants[n].dtype, self.constants[n].shape)
                  for n in self.overridable]  # fmt: skip
        values, shaped = run_nodes(self), self.shaped_outputs and not self.declared
        ends = [_info(n, values[n].dtype, values[n].shape if shaped else None)
                for n in self.outputs]  # fmt: skip
        fixed = [numpy_helper.from_array(value, name) for name, value in self.constants.items()]
        content = helper.make_graph(self.nodes, "random", infos, ends, fixed)
        return _model(content, self.opset)


def reads(node: onnx.NodeProto) -> list[str]:
    """Inputs, and what graphs inside read from outside."""
    names = [name for name in node.input if name]
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            inside = {name for own in attribute.g.node for name in own.output}
            inside |= {info.name for info in attribute.g.input}
            inside |= {constant.name for constant in attribute.g.initializer}
            used = [name for own in attribute.g.node for name in reads(own)]
            used += [info.name for info in attribute.g.output]
            names += [name for name in used if name not in inside]
    return list(dict.fromkeys(names))


def run_nodes(graph: RandomGraph, change: Change | None = None) -> Values:
    """Every tensor, node by node, in a topological order; each as `change` makes it."""
    values = {**graph.constants}
    for name, value in graph.feeds.items():
        values[name] = value if change is None else change(value, None, values)
    left = list(graph.nodes)
    while left:
        ready = [node for node in left if all(name in values for name in reads(node))]
        if not ready:
            raise Dropped("a tensor that a node reads is not made")
        for node in ready:
            made = run_node(node, values, graph.constants, graph.opset)
            if change is not None:
                made = {name: change(value, node, values) for name, value in made.items()}
            values |= made
        left = [node for node in left if not any(node is other for other in ready)]
    if not values.keys() >= set(graph.outputs):
        raise Dropped("an output is not made")
    return values


def noise(random: np.random.Generator, *, coarse: bool = False) -> Change:
    """Off by a few units of the last digits, of float16's where it is `coarse`.

    Whole numbers are mostly exact, so they stay. Some ops are off by what their result says
    nothing of: see `_absolute`.
    """

    def change(value: NDArray[Any], node: onnx.NodeProto | None, values: Values) -> NDArray[Any]:
        if value.dtype not in FLOATS:
            return value
        half = value.dtype == np.float16
        factors = 1 + (1e-3 if coarse or half else 4e-6) * random.uniform(-1, 1, value.shape)
        with np.errstate(all="ignore"):
            exact = (value == np.rint(value)) & (np.abs(value) < 2**20) & (not half)
            if node is not None and node.op_type in MEANS:  # a sum is multiplied by 1 / n
                exact = value == 0
            noisy = np.where(exact, value, value * factors)
            if coarse or half:
                least = np.where(exact | (value == 0), 0.0, LEAST_HALF)
                noisy = noisy + least * random.uniform(-1, 1, value.shape)
            noisy = noisy + _absolute(node, values) * (factors - 1)
            return np.asarray(noisy, value.dtype)

    return change


def _absolute(node: onnx.NodeProto | None, values: Values) -> float:
    """What an op's rounding follows beside its result, in ONNX Runtime or in codl.

    A sigmoid ends at 0 from some point on. An instance's norm is a slope and a start, and a
    variance the mean of squares less the mean's, which cancel where a mean is large. A sum of
    large numbers and small ones, as Winograd's transform takes, loses the small ones.
    """
    if node is None or node.op_type not in (*SATURATING, *ADDING, *NORMS):
        return 0.0
    if node.op_type in SATURATING:
        return 0.1
    read = [values[name].astype(np.float64) for name in reads(node) if values[name].size]
    if node.op_type in ADDING:
        largest = float(np.prod([np.nan_to_num(np.abs(own), posinf=0).max() for own in read]))
        return largest if largest > LARGE else 0.0
    if not read:
        return 0.0
    ratio = _steepness(node, read[0])
    if node.op_type == "InstanceNormalization":
        return float((np.abs(read[1]) * ratio).max())
    scale = np.abs(read[1]).max() if node.op_type == "GroupNormalization" else 1.0
    return float(scale * np.minimum(ratio**2, 1e9).max())


def _steepness(node: onnx.NodeProto, x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of all that a norm takes the mean of: the mean over the root of the variance."""
    given = {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}
    axes, least = tuple(range(2, x.ndim)), given.get("epsilon", 1e-5)
    if node.op_type == "MeanVarianceNormalization":
        axes, least = tuple(given.get("axes", (0, 2, 3))), 1e-18
    elif node.op_type == "GroupNormalization":
        x, axes = x.reshape(len(x), given["num_groups"], -1), (2,)
    with np.errstate(all="ignore"):
        return np.nan_to_num(np.abs(x.mean(axes) / np.sqrt(x.var(axes) + least)), posinf=0)


def smear(value: NDArray[Any], node: onnx.NodeProto | None, values: Values) -> NDArray[Any]:
    """What adds up a number that is not finite may make not-a-numbers of all that it computes.

    So do transforms of Winograd, and products with the zeros of a padding.
    """
    if value.dtype in FLOATS and _reads_strays(node, values, SUMS):
        return np.full_like(value, np.nan)
    return value


def undefined(value: NDArray[Any], node: onnx.NodeProto | None, values: Values) -> NDArray[Any]:
    """Other values of what nobody defines."""
    if node is None:
        return value
    other = (77 + np.arange(value.size) % 13).astype(value.dtype).reshape(value.shape)
    if node.op_type == "MeanVarianceNormalization":
        return np.where(np.isnan(value), other, value)  # the root of less than nothing
    if node.op_type == "GroupNormalization":  # the same, where the variance is a difference
        x = values[node.input[0]].astype(np.float64)
        return other if (_steepness(node, x) > MOST_STEEP).any() else value
    if node.op_type == "ReduceProd" and value.dtype in FLOATS:
        # On the way to the last factor it is too large or too small, or is not: who knows?
        factors = values[node.input[0]]
        is_between = np.isfinite(factors).all() and factors.all()
        is_end = ~np.isfinite(value) | (np.abs(value) < np.finfo(value.dtype).tiny)
        return np.where(is_between & is_end, other, value)
    if node.op_type in SUMS and not _reads_strays(node, values, SUMS):
        # Too large on the way to a sum, which may have another order.
        return np.where(np.isfinite(value), value, other)
    if node.op_type in SQUARING:  # whose squares are no numbers, though roots of their sums are
        read = [values[name] for name in reads(node)[:1]]
        finite = (own[np.isfinite(own)] for own in read if own.dtype in FLOATS)
        if any((np.abs(own) > MOST_SQUARED).any() for own in finite):
            return other
    if node.op_type == "Cast":
        is_wild = value.dtype not in FLOATS and any(
            not (np.abs(values[name]) < MOST_INT).all() for name in reads(node)
        )
        return other if is_wild else value
    return other if _reads_strays(node, values, UNDEFINED) else value


def _reads_strays(node: onnx.NodeProto | None, values: Values, ops: Collection[str]) -> bool:
    if node is None or node.op_type not in ops:
        return False
    read = (values[name] for name in reads(node))
    return not all(np.isfinite(own).all() for own in read if own.dtype in FLOATS)


NORMS = ("InstanceNormalization", "MeanVarianceNormalization", "GroupNormalization")
#: The mean of squares less the mean's square has no digits left where a mean is larger than this.
MOST_STEEP = 300.0
#: Functions that ONNX Runtime has as polynomials between two ends.
SATURATING = ("Sigmoid", "Tanh", "Softmax", "Erf", "Gelu")
#: Those that take roots of sums of squares, and may do so in other numbers than float32.
SQUARING = (*NORMS, "LpNormalization", "ReduceL2", "LayerNormalization", "RMSNormalization")
MOST_SQUARED = 1e18
MEANS = ("ReduceMean", "AveragePool", "GlobalAveragePool")
ADDING = SUMS - {"MaxPool"}
MOST_HALF, LEAST_HALF = float(np.finfo(np.float16).max), 2.0**-24
#: Integers that floats are cast to have no more; what is beyond is any.
MOST_INT = 2.0**63
#: Results beyond this are no network's.
LARGE = 1e6
_SESSIONS: OrderedDict[bytes, ort.InferenceSession] = OrderedDict()


def run_node(
    node: onnx.NodeProto, values: Mapping[str, NDArray[Any]], fixed: Collection[str], opset: int
) -> Values:
    """The outputs of a node by ONNX Runtime; `fixed` tensors are constants of its model."""
    read = reads(node)
    divisor = values[node.input[1]] if node.op_type in ("Div", "Mod") else np.float32(1)
    if divisor.dtype not in FLOATS and not divisor.all():
        raise Dropped("integers are divided by 0, at which the process ends")
    given = {name: values[name] for name in read if name not in fixed}
    infos = [_info(name, value.dtype, None) for name, value in given.items()]
    constants = [numpy_helper.from_array(values[name], name) for name in read if name in fixed]
    names = [name for name in node.output if name]
    ends = [onnx.ValueInfoProto(name=name) for name in names]
    proto = _model(helper.make_graph([node], "node", infos, ends, constants), opset)
    session = session_of(proto)
    try:
        return dict(zip(names, session.run(names, given), strict=True))
    except Exception as error:  # ONNX Runtime's exceptions share no base class
        raise Dropped(str(error)) from error


def session_of(proto: onnx.ModelProto) -> ort.InferenceSession:
    """A session without any optimisation."""
    key = proto.SerializeToString()
    if key in _SESSIONS:
        _SESSIONS.move_to_end(key)
        return _SESSIONS[key]
    try:
        session = reference_session(Model(proto, {}), 1)
    except Exception as error:  # ONNX Runtime's exceptions share no base class
        raise Dropped(str(error)) from error
    _SESSIONS[key] = session
    if len(_SESSIONS) > MOST_SESSIONS:
        _SESSIONS.popitem(last=False)
    return session


def _info(name: str, dtype: Any, sizes: Sequence[int | str] | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(dtype), sizes)


def _model(content: onnx.GraphProto, opset: int) -> onnx.ModelProto:
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(content, opset_imports=opsets, ir_version=10)


class Drawing:
    """A graph that is drawn, node by node; `dice` decides everything."""

    def __init__(self, dice: Random, opset: int, dtype: Any, profile: str) -> None:
        self.dice, self.dtype, self.profile = dice, np.dtype(dtype), profile
        self.graph = RandomGraph(opset=opset, profile=profile)
        self.values: Values = {}
        #: Tensors that nodes make and callers give, in order.
        self.made: list[str] = []
        self._names = 0

    @property
    def opset(self) -> int:
        return self.graph.opset

    def chance(self, share: float) -> bool:
        return self.dice.random() < share

    def one_of(self, values: Sequence[Any]) -> Any:
        return values[self.dice.randrange(len(values))]

    def ints(self, values: Sequence[int], count: int) -> list[int]:
        return [self.one_of(values) for _ in range(count)]

    def some(self, **attributes: Any) -> dict[str, Any]:
        """Attributes, some of which are left out: they have defaults."""
        return {name: value for name, value in attributes.items() if self.chance(0.7)}

    def axis(self, rank: int) -> int:
        return self.dice.randrange(-rank, rank)

    def name(self, word: str = "t") -> str:
        self._names += 1
        odd = self.one_of(("", "", "", "", "/a b", ":0", ".1", "é"))
        return f"{word}{self._names}{odd}"

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.values[name].shape)

    def rank(self, name: str) -> int:
        return self.values[name].ndim

    def numbers(self, *shape: int, scale: float = 1.0, dtype: Any = None) -> NDArray[Any]:
        """Standard normal ones."""
        random = np.random.default_rng(self.dice.getrandbits(64))
        return (scale * random.standard_normal(shape)).astype(dtype or self.dtype)

    def whole(self, low: int, high: int, *shape: int, dtype: Any = np.int64) -> NDArray[Any]:
        """Integers from `low` to `high` - 1."""
        random = np.random.default_rng(self.dice.getrandbits(64))
        return random.integers(low, high, shape).astype(dtype)

    def input(self, value: NDArray[Any]) -> str:
        name = self.name("x")
        self.graph.feeds[name] = self._spoilt(value) if self.profile == "values" else value
        self.values[name] = self.graph.feeds[name]
        self.made.append(name)
        return name

    def _spoilt(self, value: NDArray[Any]) -> NDArray[Any]:
        """Some elements are what they should not be."""
        random = np.random.default_rng(self.dice.getrandbits(64))
        value, where = np.array(value), random.random(value.shape) < 0.1
        if value.dtype in FLOATS:
            few = random.choice(ODD, 3)
            with np.errstate(over="ignore"):
                value[where] = random.choice(few, value.shape)[where].astype(value.dtype)
        elif value.dtype in (np.int32, np.int64) and value.size and value.min() < -1:
            limits = np.iinfo(value.dtype)
            known = np.array([i for i in ODD_INTS if limits.min <= i <= limits.max], value.dtype)
            value[where] = known[random.integers(0, len(known), value.shape)][where]
        return value

    def constant(self, value: NDArray[Any] | float | Sequence[int], *, plain: bool = False) -> str:
        """An initializer, which others may share, or what a node makes of one."""
        array = np.asarray(value)
        array = array.astype(self.dtype) if isinstance(value, float) else array
        way = 1.0 if plain else self.dice.random()
        if way < 0.3 and array.dtype in FLOATS:
            for name, known in self.graph.constants.items():
                if (known.dtype, known.shape) == (array.dtype, array.shape):
                    return name
        name = self.name("c")
        if 0.3 < way < 0.4:
            tensor = numpy_helper.from_array(array, f"{name}.value")
            self.graph.nodes.append(helper.make_node("Constant", [], [name], value=tensor))
            self.values[name] = array
            return name
        self.graph.constants[name] = self.values[name] = array
        if 0.4 < way < 0.47:
            return str(self.node("Identity", name))
        return name

    def weight(self, *shape: int, scale: float = 1.0) -> str:
        """A constant of random numbers."""
        return self.constant(self.numbers(*shape, scale=scale))

    def given(self, value: NDArray[Any], share: float) -> str:
        """A constant, mostly, or else an input."""
        return self.constant(value) if self.chance(share) else self.input(value)

    def node(
        self, kind: str, *inputs: str, domain: str = "", outputs: int = 1, **attributes: Any
    ) -> str:
        """The first output of a new node; the others, where there are any, by `self.others`."""
        names = [self.name() for _ in range(outputs)]
        read = list(inputs)
        while read and not read[-1]:
            read.pop()
        label = self.one_of(("", f"n_{names[0]}"))
        proto = helper.make_node(kind, read, names, name=label, domain=domain, **attributes)
        self.add(proto)
        self.others = names[1:]
        return names[0]

    def add(self, proto: onnx.NodeProto) -> None:
        """Run a node, and take it in; raises `Dropped` where nothing can be made of it."""
        read = [self.values[name] for name in proto.input if name in self.values]
        has_nan = any(np.isnan(value).any() for value in read if value.dtype in FLOATS)
        if proto.op_type in LARGEST and has_nan:
            raise Dropped("the largest of what is not a number is not defined")
        made = run_node(proto, self.values, self.graph.constants, self.opset)
        for value in made.values():
            if proto.op_type == "Cast" and value.dtype == np.float16 and np.isinf(value).any():
                raise Dropped("codl has floats wherever a model has halves")
            if value.size > MOST_ELEMENTS or (not value.size and self.profile != "empty"):
                raise Dropped("too large, or empty")
            if value.dtype in FLOATS and not self._is_common(value):
                raise Dropped("values that no model has")
        self.graph.nodes.append(proto)
        self.values |= made
        self.made += made

    def _is_common(self, value: NDArray[Any]) -> bool:
        if self.profile == "values":
            return True
        most = MOST_HALF if value.dtype == np.float16 else MOST_VALUE
        return bool(np.isfinite(value).all() and np.abs(value).max(initial=0) <= most)

    def pick(self, fits: Callable[[NDArray[Any]], bool] | None = None) -> str | None:
        """A tensor of floats, rather a late one, that fits."""
        floats = [name for name in self.made if self.values[name].dtype == self.dtype]
        names = [name for name in floats if fits is None or fits(self.values[name])]
        if not names:
            return None
        return str(self.one_of([*names, *names[-3:], *names[-1:], *names[-1:]]))

    def any(self, low: int = 1, high: int = 5) -> str:
        """A tensor of floats of a rank from `low` to `high`, made where there is none."""
        found = self.pick(lambda value: low <= value.ndim <= high)
        return found or self.fresh(self.dice.randint(low, max(low, min(high, 4))))

    def fresh(self, rank: int) -> str:
        """A new input of a rank."""
        if rank >= 3:
            sizes = [self.one_of((1, 1, 1, 2, 3)), self.one_of(CHANNELS)]
            sizes += self.ints(SIZES, rank - 2)
            while prod(sizes) > MOST_ELEMENTS // 4:
                sizes[-1] = sizes[-1] // 2
        else:
            sizes = self.ints(SIZES, rank)
        if self.profile == "empty" and sizes and self.chance(0.3):
            sizes[self.dice.randrange(rank)] = 0
        return self.input(self.numbers(*sizes))

    def image(self, rank: int = 4) -> str:
        return self.any(rank, rank)

    def like(self, name: str) -> str:
        """Another tensor of the same shape."""
        shape = self.shape(name)
        found = self.pick(lambda value: value.shape == shape)
        if found and found != name and self.chance(0.8):
            return found
        return self.weight(*shape) if self.chance(0.5) else self.input(self.numbers(*shape))

    def cast(self, name: str, dtype: Any) -> str:
        return self.node("Cast", name, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def finish(self) -> RandomGraph:
        """The graph with outputs, without what nothing reads, and in some order."""
        graph = self.graph
        read = {name for node in graph.nodes for name in reads(node)}
        ends = [n for n in self.made if n not in graph.feeds and n not in read]
        between = [n for n in self.made if n not in graph.feeds and n in read]
        chosen = self.dice.sample(ends, min(len(ends), self.one_of((1, 1, 2, 3, 4))))
        share = self.one_of((0.0, 0.1, 0.3))
        chosen += [name for name in between if self.chance(share)]
        if self.chance(0.04) and graph.feeds:
            chosen.append(self.one_of(list(graph.feeds)))
        if self.chance(0.04) and graph.constants:
            chosen.append(self.one_of(list(graph.constants)))
        if not chosen:
            raise Dropped("nothing is made")
        graph.outputs = chosen
        graph = without_unread(graph)
        if self.chance(0.15):
            self.dice.shuffle(graph.nodes)
        if self.chance(0.05) and graph.constants:
            graph.overridable = (self.one_of(list(graph.constants)),)
        graph.shaped_outputs = self.chance(0.5)
        if self.profile == "symbolic":
            for name, value in graph.feeds.items():
                names = (((n, n, f"size{n}", f"s{i}")) for i, n in enumerate(value.shape))
                sizes = [self.one_of(some) for some in names]
                if value.ndim and value.shape[0] == 1 and self.chance(0.5):
                    sizes[0] = "batch"
                if any(isinstance(size, str) for size in sizes):
                    graph.declared[name] = tuple(sizes)
            graph.declared = _consistent(graph)
        return graph


def _consistent(graph: RandomGraph) -> dict[str, tuple[int | str, ...]]:
    """One name stands for one size."""
    sizes: dict[str, int] = {}
    declared = {}
    for name, given in graph.declared.items():
        shape = graph.feeds[name].shape
        declared[name] = tuple(
            size if isinstance(size, int) or sizes.setdefault(size, n) == n else n
            for size, n in zip(given, shape, strict=True)
        )
    return declared


def without_unread(graph: RandomGraph, outputs: Iterable[str] | None = None) -> RandomGraph:
    """What the outputs, or some of them, need of a graph."""
    wanted = list(graph.outputs if outputs is None else outputs)
    needed, nodes = set(wanted), list(graph.nodes)
    kept: list[onnx.NodeProto] = []
    while True:
        more = [n for n in nodes if needed & set(n.output) and not any(n is k for k in kept)]
        if not more:
            break
        kept += more
        needed |= {name for node in more for name in reads(node)}
    return replace(
        graph,
        nodes=[node for node in nodes if any(node is own for own in kept)],
        feeds={name: value for name, value in graph.feeds.items() if name in needed},
        constants={name: value for name, value in graph.constants.items() if name in needed},
        outputs=wanted,
        declared={name: sizes for name, sizes in graph.declared.items() if name in needed},
        overridable=tuple(name for name in graph.overridable if name in needed),
    )
