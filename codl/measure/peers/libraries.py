"""ONNX Runtime, OpenVINO and MNN on all cores; a process imports only the one that it runs."""

from __future__ import annotations

from importlib import metadata
from typing import Any, ClassVar

import numpy as np

from codl.errors import DeviceError
from codl.measure.peers import PeerJob, Tensors


class OnnxRuntime:
    """ONNX Runtime: its own graph optimisations, one thread a core."""

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
        """Outputs are bound to memory that stays, once a run has shown their shapes."""
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

    def close(self) -> None:
        del self._binding, self._session


class OpenVino:
    """OpenVINO: one stream, made for latency, in float32."""

    name: ClassVar[str] = "openvino"
    packages: ClassVar[tuple[str, ...]] = ("openvino",)

    def __init__(self, job: PeerJob) -> None:
        from codl.runtime.openvino_import import openvino

        self.version = metadata.version("openvino")
        core = openvino.Core()
        options = {
            "INFERENCE_NUM_THREADS": job.threads,
            "NUM_STREAMS": 1,
            "PERFORMANCE_HINT": "LATENCY",
            # Where a CPU has bfloat16 it would be taken.
            "INFERENCE_PRECISION_HINT": "f32",
        }
        self._request = core.compile_model(
            core.read_model(job.model), "CPU", options
        ).create_infer_request()

    def feed(self, inputs: Tensors) -> None:
        for name, value in inputs.items():
            np.copyto(self._request.get_tensor(name).data, value)

    def run(self) -> None:
        self._request.infer()

    def outputs(self) -> Tensors:
        return {
            output.any_name: self._request.get_tensor(output).data.copy()
            for output in self._request.model_outputs
        }

    def close(self) -> None:
        del self._request


class Mnn:
    """MNN in float32; converted by the wheel's own converter."""

    name: ClassVar[str] = "mnn"
    packages: ClassVar[tuple[str, ...]] = ("MNN",)

    def __init__(self, job: PeerJob) -> None:
        # The wheel's `mnnconvert` would install a package to report its use with; its core not.
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
        """Inputs are copied every time: a session reuses their memory for what comes later."""
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
        """A tensor in host memory, in planar order."""
        layout = self._mnn.Tensor_DimensionType_Caffe
        return self._mnn.Tensor(tensor.getShape(), tensor.getDataType(), values, layout)

    def close(self) -> None:
        del self._fed, self._session, self._net
