"""Facts of models: their parts, their ops, and what to run them by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

from codl.frontend import models
from codl.frontend.convert import load_structure
from codl.frontend.models import BUILT_IN, described
from codl.ir import Network
from codl.ir.records.verdicts import Remembered, remembered


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """Inputs and outputs by name, number of weights, nodes by type, and the ops of a model.

    `gflops` counts a multiply-add of convolutions and matrix products as two. `ops` are the
    distinct ones that codl makes of it, `kinds` all of them by kind, None where the model was not
    read. `verdict` is what the last evaluation on the SoC says to use, None without one.
    """

    name: str
    inputs: Mapping[str, tuple[int, ...]]
    outputs: Mapping[str, tuple[int, ...]]
    parameters: int
    gflops: float
    nodes: Mapping[str, int]
    ops: int | None = None
    kinds: Mapping[str, int] | None = None
    verdict: Remembered | None = None


def builtin_facts(soc: str = "") -> tuple[ModelFacts, ...]:
    """Of every built-in model, without a look at its ops; verdicts are of a SoC."""
    verdicts = remembered(soc) if soc else {}
    return tuple(replace(_described(name), verdict=verdicts.get(name)) for name in BUILT_IN)


def _described(name: str) -> ModelFacts:
    builder = described(name, weights=False)
    graph, shapes = builder.build().graph, builder.shapes
    return ModelFacts(
        name=name,
        inputs={name: shapes[name] for name in builder.inputs},
        outputs={info.name: shapes[info.name] for info in graph.output},
        parameters=builder.parameters,
        gflops=builder.gflops,
        nodes=dict(Counter(node.op_type for node in graph.node).most_common()),
    )


def model_facts(model: str, soc: str) -> ModelFacts:
    """All of a built-in model or a file; raises `CodlError` for one that cannot be read."""
    network = load_structure(model)
    verdict = remembered(soc).get(model)
    return replace(
        _described(model) if model in BUILT_IN else _of_file(model, network),
        ops=len({layer.op for layer in network.layers}),
        kinds=dict(Counter(layer.op.kind for layer in network.layers).most_common()),
        verdict=verdict if verdict is not None and verdict.digest == network.digest else None,
    )


def _of_file(model: str, network: Network) -> ModelFacts:
    graph = models.load(model, drawn=False).proto.graph
    return ModelFacts(
        name=network.name,
        inputs=dict(network.inputs),
        outputs={name: shape for name, (_, shape) in network.outputs.items()},
        parameters=sum(prod(weight.dims) for weight in graph.initializer),
        gflops=sum(layer.op.flops for layer in network.layers) / 1e9,
        nodes=dict(Counter(node.op_type for node in graph.node).most_common()),
    )
