"""ONNX Runtime on all cores: its own graph optimisations, one thread a core."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import onnxruntime as ort

from codl.measure.peers.base import Job, Tensors


class OnnxRuntime:
    name: ClassVar[str] = "ort"
    packages: ClassVar[tuple[str, ...]] = ("onnxruntime",)

    def __init__(self, job: Job) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = job.threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        # Threads may spin between the ops of a run, not after it.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        self._session = ort.InferenceSession(str(job.model), options, ["CPUExecutionProvider"])
        self._binding = self._session.io_binding()

    @property
    def version(self) -> str:
        return str(ort.__version__)

    def feed(self, inputs: Tensors) -> None:
        """Outputs are bound to memory that stays, once a run has shown their shapes."""
        for name, value in inputs.items():
            dense = np.ascontiguousarray(value)
            self._binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(dense))
        names = [output.name for output in self._session.get_outputs()]
        for name, found in zip(names, self._session.run(names, dict(inputs)), strict=True):
            self._binding.bind_ortvalue_output(name, ort.OrtValue.ortvalue_from_numpy(found))

    def run(self) -> None:
        self._session.run_with_iobinding(self._binding)

    def outputs(self) -> Tensors:
        names = [output.name for output in self._session.get_outputs()]
        return dict(zip(names, self._binding.copy_outputs_to_cpu(), strict=True))

    def close(self) -> None:
        del self._binding, self._session
