"""A decoder in ONNX Runtime on all cores: its own attention, over a cache that stays in place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray

from codl.errors import CodlError
from codl.frontend.decoders import LAST_ROW, DecoderSource
from codl.frontend.decoders.step import MASK, POSITIONS, Cache, caches_of, pick_row
from codl.runtime import threads

NAME = "ort"
#: NumPy's types by ONNX Runtime's.
TYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16}


class OrtDecoder:
    """Takes a prompt of `prompt` tokens at once, and any others one by one.

    Threads are one a core of `cores`; the logits of one token are computed, as codl does. Where it
    is not `optimised` it runs node by node, as a reference, and arranges no weights.
    """

    def __init__(
        self,
        source: DecoderSource,
        prompt: int,
        capacity: int,
        cores: Sequence[int],
        *,
        optimised: bool = True,
    ) -> None:
        self._optimised = optimised
        self._cores, self._prompt, self.capacity, self.length = cores, prompt, capacity, 0
        self._cache: dict[str, NDArray[Any]] = {}
        with threads.pinned(cores):
            self._steps = {count: self._step(source, count) for count in {1, prompt}}

    @property
    def version(self) -> str:
        return str(ort.__version__)

    def prefill(self, tokens: Sequence[int]) -> NDArray[Any]:
        if len(tokens) == self._prompt:
            return self._run(tokens)
        for token in tokens:
            logits = self._run([token])
        return logits

    def decode(self, token: int) -> NDArray[Any]:
        return self._run([token])

    def reset(self) -> None:
        self.length = 0

    def close(self) -> None:
        self._steps = {}

    def _run(self, tokens: Sequence[int]) -> NDArray[Any]:
        if self.length + len(tokens) > self.capacity:
            raise CodlError(f"{len(tokens)} tokens do not go into what is left of the cache.")
        with threads.pinned(self._cores):
            logits = self._steps[len(tokens)].run(tokens, self.length)
        self.length += len(tokens)
        return logits

    def _step(self, source: DecoderSource, count: int) -> _OrtStep:
        model = source.model(count, self.capacity)
        proto = onnx.ModelProto()
        proto.CopyFrom(model.proto)
        caches = list(caches_of(proto, source.name))
        present = {cache.present for cache in caches}
        (logits,) = (info.name for info in proto.graph.output if info.name not in present)
        if count > 1:
            pick_row(proto, logits)
        options = ort.SessionOptions()
        options.intra_op_num_threads = len(self._cores)
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        if not self._optimised:
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
            options.add_session_config_entry("session.disable_prepacking", "1")
        # Threads may spin between the ops of a run, not after it.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        session = replace(model, proto=proto).session(options)
        return _OrtStep(session, logits, caches, self._cache, self.capacity)


class _OrtStep:
    """One session; `cache` has the memory that all of them write."""

    def __init__(
        self,
        session: ort.InferenceSession,
        logits: str,
        caches: Sequence[Cache],
        cache: dict[str, NDArray[Any]],
        capacity: int,
    ) -> None:
        self._session, self._logits = session, logits
        self._binding = session.io_binding()
        kinds = {tensor.name: tensor.type for tensor in session.get_inputs()}
        self._inputs = [name for name in kinds if name not in {cached.past for cached in caches}]
        for entry in caches:
            shape = (1, entry.groups, capacity, entry.features)
            memory = cache.setdefault(entry.past, np.zeros(shape, TYPES[kinds[entry.past]]))
            place = ("cpu", 0, memory.dtype, shape, memory.ctypes.data)
            self._binding.bind_input(entry.past, *place)
            self._binding.bind_output(entry.present, *place)

    def run(self, tokens: Sequence[int], length: int) -> NDArray[Any]:
        count, total = len(tokens), length + len(tokens)
        values = {
            LAST_ROW: np.array([count - 1]),
            MASK: np.ones((1, total), np.int64),
            POSITIONS: np.arange(length, total)[None],
            "seqlens_k": np.array([total - 1], np.int32),
            "total_sequence_length": np.array(total, np.int32),
        }
        for name in self._inputs:
            self._binding.bind_cpu_input(name, values.get(name, np.array(tokens)[None]))
        self._binding.bind_output(self._logits, "cpu")
        self._session.run_with_iobinding(self._binding)
        logits = self._binding.get_outputs()[-1].numpy()
        row: NDArray[Any] = logits.reshape(-1, logits.shape[-1])[-1]
        return row
