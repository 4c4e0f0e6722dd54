"""The verdicts of an evaluation: the best choice for each model, and what is gained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from statistics import geometric_mean
from typing import Any

from codl.ir.records.results import EvalRow
from codl.ir.records.verdicts import Kind, ModelVerdict
from codl.report.results import IDEAL, SINGLES, UNMEASURED, EvalResult
from codl.report.text_table import digits, stem

#: Snippets of libraries on all cores, equivalent to `codl.measure.peers`.
LIBRARIES: Mapping[str, str] = {
    "ort": """\
import onnxruntime as ort

options = ort.SessionOptions()
options.intra_op_num_threads = {threads}
session = ort.InferenceSession({file!r}, options, providers=["CPUExecutionProvider"])
outputs = session.run(None, inputs)
""",
    "openvino": """\
import openvino

options = {{"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1, "INFERENCE_NUM_THREADS": {threads},
           "INFERENCE_PRECISION_HINT": "f32"}}
core = openvino.Core()
model = core.compile_model(core.read_model({file!r}), "CPU", options)
outputs = model(inputs)
""",
    "ncnn": """\
import ncnn  # after `pnnx {file} fp16=0`
import numpy as np

net = ncnn.Net()
net.opt.num_threads = {threads}
net.opt.use_fp16_packed = net.opt.use_fp16_storage = net.opt.use_fp16_arithmetic = False
net.load_param({stem!r} + ".ncnn.param")
net.load_model({stem!r} + ".ncnn.bin")
extractor = net.create_extractor()
for number, array in enumerate(inputs.values()):
    extractor.input(f"in{{number}}", ncnn.Mat(np.ascontiguousarray(array[0])).clone())
_, output = extractor.extract("out0")
""",
    "mnn": """\
import MNN  # after `mnnconvert -f ONNX --modelFile {file} --MNNModel {stem}.mnn`
import MNN.numpy as mnp

options = {{"backend": "CPU", "numThread": {threads}, "precision": "high"}}
runtime = MNN.nn.create_runtime_manager((options,))
net = MNN.nn.load_module_from_file({stem!r} + ".mnn", [], [], runtime_manager=runtime)
outputs = net.forward([mnp.array(array) for array in inputs.values()])
""",
}
#: Snippet that writes a built-in model to a file for other libraries.
EXPORT = """\
import onnx
from codl.frontend import models

onnx.save(models.load({model!r}).proto, {file!r})
"""


def strategy_snippet(model: str, soc: str, strategy: str, options: Mapping[str, Any]) -> str:
    """Lines that run a model by a strategy; `options` are further arguments of `codl.compile`."""
    given = {"soc": soc, "strategy": strategy, **options}
    arguments = ", ".join(f"{name}={value!r}" for name, value in given.items())
    return (
        f"import codl\n\nengine = codl.compile({model!r}, {arguments})\noutputs = engine(inputs)\n"
    )


def library_snippet(model: str, library: str, threads: int) -> str:
    """Lines that run a model, written to a file if built-in; "" without known lines."""
    file = model if model.endswith(".onnx") else f"{model}.onnx"
    named = {"model": model, "file": file, "threads": threads}
    lines = LIBRARIES.get(library, "").format(**named, stem=str(PurePath(file).with_suffix("")))
    return f"{EXPORT.format(**named)}\n{lines}" if lines and file != model else lines


TIMES = "\N{MULTIPLICATION SIGN}"
#: Outputs with a lower cosine disqualify a strategy, however fast.
LEAST_COSINE = 0.999


def findings(result: EvalResult) -> tuple[str, ...]:
    """What to use for each model, and what the best strategy gains; empty without a latency."""
    if not any(row.latency_ms for row in result.rows):
        return ()
    return (*(verdict.sentence for verdict in model_verdicts(result)), _conclusion(result))


def model_verdicts(result: EvalResult) -> tuple[ModelVerdict, ...]:
    """A recommendation for each model that ran with right outputs."""
    found = (_model_verdict(result, model) for model in result.models)
    return tuple(verdict for verdict in found if verdict is not None)


def _model_verdict(result: EvalResult, model: str) -> ModelVerdict | None:
    """A model's fastest strategy or library against the second; measured ones, if any."""
    rows = [
        row
        for row in result.of(model)
        if row.latency_ms
        and not row.same_as
        and row.strategy != IDEAL
        and (row.cosine is None or row.cosine >= LEAST_COSINE)
    ]
    measured = [row for row in rows if row.source not in UNMEASURED]
    ranked = sorted(measured or rows, key=_level)
    if not ranked:
        return None
    first, *others = ranked
    named = {"model": model, "soc": result.soc.name, "use": first.strategy, "kind": _kind(first)}
    what, ms = f"For {stem(model)} on {result.soc.name} use {_description(first)}", _level(first)
    mark = f", {first.source}" if first.source in UNMEASURED else ""
    mark += ", on a disturbed machine" if first.doubts else ""
    known: dict[str, Any] = {
        **named,
        "latency_ms": ms,
        "source": first.source,
        "snippet": _snippet(result, first),
    }
    if not others:
        text = f"{what}: {digits(ms)} ms{mark}; nothing else ran with right outputs."
        return ModelVerdict(**known, sentence=text)
    second, next_ms = others[0], _level(others[0])
    margin = next_ms / ms - 1
    assert first.latency_ms
    assert second.latency_ms
    is_clear = first.latency_ms.p80 < second.latency_ms.p20
    text = (
        f"{what}: {digits(ms)} ms{mark}; the next, {_description(second)}, takes "
        f"{digits(next_ms)} ms, {100 * margin:.1f} % longer"
        f"{'' if is_clear else ', and their spreads overlap'}."
    )
    known |= {"next": second.strategy, "next_ms": next_ms, "margin": margin, "is_clear": is_clear}
    return ModelVerdict(**known, sentence=text)


def _kind(row: EvalRow) -> Kind:
    if row.peer:
        return "library"
    return "processor" if row.strategy in SINGLES else "plan"


def _description(row: EvalRow) -> str:
    """A row in words: a library, a single processor, or a strategy's plan."""
    if row.peer:
        cores = "core" if row.peer.threads == 1 else "cores"
        version = f" {row.peer.version}" if row.peer.version else ""
        return f"{row.strategy}{version} on {row.peer.threads} {cores}"
    if row.strategy in SINGLES:
        return f"codl on one processor alone ({row.strategy})"
    return f"codl's plan ({row.strategy})"


def _snippet(result: EvalResult, row: EvalRow) -> str:
    """The lines of Python that run a row, with the options of its evaluation."""
    if row.peer:
        return library_snippet(row.model, row.strategy, row.peer.threads)
    asked = result.asked
    given: dict[str, Any] = {"serial": result.serial if result.serial != "local" else None}
    if asked is not None:
        given |= {"batch": asked.batch, "precision": asked.precision}
        given |= {
            "max_kernel_ms": asked.limits.max_kernel_ms,
            "gpu_duty": asked.limits.gpu_duty if asked.limits.gpu_duty != 1 else None,
        }
    options = {name: value for name, value in given.items() if value}
    return strategy_snippet(row.model, result.soc.name, row.strategy, options)


def _level(row: EvalRow) -> float:
    assert row.latency_ms is not None
    return row.latency_ms.level


def _conclusion(result: EvalResult) -> str:
    """The gain of the best strategy that ran on every model with a processor alone."""
    timed = [row for row in result.rows if row.latency_ms]
    alone = {row.model for row in timed if row.strategy in SINGLES}
    plans: dict[str, dict[str, EvalRow]] = {}
    for row in timed:
        if _kind(row) == "plan" and row.strategy != IDEAL and result.speedup(row):
            plans.setdefault(row.strategy, {})[row.model] = row
    speedups = {
        name: [result.speedup(row) or 0.0 for row in of.values()]
        for name, of in plans.items()
        if len(of) == len(alone)
    }
    if not speedups or not alone:
        return "No strategy ran beside a processor alone: there is nothing to compare with."
    best = max(speedups, key=lambda name: geometric_mean(speedups[name]))
    mean = geometric_mean(speedups[best])
    how = f"{mean:.2f} times as fast as" if mean >= 1 else f"slower ({mean:.2f} {TIMES}) than"
    text = f"{best} is {how} the better processor alone"
    if len(alone) > 1:
        text += (
            f" in the geometric mean of {len(alone)} models, from {min(speedups[best]):.2f} to "
            f"{max(speedups[best]):.2f}"
        )
    return f"{text}{_beside_libraries(timed, plans[best])}."


def _beside_libraries(timed: Sequence[EvalRow], plans: Mapping[str, EvalRow]) -> str:
    libraries: dict[str, list[float]] = {}
    for row in timed:
        if row.peer and row.model in plans:
            libraries.setdefault(row.model, []).append(_level(row))
    ratios = [min(of) / _level(plans[model]) for model, of in libraries.items()]
    if not ratios:
        return ""
    mean = geometric_mean(ratios)
    if mean >= 1:
        return f", and {mean:.2f} times as fast as the best library on all cores"
    return f"; the best library on all cores is {1 / mean:.2f} times as fast as that"
