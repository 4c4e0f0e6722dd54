"""The strategies: `codl`, and the baselines one processor, muLayer and CoDL as published."""

from __future__ import annotations

from dataclasses import replace

from codl.errors import DeviceError, UnsupportedError
from codl.ir import Network
from codl.ir.plan import Plan
from codl.ir.records.soc import Memory
from codl.plan.build_plan import default_plan
from codl.plan.predicted_plan import one_processor
from codl.plan.search import ChainSearch, greedy_chains
from codl.plan.search import search as search_plan
from codl.plan.strategies.base import Context, strategy
from codl.predict import DEFAULT

#: The partition ratios that muLayer chooses from.
RATIOS = tuple(i / 10 for i in range(11))
#: muLayer predicts each kind of op by a linear model of FLOPs, and CoDL by linear models of
#: analytic features (section 5.2 of the paper).
MULAYER_PREDICTOR, PAPER_PREDICTOR = "flops_linear", "codl_linear"


@strategy("cpu", runs_plans=True)
def cpu(network: Network, context: Context) -> Plan:
    """Everything on the CPU, in the fastest of its libraries, or in several.

    With a device, the network runs in each library, and the fastest plan is taken.
    """
    if context.profiling is not None:
        from codl.plan.strategies.device_loop import fastest_on_cpu

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
    """Everything on the GPU with all tensors in buffers."""
    return _one_memory(network, context, "gpu-buffer", "buffer")


@strategy("gpu-image")
def gpu_image(network: Network, context: Context) -> Plan:
    """Everything on the GPU with tensors in images, as the paper's GPU-only baseline (MACE).

    Ops without an image kernel, and tensors too large for an image, stay in buffers. A GPU reads
    images through its texture units; a CPU emulates them and takes about 20 times as long. Raises
    `UnsupportedError` where the device has no images.
    """
    gpu = context.soc.gpu
    if not gpu.max_image_width:
        raise UnsupportedError(
            f"gpu-image needs images, and {gpu.name!r} of the SoC {context.soc.name!r} has none "
            "(max_image_width is 0)."
        )
    return _one_memory(network, context, "gpu-image", "image2d")


def _one_memory(network: Network, context: Context, name: str, memory: Memory) -> Plan:
    """Everything on the GPU with its tensors in one of `MEMORY_TYPES`.

    Variants are the fastest ones if the SoC's dataset has that memory type, else the default ones.
    """
    restricted = context.with_memory(memory)
    if memory in context.soc.gpu.memory_types:
        return one_processor(network, restricted.cost(DEFAULT), "gpu", strategy=name)
    return replace(default_plan(network, restricted.soc, "gpu"), strategy=name)


@strategy("mulayer", default_predictor=MULAYER_PREDICTOR)
def mulayer(network: Network, context: Context) -> Plan:
    """muLayer (EuroSys '19): every op on both processors, split on output channels, shared at once.

    The ratio comes from a linear model of FLOPs for each kind of op, without the cost of data
    sharing. Each op's output is gathered on both processors before the next op begins.
    """
    search = ChainSearch(network, context.cost(MULAYER_PREDICTOR, by_op=True))
    balanced = []
    for layer in network.layers:
        ratios = RATIOS if "OC" in layer.op.dims else (0.0, 1.0)
        chains = [search.at([layer], "OC", ratio) for ratio in ratios]
        balanced.append(min(chains, key=lambda chain: max(chain.alone_ms)))
    return search.plan("mulayer", balanced)


@strategy("codl-buffer", default_predictor=PAPER_PREDICTOR)
def codl_buffer(network: Network, context: Context) -> Plan:
    """`codl-paper` with all of the GPU's tensors in buffers, to show the value of images.

    On a SoC without images the plan equals that of `codl-paper`.
    """
    return replace(codl_paper(network, context.with_memory("buffer")), strategy="codl-buffer")


@strategy("codl-paper", default_predictor=PAPER_PREDICTOR)
def codl_paper(network: Network, context: Context) -> Plan:
    """CoDL as published (MobiSys '22): hybrid dimensions, and chains by its Algorithm 1.

    The outputs of each chain are gathered whole on each processor that reads them.
    """
    search = ChainSearch(network, context.cost(PAPER_PREDICTOR), dims=("H", "OC"))
    return search.plan("codl-paper", greedy_chains(search))


@strategy("codl", runs_plans=True)
def codl(network: Network, context: Context) -> Plan:
    """The default: chains, dimensions and ratios together, by a search over the whole network.

    Only missing regions move between processors. With a device, plans run on it, improve by their
    measurements (`codl.plan.strategies.device_loop`), and the fastest one is taken. Without one,
    predictions decide, and a plan of one processor is taken where two gain little.
    """
    if context.profiling is not None:
        from codl.plan.strategies.device_loop import planned_on_device

        try:
            return planned_on_device(network, context, strategy="codl")
        except (DeviceError, UnsupportedError) as error:
            context.note(f"{network.name}: no plan ran, so predictions decide. {error}")
    return search_plan(network, context.cost(DEFAULT), "codl", may_be_alone=True)
