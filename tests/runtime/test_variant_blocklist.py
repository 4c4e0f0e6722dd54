"""Variants that are wrong on a driver: remembered for this driver, and not run on it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.devices import here

from codl.engine.engine import Engine
from codl.errors import CodlWarning
from codl.frontend.convert import convert, simplify
from codl.frontend.graph.onnx_import import import_onnx
from codl.frontend.models.builder import ModelBuilder
from codl.ir.plan import Chain, Plan
from codl.kernels import registry
from codl.machine import cache
from codl.machine.cache import VariantBlocklist
from codl.machine.placement import LocalSoc

NAME, OP = "conv2d gpu_direct", "conv2d in=1x5x7x9 oc=6 kernel=3x3 pad=1"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))


def test_what_is_wrong_is_kept_until_it_is_right() -> None:
    known = VariantBlocklist({"device": "a", "driver": "1"})
    assert known.reason(NAME) == ""
    known.note(NAME, OP, is_wrong=True)
    known.note(NAME, "another op", is_wrong=True)
    assert set(known.ops(NAME)) == {OP, "another op"}
    assert "`codl doctor` found it wrong on this driver" in known.reason(NAME)
    known.note(NAME, "a third op", is_wrong=False)
    known.note(NAME, OP, is_wrong=False)
    assert known.ops(NAME) == ("another op",)
    known.note(NAME, "another op", is_wrong=False)
    assert known.reason(NAME) == ""


def test_another_driver_and_another_variant_begin_with_a_clean_slate() -> None:
    VariantBlocklist({"driver": "1"}).note(NAME, OP, is_wrong=True)
    assert VariantBlocklist({"driver": "2"}).reason(NAME) == ""
    assert VariantBlocklist({"driver": "1"}).reason("conv2d gpu_gemm") == ""


@pytest.mark.parametrize("content", [b"", b"{", b"3", b"\xff"])
def test_a_damaged_note_is_none(content: bytes) -> None:
    known = VariantBlocklist({"driver": "1"})
    known._slot(NAME).store(content)
    assert known.reason(NAME) == ""


def test_an_engine_runs_another_variant_in_its_place(first_soc: LocalSoc) -> None:
    b = ModelBuilder("one")
    b.output(b.conv(b.input("image", (1, 16, 12, 12)), 32, 3, pad=1))
    network = convert(simplify(import_onnx(b.build(), "one")))
    (layer,) = network.layers
    names = [variant.name for variant in registry.variants(layer.op, "gpu", first_soc)]
    chains = (Chain((layer.name,), "H", 1.0, {layer.name: {"gpu": names[0]}}),)
    plan = Plan(network.name, network.digest, first_soc.name, "t", "none", "gather", None, chains)
    target = here(first_soc)
    VariantBlocklist(target.device.programs.identity).note(f"conv2d {names[0]}", OP, is_wrong=True)
    with pytest.warns(CodlWarning, match="found it wrong on this driver"):
        engine = Engine(network, plan, target)
    with engine:
        (fallback,) = engine.fallbacks
        assert fallback.variant == names[0]
        x = np.random.default_rng(0).random((1, 16, 12, 12), np.float32)
        expected = layer.op.reference([x.astype(np.float64)], layer.weights)
        np.testing.assert_allclose(engine(x), expected, rtol=1e-3, atol=1e-3)
