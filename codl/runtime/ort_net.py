"""Models in ONNX Runtime over arrays that stay in place, on the CPU side's threads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import onnxruntime as ort

from codl.errors import CodlError, DeviceError
from codl.ir.constants import Arrays
from codl.ir.executable import OnnxBinding, OnnxNet
from codl.ir.onnx_wire import external_tensors
from codl.ir.op_text import parse
from codl.ir.ops.base import Array, Op
from codl.ir.ops.matmul import MatMul
from codl.ir.ops.onnx_model import EXACT, OnnxModel
from codl.ir.ops.pooling import Pool2d
from codl.runtime.memory import aligned_zeros
from codl.runtime.placement import LocalSoc


def values_of(arrays: Arrays) -> dict[str, ort.OrtValue]:
    """Arrays as ONNX Runtime takes them, which it does not keep."""
    return {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in arrays.items()}


#: Elements of a matrix's row from which on it is not arranged anew: whole pages of memory.
LONG_ROW = 4096


class OnnxSession:
    """An ONNX model in ONNX Runtime over arrays that live as long as it does.

    Inputs and outputs are bound to the arrays where their views lie densely, and to arrays beside
    them otherwise, which every run copies from or to. Weights that ONNX Runtime does not arrange
    anew are read where they lie.
    """

    def __init__(
        self,
        net: OnnxNet,
        views: Sequence[Array],
        results: Sequence[Array],
        packed: Callable[[int], Arrays],
        soc: LocalSoc,
    ) -> None:
        self.label = net.label
        weights = dict(packed(net.model.constants))
        model = weights.pop(net.model.name).tobytes()
        names = [layer.name for layer in net.layers]
        in_place = {} if arranges(net) else weights
        self._session = make_session(
            model,
            soc,
            names,
            weights=weights,
            in_place=bool(in_place),
            in_blocks=goes_in_blocks(net),
        )
        self._binding = self._session.io_binding()
        # The session counts no references to NumPy's memory.
        self._views = (*views, *results, *in_place.values())
        self._copies_in: list[tuple[Array, Array]] = []
        self._copies_out: list[tuple[Array, Array]] = []
        for binding, view in zip(net.inputs, views, strict=True):
            _bind(self._binding.bind_input, binding, dense(view, self._copies_in))
        for binding, view in zip(net.outputs, results, strict=True):
            _bind(self._binding.bind_output, binding, dense(view, self._copies_out))

    def run(self) -> None:
        for view, dense in self._copies_in:
            np.copyto(dense, view)
        try:
            self._session.run_with_iobinding(self._binding)
        except Exception as error:  # ONNX Runtime's exceptions share no base class
            raise DeviceError(f"ONNX Runtime failed: {error}") from error
        for view, dense in self._copies_out:
            np.copyto(view, dense)

    def run_layers(self) -> Mapping[str, float]:
        """ONNX Runtime fuses layers, and shows none."""
        return {}


def dense(view: Array, copies: list[tuple[Array, Array]]) -> Array:
    """The view itself, or an array beside it that is to be copied."""
    if view.flags.c_contiguous:
        return view
    dense = aligned_zeros(view.shape)
    copies.append((view, dense))
    return dense


def _bind(bind: Any, binding: OnnxBinding, array: Array) -> None:
    bind(binding.name, "cpu", 0, np.float32, list(binding.sizes), array.ctypes.data)


def arranges(net: OnnxNet) -> bool:
    """Whether ONNX Runtime is to arrange a net's weights anew, in memory of its own.

    A product of one row reads its matrix once. Where that has long rows it is read up to 1.6 times
    as fast as it is, and takes no memory; where it has short ones, a third slower.
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
    in_blocks: bool = False,
) -> ort.InferenceSession:
    """A session whose threads do not spin between runs.

    `weights` are initializers whose elements are not in the model; `in_place` they are read where
    they lie, as long as the session lives, and else they are copied. With `in_blocks` convolutions
    and poolings are computed in blocks of channels. Raises `DeviceError` with the
    layers of the model where it does not load, and `CodlError` where it would read files.
    """
    names, external = ", ".join(layers), weights or {}
    _check_is_whole(model, names, external)
    try:
        # The arrays are read until the session is made, or as long as it lives.
        values, options = values_of(external), session_options(soc, in_blocks=in_blocks)
        if values:
            options.add_external_initializers([*values], [*values.values()])
        if in_place:
            options.add_session_config_entry("session.disable_prepacking", "1")
            for name, value in values.items():
                options.add_initializer(name, value)
        return ort.InferenceSession(model, options, ["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime's exceptions share no base class
        raise DeviceError(f"ONNX Runtime cannot load the model of {names}: {error}") from error


def goes_in_blocks(net: OnnxNet) -> bool:
    """Whether ONNX Runtime may compute a net in blocks of channels, which is most often faster.

    In blocks, its average poolings of dilated windows count padding wrong; what is in a model that
    came as it is is not known.
    """

    def is_right(op: Op) -> bool:
        is_dilated = isinstance(op, Pool2d) and op.count_pad and op.dilation != (1, 1)
        return not is_dilated and not isinstance(op, OnnxModel)

    return all(is_right(parse(layer.op)) for layer in net.layers)


def session_options(soc: LocalSoc, *, in_blocks: bool = False) -> ort.SessionOptions:
    """Those of any session."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    levels = ort.GraphOptimizationLevel
    level = levels.ORT_ENABLE_ALL if in_blocks else levels.ORT_ENABLE_EXTENDED
    options.graph_optimization_level = level
    # They have the cores of the thread that makes the session.
    options.intra_op_num_threads = soc.placement.threads
    options.inter_op_num_threads = 1
    # Threads may spin between the ops of a run, not after it.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    options.add_session_config_entry("session.load_model_format", "ONNX")
    # ONNX Runtime moves such nodes over others, and refuses what it has made then.
    for key, value in {**EXACT, "session.disable_quant_qdq": "1"}.items():
        options.add_session_config_entry(key, value)
    return options


def _check_is_whole(model: bytes, layers: str, fed: Collection[str]) -> None:
    try:
        external = external_tensors(model, but=fed)
    except ValueError as error:
        raise CodlError(f"The model of {layers} is no ONNX model: {error}.") from error
    if external:
        listed = ", ".join(map(repr, external))
        raise CodlError(
            f"The ONNX model of {layers} has tensors in files: {listed}. One in an executable must "
            "have the elements of all its tensors inside, or among its constants."
        )
