"""The co-executor: a network and a plan in, a running engine out."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, overload

import numpy as np

from codl.device import threads
from codl.device.cpu import Home
from codl.device.memory import GpuTensor, seen_array
from codl.device.opencl import OpenClDevice, open_device
from codl.errors import CodlError, CodlWarning
from codl.execute import exchange
from codl.execute.gpu_half import Fallback, GpuHalf, kept_storages
from codl.execute.program import Program, Segment, Transfer, build_program
from codl.execute.stage import Stage, build_cpu_half
from codl.execute.timeline import Span, Timeline
from codl.kernels.base import BLOCKED, Storage
from codl.ops import Array, Network
from codl.ops.plan import Plan
from codl.ops.region import Region, as_nchw
from codl.soc import Soc


class Engine:
    """A network on a CPU and an OpenCL device, as its plan says.

    Everything is compiled, allocated and arranged here, and every kernel has run once; a run only
    copies, enqueues and waits. The calling thread becomes a thread of the CPU side: it is pinned to
    the SoC's CPU cores.

    `fallbacks` lists the kernel variants that the device failed on, and what runs instead; each is
    also a `CodlWarning`. `storages` are those of the tensors that the GPU computes.

    >>> engine = Engine(network, plan, soc)
    >>> y = engine(x)
    """

    def __init__(self, network: Network, plan: Plan, soc: Soc) -> None:
        self.network = network
        self.plan = plan
        self.soc = soc
        program = build_program(network, plan, soc)
        self._gpu = open_device(soc)
        threads.pin([0], soc.cpu.cores)
        builder = _Builder(network, program, self._gpu)
        self._stages = [builder.stage(segment) for segment in program.segments]
        self._last = builder.exchange(program.final)
        self.fallbacks = tuple(builder.fallbacks)
        self.storages = tuple(sorted(builder.storages, key=str))
        for fallback in self.fallbacks:
            warnings.warn(str(fallback), CodlWarning, stacklevel=2)
        self._inputs = {name: builder.homes[name].array for name in network.inputs}
        self._outputs = {
            name: builder.homes[holder].array.reshape(shape)
            for name, (holder, shape) in network.outputs.items()
        }

    @overload
    def __call__(self, inputs: Array) -> Array: ...

    @overload
    def __call__(self, inputs: Mapping[str, Array]) -> dict[str, Array]: ...

    def __call__(self, inputs: Array | Mapping[str, Array]) -> Array | dict[str, Array]:
        """Run one inference and copy its outputs out.

        The arrays of all inputs by name give all outputs by name; the one array of a model with one
        input and one output gives an array. Raises `CodlError` for a missing or unknown input, or
        one of another shape.
        """
        if isinstance(inputs, Mapping):
            self.feed(inputs)
            self.run()
            return {name: array.copy() for name, array in self._outputs.items()}
        if len(self._inputs) != 1 or len(self._outputs) != 1:
            raise CodlError(
                f"{self.network.name!r} has the inputs {', '.join(self._inputs)} and the outputs "
                f"{', '.join(self._outputs)}: give a dict of arrays by name."
            )
        return self(dict.fromkeys(self._inputs, inputs))[next(iter(self._outputs))]

    def feed(self, inputs: Mapping[str, Array]) -> None:
        """Copy inputs to where `run` reads them."""
        if set(inputs) != set(self._inputs):
            raise CodlError(
                f"The inputs must be {', '.join(self._inputs)}, got {', '.join(inputs) or 'none'}."
            )
        for name, home in self._inputs.items():
            value, shape = np.asarray(inputs[name], np.float32), self.network.inputs[name]
            if as_nchw(value.shape) != shape:
                raise CodlError(f"The input {name!r} must be {shape}, got {value.shape}.")
            np.copyto(home, value.reshape(home.shape))

    def run(self) -> None:
        """Run on what was fed; the outputs then lie in `outputs`. Allocates no tensor."""
        for stage in self._stages:
            stage.run()
        self._last.run()

    @property
    def precision(self) -> dict[str, str]:
        """The narrowest type that the GPU stores tensors as, and what everything is computed in."""
        halves = any(storage.element == "float16" for storage in self.storages)
        stored = "float16" if halves else "float32"
        return {"stored": stored, "computed": "float32", "accumulated": "float32"}

    @property
    def outputs(self) -> Mapping[str, Array]:
        """The output arrays, overwritten by the next run."""
        return self._outputs

    def profile(self, runs: int = 5) -> list[Span]:
        """What each processor did when, in the middle one of some runs on what was fed."""
        profiles = []
        with self._gpu.profiling():
            for _ in range(runs):
                timeline = Timeline()
                for stage in (*self._stages, self._last):
                    stage.run(timeline)
                self._gpu.queue.finish()
                profiles.append(timeline.spans())
        profiles.sort(key=lambda spans: max((span.end_ms for span in spans), default=0.0))
        return profiles[runs // 2]

    def close(self) -> None:
        """Release buffers and nets; the engine cannot run afterwards."""
        self._gpu.queue.finish()
        self._stages.clear()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()


class _Builder:
    """Allocates what a program holds and builds its stages."""

    def __init__(self, network: Network, program: Program, gpu: OpenClDevice) -> None:
        shapes = network.shapes
        self._shapes, self._gpu = shapes, gpu
        self.fallbacks: list[Fallback] = []
        self.homes: dict[str, Home] = {}
        #: Homes that the GPU sees as they are.
        self._seen: dict[str, GpuTensor] = {}
        for name, held in program.held["cpu"].items():
            if gpu.sees_host_memory and name in program.moved:
                array, self._seen[name] = seen_array(gpu, shapes[name], held)
                self.homes[name] = Home(array, held, held)
            else:
                self.homes[name] = Home.allocate(shapes[name], held)
        planned = [
            (part, segment.chain.variants[part.layer.name]["gpu"])
            for segment in program.segments
            for part in segment.gpu.parts
        ]
        storages = kept_storages(planned, gpu)
        self.storages: set[Storage] = set()
        self._tensors: dict[str, GpuTensor] = {
            name: self._allocate(name, held, storages.get(name, BLOCKED))
            for name, held in program.held["gpu"].items()
        }
        for name, value in network.constants.items():
            np.copyto(self.homes[name].array, value)
            if name in storages:
                gpu.upload(self._tensors[name], value)

    def _allocate(self, name: str, held: Region, storage: Storage) -> GpuTensor:
        """What is held may be more than any one part, and then too large for an image."""
        fits = GpuTensor.fits(self._gpu, self._shapes[name], held, storage)
        kept = storage if fits else Storage(element=storage.element)
        return self._gpu.tensor(self._shapes[name], held, kept)

    def stage(self, segment: Segment) -> Stage:
        chain = segment.chain
        gpu = GpuHalf(segment.gpu, chain, self._tensors, self._gpu)
        self.fallbacks += gpu.fallbacks
        self.storages |= gpu.storages
        mine = [name for name in segment.outputs if name in segment.cpu.outputs]
        net = build_cpu_half(segment.cpu, chain, self.homes, mine, self._gpu.soc)
        return self._stage(chain.label, segment.transfers, tuple(gpu.kernels), net)

    def exchange(self, transfers: tuple[Transfer, ...]) -> Stage:
        """A stage that only shares: what the outputs lack at the end."""
        return self._stage("outputs", transfers, (), None)

    def _stage(self, label: str, transfers: tuple[Transfer, ...], kernels: Any, net: Any) -> Stage:
        return Stage(
            label=label,
            to_cpu=tuple(
                exchange.to_cpu(t, *self._ends(t), self._gpu)
                for t in transfers
                if t.direction == "to_cpu"
            ),
            to_gpu=tuple(
                exchange.to_gpu(t, *self._ends(t), self._gpu)
                for t in transfers
                if t.direction == "to_gpu"
            ),
            kernels=kernels,
            net=net,
            gpu=self._gpu,
        )

    def _ends(self, move: Transfer) -> tuple[GpuTensor, Home, GpuTensor | None]:
        """The tensor on the GPU, its home, and the home as the GPU sees it."""
        name = move.tensor
        return self._tensors[name], self.homes[name], self._seen.get(name)
