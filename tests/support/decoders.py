"""A small decoder, and ONNX Runtime's greedy tokens and logits of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from codl.frontend.decoders.build import (
    ALL_KEYS,
    LAST_KEYS,
    LOGITS,
    TOKENS,
    DecoderSizes,
    DecoderSource,
)
from codl.ir.network import Network
from codl.ir.plan import Chain, Plan
from codl.ir.types import PROCESSORS
from codl.plan.build_plan import default_plan
from codl.records.soc import Soc

SMALL = DecoderSizes(
    layers=2,
    features=64,
    heads=4,
    groups=2,
    each=16,
    widened=96,
    words=211,
    theta=1e4,
    epsilon=1e-5,
    has_norms=True,
)


class OrtDecoder:
    """The same model in ONNX Runtime, token by token; its cache is copied from step to step."""

    def __init__(self, source: DecoderSource, capacity: int) -> None:
        self.length, self._capacity = 0, capacity
        proto = source.model(1, capacity).whole()
        self._session = ort.InferenceSession(proto.SerializeToString())
        self._cache = {
            info.name: np.zeros(info.shape, np.float32)
            for info in self._session.get_inputs()
            if info.name.startswith("past")
        }

    def decode(self, token: int) -> NDArray[np.float32]:
        names = [own.name for own in self._session.get_outputs()]
        given = {
            TOKENS: np.array([[token]]),
            LAST_KEYS: np.array([self.length], np.int32),
            ALL_KEYS: np.array(self.length + 1, np.int32),
        }
        found = dict(zip(names, self._session.run(names, {**given, **self._cache}), strict=True))
        self.length += 1
        self._cache = {
            name: found[name.replace("past_key_values", "present")] for name in self._cache
        }
        logits: NDArray[np.float32] = found[LOGITS].reshape(-1)
        return logits

    def greedy(self, prompt: list[int], count: int) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """So many tokens behind a prompt, each with the logits that it is the largest of."""
        for token in prompt:
            logits = self.decode(token)
        for _ in range(count):
            token = int(logits.argmax())
            yield token, logits
            logits = self.decode(token)


def split_plan(network: Network, soc: Soc, ratio: float = 0.5) -> Plan:
    """Every op that can be cut on both processors, along its last dimension; others on the CPU."""
    alone = [default_plan(network, soc, side, chained=False) for side in PROCESSORS]
    chains = []
    for layer, *own in zip(network.layers, *(plan.chains for plan in alone), strict=True):
        dims = layer.op.dims
        variants = {k: v for one in own for k, v in one.variants[layer.name].items()}
        cut = (dims[-1], ratio) if dims else ("H", 0.0)
        chains.append(Chain((layer.name,), *cut, {layer.name: variants}))
    return replace(alone[0], chains=tuple(chains))
