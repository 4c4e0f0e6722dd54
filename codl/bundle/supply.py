"""What of kernels and weights goes into a bundle, and how an engine gets it from there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from codl.bundle.tensors import Tensors
from codl.errors import MismatchError
from codl.ir import Weights, to_text
from codl.ir.soc import Soc
from codl.ir.types import Constant, Processor
from codl.kernels import registry
from codl.kernels.base import KernelPlan
from codl.kernels.source import compile_options, source_digest
from codl.kernels.tuning import Tuning
from codl.lower.fusion import Work
from codl.lower.partition import Part
from codl.runtime.kernel_provider import Untouched, Way


class Recorder:
    """The usual supply, which notes what an engine has taken from it, by layer."""

    def __init__(self, soc: Soc, tuning: Tuning = Tuning()) -> None:
        self._usual = Untouched(soc, tuning)
        #: By the work's label; the way that was taken last is the one that worked.
        self._taken: dict[str, tuple[Work, Way]] = {}
        self._packed: dict[str, Mapping[str, Constant]] = {}
        self._on_cpu: dict[str, tuple[Part, Weights]] = {}

    def ways(self, work: Work, planned: str) -> Iterator[Way]:
        for way in self._usual.ways(work, planned):
            # What is tried apart has failed together.
            again = [key for key, (own, _) in self._taken.items() if {*own.names} & {*work.names}]
            for key in again:
                del self._taken[key]
            self._taken[work.label] = work, way
            kept = replace(way.plan, pack=self._keeping(work.label, way.plan.pack))
            yield replace(way, plan=kept)

    @property
    def variants(self) -> dict[str, str]:
        """The variant that computes every layer on the GPU; of an add with a convolution none."""
        return {work.names[0]: way.variant.name for work, way in self._taken.values()}

    def weights(self, part: Part, processor: Processor) -> Weights:
        found = self._usual.weights(part, processor)
        if processor == "cpu":
            self._on_cpu[part.layer.name] = part, found
        return found

    def to_json(self, tensors: Tensors) -> dict[str, Any]:
        """The kernels and weights of every part; arrays are added to `tensors`."""
        return {
            "gpu": {
                label: {
                    "op": _ops(work),
                    "variant": way.variant.name,
                    "choice": None if way.choice is None else dict(way.choice),
                    **_kernels(way.plan),
                    "constants": tensors.add_all(f"gpu/{label}", self._packed[label]),
                }
                for label, (work, way) in self._taken.items()
            },
            "cpu": {
                name: {
                    "op": _ops(Work(part)),
                    "weights": tensors.add_all(f"cpu/{name}", weights),
                }
                for name, (part, weights) in self._on_cpu.items()
            },
        }

    def _keeping(
        self, layer: str, pack: Callable[[Weights], Mapping[str, Constant]]
    ) -> Callable[[Weights], Mapping[str, Constant]]:
        def packed(weights: Weights) -> Mapping[str, Constant]:
            self._packed[layer] = pack(weights)
            return self._packed[layer]

        return packed


class Stored:
    """The supply of a bundle: one way for every part, and weights as that way takes them.

    Raises `MismatchError` where this codl would cut a layer, or write a kernel, in another way than
    the codl that wrote the bundle: the weights would not fit.
    """

    def __init__(
        self, content: Mapping[str, Any], tensors: Mapping[str, Any], soc: Soc, origin: str
    ) -> None:
        self._content, self._tensors, self._soc = content, tensors, soc
        #: What errors call the bundle.
        self._origin = origin

    def ways(self, work: Work, planned: str) -> Iterator[Way]:
        if work.add is not None and work.label not in self._content["gpu"]:
            return  # failed where the bundle was made
        own = self._own(work, "gpu")
        variant = registry.find(work.part.op, own["variant"])
        way = Way.of(work, variant, own["choice"], self._soc)
        wanted = {key: own[key] for key in ("source", "digest", "options")}
        if _kernels(way.plan) != wanted:
            self._refuse(work, f"the kernel {wanted}", f"{_kernels(way.plan)}")
        constants = self._arrays(own["constants"])
        yield replace(way, plan=replace(way.plan, pack=lambda _: constants))

    def weights(self, part: Part, processor: Processor) -> Weights:
        """None for the GPU: its kernels' constants are packed already."""
        return {} if processor == "gpu" else self._arrays(self._own(Work(part), "cpu")["weights"])

    def _own(self, work: Work, processor: Processor) -> Mapping[str, Any]:
        own: Mapping[str, Any] = self._content[processor].get(work.label, {"op": "nothing"})
        if own["op"] != _ops(work):
            self._refuse(work, f"{own['op']!r} on the {processor}", f"{_ops(work)!r}")
        return own

    def _refuse(self, work: Work, theirs: str, ours: str) -> None:
        raise MismatchError(
            f"{self._origin} has {theirs} for {work.label!r}, where this codl has "
            f"{ours}: weights that were arranged for the one do not fit the other. Package the "
            "model again with this codl."
        )

    def _arrays(self, names: Mapping[str, str]) -> dict[str, Any]:
        return {key: self._tensors[name] for key, name in names.items()}


def _ops(work: Work) -> str:
    """The parts of ops that are computed."""
    return " + ".join(to_text(part.op) for part in work.parts)


def _kernels(plan: KernelPlan) -> dict[str, str]:
    """What decides how a plan's constants lie: the text that reads them, and its macros."""
    return {
        "source": plan.source,
        "digest": source_digest(plan),
        "options": compile_options(plan.defines),
    }
