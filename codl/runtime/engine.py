"""The co-executor: a network and a plan in, a running engine out."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from codl.errors import CodlError, CodlWarning
from codl.ir import Array, Network
from codl.ir.plan import Plan
from codl.ir.region import as_nchw
from codl.ir.soc import Soc
from codl.kernels.tuning import Tuning
from codl.lower.program import build_program
from codl.runtime import threads
from codl.runtime.builder import Builder, Memory
from codl.runtime.kernel_provider import Supply, Untouched
from codl.runtime.opencl import open_device
from codl.runtime.profiler import Span, Timeline
from codl.runtime.stage import Stage

#: Integers up to this one are all float32 too.
EXACT = 1 << 24


class Engine:
    """A network on a CPU and an OpenCL device, as its plan says.

    Everything is compiled, allocated and arranged here, and every kernel has run once; a run only
    copies, enqueues and waits. The thread that runs it becomes a thread of the CPU side: it is
    pinned to the SoC's CPU cores.

    Any thread may call an engine, and any number of engines: one runs at a time, since each uses
    both processors.

    `fallbacks` lists the kernel variants that the device failed on, and what runs instead; each is
    also a `CodlWarning`. `storages` are those of the tensors that the GPU computes. `fused` has the
    layers that it computes together, by the label that their spans have: a convolution and the
    residual add behind it. With `fuse` off, for comparisons, every layer has kernels of its own.
    `tuning` has the choices that kernels are built in; `supply` hands over kernels and weights that
    are arranged already, which are otherwise made from the network.

    >>> engine = Engine(network, plan, soc)
    >>> y = engine(x)
    """

    def __init__(
        self,
        network: Network,
        plan: Plan,
        soc: Soc,
        tuning: Tuning = Tuning(),
        *,
        fuse: bool = True,
        supply: Supply | None = None,
    ) -> None:
        self.network = network
        self.plan = plan
        self.soc = soc
        program = build_program(network, plan, soc)
        self._gpu = open_device(soc)
        with self._gpu.lock:
            threads.pin([0], soc.cpu.cores)
            builder = Builder(
                network, program, self._gpu, supply or Untouched(soc, tuning), fuse=fuse
            )
            self._stages: list[Stage] | None = builder.stages()
        self._memory = builder.memory
        self.fallbacks = tuple(builder.fallbacks)
        self.fused = builder.fused
        self.storages = tuple(sorted(builder.storages, key=str))
        for fallback in self.fallbacks:
            warnings.warn(str(fallback), CodlWarning, stacklevel=2)
        self._inputs = {name: builder.homes[name].array for name in network.inputs}
        self._outputs = {
            name: builder.homes[holder].array.reshape(shape)
            for name, (holder, shape) in network.outputs.items()
        }

    @overload
    def __call__(self, inputs: NDArray[Any]) -> NDArray[Any]: ...

    @overload
    def __call__(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]: ...

    def __call__(
        self, inputs: NDArray[Any] | Mapping[str, NDArray[Any]]
    ) -> NDArray[Any] | dict[str, NDArray[Any]]:
        """Run one inference and copy its outputs out.

        The arrays of all inputs by name give all outputs by name; the one array of a model with one
        input and one output gives an array. Raises `CodlError` for a missing or unknown input, or
        one of another shape.
        """
        if isinstance(inputs, Mapping):
            types = self.network.types
            with self._gpu.lock:
                self.feed(inputs)
                self.run()
                return {n: a.astype(types.get(n, "float32")) for n, a in self._outputs.items()}
        if len(self._inputs) != 1 or len(self._outputs) != 1:
            raise CodlError(
                f"{self.network.name!r} has the inputs {', '.join(self._inputs)} and the outputs "
                f"{', '.join(self._outputs)}: give a dict of arrays by name."
            )
        return self(dict.fromkeys(self._inputs, inputs))[next(iter(self._outputs))]

    def feed(self, inputs: Mapping[str, NDArray[Any]]) -> None:
        """Copy inputs to where `run` reads them."""
        if set(inputs) != set(self._inputs):
            raise CodlError(
                f"The inputs must be {', '.join(self._inputs)}, got {', '.join(inputs) or 'none'}."
            )
        for name, home in self._inputs.items():
            value, shape = _as_float32(name, inputs[name]), self.network.inputs[name]
            if as_nchw(value.shape) != shape:
                raise CodlError(f"The input {name!r} must be {shape}, got {value.shape}.")
            np.copyto(home, value.reshape(home.shape))

    def run(self) -> None:
        """Run on what was fed; the outputs then lie in `outputs`. Allocates no tensor."""
        with self._gpu.lock:
            threads.pin([0], self.soc.cpu.cores)
            for stage in self._open():
                stage.run()

    def _open(self) -> list[Stage]:
        if self._stages is None:
            raise CodlError(f"The engine of {self.network.name!r} is closed and cannot run.")
        return self._stages

    @property
    def nets(self) -> dict[str, tuple[str, ...]]:
        """The layers of every net of the CPU, by the label that its spans have."""
        steps = (step for stage in self._open() if stage.net for step in stage.net.steps)
        return {s.group.label: tuple(layer.name for layer in s.group.layers) for s in steps}

    @property
    def precision(self) -> dict[str, str]:
        """The narrowest type that the GPU stores tensors as, and what everything is computed in."""
        halves = any(storage.element == "float16" for storage in self.storages)
        stored = "float16" if halves else "float32"
        return {"stored": stored, "computed": "float32", "accumulated": "float32"}

    @property
    def memory(self) -> Memory:
        """What tensors and weights take on either side; what libraries keep is not in it."""
        return self._memory

    @property
    def outputs(self) -> Mapping[str, Array]:
        """The output arrays, overwritten by the next run."""
        return self._outputs

    def profile(self, runs: int = 5) -> list[Span]:
        """What each processor did when, in the middle one of some runs on what was fed."""
        profiles = []
        with self._gpu.lock, self._gpu.profiling():
            for _ in range(runs):
                timeline = Timeline()
                for stage in self._open():
                    stage.run(timeline)
                self._gpu.queue.finish()
                profiles.append(timeline.spans())
        profiles.sort(key=lambda spans: max((span.end_ms for span in spans), default=0.0))
        return profiles[runs // 2]

    def close(self) -> None:
        """Release buffers and nets; the engine cannot run afterwards."""
        with self._gpu.lock:
            self._gpu.queue.finish()
            self._stages = None

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()


def _as_float32(name: str, value: NDArray[Any]) -> Array:
    """An input as tensors hold it; raises `CodlError` for integers that float32 cannot."""
    given = np.asarray(value)
    largest = np.abs(given).max(initial=0) if given.dtype.kind in "iu" else 0
    if largest > EXACT:
        raise CodlError(
            f"The input {name!r} reaches {largest}; integers are held as float32, which is exact "
            f"up to {EXACT}."
        )
    return np.asarray(given, np.float32)
