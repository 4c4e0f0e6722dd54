"""Deployment files: what they load, how it is run, and what is said of those that are wrong."""

from __future__ import annotations

import re
from hashlib import sha256
from pathlib import Path

import numpy as np
import onnx
import pytest
from support.references import converted
from support.simulated import SOC

from codl.errors import CodlError, InvalidFileError, UnknownNameError, UnsupportedError
from codl.frontend import models
from codl.frontend.models.builder import ModelBuilder
from codl.ir import Network
from codl.ir.records.gpu_limits import GpuLimits
from codl.jobs.model import ModelJob, adapted, read_inputs
from codl.jobs.run import Run
from codl.machine.placement import LocalSoc, Placement
from codl.plan.strategies import DEFAULT, Context


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """`small.onnx`, and `open.onnx`, which is the same with sizes left open."""
    b = ModelBuilder("small")
    x = b.relu(b.conv(b.input("image", (1, 3, 16, 16)), 8, 3, pad=1))
    b.output(b.fully_connected(b.flatten(b.max_pool(x, 2, 2)), 10))
    proto = b.build()
    onnx.save(proto, tmp_path / "small.onnx")
    for axis in (0, 2, 3):
        proto.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = f"size{axis}"
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    onnx.save(proto, tmp_path / "open.onnx")
    return tmp_path


MODEL = "models:\n  small:\n    platform: onnx\n    model_file_path: small.onnx\n"
TENSORS = (
    "    subgraphs:\n    - {{input_tensors: [{0}], input_shapes: ['{1}'], "
    "output_tensors: [{2}], output_shapes: ['{3}']}}\n"
)
WHOLE = TENSORS.format("image", "1,3,16,16", "fc1", "1,10")


def write(folder: Path, text: str) -> str:
    path = folder / "deploy.yaml"
    path.write_text(text)
    return str(path)


def network(model: str) -> Network:
    source = models.load(model)
    return converted(source.proto, source.name)


def test_a_model_runs_between_its_tensors_with_their_shapes(folder: Path) -> None:
    for file in ("small", "open"):
        loaded = network(write(folder, MODEL.replace("small.onnx", f"{file}.onnx") + WHOLE))
        assert loaded.name == "small"
        assert {k: tuple(v) for k, v in loaded.inputs.items()} == {"image": (1, 3, 16, 16)}
        assert [layer.op.kind for layer in loaded.layers] == ["conv2d", "pooling", "fc"]
    front = network(write(folder, MODEL + TENSORS.format("image", "1,3,16,16", "pool1", "1,8,8,8")))
    assert [layer.op.kind for layer in front.layers] == ["conv2d", "pooling"]
    back = network(write(folder, MODEL + TENSORS.format("pool1", "1,8,8,8", "fc1", "1,10")))
    assert [layer.op.kind for layer in back.layers] == ["fc"]


def test_sizes_that_a_model_leaves_open_are_those_of_the_file(folder: Path) -> None:
    text = MODEL.replace("small.onnx", "open.onnx") + TENSORS
    larger = network(write(folder, text.format("image", "1,3,24,20", "pool1", "1,8,12,10")))
    assert {k: tuple(v) for k, v in larger.inputs.items()} == {"image": (1, 3, 24, 20)}


def test_several_models_of_a_file_are_told_apart_by_name(folder: Path) -> None:
    second = MODEL.removeprefix("models:\n").replace("  small:", "  other:")
    path = write(folder, MODEL + second)
    assert models.choices(path) == (f"{path}#small", f"{path}#other")
    assert models.load(f"{path}#other").name == "other"
    with pytest.raises(InvalidFileError, match="has the models small, other: name one"):
        models.load(path)
    with pytest.raises(UnknownNameError, match="Did you mean 'other'"):
        models.load(f"{path}#othr")
    assert models.choices("vgg16") == ("vgg16",)


def test_checksums_are_verified(folder: Path) -> None:
    right = sha256((folder / "small.onnx").read_bytes()).hexdigest()
    line = "    model_sha256_checksum: '{}'\n"
    assert models.load(write(folder, MODEL + line.format(right.upper()))).name == "small"
    with pytest.raises(InvalidFileError, match=f"its SHA-256 is {right}, the deployment"):
        models.load(write(folder, MODEL + line.format("0" * 64)))
    with pytest.raises(InvalidFileError, match=r"model_sha256_checksum: .*regex.* got 'abc'"):
        models.load(write(folder, MODEL + line.format("abc")))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (MODEL + "    runtme: cpu\n", "models.small, top: .*Did you mean 'runtime'"),
        (MODEL + "    runtime: dsp\n", "runtime: must be one of cpu, gpu, cpu_gpu"),
        (MODEL.replace("small.onnx", "gone.onnx"), "model_file_path: there is no file"),
        (MODEL.replace("small.onnx", "https://x.y/z.onnx"), "codl downloads nothing"),
        (MODEL.replace("onnx\n", "tensorflow\n", 1), "convert the model with tf2onnx"),
        (MODEL + WHOLE.replace("1,10", "1,11"), "'fc1' has the shape 1x10 in the model, got 1x11"),
        (MODEL + WHOLE.replace("3,16,16", "16,16,3"), "the shape 1x3x16x16: .*got 1x16x16x3"),
        (MODEL + WHOLE.replace("1,10", "1,70000,70000"), "expected sizes .*got '1,70000,70000'"),
        (MODEL + TENSORS.format("pool1", "1,8,8,8", "relu1", "1,8,16,16"),
         "relu1 cannot be computed without image"),
        (MODEL + WHOLE + "    input_files: {imge: a.npy}\n", "Did you mean 'image'"),
        ("models: 3\n", "models: expected object, got 3"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_key(text: str, message: str, folder: Path) -> None:
    with pytest.raises(InvalidFileError, match=message):
        models.load(write(folder, text))


def test_a_runtime_is_a_strategy(folder: Path) -> None:
    runtimes = {"cpu": "cpu", "gpu": "gpu", "cpu_gpu": DEFAULT, "cpu+gpu": DEFAULT}
    for runtime, strategy in runtimes.items():
        path = write(folder, f"{MODEL}    runtime: {runtime}\n")
        assert ModelJob(path).strategy_name == strategy
    assert ModelJob(path, strategy="mulayer").strategy_name == "mulayer"
    assert ModelJob("vgg16").strategy_name == DEFAULT
    assert models.deployment_of("vgg16") is None


def test_storage_must_be_what_the_soc_was_measured_with(folder: Path) -> None:
    context = Context(SOC)
    same = models.deployment_of(
        write(folder, MODEL + "    data_type: fp32_fp32\n    winograd: 0\n")
    )
    assert adapted(context, same).winograd is False
    assert adapted(context, None) is context
    other = models.deployment_of(write(folder, MODEL + "    data_type: fp16_fp32\n"))
    with pytest.raises(UnsupportedError, match="as float16, those of the SoC 'simulated' are"):
        adapted(context, other)
    alone = MODEL + "    data_type: fp16_fp32\n    runtime: cpu\n"
    assert adapted(context, models.deployment_of(write(folder, alone))).soc is SOC


def test_a_deployment_limits_the_gpu(folder: Path) -> None:
    def limits(more: str) -> GpuLimits | None:
        deployed = models.deployment_of(write(folder, MODEL + more))
        return None if deployed is None else deployed.limits

    assert limits("") == GpuLimits()
    assert limits("    limit_opencl_kernel_time: 1\n") == GpuLimits(max_kernel_ms=1.0)
    assert limits("    limit_opencl_kernel_time: 1\n    max_kernel_ms: 2\n") == GpuLimits(2.0)
    assert limits("    gpu_duty: 0.7\n") == GpuLimits(gpu_duty=0.7)
    for wrong in ("gpu_duty: 1.5", "gpu_duty: .nan", "max_kernel_ms: 0", "max_kernel_ms: -1"):
        with pytest.raises(InvalidFileError, match=r"must be .*(above 0|at least 0.01).* got"):
            limits(f"    {wrong}\n")


def test_inputs_come_from_the_files_that_a_deployment_names(folder: Path) -> None:
    x = np.random.default_rng(0).random((1, 3, 16, 16), np.float32)
    np.savez(folder / "all.npz", image=x)
    np.save(folder / "one.npy", x)
    x.tofile(folder / "one.bin")
    x[:, :, 1:].tofile(folder / "short.bin")
    for files in ("all.npz", "[one.npy]", "{image: one.bin}"):
        path = write(folder, f"{MODEL}{WHOLE}    input_files: {files}\n")
        found = read_inputs(network(path), None, models.deployment_of(path), lambda network: {})
        np.testing.assert_array_equal(found["image"], x)
    path = write(folder, f"{MODEL}{WHOLE}    input_files: [short.bin]\n")
    with pytest.raises(InvalidFileError, match="'image' is 1x3x16x16, 768 numbers, got 720"):
        read_inputs(network(path), None, models.deployment_of(path), lambda network: {})


def test_options_change_the_soc_for_a_run() -> None:
    here = LocalSoc.of(SOC, Placement("none", (0, 1)))
    changed = Run(model="x", threads=1, gpu_performance="high", gpu_priority="low").placed(here)
    assert changed.facts == SOC
    assert changed.placement == Placement(
        "none", (0, 1), cpu_threads=1, performance="high", priority="low"
    )
    assert Run(model="x").placed(here) == here
    with pytest.raises(UnknownNameError, match="GPU priority hint 'urgent'"):
        Run(model="x", gpu_priority="urgent").placed(here)
    for threads in (99, 0, -1):
        with pytest.raises(CodlError, match="threads need as many cores"):
            Run(model="x", threads=threads).placed(here)


def test_the_documented_examples_load(folder: Path) -> None:
    """Those of docs/reference/models.md, with the checksum of a file that is there."""
    page = (Path(__file__).parents[2] / "docs" / "reference" / "models.md").read_text()
    (deployed,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    b = ModelBuilder("detector")
    x = b.global_average_pool(b.conv(b.input("image", (1, 3, 64, 64)), 10, 3, pad=1))
    b.output(b.node("Flatten", [x], name="scores"))
    onnx.save(b.build(), folder / "detector.onnx")
    right = sha256((folder / "detector.onnx").read_bytes()).hexdigest()
    path = write(folder, re.sub(r"(?<=checksum: )\w+", right, deployed))
    assert [name.split("#")[1] for name in models.choices(path)] == ["detector", "detector_on_cpu"]
    for name in models.choices(path):
        assert network(name).layers
    assert ModelJob(f"{path}#detector_on_cpu").strategy_name == "cpu"


def test_built_in_models_are_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "models.md").read_text()
    for name in models.BUILT_IN:
        builder = models.described(name, weights=False)
        numbers = f"| {builder.parameters / 1e6:.2f} | {builder.gflops:.2f} |"
        assert re.search(rf"\| `{name}` \|.*{re.escape(numbers)}", page), name
