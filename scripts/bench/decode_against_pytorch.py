"""A language model that writes word by word, on a GPU through OpenCL and by PyTorch there.

    python scripts/bench/decode_against_pytorch.py [--device nvidia] [--tokens 128] [--json]

SmolLM2-135M in float32 with a cache of twice as many tokens, which holds the prompt: milliseconds
a token, from its number to the logits in an array of the host, as a program that samples needs
them. PyTorch runs eager and as a CUDA graph of one token, both with a cache of fixed capacity,
`scaled_dot_product_attention` and TF32 off. All have turns of many tokens. What kernels take alone
(`kernels`) is of one token behind the other, without a look at the logits.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict
from time import perf_counter
from typing import Any

import numpy as np
from against_pytorch import kernels_of, launches_of
from torch_transformers import CachedLlama, without_tf32

from codl.frontend.decoders import read_decoder, step_of
from codl.ir.results import Latency
from codl.plan.build_plan import default_plan
from codl.runtime.decoder import DECODE, Decoder, PlannedStep
from codl.targets.connect import connect
from codl.targets.detect import detect
from codl.targets.local import LocalTarget

TURNS, WARM_UP = 6, 8
#: Of the model: the built-in decoder of this name and `CachedLlama` have the same shapes.
MODEL = "smollm2_135m"


def own_decoder(target: LocalTarget, tokens: int) -> Decoder:
    source = read_decoder(MODEL)
    steps = [step_of(source, count, 2 * tokens) for count in (tokens, 1)]
    prefill, decode = (
        PlannedStep(step, default_plan(step.network, target.soc, "gpu")) for step in steps
    )
    return Decoder(prefill, decode, target)


def own_turn(decoder: Decoder, prompt: list[int]) -> list[float]:
    """Seconds of each token behind a prompt, by the likeliest each time."""
    decoder.reset()
    token, took = int(decoder.prefill(prompt).argmax()), []
    for _ in prompt:
        start = perf_counter()
        token = int(decoder.decode(token).argmax())
        took.append(perf_counter() - start)
    return took


def kernels_alone(decoder: Decoder, target: LocalTarget, count: int) -> tuple[int, list[float]]:
    """Launches a token, and seconds that each takes where no logits are looked at."""
    session = decoder.session(DECODE)
    kernels = kernels_of(session, session.executable)
    took = []
    for _ in range(count):
        start = perf_counter()
        target.device.run(kernels)
        took.append(perf_counter() - start)
    return launches_of(session.executable), took[WARM_UP:]


def torch_turn(step: Callable[[int, int], np.ndarray[Any, Any]], prompt: int) -> list[float]:
    """The same of PyTorch; which numbers the cache holds makes no difference to the time."""
    token, took = 1, []
    for place in range(prompt, 2 * prompt):
        start = perf_counter()
        token = int(step(token, place).argmax())
        took.append(perf_counter() - start)
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="nvidia", help="the OpenCL driver or device")
    parser.add_argument("--tokens", type=int, default=128, help="of the prompt, and written")
    parser.add_argument("--torch", default="cuda", help="PyTorch's device; only cuda has graphs")
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else")
    options = parser.parse_args()
    without_tf32()
    target = LocalTarget(detect(connect("local"), "bench", device=options.device))
    decoder = own_decoder(target, options.tokens)
    prompt = list(range(1, options.tokens + 1))
    peer = CachedLlama(2 * options.tokens, options.torch)
    turns = {"codl": lambda: own_turn(decoder, prompt)}
    turns["eager"] = lambda: torch_turn(peer.eager, options.tokens)
    if options.torch == "cuda":
        graph = peer.captured()
        turns["graph"] = lambda: torch_turn(graph, options.tokens)
    samples: dict[str, list[float]] = {name: [] for name in turns}
    for _ in range(TURNS):
        for name, turn in turns.items():
            samples[name] += turn()[WARM_UP:]
    launches, samples["kernels"] = kernels_alone(decoder, target, options.tokens)
    decoder.close()
    latency_ms = {name: Latency.of(own) for name, own in samples.items()}
    if options.json:
        rows = {name: asdict(own) for name, own in latency_ms.items()}
        print(json.dumps({"soc": target.soc.to_dict(), "launches": launches, "latency_ms": rows}))
        return
    print(f"{MODEL} on {target.soc.gpu.name}: {launches} launches a token")
    for name, own in latency_ms.items():
        ratio = latency_ms["codl"].level / own.level
        print(f"  {name:8s}{own.level:8.3f} ms a token, codl takes {ratio:.2f} of it")


if __name__ == "__main__":
    main()
