"""OpenVINO on all cores: one stream, made for latency, in float32."""

from __future__ import annotations

from importlib import metadata
from typing import ClassVar

import numpy as np

from codl.measure.peers.base import Job, Tensors


class OpenVino:
    name: ClassVar[str] = "openvino"
    packages: ClassVar[tuple[str, ...]] = ("openvino",)

    def __init__(self, job: Job) -> None:
        import openvino

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
