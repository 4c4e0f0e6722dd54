"""The co-executor: an engine that runs a network on CPU and GPU by a plan."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, overload

import numpy as np
from numpy.typing import NDArray

from codl.errors import CodlError, CodlWarning, DeviceError, UnsupportedError
from codl.ir import Array, Layer, Network, parse
from codl.ir.executable import Executable, GpuOp, NcnnNet, OnnxNet, Refusal
from codl.ir.network import input_as_float32, output_as
from codl.ir.ops.eltwise import Eltwise
from codl.ir.ops.reductions import Reduce
from codl.ir.plan import Chain, Plan
from codl.ir.records.gpu_limits import LimitedGpu
from codl.ir.records.results import Adaptation, Checked, Fallback, TimeSpan
from codl.ir.records.soc import Soc
from codl.ir.region import as_nchw
from codl.ir.types import Element, Storage, arithmetic_of, narrowest
from codl.kernels import registry
from codl.kernels.tuning import Tuning
from codl.lower.lowering import lower
from codl.machine.placement import LocalSoc, require_local, splittable
from codl.runtime.loaded import Footprint, Loaded, RefusedError

if TYPE_CHECKING:  # running loads no measuring code and no streams
    from codl.engine.stream import Frame, Lanes, Stream
    from codl.targets.base import Target


#: Ops between a mask of infinities and the attention that reads it.
PASSING = ("eltwise", "reshape", "transpose", "slice", "tile", "concat", "concat_nd")


class Adapter(Protocol):
    """Called after each inference; may change the plan by `Engine.exchange`."""

    @property
    def adaptation(self) -> Adaptation: ...
    def after_run(self, engine: Engine) -> None: ...


class Engine:
    """A network on the CPU and the OpenCL device of a target, by a plan.

    The constructor compiles, allocates and runs every kernel once; a run only copies, enqueues and
    waits. The calling thread runs on the SoC's CPU cores during an inference.

    Any thread may call an engine. Inferences on one target run one at a time; inferences on two
    targets, as of two calls of `codl.compile`, run at once. A forked process raises `DeviceError`.

    `tuning` has the tuned choices of kernels. `fallbacks` lists the kernels that the device
    refused. `plan` is the current plan of an engine that adapts (`adapt`).

    After a GPU failure an engine that `recovers` runs this and all later inferences on the CPU,
    with a `CodlWarning`; `gpu_failure` is the reason. Other engines raise `DeviceError`.

    >>> engine = Engine(network, plan, connect("local", soc))
    >>> y = engine(x)
    """

    def __init__(
        self,
        network: Network,
        plan: Plan,
        target: Target,
        tuning: Tuning = Tuning(),
        *,
        recovers: bool = False,
    ) -> None:
        soc = require_local(target.soc)
        refusals: list[Refusal] = []
        finer = splittable(soc)
        while True:
            executable = lower(network, plan, finer, tuning, without=refusals)
            try:
                loaded = target.load(executable)
                break
            except RefusedError as error:
                refusals += error.refusals

        def load_on_cpu(plan: Plan, nonfinite: bool) -> tuple[Plan, Loaded]:
            alone = on_cpu(network, plan, soc, nonfinite=nonfinite)
            lowered = lower(network, alone, finer, tuning, without=refusals)
            return alone, target.load_on_cpu(lowered)

        self._begin(loaded, network, plan, soc, fallbacks_of(executable, refusals))
        self._load_on_cpu, self._recovers = load_on_cpu, recovers
        for fallback in self.fallbacks:
            warnings.warn(str(fallback), CodlWarning, stacklevel=2)

    #: The plan on the CPU alone, loaded; with True, in variants that keep NaN and infinities. None
    #: in an engine of a given executable (`of`).
    _load_on_cpu: Callable[[Plan, bool], tuple[Plan, Loaded]] | None = None
    #: True if the engine continues on the CPU after a GPU failure.
    _recovers = False
    #: Resources that are closed with the engine, such as its target.
    owned: ExitStack | None = None
    #: Makes the engines of the first stream; with None, this engine alone runs the frames.
    make_lanes: Callable[[Engine], Lanes] | None = None
    _lanes: Lanes | None = None

    @classmethod
    def of(cls, loaded: Loaded, network: Network, plan: Plan, soc: LocalSoc) -> Engine:
        """An engine of a loaded executable, lowered from `network` and `plan`."""
        engine = object.__new__(cls)
        engine._begin(loaded, network, plan, soc, ())
        return engine

    def _begin(
        self,
        loaded: Loaded,
        network: Network,
        plan: Plan,
        soc: LocalSoc,
        fallbacks: tuple[Fallback, ...],
    ) -> None:
        self.network, self.soc = network, soc
        self.plan = plan
        self.fallbacks = fallbacks
        #: The loaded executable, which targets time and profile.
        self.loaded = loaded
        self._adapter: Adapter | None = None
        #: Output arrays that stay valid when the plan changes; None if the engine does not adapt.
        self._outputs: Mapping[str, Array] | None = None
        #: Names of tensors with NaN or infinities, and the executable that keeps them.
        self._nonfinite: Sequence[str] = ()
        self._in_onnxruntime: Loaded | None = None
        #: The reason of the GPU's failure; "" while the GPU works.
        self.gpu_failure = ""
        #: The verdict of the comparison with the model's reference; None without one.
        self.checked: Checked | None = None

    def adapt(self, adapter: Adapter) -> None:
        """Let an adapter change the plan between inferences."""
        self._adapter = adapter
        self._outputs = {name: array.copy() for name, array in self.loaded.outputs.items()}

    def exchange(self, other: Engine) -> None:
        """Swap plans with another engine of the same network."""
        self.plan, other.plan = other.plan, self.plan
        self.fallbacks, other.fallbacks = other.fallbacks, self.fallbacks
        self.loaded, other.loaded = other.loaded, self.loaded

    @property
    def adaptation(self) -> Adaptation | None:
        """Changes of the plan so far; None if the engine does not adapt."""
        return None if self._adapter is None else self._adapter.adaptation

    @property
    def executable(self) -> Executable:
        """The running executable, as data."""
        return self.loaded.executable

    @overload
    def __call__(self, inputs: NDArray[Any]) -> NDArray[Any]: ...

    @overload
    def __call__(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]: ...

    def __call__(
        self, inputs: NDArray[Any] | Mapping[str, NDArray[Any]]
    ) -> NDArray[Any] | dict[str, NDArray[Any]]:
        """Run one inference, and copy its outputs.

        A mapping of all inputs by name gives a mapping of all outputs. One array, for a model with
        one input and one output, gives one array. Raises `CodlError` for a missing or unknown
        input, a wrong shape, and numbers that float32 cannot hold, in or out.
        """
        ports = self.executable.outputs
        if isinstance(inputs, Mapping):
            with self.loaded.lock:
                self.feed(inputs)
                self.run()
                return {n: output_as(n, a, ports[n].type) for n, a in self.outputs.items()}
        if len(self.loaded.inputs) != 1 or len(ports) != 1:
            raise CodlError(
                f"{self.network.name!r} has the inputs {', '.join(self.loaded.inputs)} and the "
                f"outputs {', '.join(ports)}: give a dict of arrays by name."
            )
        return self(dict.fromkeys(self.loaded.inputs, inputs))[next(iter(ports))]

    def stream(self, frames: Iterable[Frame], *, in_flight: int | None = None) -> Stream:
        """Run frames on the processors that are free; iterate over the results in order.

        A frame is what a call of the engine takes, and is copied when it is read. At most
        `in_flight` frames are read ahead of the results; by default enough to keep the processors
        busy. The first call makes the engines of the processors, which later calls share. Raises
        `CodlError` for an `in_flight` below 1 or beyond the free memory.
        """
        from codl.engine.stream import Stream

        return Stream(self.lanes, frames, in_flight)

    @property
    def lanes(self) -> Lanes:
        """The engines of streams: those of a stream's plan, or this engine alone."""
        with self.loaded.lock:
            if self._lanes is None:
                alone = {self.plan.strategy: self}
                make = self.make_lanes
                self._lanes = self.lanes_of(alone, 2) if make is None else make(self)
            return self._lanes

    def lanes_of(self, engines: Mapping[str, Engine], in_flight: int) -> Lanes:
        """Lanes of engines of this network, given by name, the fastest first."""
        from codl.engine.stream import Lanes

        ports = (*self.executable.inputs.values(), *self.executable.outputs.values())
        return Lanes(engines, in_flight, 4 * sum(prod(port.shape) for port in ports))

    def feed(self, inputs: Mapping[str, NDArray[Any]]) -> None:
        """Copy inputs to the arrays that `run` reads."""
        arrays = self.loaded.inputs
        if set(inputs) != set(arrays):
            raise CodlError(
                f"The inputs must be {', '.join(arrays)}, got {', '.join(inputs) or 'none'}."
            )
        for name, array in arrays.items():
            type_ = self.network.types.get(name, "float32")
            value = input_as_float32(name, np.asarray(inputs[name]), type_)
            shape = self.network.inputs[name]
            if as_nchw(value.shape) != shape:
                raise CodlError(f"The input {name!r} must be {shape}, got {value.shape}.")
            np.copyto(array, value.reshape(array.shape))
        self._nonfinite = (*self._nonfinite_constants, *self._nonfinite_of(arrays))

    def _nonfinite_of(self, tensors: Mapping[str, Array]) -> list[str]:
        return [name for name, x in tensors.items() if self._is_nonfinite(x, name in self._masks)]

    def _is_nonfinite(self, array: Array, is_mask: bool) -> bool:
        """True where a tensor has NaN or infinities that a kernel of the executable would change.

        Masks of attention contain minus infinity, which does not count in a mask.
        """
        with np.errstate(all="ignore"):
            if np.isfinite(array.sum()) or not self._changes_nonfinite:
                return False
        nonfinite = ~np.isfinite(array)
        return bool((nonfinite & (array != -np.inf) if is_mask else nonfinite).any())

    @cached_property
    def _nonfinite_constants(self) -> tuple[str, ...]:
        """Names of constants with NaN or infinities, and of layers with such weights."""
        network = self.network
        layers = [
            layer.name
            for layer in network.layers
            if any(self._is_nonfinite(array, is_mask=True) for array in layer.weights.values())
        ]
        return (*self._nonfinite_of(network.constants), *layers)

    @cached_property
    def _changes_nonfinite(self) -> bool:
        """True where a kernel variant of the executable would change NaN or infinities."""
        executable = self.executable
        run = [(x.ops[0], x.variant) for x in executable.steps if isinstance(x, GpuOp)]
        run += [(x.op, x.variant) for net in executable.nets for x in net.layers]
        ops = [(parse(text), name) for text, name in run]
        found = [(op, registry.VARIANTS.get(f"{op.kind} {name}")) for op, name in ops]
        return any(variant is None or variant.changes_nonfinite(op) for op, variant in found)

    @cached_property
    def _masks(self) -> frozenset[str]:
        """Names of inputs and constants that are read only as masks of attention scores."""
        network = self.network
        masks: set[str] = set()

        def covers(layer: Layer, tensor: str) -> bool:
            op = layer.op
            if op.kind in ("attention", "softmax"):
                return op.kind == "softmax" or tensor not in layer.inputs[:3]
            if isinstance(op, Eltwise) and op.mode == "max":  # a finite one removes -inf
                others = (name for name in layer.inputs if name != tensor)
                return all(np.isfinite(network.constants.get(x, np.inf)).all() for x in others)
            is_maximum = isinstance(op, Reduce) and op.mode == "max"
            passes = (op.kind in PASSING or is_maximum) and op.activation.kind == "none"
            return passes and layer.output in masks

        results = {holder for holder, _ in network.outputs.values()}
        given = (*network.constants, *network.inputs)
        for tensor in (*(layer.output for layer in reversed(network.layers)), *given):
            layers = network.readers(tensor)
            if layers and tensor not in results and all(covers(x, tensor) for x in layers):
                masks.add(tensor)
        return frozenset(masks.intersection(given))

    def _run_in_onnxruntime(self) -> None:
        """Run in variants that keep NaN and infinities, loaded on first use; warn."""
        nonfinite = ", ".join(map(repr, self._nonfinite))
        told = f"{nonfinite} of {self.network.name!r} has values that are no numbers."
        try:
            if self._load_on_cpu is None:
                raise CodlError("there is nothing but what is loaded.")
            if self._in_onnxruntime is None:
                _, self._in_onnxruntime = self._load_on_cpu(self.plan, True)
            instead = self._in_onnxruntime
            for name, array in self.loaded.inputs.items():
                np.copyto(instead.inputs[name], array)
            instead.run()
            for name, array in self.loaded.outputs.items():
                np.copyto(array, instead.outputs[name])
        except CodlError as error:
            told += f" Others may come out than ONNX Runtime has: {error}"
            self.loaded.run()
        warnings.warn(told, CodlWarning, stacklevel=4)

    def run(self) -> None:
        """Run on the fed inputs and write `outputs`. Allocates no tensor."""
        with self.loaded.lock:
            loaded = self.loaded
            if self._nonfinite:
                self._run_in_onnxruntime()
            else:
                try:
                    loaded.run()
                except DeviceError as error:
                    self.recover(error, loaded)
                    self.loaded.run()
            for name, array in (self._outputs or {}).items():
                np.copyto(array, self.loaded.outputs[name].reshape(array.shape))
            if self._adapter is not None and not self._nonfinite:
                self._adapter.after_run(self)

    def recover(self, why: DeviceError, failed: Loaded | None = None) -> None:
        """Continue without the failed GPU; raises `why` if the engine cannot recover.

        Does nothing if another thread has replaced the executable that `failed`.
        """
        failed = failed or self.loaded
        with failed.lock:
            if self.loaded is not failed:
                return
            if self._load_on_cpu is None or not self._recovers:
                raise why
            try:
                plan, loaded = self._load_on_cpu(self.plan, False)
            except CodlError as error:
                raise DeviceError(f"{why} The CPU cannot stand in: {error}") from why
            for name, array in failed.inputs.items():
                np.copyto(loaded.inputs[name], array.reshape(loaded.inputs[name].shape))
            failed.close()
            self.plan, self.loaded = plan, loaded
            self._adapter, self._recovers = None, False
            self.gpu_failure = str(why)
        warnings.warn(
            f"{self.gpu_failure} The CPU does this inference again, and all that follow.",
            CodlWarning,
            stacklevel=4,
        )

    @property
    def nets(self) -> dict[str, tuple[str, ...]]:
        """Layers of each CPU net, by the label of its spans."""
        nets: Sequence[NcnnNet | OnnxNet] = self.executable.nets
        return {net.label: tuple(layer.name for layer in net.layers) for net in nets}

    @property
    def storages(self) -> tuple[Storage, ...]:
        """Storages of the GPU's tensors."""
        tensors = self.executable.tensors
        ops = (step for step in self.executable.steps if isinstance(step, GpuOp))
        return tuple(sorted({tensors[op.writes.tensor].storage for op in ops}, key=str))

    @property
    def precision(self) -> dict[str, str]:
        """The narrowest types in which the GPU stores and multiplies; long sums are float32."""
        ops = [step for step in self.executable.steps if isinstance(step, GpuOp)]
        stored: set[Element] = {storage.element for storage in self.storages}
        computed = {arithmetic_of(step.variant) for step in ops}
        return {
            "stored": narrowest(stored),
            "computed": narrowest(computed),
            "accumulated": "float32",
        }

    @property
    def limited(self) -> LimitedGpu | None:
        """Effect of the placement's GPU limits; None without limits."""
        return self.loaded.limited

    @property
    def memory(self) -> Footprint:
        """Bytes of tensors and weights on each side, without the libraries' own memory."""
        return self.loaded.footprint

    @property
    def outputs(self) -> Mapping[str, Array]:
        """The output arrays, overwritten by the next run."""
        return self.loaded.outputs if self._outputs is None else self._outputs

    def profile(self, runs: int = 5, *, layers: bool = False) -> list[TimeSpan]:
        """Spans of both processors in the median of several runs on the fed inputs.

        With `layers`, spans of a net's layers are included where its library runs them one by one.
        """
        loaded = self.loaded
        try:
            profiles = [loaded.profile(layers=layers) for _ in range(runs)]
        except DeviceError as error:
            self.recover(error, loaded)
            profiles = [self.loaded.profile(layers=layers) for _ in range(runs)]
        profiles.sort(key=lambda spans: max((span.end_ms for span in spans), default=0.0))
        return profiles[runs // 2]

    def __reduce__(self) -> NoReturn:
        raise UnsupportedError(
            f"The engine of {self.network.name!r} holds memory of its device, so it is neither "
            "copied nor pickled: make another one where it is needed, by codl.compile or, of a "
            "bundle of `codl package`, codl.load."
        )

    def close(self) -> None:
        """Release buffers, nets and the engines of streams; the engine cannot run afterwards."""
        for lane in self._lanes.engines.values() if self._lanes else ():
            if lane is not self:
                lane.close()
        self._load_on_cpu = None
        if self._in_onnxruntime is not None:
            self._in_onnxruntime.close()
        self.loaded.close()
        if self.owned is not None:
            self.owned.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()


def fallbacks_of(executable: Executable, refusals: Sequence[Refusal]) -> tuple[Fallback, ...]:
    """The replacement of each refused kernel in an executable that was lowered without it."""
    ops = {step.label: step for step in executable.steps if isinstance(step, GpuOp)}
    fallen = [
        Fallback(refusal.label, refusal.variant, refusal.reason, ops[refusal.label].variant)
        for refusal in refusals
        if refusal.label in ops
    ]
    for label in dict.fromkeys(refusal.label for refusal in refusals if refusal.label not in ops):
        reasons = "; ".join(str(refusal) for refusal in refusals if refusal.label == label)
        first = next(refusal.variant for refusal in refusals if refusal.label == label)
        fallen.append(Fallback(label, f"one of {first}", reasons, "two kernels"))
    return tuple(fallen)


def on_cpu(network: Network, plan: Plan, soc: Soc, *, nonfinite: bool = False) -> Plan:
    """A plan of all layers on the CPU, in the planned CPU variants or else the default ones.

    With `nonfinite`, variants that keep NaN and infinities come first. Raises `UnsupportedError`
    with the first layer without a CPU variant.
    """
    planned = {name: sides for chain in plan.chains for name, sides in chain.variants.items()}
    variants = {}
    for layer in network.layers:
        fit = registry.variants(layer.op, "cpu", soc)
        if nonfinite and fit:
            every = registry.variants(layer.op, "cpu", soc, include_unfit=True)
            fit = [variant for variant in every if not variant.changes_nonfinite(layer.op)] or fit
        if not fit:
            raise UnsupportedError(
                f"The CPU has no kernel variant for {layer.name!r} ({layer.op.kind})."
            )
        names = [variant.name for variant in fit]
        own = planned.get(layer.name, {}).get("cpu")  # it may accept the planned part alone
        variants[layer.name] = {"cpu": own if own in names else names[0]}
    whole = Chain(tuple(variants), "H", 0.0, variants)
    return replace(
        plan,
        strategy="cpu",
        predictor="none",
        sharing="gather",
        predicted_ms=None,
        predicted_mj=None,
        chains=(whole,) if variants else (),
        method="the GPU failed",
    )
