"""Models in ONNX Runtime over arrays that stay in place, on the CPU side's threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import onnxruntime as ort

from codl.errors import CodlError, DeviceError
from codl.ir.constants import Arrays
from codl.ir.executable import OnnxBinding, OnnxNet
from codl.ir.onnx_wire import external_tensors
from codl.ir.ops.base import Array
from codl.ir.soc import Soc
from codl.runtime.memory import aligned_zeros


class OnnxSession:
    """An ONNX model in ONNX Runtime over arrays that live as long as it does.

    Inputs and outputs are bound to the arrays where their views lie densely, and to arrays beside
    them otherwise, which every run copies from or to.
    """

    def __init__(
        self,
        net: OnnxNet,
        views: Sequence[Array],
        results: Sequence[Array],
        packed: Callable[[int], Arrays],
        soc: Soc,
    ) -> None:
        self.label = net.label
        model = packed(net.model.constants)[net.model.name]
        kinds = [layer.name for layer in net.layers]
        self._session = make_session(model.tobytes(), soc, kinds)
        self._binding = self._session.io_binding()
        # The session counts no references to NumPy's memory.
        self._views = (*views, *results)
        self._copies_in: list[tuple[Array, Array]] = []
        self._copies_out: list[tuple[Array, Array]] = []
        for binding, view in zip(net.inputs, views, strict=True):
            _bind(self._binding.bind_input, binding, _dense(view, self._copies_in))
        for binding, view in zip(net.outputs, results, strict=True):
            _bind(self._binding.bind_output, binding, _dense(view, self._copies_out))

    def run(self) -> None:
        for view, dense in self._copies_in:
            np.copyto(dense, view)
        try:
            self._session.run_with_iobinding(self._binding)
        except Exception as error:  # ONNX Runtime's exceptions share no base class
            raise DeviceError(f"ONNX Runtime failed: {error}") from error
        for view, dense in self._copies_out:
            np.copyto(view, dense)


def _dense(view: Array, copies: list[tuple[Array, Array]]) -> Array:
    """The view itself, or an array beside it that is to be copied."""
    if view.flags.c_contiguous:
        return view
    dense = aligned_zeros(view.shape)
    copies.append((view, dense))
    return dense


def _bind(bind: Any, binding: OnnxBinding, array: Array) -> None:
    bind(binding.name, "cpu", 0, np.float32, list(binding.sizes), array.ctypes.data)


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
