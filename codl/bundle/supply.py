"""What of kernels and weights goes into a bundle, and how an engine gets it from there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from codl.bundle.tensors import Tensors
from codl.device.programs import options_of
from codl.errors import MismatchError
from codl.execute.supply import Untouched, Way
from codl.kernels import registry
from codl.kernels.base import Constant, KernelPlan, Processor
from codl.kernels.source import source_digest
from codl.ops import Weights, to_text
from codl.ops.chain import Part
from codl.soc import Soc


class Recorder:
    """The usual supply, which notes what an engine has taken from it, by layer."""

    def __init__(self, soc: Soc) -> None:
        self._usual = Untouched(soc)
        #: The way that was taken last is the one that worked.
        self.ways_taken: dict[str, tuple[Part, Way]] = {}
        self._packed: dict[str, Mapping[str, Constant]] = {}
        self._on_cpu: dict[str, tuple[Part, Weights]] = {}

    def ways(self, part: Part, planned: str) -> Iterator[Way]:
        for way in self._usual.ways(part, planned):
            self.ways_taken[part.layer.name] = part, way
            kept = replace(way.plan, pack=self._keeping(part.layer.name, way.plan.pack))
            yield replace(way, plan=kept)

    def weights(self, part: Part, processor: Processor) -> Weights:
        found = self._usual.weights(part, processor)
        if processor == "cpu":
            self._on_cpu[part.layer.name] = part, found
        return found

    def to_json(self, tensors: Tensors) -> dict[str, Any]:
        """The kernels and weights of every part; arrays are added to `tensors`."""
        return {
            "gpu": {
                name: {
                    "op": to_text(part.op),
                    "variant": way.variant.name,
                    "choice": None if way.choice is None else dict(way.choice),
                    **_kernels(way.plan),
                    "constants": tensors.add_all(f"gpu/{name}", self._packed[name]),
                }
                for name, (part, way) in self.ways_taken.items()
            },
            "cpu": {
                name: {
                    "op": to_text(part.op),
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
        self._ways: dict[str, Way] = {}

    def ways(self, part: Part, planned: str) -> Iterator[Way]:
        name = part.layer.name
        if name not in self._ways:
            self._ways[name] = self._way(part)
        yield self._ways[name]

    def weights(self, part: Part, processor: Processor) -> Weights:
        """None for the GPU: its kernels' constants are packed already."""
        return {} if processor == "gpu" else self._arrays(self._own(part, "cpu")["weights"])

    def _way(self, part: Part) -> Way:
        own = self._own(part, "gpu")
        variant: Any = registry.find(part.op, own["variant"])
        chosen = () if own["choice"] is None else (own["choice"],)
        plan: KernelPlan = variant.plan(part.op, self._soc, *chosen)
        wanted = {key: own[key] for key in ("source", "digest", "options")}
        if _kernels(plan) != wanted:
            self._refuse(part, f"the kernel {wanted}", f"{_kernels(plan)}")
        constants = self._arrays(own["constants"])
        return Way(variant, own["choice"], replace(plan, pack=lambda _: constants))

    def _own(self, part: Part, processor: Processor) -> Mapping[str, Any]:
        own: Mapping[str, Any] = self._content[processor].get(part.layer.name, {"op": "nothing"})
        if own["op"] != to_text(part.op):
            self._refuse(part, f"{own['op']!r} on the {processor}", f"{to_text(part.op)!r}")
        return own

    def _refuse(self, part: Part, theirs: str, ours: str) -> None:
        raise MismatchError(
            f"{self._origin} has {theirs} for the layer {part.layer.name!r}, where this codl has "
            f"{ours}: weights that were arranged for the one do not fit the other. Package the "
            "model again with this codl."
        )

    def _arrays(self, names: Mapping[str, str]) -> dict[str, Any]:
        return {key: self._tensors[name] for key, name in names.items()}


def _kernels(plan: KernelPlan) -> dict[str, str]:
    """What decides how a plan's constants lie: the text that reads them, and its macros."""
    return {
        "source": plan.source,
        "digest": source_digest(plan),
        "options": options_of(plan.defines),
    }
