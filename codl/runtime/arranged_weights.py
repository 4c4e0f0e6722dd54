"""Weights as ONNX Runtime arranges them, in files that several sessions map: each matrix once.

A session arranges a matrix in memory of its own, and two sessions twice. Written to a file, and
read from there, what is equal lies in one place of one file, whose pages are in memory once,
whoever maps them. The files are in a temporary folder, and gone when all sessions are made: what is
mapped stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from codl.ir.constants import Arrays, array_digest

if TYPE_CHECKING:
    import onnxruntime as ort  # a part of an extra, and only needed where weights are arranged

#: Makes options for one session each time.
Options: TypeAlias = "Callable[[], ort.SessionOptions]"
#: Where elements lie, in the words of ONNX: a file, and places of it.
Place: TypeAlias = Mapping[str, str]
#: Constants of fewer bytes stay in the model.
LEAST_BYTES = 1 << 12
#: What ONNX Runtime calls the place of an initializer as it is arranged: `op+hash|first;size;0`.
ARRANGED = "prepacked_0"


class Opened(NamedTuple):
    """A session, and the bytes of weights that no session before it had."""

    session: ort.InferenceSession
    new_bytes: int


class ArrangedWeights:
    """The files of sessions that are made one after the other, and where in them weights lie."""

    def __init__(self) -> None:
        self._folder: TemporaryDirectory[str] | None = None
        self._places: dict[tuple[Any, ...], Place] = {}
        self._written = 0

    def open(self, model: bytes, weights: Arrays, options: Options) -> Opened | None:
        """A session over what is there already; `weights` are those beside the model.

        None where no files can be written or read. What is wrong with a model is told to whom opens
        it as usual.
        """
        try:
            return self._open(model, weights, options)
        except Exception:  # ONNX Runtime's exceptions share no base class
            return None

    def close(self) -> None:
        """Delete the files; sessions that map them live on."""
        if self._folder is not None:
            self._folder.cleanup()
        self._folder, self._places = None, {}

    def _open(self, model: bytes, weights: Arrays, options: Options) -> Opened:
        import onnx  # which an agent need not have

        if self._folder is None:
            self._folder = TemporaryDirectory(prefix="codl-weights-", ignore_cleanup_errors=True)
        self._written += 1
        path = Path(self._folder.name, f"{self._written}.onnx")
        data = path.with_suffix(".data")
        _write(model, weights, options(), path, data)
        proto = onnx.load(path, load_external_data=False)
        apart = [own for own in proto.graph.initializer if own.external_data]
        new_bytes = sum(self._place(own, data) for own in apart)
        path.write_bytes(proto.SerializeToString())
        if not any(place["location"] == data.name for place in self._places.values()):
            data.unlink(missing_ok=True)
        return Opened(_session(str(path), options()), new_bytes)

    def _place(self, tensor: Any, data: Path) -> int:
        """Let an initializer be read where one with equal elements lies; the bytes that are new."""
        own: Place = {entry.key: entry.value for entry in tensor.external_data}
        elements = np.memmap(data, np.uint8, "r", int(own["offset"]), (int(own["length"]),))
        form, _, arranged = own.get(ARRANGED, "").partition("|")
        key = tensor.data_type, *tensor.dims, form, array_digest(elements)
        place = self._places.setdefault(key, own)
        if place is own:
            return int(arranged.split(";")[1] if arranged else own["length"])
        for entry in tensor.external_data:
            entry.value = place[entry.key]
        return 0


def _write(
    model: bytes, weights: Arrays, options: ort.SessionOptions, path: Path, data: Path
) -> None:
    """Let ONNX Runtime write a model, and its weights as they are and as it arranges them."""
    values = values_of(weights)
    options.add_external_initializers([*values], [*values.values()])
    options.optimized_model_filepath = str(path)
    for key, value in (
        ("optimized_model_external_initializers_file_name", data.name),
        ("optimized_model_external_initializers_min_size_in_bytes", str(LEAST_BYTES)),
        ("save_external_prepacked_constant_initializers", "1"),
    ):
        options.add_session_config_entry(f"session.{key}", value)
    _session(model, options)


def values_of(arrays: Arrays) -> dict[str, ort.OrtValue]:
    """Arrays as ONNX Runtime takes them, which it does not keep."""
    import onnxruntime as ort

    return {name: ort.OrtValue.ortvalue_from_numpy(own) for name, own in arrays.items()}


def _session(model: bytes | str, options: ort.SessionOptions) -> ort.InferenceSession:
    import onnxruntime as ort

    return ort.InferenceSession(model, options, ["CPUExecutionProvider"])
