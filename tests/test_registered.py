"""The common test of all that is registered: ops, kernel variants, strategies, estimators."""

from __future__ import annotations

from importlib import import_module

import pytest
from support import common_checks as common
from support.some import some

from codl import kernels
from codl.errors import DuplicateNameError, UnknownNameError
from codl.frontend import converters
from codl.ir import OP_TYPES
from codl.kernels import registry
from codl.plan.strategies import STRATEGIES
from codl.predict import DEFAULT, ESTIMATORS
from codl.registry import Registry, rolled_back


@pytest.mark.parametrize("kind", OP_TYPES)
def test_op(kind: str) -> None:
    common.check_op(kind)


@pytest.mark.parametrize("name", registry.VARIANTS)
def test_variant(name: str) -> None:
    common.check_variant(registry.VARIANTS[name])


@pytest.mark.parametrize("name", [n for n, s in STRATEGIES.items() if not s.runs_plans])
def test_strategy(name: str) -> None:
    common.check_strategy(STRATEGIES[name])


@pytest.mark.parametrize("name", ESTIMATORS)
def test_estimator(name: str) -> None:
    common.check_estimator(name, ESTIMATORS[name])


def test_default_predictor_of_every_strategy_is_registered() -> None:
    assert {s.default_predictor for s in STRATEGIES.values()} <= set(ESTIMATORS)
    assert DEFAULT in ESTIMATORS


def test_a_name_is_taken_once() -> None:
    variant = registry.of_kind("softmax")[0]
    with pytest.raises(
        DuplicateNameError, match=r"'softmax gpu_direct' is registered twice, by .*"
    ):
        registry.register(variant)
    with pytest.raises(UnknownNameError, match="Did you mean 'codl'"):
        STRATEGIES.find("codi")


def test_an_op_needs_no_variant_in_onnx_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plugin may have none, also for an op that could change the CPU's library for free."""
    left = [v for v in registry.VARIANTS.values() if (v.op_kind, v.backend) != ("eltwise", "ort")]
    monkeypatch.setattr(Registry, "_instances", list(Registry._instances))
    monkeypatch.setattr(registry, "VARIANTS", Registry("kernel variant"))
    registry.register(*left)
    for name in ("cpu", "codl-paper"):
        common.check_strategy(STRATEGIES[name], "mobilenet_v2")


def test_an_error_takes_out_what_was_added() -> None:
    numbers: Registry[int] = Registry("number")
    numbers.add("one", 1)
    with pytest.raises(DuplicateNameError), rolled_back():
        _add_two_and_one_again(numbers)
    assert dict(numbers) == {"one": 1}
    numbers.add_lazy("pi", "math:pi")
    assert numbers["pi"] == pytest.approx(3.14159, abs=1e-5)


def test_modules_that_are_imported_later_add_what_is_named_for_them() -> None:
    for module, nodes in some(converters.NODES.items()):
        found = [converters.CONVERTERS[node] for node in nodes]
        package = f"{converters.__name__}.{module}:"
        places = converters.CONVERTERS.places.items()
        assert {name for name, place in places if place.startswith(package)} == set(nodes)
        assert all(converter.convert.__module__ == package[:-1] for converter in found)
    for kind, module in some(kernels.MODULES.items()):
        variants = import_module(f"{kernels.__name__}.{module}").VARIANTS
        listed = [variant for variant in variants if variant.op_kind == kind]
        assert len(registry.of_kind(kind)) == len(listed) > 0


def _add_two_and_one_again(numbers: Registry[int]) -> None:
    numbers.add("two", 2)
    numbers.add("one", 1)
