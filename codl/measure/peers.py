"""Peers: other inference libraries on all cores of both processors, for comparison.

Peers are not strategies: nothing is split. Each runs in a process of its own, and imports its
library when it is constructed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from codl.errors import DeviceError, UnsupportedError
from codl.ir import Layer
from codl.ir.plan import Chain, Plan
from codl.machine.placement import LocalSoc
from codl.registry import Registry

Tensors: TypeAlias = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class PeerJob:
    """A model for a peer: an ONNX file with fixed sizes, and the cores to use.

    `folder` is for converted models; it is deleted with the peer. `plan` is for `opencl-all` alone.
    """

    model: Path
    cores: tuple[int, ...]
    folder: Path
    soc: LocalSoc
    plan: Plan | None = None

    @property
    def threads(self) -> int:
        return len(self.cores)


class Peer(Protocol):
    """A model in another library, in a process of its own limited to `PeerJob.cores`.

    `packages` are the required Python packages; the constructor imports them, converts the model
    and compiles it. All peers compute in float32, without bfloat16 or float16.
    """

    name: ClassVar[str]
    packages: ClassVar[tuple[str, ...]]

    def __init__(self, job: PeerJob) -> None: ...

    @property
    def version(self) -> str: ...

    def feed(self, inputs: Tensors) -> None:
        """Copy inputs by name to the memory that `run` reads."""
        ...

    def run(self) -> None:
        """Run once on the fed inputs, to the end."""
        ...

    def outputs(self) -> Tensors:
        """The outputs of the last run by the model's names; shapes may omit the batch dimension."""
        ...


class OnnxRuntime:
    """ONNX Runtime with its graph optimisations and one thread a core."""

    name: ClassVar[str] = "ort"
    packages: ClassVar[tuple[str, ...]] = ("onnxruntime",)

    def __init__(self, job: PeerJob) -> None:
        import onnxruntime as ort

        self._ort, self.version = ort, str(ort.__version__)
        options = ort.SessionOptions()
        options.intra_op_num_threads = job.threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        # Threads may spin between the ops of a run, not after it.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        self._session = ort.InferenceSession(str(job.model), options, ["CPUExecutionProvider"])
        self._binding = self._session.io_binding()

    def feed(self, inputs: Tensors) -> None:
        """Bind inputs, and outputs to fixed memory; one run determines the outputs' shapes."""
        from_numpy = self._ort.OrtValue.ortvalue_from_numpy
        for name, value in inputs.items():
            dense = np.ascontiguousarray(value)
            self._binding.bind_ortvalue_input(name, from_numpy(dense))
        names = [output.name for output in self._session.get_outputs()]
        for name, output in zip(names, self._session.run(names, dict(inputs)), strict=True):
            self._binding.bind_ortvalue_output(name, from_numpy(output))

    def run(self) -> None:
        self._session.run_with_iobinding(self._binding)

    def outputs(self) -> Tensors:
        names = [output.name for output in self._session.get_outputs()]
        return dict(zip(names, self._binding.copy_outputs_to_cpu(), strict=True))


class OpenVino:
    """OpenVINO in float32 with one stream, optimised for latency."""

    name: ClassVar[str] = "openvino"
    packages: ClassVar[tuple[str, ...]] = ("openvino",)

    def __init__(self, job: PeerJob) -> None:
        self.version = metadata.version("openvino")
        model = _openvino_model(job, NUM_STREAMS=1, PERFORMANCE_HINT="LATENCY")
        self._request = model.create_infer_request()

    def feed(self, inputs: Tensors) -> None:
        for name, value in inputs.items():
            np.copyto(self._request.get_tensor(name).data, value)

    def run(self) -> None:
        self._request.infer()

    def outputs(self) -> Tensors:
        return _openvino_outputs(self._request)


def _openvino_outputs(request: Any) -> Tensors:
    outputs = request.model_outputs
    return {output.any_name: request.get_tensor(output).data.copy() for output in outputs}


def _openvino_model(job: PeerJob, **options: Any) -> Any:
    """A model compiled by OpenVINO for the job's threads."""
    from codl.runtime.onnx_nets import openvino_module

    core = openvino_module().Core()
    options = {
        "INFERENCE_NUM_THREADS": job.threads,
        # By default OpenVINO uses bfloat16 on CPUs that support it.
        "INFERENCE_PRECISION_HINT": "f32",
        **options,
    }
    return core.compile_model(core.read_model(job.model), "CPU", options)


class OpenVinoThroughput:
    """OpenVINO in float32, optimised for throughput with its own choice of concurrent frames."""

    name: ClassVar[str] = "openvino-throughput"
    packages: ClassVar[tuple[str, ...]] = ("openvino",)
    frames: ClassVar[int] = 32

    def __init__(self, job: PeerJob) -> None:
        from codl.runtime.onnx_nets import openvino_module

        self.version = metadata.version("openvino")
        model = _openvino_model(job, PERFORMANCE_HINT="THROUGHPUT")
        self._queue = openvino_module().AsyncInferQueue(model)
        self._fed: dict[str, Any] = {}

    def feed(self, inputs: Tensors) -> None:
        self._fed = {name: np.ascontiguousarray(value) for name, value in inputs.items()}

    def run(self) -> None:
        """Run `frames` copies of the input, each on a free request."""
        for _ in range(self.frames):
            self._queue.start_async(self._fed)
        self._queue.wait_all()

    def outputs(self) -> Tensors:
        return _openvino_outputs(self._queue[0])


class Mnn:
    """MNN in float32, with models from the wheel's own converter."""

    name: ClassVar[str] = "mnn"
    packages: ClassVar[tuple[str, ...]] = ("MNN",)

    def __init__(self, job: PeerJob) -> None:
        # The wheel's `mnnconvert` command would install a package for usage reports; `_tools` not.
        import _tools
        import MNN

        self.version = str(MNN.version())
        converted = job.folder / "model.mnn"
        options = {"-f": "ONNX", "--modelFile": job.model, "--MNNModel": converted}
        _tools.mnnconvert(["mnnconvert", *(str(x) for item in options.items() for x in item)])
        if not converted.is_file():
            raise DeviceError("MNN's converter made no model of this ONNX file.")
        self._mnn: Any = MNN
        self._net = MNN.Interpreter(str(converted))
        config = {"backend": "CPU", "numThread": job.threads, "precision": "high"}
        self._session = self._net.createSession(config)

        self._fed: list[tuple[Any, Any]] = []

    def feed(self, inputs: Tensors) -> None:
        tensors = self._net.getSessionInputAll(self._session)
        self._fed = [
            (tensor, self._planar(tensor, np.ascontiguousarray(inputs[name])))
            for name, tensor in tensors.items()
        ]

    def run(self) -> None:
        """Copy inputs and run; a session reuses input memory, so each run needs a copy."""
        for tensor, values in self._fed:
            tensor.copyFrom(values)
        if code := self._net.runSession(self._session):
            raise DeviceError(f"MNN failed with code {code}.")

    def outputs(self) -> Tensors:
        arrays = {}
        for name, tensor in self._net.getSessionOutputAll(self._session).items():
            planar = self._planar(tensor, np.zeros(tensor.getShape(), np.float32))
            tensor.copyToHostTensor(planar)
            arrays[name] = np.array(planar.getNumpyData(), np.float32)
        return arrays

    def _planar(self, tensor: Any, values: Any) -> Any:
        """A host tensor in planar layout with a tensor's shape and type, over `values`."""
        layout = self._mnn.Tensor_DimensionType_Caffe
        return self._mnn.Tensor(tensor.getShape(), tensor.getDataType(), values, layout)


class Ncnn:
    """ncnn with its own choice of algorithms, as one net of codl's translation."""

    name: ClassVar[str] = "ncnn"
    packages: ClassVar[tuple[str, ...]] = ("ncnn",)

    def __init__(self, job: PeerJob) -> None:
        import onnx

        from codl.frontend.convert import convert, simplify
        from codl.frontend.graph.onnx_import import import_onnx
        from codl.kernels.tuning import Tuning
        from codl.lower.lowering import lower
        from codl.runtime.session import host_session

        self.version = metadata.version("ncnn")
        place = replace(job.soc.placement, cpu_cores=job.cores, cpu_threads=0)
        soc = replace(job.soc, placement=place)
        network = convert(simplify(import_onnx(onnx.load(job.model), job.model.stem)))
        variants = {layer.name: {"cpu": _ncnn_variant(layer, soc)} for layer in network.layers}
        plan = Plan(
            model=network.name,
            digest=network.digest,
            soc=soc.name,
            strategy="all-cpu",
            predictor="none",
            sharing="gather",
            predicted_ms=None,
            chains=(Chain(tuple(variants), "H", 0.0, variants),),
        )
        self._session = host_session(lower(network, plan, soc, Tuning()), soc)
        self.run = self._session.run

    def feed(self, inputs: Tensors) -> None:
        for name, array in self._session.inputs.items():
            np.copyto(array, inputs[name].reshape(array.shape))

    def outputs(self) -> Tensors:
        return self._session.outputs


def _ncnn_variant(layer: Layer, soc: LocalSoc) -> str:
    """ncnn's default variant of a layer; raises `UnsupportedError` for a layer without one."""
    from codl.kernels import registry

    for variant in registry.variants(layer.op, "cpu", soc):
        if variant.backend == "ncnn":
            return variant.name
    raise UnsupportedError(f"codl has no layer of ncnn's for {layer.name!r} ({layer.op.kind}).")


PEERS: Registry[type[Peer]] = Registry("peer")
PEERS.add("ort", OnnxRuntime)
PEERS.add("ncnn", Ncnn)
PEERS.add("openvino", OpenVino)
PEERS.add("mnn", Mnn)
PEERS.add_lazy("opencl-all", "codl.jobs.interleaved:OpenClAll")
#: Libraries in throughput modes, for comparison with streams: a `run` processes `frames` frames.
THROUGHPUT_PEERS: Registry[type[OpenVinoThroughput]] = Registry("throughput peer")
THROUGHPUT_PEERS.add("openvino-throughput", OpenVinoThroughput)
