"""Before a plan's first result: right outputs with one warning, or an error; never a wrong one."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from support.devices import here
from support.faults import FAULTS, Faulty, default_of
from support.onnx_models import floats, model, node
from support.variants import with_variants
from typer.testing import CliRunner

import codl
from codl.cli.app import app
from codl.engine.engine import Engine
from codl.errors import CodlWarning, NoKernelError, WrongResultError
from codl.frontend.convert import Source, load_network, read_network
from codl.frontend.graph.integer_products import session_options
from codl.frontend.models.builder import ModelBuilder
from codl.ir.executable import GpuOp, NcnnNet
from codl.ir.plan import Plan
from codl.jobs.bundle.packaging import Packaged, package
from codl.jobs.bundle.packaging import write as write_bundle
from codl.kernels import registry
from codl.kernels.cpu import CpuKernel
from codl.machine import cache
from codl.machine.examination import Memory
from codl.machine.placement import LocalSoc
from codl.measure.inputs import random_inputs
from codl.plan.build_plan import default_plan, preferring
from codl.runtime.drivers import cl_module
from codl.runtime.session import Session
from codl.validate import verdicts
from codl.validate.first_check import checked_engine


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is known yet. Compiled kernels lie there too, so that models are small."""
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path: Path, first_soc: LocalSoc, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the SoC `test` and a model."""
    first_soc.save(tmp_path / "socs" / "test.yaml")
    monkeypatch.chdir(tmp_path)
    write(1)
    return tmp_path


def write(seed: int, name: str = "small.onnx") -> str:
    b = ModelBuilder("small", seed=seed)
    x = b.relu(b.conv(b.input("image", (1, 3, 20, 16)), 12, 3, pad=1))
    b.output(b.conv(x, 8, 3, pad=1))
    Path(name).write_bytes(b.build().SerializeToString())
    return name


def saved(proto: onnx.ModelProto) -> str:
    Path("other.onnx").write_bytes(proto.SerializeToString())
    return "other.onnx"


def right(name: str, inputs: dict[str, NDArray[Any]]) -> list[NDArray[Any]]:
    options = session_options(1)
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(name, options, ["CPUExecutionProvider"])
    return list(session.run(None, inputs))


def planted(monkeypatch: pytest.MonkeyPatch, folder: Path, soc: LocalSoc, fault: str) -> str:
    """The usual convolution of the GPU side has a fault; the name of that variant."""
    usual = default_of(load_network("small.onnx").layers[0], soc)
    faulty: Any = Faulty(usual, fault, folder)
    with_variants(monkeypatch)
    registry.register(faulty, before=usual.name)
    return str(faulty.name)


def on_gpu(name: str, soc: LocalSoc) -> tuple[Any, Plan, Source | None]:
    network, source = read_network(name)
    return network, preferring(network, soc, "gpu"), source


def checked(name: str, soc: LocalSoc, *, side: Any = "gpu", **more: Any) -> Engine:
    network, source = read_network(name)
    return checked_engine(network, preferring(network, soc, side), here(soc), source=source, **more)


def no_reference(*_: object) -> None:
    pytest.fail("The reference runs again.")


@pytest.mark.parametrize("fault", [*FAULTS])
def test_a_wrong_kernel_is_left_out_with_one_warning(
    fault: str, folder: Path, first_soc: LocalSoc, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the check it reaches the user; the second start knows, and still says so."""
    faulty = planted(monkeypatch, folder, first_soc, fault)
    network, plan, source = on_gpu("small.onnx", first_soc)
    inputs = random_inputs(network)
    (expected,) = right("small.onnx", inputs)
    with Engine(network, plan, here(first_soc)) as engine:
        (wrong,) = engine(inputs).values()
    assert not np.allclose(wrong, expected, rtol=1e-3, atol=1e-4)
    for start in range(2):
        if start:
            monkeypatch.setattr("codl.validate.first_check.ModelAndSource", no_reference)
        with pytest.warns(CodlWarning) as told:
            engine = checked_engine(network, plan, here(first_soc), source=source)
        (text,) = (str(one.message) for one in told if one.category is CodlWarning)
        assert f"and not in {faulty}" in text
        with engine:
            (got,) = engine(inputs).values()
        np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-4)
        assert engine.checked is not None
        assert (engine.checked.ms > 0) == (not start)


def test_where_nothing_helps_it_is_an_error(
    folder: Path, first_soc: LocalSoc, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted(monkeypatch, folder, first_soc, "border")
    with pytest.raises(WrongResultError, match=r"Wrong by themselves: .*"):
        checked("small.onnx", first_soc, strict=True)
    monkeypatch.setattr("codl.validate.remedy.stand_ins", lambda use, soc, tuning: iter(()))
    with pytest.raises(WrongResultError, match="--no-check"):
        checked("small.onnx", first_soc)


def test_compile_and_run_hand_out_nothing_wrong(
    folder: Path, first_soc: LocalSoc, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty = planted(monkeypatch, folder, first_soc, "halo")
    network, plan, _ = on_gpu("small.onnx", first_soc)
    plan.save(Path("plan.json"))
    inputs = random_inputs(network)
    (expected,) = right("small.onnx", inputs)
    how: Any = {"soc": "test", "plan": "plan.json"}
    with pytest.warns(CodlWarning, match=faulty), codl.compile("small.onnx", **how) as engine:
        np.testing.assert_allclose(*engine(inputs).values(), expected, rtol=1e-3, atol=1e-4)
    with codl.compile("small.onnx", **how, check=False) as engine:
        assert engine.checked is None
        (wrong,) = engine(inputs).values()
    assert not np.allclose(wrong, expected, rtol=1e-3, atol=1e-4)
    run = ["run", "small.onnx", "--soc", "test", "--plan", "plan.json", "--rounds", "1", "--json"]
    cache.clear()
    spent = []
    for _ in range(2):
        with pytest.warns(CodlWarning, match=faulty):
            done = CliRunner().invoke(app, [*run, "--outputs", "y.npz"], catch_exceptions=False)
        spent.append(json.loads(done.stdout)["check_ms"])
        np.testing.assert_allclose(*np.load("y.npz").values(), expected, rtol=1e-3, atol=1e-4)
    assert spent[0] > 0
    assert spent[1] == 0
    more = ["--no-check", "--outputs", "y.npz"]
    done = CliRunner().invoke(app, [*run, *more], catch_exceptions=False)
    assert json.loads(done.stdout)["check_ms"] is None
    assert not np.allclose(*np.load("y.npz").values(), expected, rtol=1e-3, atol=1e-4)


def test_it_is_paid_once_for_each_model_plan_driver_and_code(
    folder: Path, first_soc: LocalSoc, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ms(name: str = "small.onnx", side: str = "gpu") -> float:
        with checked(name, first_soc, side=side) as engine:
            assert engine.checked is not None
            assert engine.checked.reference == "ONNX Runtime"
            return engine.checked.ms

    assert ms() > 0
    with monkeypatch.context() as patch:
        patch.setattr("codl.validate.first_check.ModelAndSource", no_reference)
        assert ms() == 0
    assert ms(side="cpu") > 0
    same, other = (load_network(write(seed, "again.onnx")) for seed in (1, 2))
    assert same.digest == other.digest, "only weights differ"
    assert ms("again.onnx") > 0
    target = here(first_soc)
    usual, versions = target.open(), target.libraries()
    for changed in ("driver", "device"):
        with monkeypatch.context() as patch:
            patch.setattr(target, "open", lambda offer=None, key=changed: {**usual, key: "new"})
            assert ms() > 0
    for library in ("ncnn", "openvino"):  # on the device, whatever is installed here
        with monkeypatch.context() as patch:
            patch.setattr(target, "libraries", lambda key=library: {**versions, key: "new"})
            assert ms() > 0
    with monkeypatch.context() as patch:
        patch.setattr(verdicts, "code", lambda: "new")
        assert ms() > 0
    assert ms() == 0


def test_a_layer_whose_every_kernel_is_refused_goes_to_the_cpu(
    folder: Path, first_soc: LocalSoc, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a device's largest buffer is smaller than a matrix."""
    nodes = [node("Conv", "x w", "a", pads=[1] * 4), node("Flatten", "a", "f"),
             node("Gemm", "f m", "y", transB=1)]  # fmt: skip
    weights = {"w": floats(4, 4, 3, 3), "m": floats(64, 4 * 16 * 16)}
    Path("m.onnx").write_bytes(
        model(nodes, {"x": (1, 4, 16, 16)}, ["y"], weights).SerializeToString()
    )
    network, plan, source = on_gpu("m.onnx", first_soc)
    limit = property(lambda device: 128 << 10)
    monkeypatch.setattr(cl_module().Device, "max_mem_alloc_size", limit, raising=False)
    with pytest.raises(NoKernelError, match="No kernel variant of 'n_y'"):
        checked_engine(network, plan, here(first_soc), source=source, strict=True)
    with pytest.warns(CodlWarning, match="'n_y' runs in cpu_.* and not in gpu_"):
        engine = checked_engine(network, plan, here(first_soc), source=source)
    with engine:
        inputs = random_inputs(network)
        (expected,) = right("m.onnx", inputs)
        np.testing.assert_allclose(*engine(inputs).values(), expected, rtol=1e-3, atol=1e-4)
        (moved,) = engine.plan.fallbacks
        assert (moved.op, moved.processor) == ("n_y", "gpu")
        assert [chain.gpu_ratio for chain in engine.plan.chains] == [1.0, 0.0]


ODD = {
    "not a number": (
        [node("Log", "x", "a"), node("Conv", "x w", "b", pads=[1] * 4), node("Add", "a b", "y")],
        {"w": floats(4, 4, 3, 3)}, ["y"], {},
    ),
    "not a number below a maximum": (
        [node("Log", "x", "a"), node("ReduceMax", "a axis", "y", keepdims=0)],
        {"axis": np.array([3])}, ["y"], {},
    ),
    "chaos on some samples": (
        [node("Relu", "x", "a"), node("Sub", "a one", "b"), node("Relu", "b", "c"),
         node("MatMul", "c w", "d"), node("Mul", "d many", "e"), node("Sin", "e", "y")],
        {"w": 0.1 * floats(512, 64), "one": np.float32(1), "many": np.float32(1e6)}, ["y"], {},
    ),
    "indices": (
        [node("Conv", "x w", "a", pads=[1, 1, 1, 1]), node("TopK", "a k", "y z", axis=1)],
        {"w": floats(4, 4, 3, 3), "k": np.array([2])}, ["y", "z"], {"z": "int64"},
    ),
    "ties": (
        [node("Floor", "x", "a"), node("ArgMax", "a", "y", axis=3)], {}, ["y"], {"y": "int64"},
    ),
    "tokens": (
        [node("Gather", "w x", "a", axis=0), node("Softmax", "a", "y", axis=-1)],
        {"w": floats(30, 8)}, ["y"], {"x": "int64"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", [*ODD])
@pytest.mark.parametrize("side", ["cpu", "gpu"])
def test_models_that_are_right_alarm_nobody(
    name: str, side: str, folder: Path, first_soc: LocalSoc
) -> None:
    nodes, constants, outputs, types = ODD[name]
    sizes = (8, 512) if "chaos" in name else (1, 4, 6, 5)
    file = saved(model(nodes, {"x": sizes}, outputs, constants, types, opset=18))
    with warnings.catch_warnings():
        warnings.simplefilter("error", CodlWarning)
        with checked(file, first_soc, side=side) as engine:
            assert engine.checked is not None
            assert engine.checked.reference == "ONNX Runtime"


def test_a_number_where_the_model_has_none_is_found(
    folder: Path, first_soc: LocalSoc, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ncnn's sigmoid makes a number of NaN; the check finds that where the op is not refused."""
    monkeypatch.setattr(CpuKernel, "changes_nonfinite", lambda *_: False)
    nodes = [node("Log", "x", "a"), node("Sigmoid", "a", "y")]
    file = saved(model(nodes, {"x": (1, 4, 6, 5)}, ["y", "a"]))
    network, source = read_network(file)
    (last, *_) = reversed(network.layers)
    named = {last.name: "cpu_direct"}
    assert registry.find(last.op, "cpu_direct").backend == "ncnn"
    plan = default_plan(network, first_soc, "cpu", chained=False, variants=named)
    x = random_inputs(network)["x"] - 0.5
    with pytest.warns(CodlWarning, match="should be NaN"):
        engine = checked_engine(network, plan, here(first_soc), source=source)
    with engine:
        np.testing.assert_array_equal(np.isnan(engine({"x": x})["y"]), x < 0)


def test_what_chance_decides_is_told(folder: Path, first_soc: LocalSoc) -> None:
    nodes: Sequence[onnx.NodeProto] = [node("RandomNormalLike", "x", "a"), node("Add", "a x", "y")]
    file = saved(model(nodes, {"x": (1, 4, 6, 5)}, ["y"]))
    with (
        pytest.warns(CodlWarning, match=r"not compared with ONNX Runtime: chance"),
        checked(file, first_soc, side="cpu"),
    ):
        pass


def test_a_model_that_does_not_fit_beside_itself_is_told(
    folder: Path, first_soc: LocalSoc, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = Memory(2 << 30, 1000)
    monkeypatch.setattr("codl.validate.first_check.memory_of", lambda: memory)
    for _ in range(2):  # there may be room at the next start
        with pytest.warns(CodlWarning, match="MB of memory, and 0 MB are free"):
            checked("small.onnx", first_soc).close()
    memory = Memory(2 << 30, 1 << 30)
    with checked("small.onnx", first_soc) as engine:
        assert engine.checked is not None
        assert engine.checked.reference == "ONNX Runtime"


def packaged(soc: LocalSoc, path: Path, **more: Any) -> Packaged:
    network, plan, source = on_gpu("small.onnx", soc)
    return package(network, plan, here(soc), path, source=source, **more)


def test_a_bundle_is_of_a_plan_that_is_right_and_is_compared_elsewhere(
    folder: Path, first_soc: LocalSoc, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the device computes it otherwise it is no result; here it was found right already."""
    faulty = planted(monkeypatch, folder, first_soc, "border")
    with pytest.warns(CodlWarning, match=faulty):
        made = packaged(first_soc, Path("m.codl"))
    assert made.checked is not None
    assert faulty in {one.variant for one in made.checked.fallbacks}
    inputs = random_inputs(load_network("small.onnx"))
    (expected,) = right("small.onnx", inputs)
    with codl.load("m.codl") as engine:
        assert engine.checked is not None
        assert (engine.checked.reference, engine.checked.ms) == ("the bundle's", 0)
        np.testing.assert_allclose(*engine(inputs).values(), expected, rtol=1e-3, atol=1e-4)
    cache.clear()
    with codl.load("m.codl") as engine:
        assert engine.checked is not None
        assert engine.checked.ms > 0
    cache.clear()
    usual = Session.run

    def damaged(self: Session) -> None:
        usual(self)
        for value in self.outputs.values():
            value[..., -1, :] *= 0.9

    monkeypatch.setattr(Session, "run", damaged)
    with pytest.raises(WrongResultError, match="not those that were right where it was made"):
        codl.load("m.codl")
    with codl.load("m.codl", check=False) as engine:
        assert not np.allclose(*engine(inputs).values(), expected, rtol=1e-3, atol=1e-4)


def test_a_strangers_bundle_that_brings_no_outputs_says_so(
    folder: Path, first_soc: LocalSoc, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, plan, _ = on_gpu("small.onnx", first_soc)
    write_bundle(network, plan, here(first_soc), Path("m.codl")).close()
    with warnings.catch_warnings():
        warnings.simplefilter("error", CodlWarning)
        codl.load("m.codl").close()
    monkeypatch.setenv(cache.STATE_VARIABLE, str(folder / "another user"))
    with pytest.warns(CodlWarning, match="nothing was compared"):
        codl.load("m.codl", trusted=True).close()


def test_a_model_that_onnx_runtime_runs_in_no_opset_is_compared_with_its_ops(
    folder: Path, first_soc: LocalSoc, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: object, **__: object) -> None:
        raise RuntimeError("[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : no kernel.")

    monkeypatch.setattr("codl.validate.references.reference_session", refuses)
    with pytest.warns(
        CodlWarning, match=r"references of ops, as codl .*\. ONNX .* as it is: no kernel"
    ):
        checked("small.onnx", first_soc).close()


def test_what_is_lost_between_ops_is_an_error(
    folder: Path, first_soc: LocalSoc, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every op is right by itself: a row is lost wherever two ops or more run."""
    usual = Session.run

    def damaged(self: Session) -> None:
        usual(self)
        parts = (*self.executable.steps, *self.executable.nets)
        if sum(len(own.layers) for own in parts if isinstance(own, GpuOp | NcnnNet)) > 1:
            for value in self.outputs.values():
                value[..., -1, :] *= 0.97

    monkeypatch.setattr(Session, "run", damaged)
    with pytest.raises(WrongResultError, match="outputs are not what ONNX Runtime"):
        checked("small.onnx", first_soc)
