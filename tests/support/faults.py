"""Kernel variants with a subtle bug, on a real device, and networks to plant them in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from codl.ir import Array, Network, Op, parse
from codl.ir.network import Layer
from codl.ir.plan import Plan
from codl.ir.records.soc import Soc
from codl.kernels import registry
from codl.kernels.base import Choice, KernelLaunch, KernelPlan, TensorArg
from codl.lower.partition import residual_adds
from codl.measure.check_variants import OPS, checked_operands
from codl.plan.build_plan import preferring

#: One work-item damages an output: `WHERE(c, p)` is where the pixel `p` of a channel lies.
KERNEL = """
#include "{source}"

#ifdef PLANAR_FAULT
#define WHERE(c, p) ((size_t)(c) * ys + yo + (p))
#else
#define WHERE(c, p) (((size_t)((c) / V) * ys + yo + (p)) * V + (c) % V)
#endif
#define VALUE(c, p) GET(y, WHERE(c, p))

// A plan that adds a residual hands it to every kernel that writes the output.
#ifndef ADDED
#define RESIDUAL
#elif defined(WHOLE_BATCH_FAULT)
#define RESIDUAL , __global ELEMENT *r, int ro, int rs, int ra
#else
#define RESIDUAL , __global ELEMENT *r, int ro, int rs
#endif

__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void fault(__global ELEMENT *y, int yo, int ys, int channels, int height, int width RESIDUAL) {{
    int pixels = height * width, last = pixels - width, before = max(last - width, 0);
    {body}
}}
"""
PIXELS = "for (int c = 0; c < channels; c++) for (int p = 0; p < pixels; p++)"
#: What is wrong with an output that was right before, in OpenCL C.
FAULTS = {
    # The last row is that before it: as if a halo began a row too early.
    "halo": "for (int c = 0; c < channels; c++) for (int x = 0; x < width; x++)"
    " SET(0.9f * VALUE(c, before + x), y, WHERE(c, last + x));",
    # The last channel is the first: as if a factor of that one were read for all.
    "broadcast": "for (int p = 0; p < pixels; p++)"
    " SET(VALUE(0, p) + 0.5f, y, WHERE(channels - 1, p));",
    "nan": PIXELS + " if (VALUE(c, p) < -0.5f || p == pixels - 1) SET(NAN, y, WHERE(c, p));",
    # The larger half of the range is beyond what the type holds.
    "overflow": "float most = 0.0f; "
    + PIXELS
    + " most = fmax(most, fabs((float)VALUE(c, p))); "
    + PIXELS
    + " if (fabs((float)VALUE(c, p)) >= 0.5f * most) SET(INFINITY, y, WHERE(c, p));",
    # Nobody has written the last column.
    "border": "for (int c = 0; c < channels; c++) for (int p = width - 1; p < pixels; p += width)"
    " SET(30.0f + c, y, WHERE(c, p));",
}


class Faulty:
    """A variant of the GPU side whose output is damaged by one more kernel."""

    def __init__(self, variant: Any, fault: str, folder: Path) -> None:
        self._variant, self._fault, self._folder = variant, fault, folder
        self.name = f"{variant.name}_{fault}"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._variant, name)

    def plan(self, op: Op, soc: Soc, choice: Choice | None = None) -> KernelPlan:
        plan: KernelPlan = self._variant.plan(op, soc, choice)
        file = self._folder / f"{plan.source.replace('/', '_')}_{self._fault}.cl"
        file.write_text(KERNEL.format(source=plan.source, body=FAULTS[self._fault]))
        output = TensorArg("output")
        _, *sizes = op.output
        launch = KernelLaunch("fault", (1,), (output, *sizes), (1,))
        told = {
            "PLANAR_FAULT": plan.storage(output).layout == "planar",
            "WHOLE_BATCH_FAULT": plan.whole_batch,
        }
        defines = {**plan.defines, **{name: 1 for name, holds in told.items() if holds}}
        launches = (*plan.launches, launch)
        return replace(plan, source=str(file), launches=launches, defines=defines)


@dataclass(frozen=True)
class Planted:
    """A network with a faulty variant in some of its layers: `names` are theirs."""

    network: Network
    inputs: dict[str, Array]
    plan: Plan
    names: tuple[str, ...]


def in_variant(plan: Plan, layer: str, variant: str) -> Plan:
    """The plan with a layer of the GPU's in another variant."""
    chains = [
        replace(chain, variants={**chain.variants, layer: {"gpu": variant}})
        if layer in chain.ops
        else chain
        for chain in plan.chains
    ]
    return replace(plan, chains=tuple(chains))


def every_kind(texts: Sequence[str] = OPS) -> tuple[Network, dict[str, Array]]:
    """One layer of each op, between inputs and an output of its own, and standard normal inputs."""
    layers, inputs, outputs = [], {}, {}
    for number, text in enumerate(texts):
        op = parse(text)
        values, weights = checked_operands(op)
        names = tuple(f"x{number}.{index}" for index in range(len(values)))
        inputs |= dict(zip(names, values, strict=True))
        layers.append(Layer(f"{op.kind}{number}", op, names, f"t{number}", weights))
        outputs[f"y{number}"] = (f"t{number}", tuple(op.output))
    shapes = {name: own for x in layers for name, own in zip(x.inputs, x.op.inputs, strict=True)}
    return Network("every_kind", tuple(layers), shapes, outputs), inputs


def plant(network: Network, inputs: dict[str, Array], soc: Soc, faults: dict[str, Any]) -> Planted:
    """A plan with everything on the GPU, and layers by name in faulty variants."""
    plan = preferring(network, soc, "gpu")
    for layer, variant in faults.items():
        plan = in_variant(plan, layer, variant.name)
    return Planted(network, inputs, plan, tuple(faults))


def one_of_each_kind(network: Network, dice: Random) -> list[Layer]:
    """Any layer of each kind of op that there is, but adds that convolutions compute."""
    held = {holder for holder, _ in network.outputs.values()}
    added = {layer.name for layer in residual_adds(network.layers, held).values()}
    by_kind: dict[str, list[Layer]] = {}
    for layer in network.layers:
        if layer.name not in added:
            by_kind.setdefault(layer.op.kind, []).append(layer)
    return [dice.choice(own) for own in by_kind.values()]


def default_of(layer: Layer, soc: Soc) -> Any:
    return registry.variants(layer.op, "gpu", soc)[0]
