"""ncnn on all cores, as one net in which it chooses the algorithms itself.

The net is codl's own translation, which fuses what ncnn can fuse. A model with ops that codl has no
layer of ncnn's for goes through ncnn's converter `pnnx`, where that is installed.
"""

from __future__ import annotations

import subprocess
from dataclasses import replace
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import ncnn
import numpy as np
import onnx

from codl.errors import DeviceError, UnsupportedError
from codl.frontend.convert import convert, simplify
from codl.frontend.graph.onnx_import import import_onnx
from codl.ir import Layer
from codl.ir.plan import Chain, Plan
from codl.kernels import registry
from codl.kernels.tuning import Tuning
from codl.lower import lower
from codl.measure.peers import PeerJob, Tensors
from codl.records.soc import Soc
from codl.runtime.host_handles import HostSession
from codl.runtime.placement import LocalSoc, require_local

CONVERTER = "pnnx"


class Ncnn:
    name: ClassVar[str] = "ncnn"
    packages: ClassVar[tuple[str, ...]] = ("ncnn",)

    def __init__(self, job: PeerJob) -> None:
        local = require_local(job.soc)
        soc = replace(local, placement=replace(local.placement, cpu_cores=job.cores, cpu_threads=0))
        self.version = metadata.version("ncnn")
        net: _Translated | _Converted
        try:
            net = _Translated(job, soc)
        except UnsupportedError as error:
            if _converter() is None:
                raise UnsupportedError(
                    f"{error} ncnn's own converter could do it: `pip install --no-deps pnnx`."
                ) from error
            try:
                net = _Converted(job)
            except DeviceError as second:
                raise UnsupportedError(f"{error} {second}") from second
            self.version += f" by {CONVERTER}"
        self.feed, self.run, self.outputs = net.feed, net.run, net.outputs

    def close(self) -> None:
        del self.feed, self.run, self.outputs


class _Translated:
    """All layers of a network as codl's net of ncnn, each in the default variant."""

    def __init__(self, job: PeerJob, soc: LocalSoc) -> None:
        network = convert(simplify(import_onnx(onnx.load(job.model), job.model.stem)))
        variants = {layer.name: {"cpu": _variant(layer, soc)} for layer in network.layers}
        plan = Plan(
            model=network.name,
            digest=network.digest,
            soc=soc.name,
            strategy="all-cpu",
            predictor="none",
            sharing="gather",
            predicted_ms=None,
            chains=(Chain(tuple(variants), "H", 0.0, variants),),
        )
        self._session = HostSession(lower(network, plan, soc, Tuning()), soc)

    def feed(self, inputs: Tensors) -> None:
        for name, array in self._session.inputs.items():
            np.copyto(array, inputs[name].reshape(array.shape))

    def run(self) -> None:
        self._session.run()

    def outputs(self) -> Tensors:
        return self._session.outputs


def _variant(layer: Layer, soc: Soc) -> str:
    """ncnn's default variant of a layer."""
    accepted: list[Any] = registry.variants(layer.op, "cpu", soc)
    of_ncnn = [variant.name for variant in accepted if variant.backend == "ncnn"]
    if not of_ncnn:
        raise UnsupportedError(f"codl has no layer of ncnn's for {layer.name!r} ({layer.op.kind}).")
    name: str = of_ncnn[0]
    return name


def _converter() -> Path | None:
    """The program in the converter's wheel, which runs without PyTorch, other than its command."""
    spec = find_spec(CONVERTER)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        if (program := Path(folder) / CONVERTER).is_file():
            return program
    return None


class _Converted:
    """What ncnn's converter makes of the ONNX file; its blobs are in0, ..., out0, ... in order."""

    def __init__(self, job: PeerJob) -> None:
        proto = onnx.load(job.model, load_external_data=False)
        constants = {item.name for item in proto.graph.initializer}
        self._inputs = [i.name for i in proto.graph.input if i.name not in constants]
        self._names = [output.name for output in proto.graph.output]
        done = subprocess.run(
            [str(_converter()), str(job.model), "fp16=0"], capture_output=True, cwd=job.folder
        )
        files = [job.model.with_suffix(f".ncnn.{kind}") for kind in ("param", "bin")]
        self._net = ncnn.Net()
        option = self._net.opt
        option.num_threads = job.threads
        option.use_fp16_packed = option.use_fp16_storage = False
        option.use_fp16_arithmetic = option.use_bf16_storage = False
        if not all(file.is_file() for file in files):
            raise DeviceError(f"{CONVERTER} made no net of the model, code {done.returncode}.")
        if self._net.load_param(str(files[0])) or self._net.load_model(str(files[1])):
            raise DeviceError(f"ncnn cannot read what {CONVERTER} made of the model.")
        self._fed: list[tuple[str, ncnn.Mat]] = []
        self._found: dict[str, ncnn.Mat] = {}

    def feed(self, inputs: Tensors) -> None:
        if batches := {value.shape[0] for value in inputs.values()} - {1}:
            raise UnsupportedError(f"{CONVERTER}'s nets take one image, got {max(batches)}.")
        self._fed = [
            (f"in{index}", ncnn.Mat(np.ascontiguousarray(inputs[name][0])).clone())
            for index, name in enumerate(self._inputs)
        ]

    def run(self) -> None:
        extractor = self._net.create_extractor()
        for blob, mat in self._fed:
            extractor.input(blob, mat)
        for index, name in enumerate(self._names):
            code, self._found[name] = extractor.extract(f"out{index}")
            if code:
                raise DeviceError(f"ncnn failed with code {code} at out{index}.")

    def outputs(self) -> Tensors:
        return {name: np.array(mat) for name, mat in self._found.items()}
