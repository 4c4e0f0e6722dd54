"""Random graphs in codl, each output beside what ONNX Runtime makes of it without optimisations.

An output is right where its shape, type, not-a-numbers and infinities are ONNX Runtime's and its
values are close. How close they must be is seen by running the graph again with a little noise on
every tensor: what that changes much, or makes jump, nobody computes alike twice.
"""

from __future__ import annotations

import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, Literal

import numpy as np
import onnx
from numpy.typing import NDArray

from codl.engine.engine import Engine
from codl.errors import CodlError
from codl.frontend.convert import load_network, network_of
from codl.frontend.graph.onnx_import import import_onnx
from codl.ir.network import Network
from codl.ir.plan import Plan
from codl.ir.records.soc import Soc
from codl.plan.build_plan import preferring
from codl.targets.base import Target
from support.random_forms import saved, written
from support.random_graphs import (
    FLOATS,
    MOST_HALF,
    Dropped,
    Form,
    RandomGraph,
    Values,
    noise,
    run_nodes,
    session_of,
    smear,
    undefined,
    without_unread,
)
from support.random_plans import random_plan

#: Kinds of plans by their share of graphs: the usual ones of either processor, random variants of
#: the CPU, random cuts, and these with tensors of halves among them.
PLANS = {"cpu": 0.6, "variants": 0.15, "gpu": 0.1, "split": 0.13, "half": 0.02}
#: How often a graph is run with noise; then how often before something counts as wrong.
NOISY, MORE_NOISY = 3, 24
#: An output may be off by so many times what noise changes, and so much of the largest value.
FACTOR, CLOSE = 8.0, {"float16": 4e-3, "half": 2e-2, "": 5e-5}
MOST_TRIES, MOST_SHRINK_S = 120, 60.0

Kind = Literal["right", "refused", "wrong", "traceback", "crashed", "hung"]


@dataclass(frozen=True)
class Outcome:
    """What came of a graph under a plan.

    `reason` tells failures apart while they are made smaller. `enclosed` counts the layers that ran
    whole in ONNX Runtime, of `layers`; `blurred` is the share of elements that nobody can compare.
    """

    kind: Kind
    reason: str = ""
    detail: str = ""
    layers: int = 0
    enclosed: int = 0
    blurred: float = 0.0
    profile: str = ""
    nodes: int = 0
    seconds: float = 0.0

    @property
    def is_failure(self) -> bool:
        return self.kind not in ("right", "refused")

    @property
    def row(self) -> dict[str, Any]:
        return asdict(self)


class Reference:
    """What ONNX Runtime makes of a graph, and how far each element may be off."""

    def __init__(self, graph: RandomGraph, model: onnx.ModelProto, *, half: bool = False) -> None:
        self.graph, self.half = graph, half
        session = session_of(model)
        inputs = _inputs(session)
        feeds = {name: np.asarray(x) for name, x in graph.feeds.items() if name in inputs}
        try:
            results = session.run(graph.outputs, feeds)
        except Exception as error:
            raise Dropped(f"ONNX Runtime: {error}") from error
        self.outputs: Values = dict(zip(graph.outputs, results, strict=True))
        self._clean = run_nodes(graph)
        if half and any(map(_exceeds_half, self._clean.values())):
            raise Dropped("a value beyond float16")
        self._spread = {n: np.zeros(v.shape) for n, v in self.outputs.items()}
        self._jumps = {n: np.zeros(v.shape, bool) for n, v in self.outputs.items()}
        self._smeared = self._smears(run_nodes(graph, smear))
        others = run_nodes(graph, undefined)
        for name, clean in self._clean.items():
            if name in self._jumps:
                self._jumps[name] |= _differs(others[name], clean)
        self._random = np.random.default_rng(0)
        self.blur(NOISY)

    def blur(self, times: int) -> None:
        """Run with noise so many times more."""
        for _ in range(times):
            try:
                values = run_nodes(self.graph, noise(self._random, coarse=self.half))
            except Dropped:
                continue
            for name in self.outputs:
                self._compare(name, values[name], self._clean[name])

    def _smears(self, smeared: Values) -> dict[str, NDArray[np.bool_]]:
        """Where what is not finite may be not a number, or make others so."""
        may = {}
        for name, clean in self.outputs.items():
            other = smeared[name]
            if other.shape != clean.shape:
                self._jumps[name][...] = True
                may[name] = np.zeros(clean.shape, bool)
                continue
            may[name] = ~np.isfinite(other.astype(np.float64))
            self._jumps[name] |= ~may[name] & (other != self._clean[name])
        return may

    def _compare(self, name: str, noisy: NDArray[Any], clean: NDArray[Any]) -> None:
        if noisy.shape != clean.shape:
            self._jumps[name][...] = True
            return
        x, y = noisy.astype(np.float64), clean.astype(np.float64)
        same = _same_kind(x, y)
        with np.errstate(all="ignore"):
            spread = np.where(np.isfinite(x) & np.isfinite(y), np.abs(x - y), 0.0)
        self._spread[name] = np.maximum(self._spread[name], spread)
        self._jumps[name] |= ~same
        if clean.dtype not in FLOATS:
            self._jumps[name] |= noisy != clean

    def problem(self, name: str, got: NDArray[Any]) -> str:
        """How an output differs; "" where it does not."""
        expected = self.outputs[name]
        if got.shape != expected.shape:
            return f"shape: {got.shape}, not {expected.shape}"
        if got.dtype != expected.dtype:
            return f"type: {got.dtype}, not {expected.dtype}"
        known = ~self._jumps[name]
        if expected.dtype not in FLOATS:
            wrong = known & (got != expected)
            return f"integers: {wrong.sum()} of {wrong.size}" if wrong.any() else ""
        x, y = got.astype(np.float64), expected.astype(np.float64)
        different = known & ~_same_kind(x, y) & (np.isfinite(x) | ~self._smeared[name])
        if different.any():
            at = np.argwhere(different)[0]
            pair = f"{x[tuple(at)]} for {y[tuple(at)]}"
            return f"finite: {different.sum()} of {x.size} are not alike, {pair}"
        finite = known & np.isfinite(x) & np.isfinite(y)
        with np.errstate(all="ignore"):
            error = np.where(finite, np.abs(x - y), 0.0)
            most = np.abs(y[finite]).max(initial=0.0)
            close = CLOSE["half"] if self.half else CLOSE.get(expected.dtype.name, CLOSE[""])
            allowed = FACTOR * self._spread[name] + close * most + 1e-30
        wrong = error > allowed
        if not wrong.any():
            return ""
        worst = np.unravel_index(np.argmax(error / allowed), error.shape)
        return (
            f"values: {wrong.sum()} of {error.size} off by up to "
            f"{error[wrong].max() / (most or 1):.2g} of the largest, such as {x[worst]:.7g} for "
            f"{y[worst]:.7g}"
        )

    @property
    def blurred(self) -> float:
        """The share of elements that cannot be compared, or to no more than 1 %."""
        count = blurred = 0
        for name, value in self.outputs.items():
            y = value.astype(np.float64)
            most = np.abs(y[np.isfinite(y)]).max(initial=0.0)
            wide = FACTOR * self._spread[name] > 1e-2 * most
            blurred += int((self._jumps[name] | wide).sum())
            count += y.size
        return blurred / max(count, 1)


def _differs(x: NDArray[Any], y: NDArray[Any]) -> NDArray[np.bool_] | bool:
    """Where they do; all not-a-numbers are alike."""
    return (x != y) & ~((x != x) & (y != y)) if x.shape == y.shape else True


def _exceeds_half(values: NDArray[Any]) -> bool:
    """Whether a finite float is an infinity in float16."""
    if values.dtype not in FLOATS:
        return False
    return bool((np.isfinite(values) & (np.abs(values) > MOST_HALF)).any())


def _inputs(session: Any) -> set[str]:
    return {item.name for item in session.get_inputs()}


def _same_kind(x: NDArray[Any], y: NDArray[Any]) -> NDArray[np.bool_]:
    """Where both are numbers, both not-a-number, or both the same infinity."""
    return np.where(
        np.isfinite(x) | np.isfinite(y),
        np.isfinite(x) & np.isfinite(y),
        (np.isnan(x) & np.isnan(y)) | (x == y),
    ).astype(bool)


def kind_of_plan(index: int, kinds: Sequence[str] = tuple(PLANS)) -> str:
    """Under what graph `index` runs: each kind has its share, and always the same graphs."""
    at = index * 0.6180339887498949 % 1 * sum(PLANS[kind] for kind in kinds)
    for kind in kinds:
        at -= PLANS[kind]
        if at < 0:
            return kind
    return kinds[-1]


def plan_of(network: Network, soc: Soc, kind: str, dice: Random) -> Plan:
    if kind in ("cpu", "gpu"):
        return preferring(network, soc, kind)  # type: ignore[arg-type]
    if kind == "variants":
        return random_plan(network, soc, dice, ratios=(0.0,))
    stored = ("float32",) if kind == "split" else ("float32", "float16")
    return random_plan(network, soc, dice, stored=stored)  # type: ignore[arg-type]


def outcome_of(
    graph: RandomGraph, plan: str, soc: Soc, target: Target, seed: str,
    referred: Callable[[], object] = lambda: None,
) -> Outcome:  # fmt: skip
    """Run a graph under a plan of this kind, drawn by a seed; twice, with the same values.

    `referred` is called when ONNX Runtime ran it, before codl does.
    """
    start = time.perf_counter()
    try:
        model = graph.model()
        reference = Reference(graph, model, half=plan == "half")
    except Dropped as error:
        outcome = Outcome("refused", "ONNX Runtime", str(error)[:200])
    else:
        referred()
        outcome = _checked(graph, reference, plan, soc, target, seed)
    seconds = round(time.perf_counter() - start, 3)
    return replace(outcome, profile=graph.profile, nodes=len(graph.nodes), seconds=seconds)


def _checked(
    graph: RandomGraph, reference: Reference, plan: str, soc: Soc, target: Target, seed: str,
) -> Outcome:  # fmt: skip
    layers = enclosed = 0
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            network = _network(graph)
            kinds = [layer.op.kind for layer in network.layers]
            layers, enclosed = len(kinds), kinds.count("onnx")
            chosen = plan_of(network, soc, plan, Random(seed))
            with Engine(network, chosen, target) as engine:
                results = [engine(dict(graph.feeds)) for _ in range(2)]
    except CodlError as error:
        return Outcome("refused", type(error).__name__, str(error)[:400], layers, enclosed)
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        last = next((f for f in reversed(frames) if "/codl/" in f.filename), frames[-1])
        place = f"{type(error).__name__} at {last.filename.rpartition('/codl/')[2]}:{last.name}"
        return Outcome("traceback", place, f"{error} (line {last.lineno})"[:400], layers, enclosed)
    for _ in range(2):
        problems = list(_problems(reference, results))
        if not problems:
            return Outcome("right", "", "", layers, enclosed, round(reference.blurred, 4))
        reference.blur(MORE_NOISY)
    name, problem = problems[0]
    return Outcome("wrong", problem.partition(":")[0], f"{name!r}: {problem}", layers, enclosed)


def _network(graph: RandomGraph) -> Network:
    """Of the model in the form in which it is written."""
    if not graph.form.external:
        return network_of(import_onnx(written(graph), "random", graph.shapes))
    with tempfile.TemporaryDirectory(prefix="codl-graph-") as folder:
        return load_network(str(saved(graph, Path(folder))), shapes=graph.shapes)


def _problems(reference: Reference, results: Sequence[Values]) -> Iterator[tuple[str, str]]:
    for again, result in enumerate(results):
        for name in reference.outputs:
            if name not in result:
                yield name, "missing"
            elif problem := reference.problem(name, result[name]):
                yield name, f"{problem}{' in the second run' if again else ''}"


def shrink(
    graph: RandomGraph, outcome: Outcome, run: Callable[[RandomGraph], Outcome]
) -> RandomGraph:
    """A smaller graph, mostly of a few nodes, that fails alike."""
    until, tries = time.monotonic() + MOST_SHRINK_S, 0
    while True:
        for smaller in _smaller(graph):
            if tries >= MOST_TRIES or time.monotonic() > until:
                return graph
            tries += 1
            with suppress(Dropped):
                run_nodes(smaller)
                again = run(smaller)
                if (again.kind, again.reason) == (outcome.kind, outcome.reason):
                    graph = smaller
                    break
        else:
            return graph


def _smaller(graph: RandomGraph) -> Iterator[RandomGraph]:
    """Graphs with something left out, the large things first."""
    for name in graph.outputs if len(graph.outputs) > 1 else ():
        yield without_unread(graph, [name])
    try:
        values = run_nodes(graph)
    except Dropped:
        return
    ends = {"", *graph.outputs}
    made = [name for node in graph.nodes for name in node.output if name not in ends]
    for name in reversed(made):  # it is given instead of made
        nodes = [node for node in graph.nodes if name not in node.output]
        for where in ("feeds", "constants"):
            given = {**getattr(graph, where), name: values[name]}
            yield without_unread(replace(graph, nodes=nodes, **{where: given}))
    for name in made:  # what is behind it goes
        yield without_unread(graph, [name])
    if graph.form != Form():
        yield replace(graph, form=Form())
    if graph.declared or graph.overridable or graph.shaped_outputs:
        yield replace(graph, declared={}, overridable=(), shaped_outputs=False)
    for index, node in enumerate(graph.nodes):
        for attribute in node.attribute:
            fewer = onnx.NodeProto()
            fewer.CopyFrom(node)
            del fewer.attribute[:]
            fewer.attribute.extend(a for a in node.attribute if a.name != attribute.name)
            yield replace(graph, nodes=[*graph.nodes[:index], fewer, *graph.nodes[index + 1 :]])
    # One size becomes a smaller one, wherever it is.
    for size in sorted({n for v in graph.feeds.values() for n in v.shape if n > 1}, reverse=True):
        for smaller in sorted({1, size // 2, size - 1} - {size}):
            feeds, constants = (
                {
                    name: value[tuple(slice(smaller if n == size else n) for n in value.shape)]
                    for name, value in values_of.items()
                }
                for values_of in (graph.feeds, graph.constants)
            )
            yield replace(graph, feeds=feeds, constants=constants)
