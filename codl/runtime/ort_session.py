"""ONNX Runtime on the CPU side's threads."""

from __future__ import annotations

from collections.abc import Iterable

import onnxruntime as ort

from codl.errors import DeviceError
from codl.ir.soc import Soc


def make_session(model: bytes, soc: Soc, layers: Iterable[str]) -> ort.InferenceSession:
    """A session whose threads do not spin while they have nothing to do.

    Raises `DeviceError` with the layers of the model where it does not load.
    """
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = soc.cpu.threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return ort.InferenceSession(model, options, ["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime's exceptions share no base class
        names = ", ".join(layers)
        raise DeviceError(f"ONNX Runtime cannot load the model of {names}: {error}") from error
