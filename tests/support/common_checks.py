"""The common test: what everything that is registered must do, codl's own and a plugin's."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, TypeVar

import msgspec
import numpy as np

from codl.frontend.convert import load_network
from codl.ir import OP_TYPES, Op, parse, split, to_text
from codl.ir.records.soc import Soc
from codl.kernels import registry
from codl.kernels.base import LIBRARIES, Variant
from codl.kernels.source import text_of
from codl.lower.partition import partition_plan
from codl.plan.strategies import Strategy
from codl.predict import features
from codl.predict.estimators import LatencyEstimator
from codl.predict.model_set import from_json, to_json
from support.simulated import SOC, WITH_IMAGES, soc_with
from support.synthetic_predictors import SyntheticContext

E = TypeVar("E", bound=LatencyEstimator)
#: An OpenCL device that is a CPU: beside `WITH_IMAGES`, what variants are looked at with.
CPU_DEVICE = soc_with(type="cpu", vector_width=8, half=True)
#: Of the small network that strategies plan.
MODEL = "mobilenet_v1"


def examples(kind: str) -> list[Op]:
    return [parse(text) for text in OP_TYPES[kind].examples]


def check_op(kind: str) -> None:
    """Its text is read back, and parts computed alone equal the whole."""
    ops = examples(kind)
    assert ops, f"{kind} has no examples"
    for op in ops:
        assert (op.kind, op.problem) == (kind, None)
        assert parse(to_text(op)) == op
        assert op.flops >= 0
        assert op.bytes > 0
        if kind != "onnx":  # an example's text has no model
            _check_splits(op)
        _check_synthesis(op)


def _check_splits(op: Op) -> None:
    random = np.random.default_rng(0)
    inputs = [random.standard_normal(shape) for shape in op.inputs]
    weights = op.weights_of(lambda shape: random.standard_normal(shape, np.float32))
    whole = op.reference(inputs, weights)
    assert whole.shape == op.output
    for dim in op.dims:
        for part in (part for part in split(op, dim, 0.3) if not part.is_empty):
            own = op.restrict(part)
            needs = [op.needs(part, index) for index in range(len(inputs))]
            given = [x[need.slices] for x, need in zip(inputs, needs, strict=True)]
            assert tuple(x.shape for x in given) == own.inputs
            alone = own.reference(given, op.restrict_weights(weights, part))
            np.testing.assert_allclose(alone, whole[part.slices], rtol=1e-9, atol=1e-9)


def _check_synthesis(op: Op) -> None:
    if op.synthetic_group is None:
        return
    import random

    assert op.synthetic_group.weight > 0
    made = op.synthesize(op, random.Random(3))
    assert (made.kind, made.problem) == (op.kind, None)
    assert len(made.synthetic_sizes) == len(op.synthetic_sizes)


def check_variant(variant: Variant) -> None:
    """It takes an example or says why not, has finite features, and can be planned."""
    processor = variant.processor
    assert variant.name.startswith(f"{processor}_")
    assert variant.backend in (("opencl",) if processor == "gpu" else LIBRARIES)
    taken = 0
    for soc in (WITH_IMAGES, CPU_DEVICE):
        names: dict[str, tuple[str, ...]] = {}
        for op in examples(variant.op_kind):
            reason = variant.refusal(op, soc)
            if reason is not None:
                assert reason.strip(), f"{variant.name} refuses {to_text(op)} without a reason"
                continue
            taken += 1
            _check_features(variant, op, soc, names)
            _check_plan(variant, op, soc)
    is_missing = variant.backend == "openvino" and find_spec("openvino") is None
    assert taken or is_missing, f"{variant.op_kind} {variant.name} takes none of the examples"


def _check_features(variant: Variant, op: Op, soc: Soc, names: dict[str, tuple[str, ...]]) -> None:
    target = registry.target(variant, op)
    table = features.table("variant", target, [op], soc)
    assert (table.values >= 0).all()
    assert table.names == names.setdefault(target, table.names)
    assert dict(variant.features(op, soc)).keys() == set(table.names) - {features.ACTIVATION}


def _check_plan(variant: Any, op: Op, soc: Soc) -> None:
    if variant.backend == "opencl":
        choices = variant.choices(op, soc)
        assert choices
        plan = variant.plan(op, soc, choices[0])
        assert {launch.kernel for launch in plan.launches}
        text = text_of(plan.source)
        assert all(launch.kernel in text for launch in plan.launches) or "##" in text
    elif op.kind != "onnx":
        assert variant.plan(op, soc)


def check_strategy(strategy: Strategy, model: str = MODEL) -> None:
    """Its plan of a small network has every layer once, and lowers."""
    network = load_network(model)
    plan = strategy.plan(network, SyntheticContext())
    assert plan.strategy == strategy.name
    assert plan.predicted_ms is not None
    assert plan.predicted_ms > 0
    assert [op for chain in plan.chains for op in chain.ops] == [x.name for x in network.layers]
    partition_plan(network, plan, SOC)


def check_estimator(name: str, cls: type[LatencyEstimator]) -> None:
    """It follows a simple law, row by row, and what it learned is read back from JSON."""
    assert cls.name == name
    random = np.random.default_rng(0)
    X = random.uniform(1, 1e6, (80, 2))
    y = X @ np.array([1e-6, 3e-6]) + 0.05
    fitted = cls.fit(X, y)
    predicted = fitted.predict(X)
    assert np.median(np.abs(predicted / y - 1)) < 0.5
    assert predicted.min() > 0
    np.testing.assert_array_equal(fitted.predict(X[3:5]), predicted[3:5])
    np.testing.assert_array_equal(read_back(fitted).predict(X), predicted)


def read_back(fitted: E) -> E:
    """What a file would hold of an estimator, as an estimator again."""
    content = msgspec.json.encode(fitted, enc_hook=to_json)
    return msgspec.json.decode(content, type=type(fitted), dec_hook=from_json)
