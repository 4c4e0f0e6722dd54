"""What ops take of a run of a net of their own, by the profile of the library that runs it.

A net of one op moves its tensors to the library's layout and back, as a net of many ops does once.
So of what a run takes, the part counts that the op's own kernels take.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnxruntime as ort

from codl.ir.constants import Arrays
from codl.ir.executable import Executable, OnnxNet, OpenVinoNet
from codl.records.statistic import level
from codl.runtime.ort_net import goes_in_blocks, session_options, values_of
from codl.runtime.placement import LocalSoc

#: Profiled runs, and how many run before them.
RUNS, BEFORE = 12, 3
#: Kernels that only move a tensor to another layout.
MOVES = frozenset({"ReorderInput", "ReorderOutput", "Reorder", "Input", "Output"})
#: A run that takes up to so many times what its kernels take by the profile is these alone.
NOISE = 1.1
#: Profiles count whole microseconds, and cut the rest.
CUT_S = 0.5e-6


@dataclass(frozen=True)
class Profile:
    """Seconds of a run: of kernels that compute, and of those that only move tensors."""

    ops_s: float
    moves_s: float


def share_of_ops(executable: Executable, soc: LocalSoc, run_s: float = 0.0) -> float:
    """Of what a run of the executable's one net takes, the part that its ops take in a larger net.

    `run_s` is what a run takes: where that is more than all kernels, the rest is of the call, such
    as waking threads. 1 where the library shows nothing.
    """
    (net,) = executable.nets
    assert isinstance(net, OnnxNet)
    profile = _profile(executable, net, soc)
    if not profile.ops_s:
        return 1.0
    kernels_s = profile.ops_s + profile.moves_s
    return profile.ops_s / (run_s if run_s > NOISE * kernels_s else kernels_s)


def _profile(executable: Executable, net: OnnxNet, soc: LocalSoc) -> Profile:
    if isinstance(net, OpenVinoNet):
        return _in_openvino(executable, net, soc)
    with TemporaryDirectory(prefix="codl-profile-", ignore_cleanup_errors=True) as folder:
        options = session_options(soc, in_blocks=goes_in_blocks(net))
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder, "run"))
        session = _session(executable, net, options)
        _run(session, net, BEFORE + RUNS)
        events = json.loads(Path(session.end_profiling()).read_text())
    return _read(events)


def profiled_in_openvino(executable: Executable, net: OpenVinoNet, soc: LocalSoc) -> Any:
    """A request for the net that tells of each of its steps; raises as loading does."""
    from codl.runtime.openvino_net import compiled

    model, weights = _content(executable, net)
    options = {"PERF_COUNT": True}
    return compiled(model, weights, soc, net.label, options).create_infer_request()


def _in_openvino(executable: Executable, net: OpenVinoNet, soc: LocalSoc) -> Profile:
    request = profiled_in_openvino(executable, net, soc)
    runs = []
    for _ in range(BEFORE + RUNS):
        request.infer(share_outputs=True)
        moves_s = ops_s = 0.0
        for step in request.get_profiling_info():
            if step.real_time:
                taken_s = CUT_S + step.real_time.total_seconds()
                is_move = step.node_type in MOVES
                ops_s, moves_s = ops_s + taken_s * (not is_move), moves_s + taken_s * is_move
        runs.append((ops_s, moves_s))
    return Profile(*(level(column) for column in zip(*runs[BEFORE:], strict=True)))


def _read(events: Sequence[Mapping[str, Any]]) -> Profile:
    """What ONNX Runtime writes: each run's kernels, and then the run itself."""
    runs: list[tuple[float, float]] = []
    ops_s = moves_s = 0.0
    for event in events:
        name, taken_s = event.get("name", ""), CUT_S + 1e-6 * event.get("dur", 0)
        if name.endswith("_kernel_time"):
            is_move = event["args"]["op_name"] in MOVES
            ops_s, moves_s = ops_s + taken_s * (not is_move), moves_s + taken_s * is_move
        elif name == "model_run":
            runs.append((ops_s, moves_s))
            ops_s = moves_s = 0.0
    return Profile(*(level(column) for column in zip(*runs[BEFORE:], strict=True)))


def _session(
    executable: Executable, net: OnnxNet, options: ort.SessionOptions
) -> ort.InferenceSession:
    model, weights = _content(executable, net)
    values = values_of(weights)
    if values:
        options.add_external_initializers([*values], [*values.values()])
    return ort.InferenceSession(model, options, ["CPUExecutionProvider"])


def _content(executable: Executable, net: OnnxNet) -> tuple[bytes, Arrays]:
    """A net's model, and the weights beside it."""
    weights = dict(executable.constants[net.model.constants].arrays())
    return weights.pop(net.model.name).tobytes(), weights


def _run(session: ort.InferenceSession, net: OnnxNet, times: int) -> None:
    """Runs on zeros."""
    binding, arrays = session.io_binding(), []
    for bind, ends in ((binding.bind_input, net.inputs), (binding.bind_output, net.outputs)):
        for end in ends:
            arrays.append(np.zeros(end.sizes, np.float32))
            bind(end.name, "cpu", 0, np.float32, list(end.sizes), arrays[-1].ctypes.data)
    for _ in range(times):
        session.run_with_iobinding(binding)
