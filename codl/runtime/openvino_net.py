"""Nets of the CPU in OpenVINO, over arrays that stay in place, on the CPU side's threads.

Their models are those that ONNX Runtime would be given. OpenVINO is an option: nothing else needs
it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import onnx

from codl.errors import DeviceError
from codl.ir.constants import Arrays
from codl.ir.executable import OpenVinoNet
from codl.ir.ops.base import Array
from codl.runtime import threads
from codl.runtime.openvino_import import openvino
from codl.runtime.ort_net import dense
from codl.runtime.placement import LocalSoc


class OpenVinoSession:
    """A net in OpenVINO over arrays that live as long as it does."""

    def __init__(
        self,
        net: OpenVinoNet,
        views: Sequence[Array],
        results: Sequence[Array],
        packed: Callable[[int], Arrays],
        soc: LocalSoc,
    ) -> None:
        self.label = net.label
        weights = dict(packed(net.model.constants))
        model = weights.pop(net.model.name).tobytes()
        names = ", ".join(layer.name for layer in net.layers)
        self._request = compiled(model, weights, soc, names).create_infer_request()
        self._views = (*views, *results)
        self._copies_in: list[tuple[Array, Array]] = []
        self._copies_out: list[tuple[Array, Array]] = []
        for bindings, ends, copies in (
            (net.inputs, views, self._copies_in),
            (net.outputs, results, self._copies_out),
        ):
            for binding, view in zip(bindings, ends, strict=True):
                array = dense(view, copies).reshape(binding.sizes)
                tensor = openvino.Tensor(array, shared_memory=True)
                try:
                    self._request.set_tensor(binding.name, tensor)
                except Exception as error:  # OpenVINO's exceptions are RuntimeErrors of no kind
                    raise DeviceError(
                        f"OpenVINO shapes {binding.name!r} of {names} otherwise: {error}"
                    ) from error

    def run(self) -> None:
        for view, array in self._copies_in:
            np.copyto(array, view)
        try:
            self._request.infer(share_outputs=True)
        except Exception as error:  # as above
            raise DeviceError(f"OpenVINO failed: {error}") from error
        for view, array in self._copies_out:
            np.copyto(view, array)

    def run_layers(self) -> Mapping[str, float]:
        """OpenVINO fuses layers, and shows none."""
        return {}


def compiled(
    model: bytes, weights: Arrays, soc: LocalSoc, names: str, more: Mapping[str, Any] | None = None
) -> Any:
    """A model with weights that lie beside it, compiled for the CPU side's threads, in float32.

    Raises `DeviceError` with the layers by their `names` where OpenVINO does not take the model.
    """
    options = {
        "INFERENCE_NUM_THREADS": soc.placement.threads,
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
        # Where a CPU has bfloat16 it would be taken.
        "INFERENCE_PRECISION_HINT": "f32",
        # Its threads have the cores of the thread that makes them, whichever these are.
        "ENABLE_CPU_PINNING": False,
        "ENABLE_HYPER_THREADING": True,
        **(more or {}),
    }
    core = _core()
    try:
        return core.compile_model(core.read_model(_whole(model, weights)), "CPU", options)
    except Exception as error:
        raise DeviceError(f"OpenVINO cannot load the model of {names}: {error}") from error


@cache
def _core() -> openvino.Core:
    """What compiles; it takes longer to make than most nets.

    Its plugin counts the cores that it may use when it is loaded, and has no more threads later.
    """
    core = openvino.Core()
    with threads.pinned(threads.INITIAL_CORES):
        core.get_property("CPU", "FULL_DEVICE_NAME")
    return core


def _whole(model: bytes, weights: Arrays) -> bytes:
    """The model with its weights inside."""
    proto = onnx.load_model_from_string(model)
    for tensor in proto.graph.initializer:
        if tensor.name in weights:
            del tensor.external_data[:]
            tensor.data_location = onnx.TensorProto.DEFAULT
            tensor.raw_data = np.ascontiguousarray(weights[tensor.name]).tobytes()
    content: bytes = proto.SerializeToString()
    return content
