"""What OpenVINO takes to bring a tensor to the layout of its nets, or back, by its own profile.

Its nets have channels last. What reads or writes channels first is copied at their ends, at rates
that differ twentyfold from one shape to the next, as no number of bytes tells.
"""

from __future__ import annotations

from codl.ir import Shape, parse
from codl.ir.executable import OpenVinoNet
from codl.ir.types import Direction
from codl.kernels import registry
from codl.kernels.ort_openvino import CPU_OPENVINO
from codl.lower import pieces
from codl.lower.rules import loading
from codl.measure.net_shares import CUT_S, MOVES, profiled_in_openvino
from codl.measure.op_runner import filler
from codl.measure.timing import WHOLE, Seconds
from codl.runtime import threads
from codl.runtime.placement import LocalSoc

#: Channels on the other side of the convolution that wants the layout.
FEW = 16


class OpenVinoPacking:
    """A net of one convolution that reads a tensor, or makes it; raises where it does not load."""

    def __init__(self, way: Direction, shape: Shape, soc: LocalSoc) -> None:
        self._is_load = way == loading("openvino")
        channels = (shape.c, FEW) if self._is_load else (FEW, shape.c)
        op = parse(f"conv2d in=1x{channels[0]}x{shape.h}x{shape.w} oc={channels[1]} kernel=1x1")
        variant = registry.find(op, CPU_OPENVINO)
        executable = pieces.net_alone([op], variant, [filler(op)], soc)
        (net,) = executable.nets
        assert isinstance(net, OpenVinoNet)
        self._cores = soc.placement.cpu_cores
        with threads.pinned_to(self._cores):
            self._request = profiled_in_openvino(executable, net, soc)

    def sample(self, repeats: int) -> Seconds:
        """Mean seconds of the copies before the convolution, or behind it."""
        with threads.pinned_to(self._cores):
            return {WHOLE: sum(self._once_s() for _ in range(repeats)) / repeats}

    def _once_s(self) -> float:
        self._request.infer(share_outputs=True)
        before, behind, has_convolved = CUT_S, CUT_S, False
        for step in self._request.get_profiling_info():
            taken_s = step.real_time.total_seconds()
            if not taken_s:
                continue
            if step.node_type not in MOVES:
                has_convolved = True
            elif has_convolved:
                behind += taken_s
            else:
                before += taken_s
        return before if self._is_load else behind
