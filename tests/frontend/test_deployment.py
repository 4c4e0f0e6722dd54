"""Deployment files: what they load, how it is run, and what is said of those that are wrong."""

from __future__ import annotations

import re
from hashlib import sha256
from pathlib import Path

import numpy as np
import onnx
import pytest
from support.simulated import SOC
from support.some import some

from codl.errors import CodlError, InvalidFileError, UnknownNameError, UnsupportedError
from codl.frontend import models
from codl.frontend.convert import convert, simplify
from codl.frontend.graph.onnx_import import import_onnx
from codl.frontend.models.builder import ModelBuilder
from codl.frontend.models.custom import ACTIVATIONS, LAYERS
from codl.frontend.models.deployment import Preprocessing
from codl.frontend.models.summary import summary
from codl.ir import Network
from codl.jobs.job import Reporter
from codl.jobs.model import ModelJob, RunOptions, adapted, deployment_of, read_inputs
from codl.records.gpu_limits import GpuLimits
from codl.runtime.placement import LocalSoc, Placement
from codl.strategies import DEFAULT, Context


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


PREPARED = MODEL + "    preprocessing: {{{}}}\n"


def write(folder: Path, text: str) -> str:
    path = folder / "deploy.yaml"
    path.write_text(text)
    return str(path)


def network(model: str) -> Network:
    source = models.load(model)
    return convert(simplify(import_onnx(source.proto, source.name)))


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
    with pytest.raises(InvalidFileError, match=r"line 5, .*checksum: expected a SHA-256 of 64"):
        models.load(write(folder, MODEL + line.format("abc")))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (MODEL + "    runtme: cpu\n", "line 5, models.small.runtme: .*Did you mean 'runtime'"),
        (MODEL + "    runtime: dsp\n", "runtime: expected one of cpu, gpu, cpu_gpu"),
        (MODEL + "    winograd: 3\n", "winograd: expected one of 0, 1, 2, 4"),
        (MODEL + "    data_type: int8\n", "data_type: expected one of fp16_fp32, fp32_fp32"),
        (MODEL.replace("small.onnx", "gone.onnx"), "model_file_path: there is no file"),
        (MODEL.replace("small.onnx", "https://x.y/z.onnx"), "codl downloads nothing"),
        (MODEL.replace("onnx\n", "torch\n", 1), "expected one of onnx, tensorflow, caffe"),
        (MODEL + WHOLE.replace("fc1", "fc2"), r"subgraphs\[0\].output_tensors: Unknown tensor"),
        (MODEL + WHOLE.replace("1,10", "1,11"), "output_shapes: 'fc1' is 1,10 in the model"),
        (MODEL + WHOLE.replace("3,16,16", "16,16,3"), "got 1,16,16,3. Shapes .* are nchw"),
        (MODEL + WHOLE.replace("['1,10']", "['1,10', '1']"), "a shape for each of the 1 output"),
        (MODEL + TENSORS.format("pool1", "1,8,8,8", "relu1", "1,8,16,16"),
         "relu1 cannot be computed without image"),
        (MODEL + WHOLE + "    - {input_tensors: [a]}\n", "one subgraph, got 2"),
        (MODEL + WHOLE + "    input_files: [a.npy, b.npy]\n", "each of the 1 input_tensors, got 2"),
        (MODEL + WHOLE + "    input_files: {imge: a.npy}\n", "Did you mean 'image'"),
        (PREPARED.format("resise: 8"), "preprocessing.resise: .*Did you mean 'resize'"),
        (PREPARED.format("resize: 0"), "resize: expected a whole number of 1 or more, got 0"),
        (PREPARED.format("filter: cubic"), "expected one of nearest, bilinear, bicubic"),
        (PREPARED.format("color: hsv"), "expected one of rgb, bgr, gray"),
        (PREPARED.format("mean: [1, 2]"), "mean: expected one number, or three in the order"),
        (PREPARED.format("scale: .inf"), "scale: expected a finite number, got inf"),
        (PREPARED.format("std: [1, 0, 1]"), "std: nothing is divided by 0"),
        (MODEL + "    preprocessing: rgb\n", "expected keys with values, got 'rgb'"),
        ("models: {}\n", "expected at least one model"),
        ("models: 3\n", "line 1, models: expected keys with values, got 3"),
        (MODEL + "model: 3\n", "line 5, model: Unknown key 'model'. Did you mean 'models'"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_line_and_key(
    text: str, message: str, folder: Path
) -> None:
    with pytest.raises(InvalidFileError, match=message):
        models.load(write(folder, text))


def test_images_are_prepared_as_the_file_says(folder: Path) -> None:
    text = (
        "resize: 256, filter: bicubic, color: bgr, layout: nhwc, scale: 1, mean: [1, 2, 3], std: 2"
    )
    found = deployment_of(write(folder, PREPARED.format(text)))
    assert found is not None
    assert found.preprocessing == Preprocessing(
        256, "bicubic", "bgr", "nhwc", scale=1.0, mean=(1.0, 2.0, 3.0), std=(2.0,)
    )
    usual = deployment_of(write(folder, MODEL))
    assert usual is not None
    assert usual.preprocessing is None


def test_other_platforms_say_how_to_get_to_onnx(folder: Path) -> None:
    tensorflow = MODEL.replace("platform: onnx", "platform: tensorflow") + WHOLE
    with pytest.raises(UnsupportedError, match=r"tf2onnx.convert --graphdef .*--inputs image:0"):
        models.load(write(folder, tensorflow))
    caffe = MODEL.replace("platform: onnx", "platform: caffe")
    with pytest.raises(UnsupportedError, match=r"caffe2onnx.convert --prototxt .*small.onnx"):
        models.load(write(folder, caffe + "    weight_file_path: small.caffemodel\n"))


@pytest.mark.parametrize(
    ("runtime", "strategy"),
    [("cpu", "cpu"), ("gpu", "gpu"), ("cpu_gpu", DEFAULT), ("cpu+gpu", DEFAULT)],
)
def test_a_runtime_is_a_strategy(runtime: str, strategy: str, folder: Path) -> None:
    path = write(folder, f"{MODEL}    runtime: {runtime}\n")
    assert ModelJob(path).strategy_name == strategy
    assert ModelJob(path, strategy="mulayer").strategy_name == "mulayer"
    assert ModelJob("vgg16").strategy_name == DEFAULT
    assert deployment_of("vgg16") is None


def test_storage_must_be_what_the_soc_was_measured_with(folder: Path) -> None:
    context = Context(SOC)
    same = deployment_of(write(folder, MODEL + "    data_type: fp32_fp32\n    winograd: 0\n"))
    assert adapted(context, same).winograd is False
    assert adapted(context, None) is context
    other = deployment_of(write(folder, MODEL + "    data_type: fp16_fp32\n"))
    with pytest.raises(UnsupportedError, match="as float16, those of the SoC 'simulated' are"):
        adapted(context, other)
    alone = MODEL + "    data_type: fp16_fp32\n    runtime: cpu\n"
    assert adapted(context, deployment_of(write(folder, alone))).soc is SOC


class Notes(Reporter):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def note(self, text: str) -> None:
        self.texts.append(text)


def test_what_has_no_effect_is_said(folder: Path) -> None:
    notes = Notes()
    deployment_of(write(folder, f"library_name: x\n{MODEL}    obfuscate: 1\n"), notes)
    assert notes.texts == ["Without effect here: library_name, obfuscate."]


def test_a_deployment_limits_the_gpu(folder: Path) -> None:
    def limits(more: str) -> GpuLimits | None:
        deployed = deployment_of(write(folder, MODEL + more))
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
        found = read_inputs(network(path), None, deployment_of(path), lambda network: {})
        np.testing.assert_array_equal(found["image"], x)
    path = write(folder, f"{MODEL}{WHOLE}    input_files: [short.bin]\n")
    with pytest.raises(InvalidFileError, match="'image' is 1x3x16x16, 768 numbers, got 720"):
        read_inputs(network(path), None, deployment_of(path), lambda network: {})


def test_options_change_the_soc_for_a_run() -> None:
    here = LocalSoc.of(SOC, Placement("none", (0, 1)))
    changed = RunOptions(threads=1, gpu_performance="high", gpu_priority="low").applied(here)
    assert changed.facts == SOC
    assert changed.placement == Placement(
        "none", (0, 1), cpu_threads=1, performance="high", priority="low"
    )
    assert RunOptions().applied(here) == here
    with pytest.raises(UnknownNameError, match="GPU priority hint 'urgent'"):
        RunOptions(gpu_priority="urgent").applied(here)
    for threads in (99, 0, -1):
        with pytest.raises(CodlError, match="threads need as many cores"):
            RunOptions(threads=threads).applied(here)


def test_the_documented_examples_load(folder: Path) -> None:
    """Those of docs/reference/models.md, with the checksum of a file that is there."""
    page = (Path(__file__).parents[2] / "docs" / "reference" / "models.md").read_text()
    own, deployed, prepared = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    small = network(write(folder, own))
    assert (small.name, list(small.outputs)) == ("small", ["fc1"])
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
    (folder / "classifier.onnx").write_bytes((folder / "small.onnx").read_bytes())
    classifier = deployment_of(write(folder, prepared))
    assert classifier is not None
    assert classifier.preprocessing is not None


def test_documented_keys_are_those_that_there_are() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "models.md").read_text()
    for name in some((*models.BUILT_IN, *LAYERS, *ACTIVATIONS)):
        assert f"`{name}`" in page or name == "none", name
    for builder in (models.described(name, weights=False) for name in models.BUILT_IN):
        listed = summary(builder)
        numbers = f"| {listed.parameters / 1e6:.2f} | {listed.gflops:.2f} |"
        assert re.search(rf"\| `{listed.name}` \|.*{re.escape(numbers)}", page), listed.name
