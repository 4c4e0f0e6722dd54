"""ONNX models on fixed arrays in ONNX Runtime and OpenVINO, with the CPU side's threads.

OpenVINO is optional.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from math import prod
from typing import Any, ClassVar

import numpy as np
import onnx
import onnxruntime as ort

from codl.errors import DeviceError
from codl.ir.constants import Arrays
from codl.ir.executable import OnnxNet, OpenVinoNet
from codl.ir.op_text import parse
from codl.ir.ops.base import Array, Op
from codl.ir.ops.matmul import MatMul
from codl.ir.ops.onnx_model import EXACT, OnnxModel
from codl.ir.ops.window import Pool2d
from codl.machine import threads
from codl.machine.placement import LocalSoc
from codl.runtime.memory import dense

#: Fewest elements in a matrix's row for use without rearrangement: whole pages of memory.
LONG_ROW = 4096
LEVELS = ort.GraphOptimizationLevel
#: Types of ONNX nodes that contain graphs, and that make or read quantised tensors.
WITH_GRAPHS = {"If", "Loop", "Scan"}
QUANTISED = {"QuantizeLinear", "DequantizeLinear"}


class _FixedNet:
    """A model on fixed arrays, which it keeps alive.

    Libraries use contiguous views directly. Other views get an array beside them, copied in every
    run.
    """

    library: ClassVar[str]

    def __init__(self, net: OnnxNet, views: Sequence[Array], results: Sequence[Array]) -> None:
        self.label = net.label
        self._views = (*views, *results)
        self._copies_in: list[tuple[Array, Array]] = []
        self._copies_out: list[tuple[Array, Array]] = []
        inputs = [dense(view, self._copies_in) for view in views]
        outputs = [dense(view, self._copies_out) for view in results]
        self._inputs = list(zip(net.inputs, inputs, strict=True))
        self._outputs = list(zip(net.outputs, outputs, strict=True))

    def _infer(self) -> None:
        raise NotImplementedError

    def run(self) -> None:
        for view, array in self._copies_in:
            np.copyto(array, view)
        try:
            self._infer()
        except Exception as error:  # the libraries' exceptions share no base class
            raise DeviceError(f"{self.library} failed: {error}") from error
        for view, array in self._copies_out:
            np.copyto(view, array)

    def run_layers(self) -> Mapping[str, float]:
        """Empty: the libraries fuse layers and report none."""
        return {}


def _model_of(net: OnnxNet, packed: Callable[[int], Arrays]) -> tuple[bytes, dict[str, Array]]:
    """A net's ONNX model, and its weights by name."""
    weights = dict(packed(net.model.constants))
    return weights.pop(net.model.name).tobytes(), weights


class OnnxSession(_FixedNet):
    """A net in ONNX Runtime; weights are read in place unless ONNX Runtime rearranges them."""

    library = "ONNX Runtime"

    def __init__(
        self,
        net: OnnxNet,
        views: Sequence[Array],
        results: Sequence[Array],
        packed: Callable[[int], Arrays],
        soc: LocalSoc,
    ) -> None:
        super().__init__(net, views, results)
        model, weights = _model_of(net, packed)
        in_place = {} if arranges(net) else weights
        self._session = make_session(
            model,
            soc,
            [layer.name for layer in net.layers],
            weights=weights,
            in_place=bool(in_place),
            level=level_of(net),
        )
        # The session counts no references to NumPy's memory.
        self._weights = in_place
        self._binding = self._session.io_binding()
        for bind, ends in (
            (self._binding.bind_input, self._inputs),
            (self._binding.bind_output, self._outputs),
        ):
            for end, array in ends:
                bind(end.name, "cpu", 0, np.float32, list(end.sizes), array.ctypes.data)

    def _infer(self) -> None:
        self._session.run_with_iobinding(self._binding)


class OpenVinoSession(_FixedNet):
    """A net in OpenVINO."""

    library = "OpenVINO"

    def __init__(
        self,
        net: OpenVinoNet,
        views: Sequence[Array],
        results: Sequence[Array],
        packed: Callable[[int], Arrays],
        soc: LocalSoc,
    ) -> None:
        super().__init__(net, views, results)
        model, weights = _model_of(net, packed)
        names = ", ".join(layer.name for layer in net.layers)
        self._request = compiled(model, weights, soc, names).create_infer_request()
        for end, array in (*self._inputs, *self._outputs):
            tensor = openvino_module().Tensor(array.reshape(end.sizes), shared_memory=True)
            try:
                self._request.set_tensor(end.name, tensor)
            except Exception as error:  # OpenVINO's exceptions are plain RuntimeErrors
                raise DeviceError(
                    f"OpenVINO shapes {end.name!r} of {names} otherwise: {error}"
                ) from error

    def _infer(self) -> None:
        self._request.infer(share_outputs=True)


def arranges(net: OnnxNet) -> bool:
    """Whether ONNX Runtime should rearrange a net's weights in its own memory.

    A product with one row reads its matrix once. With long rows, reading it in place is up to 1.6
    times as fast and takes no memory; with short rows, a third slower.
    """

    def reads_long_rows(op: Op) -> bool:
        return isinstance(op, MatMul) and prod(op.shapes[0]) == op.k and op.n >= LONG_ROW

    ops = [parse(layer.op) for layer in net.layers]
    return any(op.weight_shapes and not reads_long_rows(op) for op in ops)


def make_session(
    model: bytes,
    soc: LocalSoc,
    layers: Iterable[str],
    *,
    weights: Arrays | None = None,
    in_place: bool = False,
    level: ort.GraphOptimizationLevel = LEVELS.ORT_ENABLE_EXTENDED,
    profile: str = "",
) -> ort.InferenceSession:
    """A session whose threads do not spin between runs.

    `weights` are initializers with elements outside the model; with `in_place` they are read in
    place during the session's life, otherwise copied. With `profile`, a prefix of file names,
    kernels are timed.
    Raises `DeviceError` with the layers of a model that does not load.
    """
    names, external = ", ".join(layers), weights or {}
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = level
    # Threads have the cores of the thread that makes the session.
    options.intra_op_num_threads = soc.placement.threads
    options.inter_op_num_threads = 1
    # Threads may spin between the ops of a run, not after it.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    options.add_session_config_entry("session.load_model_format", "ONNX")
    # ONNX Runtime moves such nodes over others, and then refuses the result.
    for key, value in {**EXACT, "session.disable_quant_qdq": "1"}.items():
        options.add_session_config_entry(key, value)
    if profile:
        options.enable_profiling, options.profile_file_prefix = True, profile
    try:
        # The arrays are read until the session is made, or during its life.
        values = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in external.items()}
        if values:
            options.add_external_initializers([*values], [*values.values()])
        if in_place:
            options.add_session_config_entry("session.disable_prepacking", "1")
            for name, value in values.items():
                options.add_initializer(name, value)
        return ort.InferenceSession(model, options, ["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime's exceptions share no base class
        raise DeviceError(f"ONNX Runtime cannot load the model of {names}: {error}") from error


def level_of(net: OnnxNet) -> ort.GraphOptimizationLevel:
    """The highest level at which ONNX Runtime computes a net right.

    At the highest, convolutions and poolings are computed in blocks of channels, which is usually
    faster, and average poolings with dilated windows count padding wrong. An embedded ONNX model
    may contain them. ONNX Runtime 1.32 crashes when it optimises a quantised tensor that an inner
    graph reads.
    """
    ops = [parse(layer.op) for layer in net.layers]
    embedded = [set(op.nodes.split("+")) for op in ops if isinstance(op, OnnxModel)]
    if any(nodes & WITH_GRAPHS and nodes & QUANTISED for nodes in embedded):
        return LEVELS.ORT_DISABLE_ALL
    dilated = [op for op in ops if isinstance(op, Pool2d) and op.dilation != (1, 1)]
    if embedded or any(op.count_pad for op in dilated):
        return LEVELS.ORT_ENABLE_EXTENDED
    return LEVELS.ORT_ENABLE_ALL


TELEMETRY = "openvino_telemetry"


@contextmanager
def without_reports() -> Iterator[None]:
    """Hide the telemetry package from imports inside, so that `import openvino` reports nothing.

    OpenVINO would report to its maker's analytics from a process that it starts. Its own opt-out
    command writes to the user's home, and reports that. Modules imported earlier stay.
    """
    before = {name: module for name, module in sys.modules.items() if name == TELEMETRY}
    sys.modules[TELEMETRY] = None  # type: ignore[assignment]  # so Python marks a missing module
    try:
        yield
    finally:
        del sys.modules[TELEMETRY]
        sys.modules.update(before)


@cache
def openvino_module() -> Any:
    with without_reports():
        import openvino

    return openvino


def compiled(
    model: bytes, weights: Arrays, soc: LocalSoc, names: str, more: Mapping[str, Any] | None = None
) -> Any:
    """A model with external weights, compiled for the CPU side's threads in float32.

    Raises `DeviceError` with the layers' `names` if OpenVINO refuses the model.
    """
    options = {
        "INFERENCE_NUM_THREADS": soc.placement.threads,
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
        # Otherwise OpenVINO would use bfloat16 on CPUs that have it.
        "INFERENCE_PRECISION_HINT": "f32",
        # Its threads have the cores of the thread that makes them.
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
def _core() -> Any:
    """OpenVINO's compiler; making it takes longer than compiling most nets.

    When loaded, its plugin counts the available cores, which limits its threads for good.
    """
    core = openvino_module().Core()
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
