"""Kernel variants that somebody else has measured: predicted and planned, never run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.op_examples import EVERY_KIND
from support.simulated import REPLAYED, SOC

from codl.errors import UnsupportedError
from codl.ir import OP_TYPES, parse
from codl.ir.records.soc import Soc
from codl.kernels import registry
from codl.measure.collector import Collection
from codl.measure.dataset import Dataset
from codl.predict import features
from codl.targets.local import LocalTarget
from codl_published import variants
from codl_published.variants import replayed_variants

CONV = parse("conv2d in=1x6x8x8 oc=10 kernel=3 pad=1")


def test_a_replayed_soc_has_these_variants_and_no_other() -> None:
    assert {parse(text).kind for text in EVERY_KIND} == set(OP_TYPES)
    for op in map(parse, EVERY_KIND):
        for side in features.PROCESSORS:
            first, *named = [v.name for v in registry.variants(op, side, REPLAYED)]
            assert first == f"{side}_replayed"
            can = variants.mace_refusal(op, "gpu", "mace_image") is None
            kernels = variants.MACE_KERNELS.get((op.kind, side), ()) if can else ()
            own = kernels if side == "gpu" or not kernels else [variants.mace_cpu_kernel(op)]
            assert named == [f"{side}_{kernel}" for kernel in own]
            for every in (False, True):
                names = [v.name for v in registry.variants(op, side, SOC, include_unfit=every)]
                assert not [name for name in names if "replayed" in name]


REPLAYED_VARIANTS = [v for kind in OP_TYPES for v in replayed_variants(kind)]


@pytest.mark.parametrize("variant", REPLAYED_VARIANTS, ids=lambda v: f"{v.op_kind}_{v.name}")
def test_every_variant_has_features(variant: registry.Variant) -> None:
    ops = [op for op in map(parse, EVERY_KIND) if op.kind == variant.op_kind]
    own = [op for op in ops if op.flavor == ops[0].flavor]
    table = features.table("variant", registry.target(variant, own[0]), own, REPLAYED)
    assert (table.values >= 0).all()
    assert table.values.any(axis=1).all()
    assert any(variant.refusal(op, REPLAYED) is None for op in own)
    assert "is measured" in str(variant.refusal(own[0], SOC))


def test_features_of_a_convolution() -> None:
    """3x3 of stride 1 on 6 channels padded to 8, 10 outputs padded to 12; counted by hand."""
    table = features.table("variant", "conv2d_gpu_replayed", [CONV], REPLAYED)
    found = dict(zip(table.names, table.values[0].tolist(), strict=True))
    assert found["padded_macs"] == found["winograd_macs"] == 8 * 8 * 12 * 8 * 9
    for name in ("other", "pointwise", "depthwise", "grouped", "line", "constant"):
        assert found[f"{name}_macs"] == 0 or name == "constant"
    assert found["constant_macs"] == found["padded_macs"]  # 2 * 12 * 6 * 9 bytes of weights
    assert found["macs_f4"] == 2 * 2 * 36 * 8 * 12
    assert found["work_items"] == 8 * 2 * 3
    assert found["loop_length"] == 72
    assert found["weight_bytes"] == 4 * 12 * 72


def test_nothing_runs_on_a_replayed_soc(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"'phone': its file says source: replayed"):
        LocalTarget(REPLAYED).open()
    with pytest.raises(UnsupportedError, match="somebody else's"):
        Collection(LocalTarget(REPLAYED), Dataset(tmp_path / "phone"), []).run()
    assert not list(tmp_path.iterdir())
    variant = registry.find(CONV, "cpu_replayed_threads2")
    with pytest.raises(UnsupportedError, match="conv2d_cpu_replayed_threads2 cannot run"):
        variant.plan(CONV, REPLAYED)  # type: ignore[attr-defined]


def test_threads_are_those_of_the_variant() -> None:
    def waves(target: str, soc: Soc) -> float:
        """Blocks of output channels that the busiest thread computes."""
        table = features.table("variant", target, [CONV], soc)
        return float(table.values[0][table.names.index("block_waves")]) / (8 * 8 * 72)

    four = replace(REPLAYED, cpu=replace(REPLAYED.cpu, threads=4))
    assert waves("conv2d_cpu_replayed", four) == 1
    assert waves("conv2d_cpu_replayed_threads2", four) == 2
