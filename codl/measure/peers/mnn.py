"""MNN on all cores, in float32; converted by the wheel's own converter."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from codl.errors import DeviceError
from codl.measure.peers.base import Job, Tensors


class Mnn:
    name: ClassVar[str] = "mnn"
    packages: ClassVar[tuple[str, ...]] = ("MNN",)

    def __init__(self, job: Job) -> None:
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
        found = {}
        for name, tensor in self._net.getSessionOutputAll(self._session).items():
            planar = self._planar(tensor, np.zeros(tensor.getShape(), np.float32))
            tensor.copyToHostTensor(planar)
            found[name] = np.array(planar.getNumpyData(), np.float32)
        return found

    def _planar(self, tensor: Any, values: Any) -> Any:
        """A tensor in host memory, in planar order."""
        layout = self._mnn.Tensor_DimensionType_Caffe
        return self._mnn.Tensor(tensor.getShape(), tensor.getDataType(), values, layout)

    def close(self) -> None:
        del self._fed, self._session, self._net
