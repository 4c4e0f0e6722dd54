"""Bundles: what they compute, what they hold, what they refuse."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.command_line import python
from support.devices import here
from support.onnx_models import floats, model, node
from support.plans import CUTS, branching, legal, make_plan, one_by_one
from support.references import converted, imported
from support.variants import Failing, source, with_variants

import codl
from codl.engine.engine import Engine
from codl.errors import CodlError, CodlWarning, InvalidFileError, MismatchError
from codl.frontend.models.builder import ModelBuilder
from codl.ir import Layer, Network, parse, to_text
from codl.ir.constants import array_digest
from codl.ir.plan import Chain, Plan
from codl.ir.records.soc import Soc
from codl.jobs.bundle import load, loading, packaging
from codl.jobs.bundle.archive import (
    EXECUTABLE,
    MANIFEST,
    PAGE,
    Archive,
    signed,
    to_json,
    write_archive,
)
from codl.jobs.bundle.packaging import package, write
from codl.kernels import registry
from codl.machine import cache
from codl.measure.inputs import random_inputs
from codl.measure.op_runner import operands
from codl.plan.build_plan import default_plan
from codl.targets.base import Target

#: Ops whose variants have weights to arrange; other tests compile the same kernels.
OPS = (
    "conv2d in=1x6x13x11 oc=10 kernel=3x3 pad=1 act=relu",
    "conv2d in=1x33x9x9 oc=37 kernel=1x1",
    "conv2d in=1x16x10x10 oc=16 kernel=3x3 stride=2 pad=1 groups=16",
    "fc in=1x40x3x3 oc=100",
    "conv_transpose2d in=1x64x14x14 oc=32 kernel=4 stride=2 size=28x28 crop=1",
)
GENTLE = settings(max_examples=5, derandomize=True)


def residual() -> ModelBuilder:
    """The usual net, and a residual that convolutions on the GPU add by themselves."""
    b = branching()
    x = b.conv(b.input("other", (1, 16, 12, 10)), 32, 3, pad=1)
    for _ in range(2):
        x = b.relu(b.add(x, b.conv(b.relu(b.conv(x, 32, 3, pad=1)), 32, 1, pad=0)))
    b.output(x)
    return b


@pytest.fixture(scope="module")
def net() -> Network:
    return converted(residual())


@pytest.fixture(scope="module")
def small() -> Network:
    b = ModelBuilder("small")
    x = b.relu(b.conv(b.input("image", (1, 3, 20, 16)), 32, 3, pad=1))
    b.output(b.conv(x, 24, 3, pad=1))
    return converted(b)


@pytest.fixture(scope="module")
def made(small: Network, first_soc: Soc, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of `small`, both layers split."""
    path = tmp_path_factory.mktemp("bundle") / "small.codl"
    plan = make_plan(small, first_soc, [(1, "OC", 0.5), (1, "H", 0.5)])
    write(small, plan, here(first_soc), path).close()
    return path


def outputs(engine: Engine, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    with engine:
        engine(inputs)
        return engine(inputs)  # the second run reuses everything


def assert_same_outputs(net: Network, plan: Plan, soc: Soc, path: Path) -> Archive:
    """What is computed by the engine, by the one that writes the bundle, and from the bundle."""
    inputs = random_inputs(net)
    expected = outputs(Engine(net, plan, here(soc)), inputs)
    with warnings.catch_warnings():
        warnings.simplefilter("error", CodlWarning)
        for engine in (write(net, plan, here(soc), path), load(path)):
            found = outputs(engine, inputs)
            assert found.keys() == expected.keys()
            for name, value in expected.items():
                assert found[name].dtype == value.dtype
                np.testing.assert_array_equal(found[name], value)
    return Archive(path)


@given(cuts=CUTS, sharing=st.sampled_from(["gather", "missing"]))
@GENTLE
def test_a_bundle_of_any_plan_computes_the_same(
    cuts: list[tuple[int, str, float]], sharing: str, net: Network, first_soc: Soc, tmp_path: Path
) -> None:
    plan = make_plan(net, first_soc, legal(net, cuts), sharing)
    assert_same_outputs(net, plan, first_soc, tmp_path / "net.codl")


def test_every_variant_finds_its_weights(first_soc: Soc, tmp_path: Path) -> None:
    """All of both processors, on storages that the SoC has and on others: halves and images."""
    soc = first_soc
    layers, chains, inputs = [], [], {}
    for number, text in enumerate(OPS):
        op = parse(text)
        weights, x = operands(op)[1], f"x{number}"
        inputs[x] = op.input
        for side in ("cpu", "gpu"):
            for variant in registry.variants(op, side, soc, include_unfit=True):  # type: ignore[arg-type]
                name = f"{op.kind} {number} {variant.name}"
                layers.append(Layer(name, op, (x,), name, weights))
                chosen = {name: {side: variant.name}}
                chains.append(Chain((name,), "H", float(side == "gpu"), chosen))
    results = {x.output: (x.output, tuple(x.op.output)) for x in layers}
    net = Network("variants", tuple(layers), inputs, results)
    plan = Plan(net.name, net.digest, soc.name, "t", "none", "missing", None, tuple(chains))
    archive = assert_same_outputs(net, plan, soc, tmp_path / "net.codl")
    steps = archive.json("executable.json")["steps"]
    assert {step["variant"] for step in steps if step["type"] == "GpuOp"} == {
        c.variants[c.ops[0]]["gpu"] for c in chains if c.gpu_ratio
    }


def test_what_runs_in_onnxruntime_is_in_the_bundle(soc: Soc, tmp_path: Path) -> None:
    proto = model(
        [
            node("Conv", "x w", "a", pads=[1, 1, 1, 1]),
            node("CumSum", "a axis", "b"),
            node("Softmax", "b", "y", axis=1),
            node("Cast", "i", "f", to=1),
            node("Add", "f c", "z"),
        ],
        {"x": (1, 4, 6, 5), "i": (2, 3)},
        ["y", "z"],
        {"w": floats(6, 4, 3, 3, seed=1), "c": floats(2, 3), "axis": 1},
        {"i": "int64"},
    )
    net = imported(proto)
    assert any(layer.op.kind == "onnx" for layer in net.layers)
    for side in ("cpu", "turns"):
        assert_same_outputs(net, one_by_one(net, soc, side), soc, tmp_path / "net.codl")


def test_another_process_runs_it_and_compiles_nothing(made: Path, tmp_path: Path) -> None:
    """With an empty cache, no SoC file, and nothing imported that only planning needs."""
    script = (
        "import sys, codl, numpy as np; engine = codl.load(sys.argv[1]);"
        "y = engine(np.load(sys.argv[2])); np.save(sys.argv[3], y);"
        "late = {'sklearn', 'pandas', 'lightgbm', 'safetensors'} & sys.modules.keys();"
        "print(engine.loaded._device.programs.compiled, sorted(late))"
    )
    x = np.random.default_rng(1).random((1, 3, 20, 16), np.float32)
    np.save(tmp_path / "x.npy", x)
    paths = made, tmp_path / "x.npy", tmp_path / "y.npy"
    done = python(script, *paths, env={cache.VARIABLE: str(tmp_path / "empty")})
    assert done.stdout.split() == ["0", "[]"], done.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), codl.load(made)(x))


def test_every_part_opens_with_its_own_tool(made: Path, small: Network, tmp_path: Path) -> None:
    with ZipFile(made) as archive:
        assert archive.testzip() is None
        archive.extractall(tmp_path)
    arrays = safetensors.numpy.load_file(tmp_path / "constants.safetensors")
    executable = json.loads((tmp_path / "executable.json").read_text())
    layer = executable["nets"][0]["layers"][0]
    digest = executable["constants"][layer["constants"]]["arrays"]["weight"]
    np.testing.assert_array_equal(arrays[digest], small.layers[0].weights["weight"][16:])
    assert all(array_digest(array) == digest for digest, array in arrays.items())
    plan = codl.ir.plan.load_plan(tmp_path / "plan.json")
    assert [chain.dim for chain in plan.chains] == ["OC", "H"]
    described = json.loads((tmp_path / "network.json").read_text())
    assert [x["op"] for x in described["layers"]] == [to_text(x.op) for x in small.layers]


def test_a_variant_that_failed_is_not_tried_again(
    small: Network, first_soc: Soc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = source(tmp_path, "kernel void another(__global float *x) { x[0] = 0; }")
    spoilt: Any = Failing(text)
    with_variants(monkeypatch, spoilt)
    failing = {layer.name: "gpu_failing" for layer in small.layers}
    plan = default_plan(small, first_soc, "gpu", variants=failing, chained=False)
    with pytest.warns(CodlWarning, match="not in gpu_failing"):
        engine = write(small, plan, here(first_soc), tmp_path / "a.codl")
    inputs = random_inputs(small)
    expected = outputs(engine, inputs)
    with warnings.catch_warnings():
        warnings.simplefilter("error", CodlWarning)
        engine = load(tmp_path / "a.codl")
    assert engine.fallbacks == ()
    for name, value in outputs(engine, inputs).items():
        np.testing.assert_array_equal(value, expected[name])


@given(
    share=st.floats(0, 1, exclude_max=True),
    bit=st.integers(0, 7),
    place=st.sampled_from(["file", "manifest", "directory"]),
)
@settings(GENTLE, max_examples=60)
def test_a_flipped_bit_is_found_or_does_not_matter(
    share: float, bit: int, place: str, made: Path, tmp_path: Path
) -> None:
    content = bytearray(made.read_bytes())
    begin = content.rindex(b"PK\x01\x02") - 1500 if place == "directory" else 0
    size = 2 * PAGE if place == "manifest" else len(content) - begin
    content[begin + int(share * size)] ^= 1 << bit
    spoilt = tmp_path / "spoilt.codl"
    spoilt.write_bytes(content)
    try:
        engine = load(spoilt)
    except InvalidFileError as error:
        refusal = str(error)
    else:
        inputs = random_inputs(engine.network)
        found = outputs(engine, inputs)
        for name, value in outputs(load(made), inputs).items():
            np.testing.assert_array_equal(found[name], value)
        return
    assert refusal.startswith(f"{spoilt}: ")
    assert "codl package" in refusal


def test_other_files_are_refused(made: Path, tmp_path: Path) -> None:
    text, other = tmp_path / "text.codl", tmp_path / "other.codl"
    text.write_text("model: none\n")
    (tmp_path / "short.codl").write_bytes(made.read_bytes()[:-100])
    with ZipFile(other, "w") as archive:
        archive.writestr("readme", "")
    for path, problem in (
        (text, "no bundle"),
        (tmp_path / "short.codl", "damaged or cut short"),
        (other, "has no manifest.json"),
        (tmp_path / "none.codl", "cannot be read: No such file"),
    ):
        with pytest.raises(InvalidFileError, match=problem):
            load(path)


Change = Callable[[dict[str, Any], dict[str, bytes]], None]


def changed(made: Path, path: Path, change: Change) -> Path:
    """A whole bundle with other content, as somebody else might have written it."""
    with ZipFile(made) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(parts.pop(MANIFEST))
    change(manifest, parts)
    del manifest["parts"]
    write_archive(path, manifest, parts)
    return path


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda head, parts: head.update(version=99), r"format version 99, .*reads version 2"),
        (lambda head, parts: parts.pop(EXECUTABLE), f"part '{EXECUTABLE}' is missing"),
    ],
)  # fmt: skip
def test_content_that_means_nothing_is_refused(
    change: Change, problem: str, made: Path, tmp_path: Path
) -> None:
    path = changed(made, tmp_path / "a.codl", change)
    with pytest.raises(InvalidFileError, match=problem) as error:
        load(path)
    assert str(error.value).count(str(path)) == 1


def test_a_bundle_of_a_stranger_is_refused(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user's, or one that somebody has written anew, with the right sums of all parts."""

    def raised(head: dict[str, Any], parts: dict[str, bytes]) -> None:
        """One integer of a launch is another."""
        executable = json.loads(parts[EXECUTABLE])
        values = first_launch(executable)["args"]
        at = next(i for i, value in enumerate(values) if isinstance(value, int))
        values[at] += 1 << 20
        parts[EXECUTABLE] = to_json(executable)

    def same(head: dict[str, Any], parts: dict[str, bytes]) -> None:
        """Nothing is."""

    expected = outputs(load(made), inputs := random_inputs(load(made).network))
    monkeypatch.setenv(cache.STATE_VARIABLE, str(tmp_path / "stranger"))
    theirs = [changed(made, tmp_path / f"{one.__name__}.codl", one) for one in (raised, same)]
    monkeypatch.setenv(cache.STATE_VARIABLE, str(tmp_path / "me"))
    for path in theirs:
        with pytest.raises(MismatchError, match="not written by this user on this machine, and"):
            load(path)
    for name, value in outputs(load(theirs[1], trusted=True), inputs).items():
        np.testing.assert_array_equal(value, expected[name])


def test_a_table_of_offsets_that_was_changed_is_refused_before_it_is_used(
    tmp_path: Path, first_soc: Soc, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sum of all weights is looked at meanwhile, which is too late for what leads a kernel."""
    arrays = {"tables": np.arange(4, dtype=np.uint32), "weights": np.ones(4, np.float32)}
    get = loading._of({array_digest(array): array.copy() for array in arrays.values()})
    for array in arrays.values():
        np.testing.assert_array_equal(get(array_digest(array)), array)
    get(array_digest(arrays["tables"]))[1] += 1
    with pytest.raises(CodlError, match="is damaged"):
        get(array_digest(arrays["tables"]))


def test_what_inflates_is_refused_before_it_is_read(made: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.codl"
    with ZipFile(made) as archive, ZipFile(again, "w", ZIP_DEFLATED) as other:
        for name in archive.namelist():
            other.writestr(name, archive.read(name))
    with pytest.raises(InvalidFileError, match=r"manifest\.json is compressed, .*zipped again"):
        load(again)


def test_another_soc_is_refused(made: Path, first_soc: Soc, tmp_path: Path) -> None:
    wider = replace(first_soc, gpu=replace(first_soc.gpu, vector_width=2))
    with pytest.raises(MismatchError, match=r"gpu\.vector_width is 2, not"):
        load(made, soc=wider)
    with pytest.raises(MismatchError, match="name is 'other', not 'test'"):
        load(made, soc=replace(first_soc, name="other"))

    def elsewhere(head: dict[str, Any], parts: dict[str, bytes]) -> None:
        head["soc"]["gpu"]["name"] = "Some GPU"

    def many_cores(head: dict[str, Any], parts: dict[str, bytes]) -> None:
        head["placement"]["cpu_cores"] = [0, 4096]

    for change, problem in (
        (elsewhere, "no device 'Some GPU'"),
        (many_cores, "4096 are not there"),
    ):
        with pytest.raises(MismatchError, match=f"is for the SoC 'test' .*{problem}"):
            load(changed(made, tmp_path / "a.codl", change))


def test_another_driver_compiles_the_source(made: Path, tmp_path: Path) -> None:
    def older(head: dict[str, Any], parts: dict[str, bytes]) -> None:
        head["device"]["driver"] = "0.1"

    path = changed(made, tmp_path / "a.codl", older)
    with pytest.warns(CodlWarning, match=r"compiled for driver '0.1' .*compiled from source"):
        engine = load(path)
    inputs = random_inputs(engine.network)
    found = outputs(engine, inputs)
    for name, value in outputs(load(made), inputs).items():
        np.testing.assert_array_equal(found[name], value)


def first_launch(executable: dict[str, Any]) -> dict[str, Any]:
    commands = (c for stage in executable["stages"] for c in stage["commands"])
    return next(command for command in commands if command["type"] == "Launch")


def test_an_executable_that_was_changed_is_refused(made: Path, tmp_path: Path) -> None:
    """Somebody who changes it can make the checksums right, too."""

    def tampered(head: dict[str, Any], parts: dict[str, bytes]) -> None:
        executable = json.loads(parts["executable.json"])
        first = next(a for a in first_launch(executable)["args"] if isinstance(a, dict))
        first["region"][2] = [0, 4096]
        parts["executable.json"] = to_json(executable)

    with pytest.raises(InvalidFileError, match="region outside"):
        load(changed(made, tmp_path / "a.codl", tampered))


def test_a_bundle_is_kept_only_if_it_computes_the_same(
    small: Network, target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, path = make_plan(small, target.soc, [(2, "H", 0.5)]), tmp_path / "a.codl"
    packaged = package(small, plan, target, path)
    assert packaged.bytes == path.stat().st_size
    assert packaged.max_rel_err == 0
    times = packaged.cold_start
    assert 0 < times.first_run_ms < times.load_ms < times.without_interpreter_ms < times.process_ms
    before = path.read_bytes()

    def wrong(path: Path, target: Any, inputs: Mapping[str, Any]) -> tuple[Any, Any]:
        found = outputs(load(path), inputs)
        return times, {name: value + 1 for name, value in found.items()}

    monkeypatch.setattr(packaging, "_tried", wrong)
    with pytest.raises(CodlError, match="is not kept: its outputs are"):
        package(small, plan, target, path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_processes_that_write_the_first_bundles_sign_by_one_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CODL_STATE", str(tmp_path / "state"))
    with ThreadPoolExecutor(8) as pool:
        signatures = set(pool.map(lambda _: signed({"x": 1})["signature"], range(16)))
    assert len(signatures) == 1


def test_a_bundle_without_a_key_to_sign_it_is_said_to_be_a_strangers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("CODL_STATE", str(tmp_path / "file" / "state"))
    with pytest.warns(CodlWarning, match="no signature, so it will count as a stranger's"):
        assert "signature" not in signed({"x": 1})
