"""The co-executor: a network and a plan in, a running engine out."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, overload

import numpy as np
from numpy.typing import NDArray

from codl.engine.cpu_fallback import CpuFallback
from codl.errors import CodlError, CodlWarning, DeviceError, UnsupportedError
from codl.ir import Array, Layer, Network
from codl.ir.executable import Executable, GpuOp, NcnnNet, OnnxNet, Refusal
from codl.ir.network import input_as_float32, output_as
from codl.ir.ops.eltwise import Eltwise
from codl.ir.ops.reductions import Reduce
from codl.ir.plan import Plan
from codl.ir.region import as_nchw
from codl.ir.types import Element, Storage, arithmetic_of, narrowest
from codl.kernels.kernel import CHANGE_NONFINITE
from codl.kernels.tuning import Tuning
from codl.lower import lower
from codl.lower.nets import library_of
from codl.records.gpu_limits import LimitedGpu
from codl.records.results import Adaptation, Checked, Fallback, TimeSpan
from codl.runtime.loaded import Footprint, Loaded, RefusedError
from codl.runtime.placement import LocalSoc, require_local, splittable

if TYPE_CHECKING:  # what a target measures is not loaded to run
    from codl.targets.base import Target

#: Ops that masks of infinities may pass on their way to attention.
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

    Any thread may call any engine of a target; they run one at a time. Engines of two targets, as
    of two calls of `codl.compile`, run at once and share the cores. In a forked process an engine
    raises `DeviceError`.

    `tuning` has the tuned choices of kernels. With `fuse` off every layer has its own kernels.
    Kernels that the device refuses are replaced: `fallbacks` lists them, each with a `CodlWarning`.

    An engine that adapts (`adapt`) changes to a balanced plan where a processor became slower or
    faster: `plan` is the current one, `adaptation` has the changes. It holds two plans while it
    compares them.

    After a GPU failure an engine that `recovers` repeats the inference on the CPU, and runs all
    later ones there, with a `CodlWarning`; `gpu_failure` is the reason. Others raise `DeviceError`,
    so that a measurement of a GPU never contains the CPU's times.

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
        fuse: bool = True,
        recovers: bool = False,
    ) -> None:
        soc = require_local(target.soc)
        refusals: list[Refusal] = []
        finer = splittable(soc)
        while True:
            executable = lower(network, plan, finer, tuning, without=refusals, fuse=fuse)
            try:
                loaded = target.load(executable)
                break
            except RefusedError as error:
                refusals += error.refusals
        fallbacks = fallbacks_of(executable, refusals)
        lowering = partial(lower, network, soc=finer, tuning=tuning, without=refusals, fuse=fuse)
        self._begin(loaded, network, plan, soc, fallbacks)
        self._cpu_fallback, self._recovers = CpuFallback(network, soc, target, lowering), recovers
        for fallback in self.fallbacks:
            warnings.warn(str(fallback), CodlWarning, stacklevel=2)

    #: What runs where the GPU fails, or other libraries may not; None of what was loaded by others.
    _cpu_fallback: CpuFallback | None = None
    #: Whether the CPU goes on where the GPU fails.
    _recovers = False
    #: What is closed with the engine, such as its target.
    _owned: ExitStack | None = None

    @classmethod
    def of(cls, loaded: Loaded, network: Network, plan: Plan, soc: LocalSoc) -> Engine:
        """An engine of a loaded executable, lowered from `network` and `plan`."""
        engine = object.__new__(cls)
        engine._begin(loaded, network, plan, soc, ())
        return engine

    @property
    def loaded(self) -> Loaded:
        """The loaded executable, which targets time and profile."""
        return self._loaded

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
        self.fallbacks, self._loaded = fallbacks, loaded
        self._adapter: Adapter | None = None
        #: Arrays that stay where they are when the plan changes; None where it does not.
        self._outputs: Mapping[str, Array] | None = None
        #: What has values that are no numbers, and what runs that in ONNX Runtime.
        self._nonfinite: Sequence[str] = ()
        self._in_onnxruntime: Loaded | None = None
        #: Why the GPU has no part any more; "" as long as it has.
        self.gpu_failure = ""
        #: What came of comparing it with its model's reference; None where nobody did.
        self.checked: Checked | None = None

    def adapt(self, adapter: Adapter) -> None:
        """Let an adapter change the plan between inferences."""
        self._adapter = adapter
        self._outputs = {name: array.copy() for name, array in self._loaded.outputs.items()}

    def exchange(self, other: Engine) -> None:
        """Swap plans with another engine of the same network."""
        self.plan, other.plan = other.plan, self.plan
        self.fallbacks, other.fallbacks = other.fallbacks, self.fallbacks
        self._loaded, other._loaded = other._loaded, self._loaded

    @property
    def adaptation(self) -> Adaptation | None:
        """Changes of the plan so far; None if the engine does not adapt."""
        return None if self._adapter is None else self._adapter.adaptation

    @property
    def executable(self) -> Executable:
        """The running executable, as data."""
        return self._loaded.executable

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
        one of another shape, and for numbers that float32 does not hold, in or out.
        """
        ports = self.executable.outputs
        if isinstance(inputs, Mapping):
            with self._loaded.lock:
                self.feed(inputs)
                self.run()
                return {n: output_as(n, a, ports[n].type) for n, a in self.outputs.items()}
        if len(self._loaded.inputs) != 1 or len(ports) != 1:
            raise CodlError(
                f"{self.network.name!r} has the inputs {', '.join(self._loaded.inputs)} and the "
                f"outputs {', '.join(ports)}: give a dict of arrays by name."
            )
        return self(dict.fromkeys(self._loaded.inputs, inputs))[next(iter(ports))]

    def feed(self, inputs: Mapping[str, NDArray[Any]]) -> None:
        """Copy inputs to the arrays that `run` reads."""
        arrays = self._loaded.inputs
        if set(inputs) != set(arrays):
            raise CodlError(
                f"The inputs must be {', '.join(arrays)}, got {', '.join(inputs) or 'none'}."
            )
        for name, array in arrays.items():
            type_ = self.network.types.get(name, "float32")
            value, shape = _as_float32(name, inputs[name], type_), self.network.inputs[name]
            if as_nchw(value.shape) != shape:
                raise CodlError(f"The input {name!r} must be {shape}, got {value.shape}.")
            np.copyto(array, value.reshape(array.shape))
        self._nonfinite = (*self._nonfinite_constants, *self._nonfinite_of(arrays))

    def _nonfinite_of(self, tensors: Mapping[str, Array]) -> list[str]:
        return [name for name, x in tensors.items() if self._is_nonfinite(x, name in self._masks)]

    def _is_nonfinite(self, array: Array, is_mask: bool) -> bool:
        """Whether a tensor has what libraries would make numbers of, or kernels spread.

        Minus infinity is what masks of attention are made of, and harmless there.
        """
        with np.errstate(all="ignore"):
            if np.isfinite(array.sum()) or not self._changes_them:
                return False
        nonfinite = ~np.isfinite(array)
        return bool((nonfinite & (array != -np.inf) if is_mask else nonfinite).any())

    @cached_property
    def _nonfinite_constants(self) -> tuple[str, ...]:
        """Constants with such values, and layers whose weights have some."""
        network = self.network
        layers = [
            layer.name
            for layer in network.layers
            if any(self._is_nonfinite(array, is_mask=True) for array in layer.weights.values())
        ]
        return (*self._nonfinite_of(network.constants), *layers)

    @cached_property
    def _changes_them(self) -> bool:
        """Whether the executable would change NaN or move it to other elements.

        ncnn and OpenVINO make numbers of it. On the GPU, Winograd's tiles mix pixels, and blocks of
        channels multiply those of other groups by 0.
        """
        executable, ops = self.executable, {x.name: x.op for x in self.network.layers}
        hides = any(library_of(net) in CHANGE_NONFINITE for net in executable.nets)
        kernels = (step for step in executable.steps if isinstance(step, GpuOp))
        spreads = any(
            "winograd" in step.variant or getattr(ops.get(step.layers[0]), "groups", 1) > 1
            for step in kernels
        )
        return hides or spreads

    @cached_property
    def _masks(self) -> frozenset[str]:
        """Tensors that nothing reads but what makes probabilities of scores, or adds to those."""
        network = self.network
        masks: set[str] = set()

        def covers(layer: Layer, tensor: str) -> bool:
            op = layer.op
            if op.kind in ("attention", "softmax"):
                return op.kind == "softmax" or tensor not in layer.inputs[:3]
            if isinstance(op, Eltwise) and op.mode == "max":  # of a number: there is none below
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
        """Run in ONNX Runtime, loaded once more, what others would change."""
        nonfinite = ", ".join(map(repr, self._nonfinite))
        told = f"{nonfinite} of {self.network.name!r} has values that are no numbers."
        try:
            if self._cpu_fallback is None:
                raise CodlError("there is nothing but what is loaded.")
            instead = self._in_onnxruntime or self._cpu_fallback.in_onnxruntime(self.plan)
            self._in_onnxruntime = instead
            for name, array in self._loaded.inputs.items():
                np.copyto(instead.inputs[name], array)
            instead.run()
            for name, array in self._loaded.outputs.items():
                np.copyto(array, instead.outputs[name])
        except CodlError as error:
            told += f" Others may come out than ONNX Runtime has: {error}"
            self._loaded.run()
        warnings.warn(told, CodlWarning, stacklevel=4)

    def run(self) -> None:
        """Run on the fed inputs and write `outputs`. Allocates no tensor."""
        with self._loaded.lock:
            loaded = self._loaded
            if self._nonfinite:
                self._run_in_onnxruntime()
            else:
                try:
                    loaded.run()
                except DeviceError as error:
                    self._recover(loaded, error)
                    self._loaded.run()
            for name, array in (self._outputs or {}).items():
                np.copyto(array, self._loaded.outputs[name].reshape(array.shape))
            if self._adapter is not None and not self._nonfinite:
                self._adapter.after_run(self)

    def recover(self, why: DeviceError) -> None:
        """Continue without the failed GPU; raises `why` if the engine cannot recover."""
        self._recover(self._loaded, why)

    def _recover(self, failed: Loaded, why: DeviceError) -> None:
        """Leave inferences to the CPU; raises `why` if the engine cannot recover.

        Another thread may have done so already.
        """
        with failed.lock:
            if self._loaded is not failed:
                return
            if self._cpu_fallback is None or not self._recovers:
                raise why
            self.plan, self._loaded = self._cpu_fallback.take_over(failed, self.plan, why)
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
    def fused(self) -> dict[str, tuple[str, ...]]:
        """Layers that the GPU computes together, by the label of their spans."""
        return self.executable.fused

    @property
    def storages(self) -> tuple[Storage, ...]:
        """Storages of the GPU's tensors."""
        tensors = self.executable.tensors
        ops = (step for step in self.executable.steps if isinstance(step, GpuOp))
        return tuple(sorted({tensors[op.writes.tensor].storage for op in ops}, key=str))

    @property
    def precision(self) -> dict[str, str]:
        """The narrowest types that the GPU stores tensors as and multiplies in.

        Long sums are of float32, whatever is multiplied.
        """
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
        return self._loaded.limited

    @property
    def memory(self) -> Footprint:
        """Bytes of tensors and weights on each side, without those of libraries."""
        return self._loaded.footprint

    @property
    def outputs(self) -> Mapping[str, Array]:
        """The output arrays, overwritten by the next run."""
        return self._loaded.outputs if self._outputs is None else self._outputs

    def profile(self, runs: int = 5, *, layers: bool = False) -> list[TimeSpan]:
        """Spans of both processors in the median of some runs on the fed inputs.

        With the `layers` of nets, too, where a library computes them one by one.
        """
        loaded = self._loaded
        try:
            profiles = [loaded.profile(layers=layers) for _ in range(runs)]
        except DeviceError as error:
            self._recover(loaded, error)
            profiles = [self._loaded.profile(layers=layers) for _ in range(runs)]
        profiles.sort(key=lambda spans: max((span.end_ms for span in spans), default=0.0))
        return profiles[runs // 2]

    def __reduce__(self) -> NoReturn:
        raise UnsupportedError(
            f"The engine of {self.network.name!r} holds memory of its device, so it is neither "
            "copied nor pickled: make another one where it is needed, by codl.compile or, of a "
            "bundle of `codl package`, codl.load."
        )

    def close(self) -> None:
        """Release buffers and nets; the engine cannot run afterwards."""
        self._cpu_fallback = None
        if self._in_onnxruntime is not None:
            self._in_onnxruntime.close()
        self._loaded.close()
        if self._owned is not None:
            self._owned.close()

    def owns(self, resources: ExitStack) -> None:
        """Close these with the engine, too."""
        self._owned = resources

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()


def fallbacks_of(executable: Executable, refusals: Sequence[Refusal]) -> tuple[Fallback, ...]:
    """The replacement of each refused kernel in an executable lowered without it."""
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


def _as_float32(name: str, value: NDArray[Any], type_: str) -> Array:
    """An input in float32; raises `CodlError` for numbers that float32 cannot hold."""
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise CodlError(f"The input {name!r} must hold numbers, got {array.dtype}.")
    return input_as_float32(name, array, type_)
