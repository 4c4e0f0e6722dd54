"""ONNX Runtime on the CPU side's threads."""

from __future__ import annotations

from collections.abc import Iterable

import onnxruntime as ort

from codl.errors import CodlError, DeviceError
from codl.ir.onnx_wire import external_tensors
from codl.ir.soc import Soc


def make_session(model: bytes, soc: Soc, layers: Iterable[str]) -> ort.InferenceSession:
    """A session whose threads do not spin while they have nothing to do.

    Raises `DeviceError` with the layers of the model where it does not load, and `CodlError` where
    it would read files.
    """
    names = ", ".join(layers)
    _check_is_whole(model, names)
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = soc.cpu.threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.load_model_format", "ONNX")
    try:
        return ort.InferenceSession(model, options, ["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime's exceptions share no base class
        raise DeviceError(f"ONNX Runtime cannot load the model of {names}: {error}") from error


def _check_is_whole(model: bytes, layers: str) -> None:
    try:
        external = external_tensors(model)
    except ValueError as error:
        raise CodlError(f"The model of {layers} is no ONNX model: {error}.") from error
    if external:
        listed = ", ".join(map(repr, external))
        raise CodlError(
            f"The ONNX model of {layers} has tensors in files: {listed}. One in an executable must "
            "have the elements of all its tensors inside."
        )
