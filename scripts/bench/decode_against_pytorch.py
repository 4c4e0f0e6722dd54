"""A language model that writes word by word, on a GPU through OpenCL and by PyTorch there.

    python scripts/bench/decode_against_pytorch.py [--device nvidia] [--tokens 128] [--kernels]

SmolLM2-135M in float32 with a cache of twice as many tokens, which holds the prompt: milliseconds
a token, from its number to the logits in an array of the host, as a program that samples needs
them. PyTorch runs eager and as a CUDA graph of one token, both with a cache of fixed capacity,
`scaled_dot_product_attention` and TF32 off. All have turns of many tokens. Beside it: how long the
host takes to launch a token's kernels, and until all are done; and with `--kernels` what the events
of each kind of kernel add up to, which are about 4 us each at the least on an H100.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict
from time import perf_counter
from typing import Any

import numpy as np
from against_pytorch import kernels_of, launches_of

from codl.engine.decoder import DECODE, Decoder, PlannedStep
from codl.frontend.decoders import read_decoder, step_of
from codl.plan.build_plan import default_plan
from codl.records.results import Latency
from codl.targets.connect import connect
from codl.targets.detect import detect
from codl.targets.local import LocalTarget

TURNS, WARM_UP = 6, 8
#: Of the model: the built-in decoder of this name and `CachedLlama` have the same shapes.
MODEL = "smollm2_135m"


def loaded(model: str, target: LocalTarget, tokens: int) -> Decoder:
    source = read_decoder(model)
    steps = [step_of(source, count, 2 * tokens) for count in (tokens, 1)]
    prefill, decode = (
        PlannedStep(step, default_plan(step.network, target.soc, "gpu")) for step in steps
    )
    return Decoder(prefill, decode, target)


def turn(decoder: Decoder, prompt: list[int]) -> list[float]:
    """Seconds of each token behind a prompt, by the likeliest each time."""
    decoder.reset()
    token, took = int(decoder.prefill(prompt).argmax()), []
    for _ in prompt:
        start = perf_counter()
        token = int(decoder.decode(token).argmax())
        took.append(perf_counter() - start)
    return took


def kernels_alone(decoder: Decoder, target: LocalTarget, count: int) -> dict[str, list[float]]:
    """Seconds to launch a token's kernels, and until they are done; nobody reads the logits."""
    session = decoder.session(DECODE)
    kernels, took = kernels_of(session, session.executable), defaultdict(list)
    for _ in range(count):
        start = perf_counter()
        target.device.submit(kernels)
        took["launching"].append(perf_counter() - start)
        target.device.finish()
        took["kernels"].append(perf_counter() - start)
    return {name: samples[WARM_UP:] for name, samples in took.items()}


def by_kind(decoder: Decoder) -> Iterator[str]:
    """What events of kernels add up to, by their ops' kinds."""
    spans, steps = decoder.session(DECODE).profile(), decoder.session(DECODE).executable.steps
    kinds = {
        step.label: " + ".join(text.partition(" ")[0] for text in getattr(step, "ops", ()))
        for step in steps
    }
    every: dict[str, list[float]] = defaultdict(list)
    for span in spans:
        if span.processor == "gpu":
            every[kinds.get(span.label) or span.kind].append(span.ms)
    for kind, ms in sorted(every.items(), key=lambda item: -sum(item[1])):
        yield f"  {sum(ms):8.3f} ms {len(ms):5d} x {1e3 * sum(ms) / len(ms):6.1f} us  {kind}"


def torch_turn(step: Callable[[int, int], np.ndarray[Any, Any]], prompt: int) -> list[float]:
    """The same of PyTorch; which numbers the cache holds makes no difference to the time."""
    token, took = 1, []
    for place in range(prompt, 2 * prompt):
        start = perf_counter()
        token = int(step(token, place).argmax())
        took.append(perf_counter() - start)
    return took


def torch_turns(tokens: int, device: str) -> dict[str, Callable[[], list[float]]]:
    from torch_transformers import CachedLlama, without_tf32

    without_tf32()
    peer = CachedLlama(2 * tokens, device)
    turns = {"eager": lambda: torch_turn(peer.eager, tokens)}
    if device == "cuda":
        graph = peer.captured()
        turns["graph"] = lambda: torch_turn(graph, tokens)
    return turns


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="nvidia", help="the OpenCL driver or device")
    parser.add_argument("--model", default=MODEL, help="a decoder; another one beside no PyTorch")
    parser.add_argument("--tokens", type=int, default=128, help="of the prompt, and written")
    parser.add_argument("--torch", default="cuda", help="PyTorch's device; only cuda has graphs")
    parser.add_argument("--kernels", action="store_true", help="add up the kernels of each kind")
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else")
    options = parser.parse_args()
    target = LocalTarget(detect(connect("local"), "bench", device=options.device))
    decoder = loaded(options.model, target, options.tokens)
    prompt = list(range(1, options.tokens + 1))
    turns = {"codl": lambda: turn(decoder, prompt)}
    if options.model == MODEL and options.torch:
        turns |= torch_turns(options.tokens, options.torch)
    samples: dict[str, list[float]] = {name: [] for name in turns}
    for _ in range(TURNS):
        for name, run in turns.items():
            samples[name] += run()[WARM_UP:]
    samples |= kernels_alone(decoder, target, options.tokens)
    launches = launches_of(decoder.session(DECODE).executable)
    kinds = list(by_kind(decoder)) if options.kernels else []
    decoder.close()
    latency_ms = {name: Latency.of(each) for name, each in samples.items()}
    if options.json:
        rows = {name: asdict(latency) for name, latency in latency_ms.items()}
        print(json.dumps({"soc": target.soc.to_dict(), "launches": launches, "latency_ms": rows}))
        return
    print(f"{options.model} on {target.soc.gpu.name}: {launches} launches a token")
    for name, latency in latency_ms.items():
        ratio = latency_ms["codl"].level / latency.level
        print(f"  {name:10s}{latency.level:8.3f} ms a token, codl takes {ratio:.2f} of it")
    print(*kinds, sep="\n")


if __name__ == "__main__":
    main()
