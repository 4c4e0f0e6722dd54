"""Baselines to compare `codl` with: one processor, muLayer, and CoDL as published."""

from __future__ import annotations

from dataclasses import replace

from codl.errors import DeviceError, UnsupportedError
from codl.ir import Layer, Network
from codl.ir.plan import Plan
from codl.plan.build_plan import default_plan, one_processor
from codl.plan.greedy import ChainSearch, IsolatedChain, greedy_chains
from codl.predict import DEFAULT
from codl.strategies.base import Context, strategy
from codl.strategies.device_loop import fastest_on_cpu

#: The GPU's shares that muLayer chooses from.
RATIOS = tuple(i / 10 for i in range(11))
#: Linear models of FLOPs for each kind of op (muLayer), and of analytically extracted blocks
#: (section 5.2 of the paper).
MULAYER_PREDICTOR, PAPER_PREDICTOR = "flops_linear", "codl_linear"


@strategy("cpu", runs_plans=True)
def cpu(network: Network, context: Context) -> Plan:
    """Everything on the CPU, in the fastest of its libraries, or in several.

    Where a device is at hand, the network runs on it in each, and the fastest plan is taken.
    """
    if context.profiling is not None:
        try:
            return fastest_on_cpu(network, context, strategy="cpu")
        except (DeviceError, UnsupportedError) as error:
            context.note(f"{network.name}: no plan ran, so predictions decide. {error}")
    return one_processor(network, context.cost(DEFAULT), "cpu", strategy="cpu")


@strategy("gpu")
def gpu(network: Network, context: Context) -> Plan:
    """Everything on the GPU, in the fastest variant of every op."""
    return one_processor(network, context.cost(DEFAULT), "gpu", strategy="gpu")


@strategy("gpu-buffer")
def gpu_buffer(network: Network, context: Context) -> Plan:
    """Everything on the GPU with all tensors in buffers, whatever else it could keep them in."""
    return _one_memory(network, context, "gpu-buffer", "buffer")


@strategy("gpu-image")
def gpu_image(network: Network, context: Context) -> Plan:
    """Everything on the GPU with tensors in images, as the paper's GPU-only baseline (MACE).

    Ops that have no kernel over images, and tensors that are too large for one, stay in buffers. A
    GPU reads images through its texture units; a CPU emulates them, and takes some 20 times as
    long. Raises `UnsupportedError` where the device has no images.
    """
    gpu = context.soc.gpu
    if not gpu.max_image_width:
        raise UnsupportedError(
            f"gpu-image needs images, and {gpu.name!r} of the SoC {context.soc.name!r} has none "
            "(max_image_width is 0)."
        )
    return _one_memory(network, context, "gpu-image", "image2d")


def _one_memory(network: Network, context: Context, name: str, memory: str) -> Plan:
    """Everything on the GPU with its tensors in one of `MEMORY_TYPES`.

    In the fastest variants where the SoC's dataset has that memory, otherwise in the default ones.
    """
    restricted = context.with_memory(memory)
    if memory in context.soc.gpu.memory_types:
        return one_processor(network, restricted.cost(DEFAULT), "gpu", strategy=name)
    return replace(default_plan(network, restricted.soc, "gpu"), strategy=name)


@strategy("mulayer", default_predictor=MULAYER_PREDICTOR)
def mulayer(network: Network, context: Context) -> Plan:
    """muLayer (EuroSys '19): every op on both processors, split on output channels, shared at once.

    The ratio comes from a linear model of FLOPs for each kind of op, and data sharing is not part
    of the decision: each op's output is made whole on both sides before the next begins.
    """
    search = ChainSearch(network, context.cost(MULAYER_PREDICTOR, by_op=True))
    return search.plan("mulayer", [_balanced(search, layer) for layer in network.layers])


def _balanced(search: ChainSearch, layer: Layer) -> IsolatedChain:
    """The share at which both shards are predicted to end together."""
    ratios = RATIOS if "OC" in layer.op.dims else (0.0, 1.0)
    candidates = [search.at([layer], "OC", ratio) for ratio in ratios]
    return min(candidates, key=lambda chain: max(chain.alone_ms))


@strategy("codl-buffer", default_predictor=PAPER_PREDICTOR)
def codl_buffer(network: Network, context: Context) -> Plan:
    """`codl-paper` with all of the GPU's tensors in buffers: what images are worth to it.

    Where a SoC has only buffers, as hosts do, it plans what `codl-paper` plans.
    """
    return replace(codl_paper(network, context.with_memory("buffer")), strategy="codl-buffer")


@strategy("codl-paper", default_predictor=PAPER_PREDICTOR)
def codl_paper(network: Network, context: Context) -> Plan:
    """CoDL as published (MobiSys '22): hybrid dimensions, and chains by its Algorithm 1.

    Every chain's outputs are gathered whole on each processor that reads them.
    """
    search = ChainSearch(network, context.cost(PAPER_PREDICTOR), dims=("H", "OC"))
    return search.plan("codl-paper", greedy_chains(search))


# codl.


NAME = "codl"


@strategy(NAME, runs_plans=True)
def codl(network: Network, context: Context) -> Plan:
    """The default: chains, dimensions and ratios together, by a search over the whole network.

    Where a device is at hand, plans run on it before the fastest is taken.
    """
    if context.profiling is not None and context.objective.is_latency:
        try:
            return planned_on_device(network, context, strategy=NAME)
        except (DeviceError, UnsupportedError) as error:
            context.note(f"{network.name}: no plan ran, so predictions decide. {error}")
    cost = context.cost(DEFAULT)
    return search(
        network, cost, NAME, method=context.method, objective=context.objective, may_be_alone=True
    )
