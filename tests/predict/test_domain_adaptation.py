"""A new SoC beside a known one, simulated: what the known one's latencies are worth."""

from __future__ import annotations

import json
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from support.simulated import REPLAYED

from codl.errors import InvalidFileError, MismatchError
from codl.ir import Op, parse, to_text
from codl.measure.dataset import Dataset, OpRow
from codl.predict import domain_adaptation as transfer
from codl.predict import features
from codl.predict import model_set as predictors
from codl.predict.domain_adaptation import SourceDomain
from codl.predict.estimators.gp_ensemble import Codl
from codl.predict.training import train
from codl.predict.training_set import Sample, Samples

TARGET = "conv2d_gpu_replayed"
NEW = replace(REPLAYED, name="new")


def convolutions(count: int, seed: int) -> list[Op]:
    rng = np.random.default_rng(seed)
    texts = (
        f"conv2d in=1x{rng.integers(3, 300)}x{size}x{size} oc={rng.integers(3, 300)} kernel={k} "
        f"pad={k // 2}"
        for size, k in zip(rng.integers(7, 80, count), rng.choice([1, 3], count), strict=True)
    )
    return [parse(text) for text in texts]


def latency_ms(op: Op, speed: float) -> float:
    """A library with a kernel that no feature tells: slow for some numbers of channels."""
    slow = 1.6 if op.output.c % 7 < 3 else 1.0
    return speed * (0.02 + 1e-9 * op.flops * slow)


def samples(ops: list[Op], speed: float) -> Samples:
    rows = [Sample(op, (op,), latency_ms(op, speed), "replayed", "run1") for op in ops]
    return Samples(target=TARGET, processor="gpu", samples=tuple(rows), failed=0, files=())


def test_a_known_soc_tells_what_features_do_not() -> None:
    ops = convolutions(160, 0)
    known = SourceDomain.of(Codl, REPLAYED, samples(ops, 1.0))
    few, unseen = ops[:40], ops[40:]
    wanted = np.array([latency_ms(op, 2.5) for op in unseen])
    y = np.array([latency_ms(op, 2.5) for op in few])
    beside = [transfer.table(TARGET, part, NEW, [known]).values for part in (few, unseen)]
    alone = [features.table("variant", TARGET, part, NEW).values for part in (few, unseen)]
    errors = {
        name: np.median(np.abs(Codl.fit(X[0], y).predict(X[1]) / wanted - 1))
        for name, X in {"beside": beside, "alone": alone}.items()
    }
    assert errors["beside"] < 0.03
    assert errors["alone"] > 3 * errors["beside"]


def test_items_are_looked_up_or_predicted() -> None:
    ops = convolutions(80, 1)
    known = SourceDomain.of(Codl, REPLAYED, samples(ops[:60], 1.0))
    found = known.latency_us(ops)
    np.testing.assert_allclose(found[:60], [1e3 * latency_ms(o, 1.0) for o in ops[:60]], rtol=1e-5)
    table = features.table("variant", TARGET, ops[60:], REPLAYED)
    np.testing.assert_array_equal(found[60:], 1e3 * known.estimator.predict(table.values))
    names = transfer.table(TARGET, ops, NEW, [known]).names
    assert names == ("us_on_phone", "padded_macs", "input_bytes", "output_bytes", "weight_bytes")


def dataset(folder: Path, ops: list[Op], speed: float, target: str = TARGET) -> Dataset:
    """Replayed latencies of whole ops as a dataset."""
    return written(folder, ops, [latency_ms(op, speed) for op in ops], target)


def written(folder: Path, ops: list[Op], found_ms: list[float], target: str = TARGET) -> Dataset:
    own = Dataset(folder)
    table = own.ops(target)
    for op, ms in zip(ops, found_ms, strict=True):
        text = to_text(op)
        row = OpRow(op=text, dim="H", share=1.0, part=text, latency_ms=ms, source="replayed")
        table.append(row)
    return own


def test_a_new_soc_starts_from_a_known_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("socs").mkdir()
    for soc in (REPLAYED, NEW):
        soc.save(Path("socs") / f"{soc.name}.yaml")
    ops = convolutions(120, 3)
    known, own = dataset(tmp_path / "a", ops, 1.0), dataset(tmp_path / "b", ops[:40], 2.5)
    report = train(NEW, own, predictors=["codl"], like=[(REPLAYED, known)], seeds=1)
    assert report.notes == ()
    loaded = predictors.load(NEW, "codl")
    wanted = np.array([latency_ms(op, 2.5) for op in ops[40:]])
    assert np.median(np.abs(loaded.latency_ms(TARGET, ops[40:]) / wanted - 1)) < 0.03
    path = known.ops(TARGET).path
    digest = sha256(path.read_bytes()).hexdigest()[:8]
    assert loaded.stored[TARGET].known[0].tables == {TARGET: digest}
    (Path("socs") / f"{REPLAYED.name}.yaml").unlink()  # the file knows all of it
    predicted = predictors.load(NEW, "codl").latency_ms(TARGET, ops)
    np.testing.assert_array_equal(predicted, loaded.latency_ms(TARGET, ops))


def test_a_known_soc_that_misleads_is_left_out(tmp_path: Path) -> None:
    ops = convolutions(60, 4)
    noise = np.exp(np.random.default_rng(0).normal(0, 2, len(ops))).tolist()
    known = written(tmp_path / "a", ops, noise)
    own = written(tmp_path / "b", ops[:40], [0.02 + 1e-9 * op.flops for op in ops[:40]])
    like, folder = [(REPLAYED, known)], tmp_path / "predictors"
    report = train(NEW, own, predictors=["codl"], like=like, folder=folder, evaluate=False)
    assert report.notes == (f"Latencies of phone do not help to predict {TARGET}: left out there.",)
    assert json.loads(report.files[0].read_text())["targets"][TARGET]["known"] == []


def test_what_no_soc_can_start_from(tmp_path: Path) -> None:
    ops = convolutions(20, 5)
    own = dataset(tmp_path / "a", ops, 1.0)
    other = dataset(tmp_path / "b", ops, 1.0, "conv2d_cpu_replayed")
    for soc, data in ((REPLAYED, other), (NEW, own)):
        with pytest.raises(MismatchError, match=f"new cannot start from {soc.name}"):
            train(NEW, own, predictors=["codl"], like=[(soc, data)], folder=tmp_path)
    with pytest.raises(InvalidFileError, match="no dataset"):
        train(NEW, own, predictors=["codl"], like=[(REPLAYED, Dataset(tmp_path / "c"))])


def test_stored_knowledge_of_another_target_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("socs").mkdir()
    REPLAYED.save(Path("socs") / "phone.yaml")
    ops = convolutions(40, 6)
    like = [(REPLAYED, dataset(tmp_path / "a", ops, 1.0))]
    own = dataset(tmp_path / "b", ops[:20], 2.0)
    report = train(NEW, own, predictors=["codl"], like=like, evaluate=False)
    content = json.loads(report.files[0].read_text())
    (own_content,) = content["targets"].values()
    own_content["known"][0]["target"] = "conv2d_cpu_replayed"
    report.files[0].write_text(json.dumps(content))
    with pytest.raises(MismatchError, match="known by conv2d_cpu_replayed, asked for conv2d_gpu"):
        predictors.load(NEW, "codl")
    own_content["known"] = [7]
    report.files[0].write_text(json.dumps(content))
    with pytest.raises(InvalidFileError, match=r"known\[0\]: expected object, got 7"):
        predictors.load(NEW, "codl")


def test_latencies_of_another_target_are_refused() -> None:
    ops = convolutions(50, 2)
    known = SourceDomain.of(Codl, REPLAYED, samples(ops[:30], 1.0))
    with pytest.raises(MismatchError, match="phone is known by conv2d_gpu_replayed"):
        transfer.table("conv2d_cpu_replayed", ops, NEW, [known])
