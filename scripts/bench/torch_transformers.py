"""The built-in transformers in PyTorch, of the same shapes, with weights of its own from a seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from codl.frontend.models.transformers import BASE, GROUPS, SMOLLM2_135M, Transformer


class Attention(nn.Module):
    """Of tokens to themselves; with `angles`, rotary embeddings and a causal mask."""

    def __init__(self, sizes: Transformer, groups: int = 0, *, bias: bool = True) -> None:
        super().__init__()
        each = sizes.features // sizes.heads
        self.heads, self.groups = sizes.heads, groups or sizes.heads
        self.q = nn.Linear(sizes.features, sizes.features, bias=bias)
        self.k = nn.Linear(sizes.features, each * self.groups, bias=bias)
        self.v = nn.Linear(sizes.features, each * self.groups, bias=bias)
        self.out = nn.Linear(sizes.features, sizes.features, bias=bias)

    def forward(self, x: torch.Tensor, angles: torch.Tensor | None = None) -> torch.Tensor:
        n, tokens, features = x.shape
        q = self.q(x).view(n, tokens, self.heads, -1).transpose(1, 2)
        k, v = (f(x).view(n, tokens, self.groups, -1).transpose(1, 2) for f in (self.k, self.v))
        if angles is not None:
            q, k = (turned(part, angles) for part in (q, k))
        y = functional.scaled_dot_product_attention(
            q, k, v, is_causal=angles is not None, enable_gqa=self.groups != self.heads
        )
        return self.out(y.transpose(1, 2).reshape(n, tokens, features))


def turned(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * angles[0] + torch.cat([-second, first], dim=-1) * angles[1]


class Layer(nn.Module):
    """Norms in front of the branches, or behind their sums."""

    def __init__(self, sizes: Transformer, epsilon: float, *, is_before: bool) -> None:
        super().__init__()
        self.attention, self.is_before = Attention(sizes), is_before
        self.first = nn.LayerNorm(sizes.features, eps=epsilon)
        self.second = nn.LayerNorm(sizes.features, eps=epsilon)
        self.wide = nn.Linear(sizes.features, sizes.widened)
        self.narrow = nn.Linear(sizes.widened, sizes.features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.is_before:
            x = x + self.attention(self.first(x))
            return x + self.branch(self.second(x))
        x = self.first(x + self.attention(x))
        return self.second(x + self.branch(x))

    def branch(self, x: torch.Tensor) -> torch.Tensor:
        return self.narrow(functional.gelu(self.wide(x)))


class Bert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        sizes, epsilon = BASE, 1e-12
        self.norm = nn.LayerNorm(sizes.features, eps=epsilon)
        layers = (Layer(sizes, epsilon, is_before=False) for _ in range(sizes.layers))
        self.layers = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(self.norm(x))


class Vit(nn.Module):
    def __init__(self, side: int = 224) -> None:
        super().__init__()
        sizes, epsilon, patch = BASE, 1e-6, 16
        self.patches = nn.Conv2d(3, sizes.features, patch, stride=patch)
        self.kind = nn.Parameter(torch.randn(1, 1, sizes.features))
        self.places = nn.Parameter(torch.randn(1, (side // patch) ** 2 + 1, sizes.features))
        layers = (Layer(sizes, epsilon, is_before=True) for _ in range(sizes.layers))
        self.layers = nn.Sequential(*layers)
        self.norm = nn.LayerNorm(sizes.features, eps=epsilon)
        self.head = nn.Linear(sizes.features, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.kind.expand(len(x), -1, -1), tokens], dim=1) + self.places
        return self.head(self.norm(self.layers(x))[:, 0])


class LlamaLayer(nn.Module):
    def __init__(self, sizes: Transformer, groups: int, epsilon: float) -> None:
        super().__init__()
        self.attention = Attention(sizes, groups, bias=False)
        self.first = nn.RMSNorm(sizes.features, eps=epsilon)
        self.second = nn.RMSNorm(sizes.features, eps=epsilon)
        self.gate, self.wide = (
            nn.Linear(sizes.features, sizes.widened, bias=False) for _ in range(2)
        )
        self.narrow = nn.Linear(sizes.widened, sizes.features, bias=False)

    def forward(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.first(x), angles)
        y = self.second(x)
        return x + self.narrow(functional.silu(self.gate(y)) * self.wide(y))


class Llama(nn.Module):
    """The logits of the token behind the last."""

    def __init__(self) -> None:
        super().__init__()
        sizes, each = SMOLLM2_135M, SMOLLM2_135M.features // SMOLLM2_135M.heads
        epsilon, tokens, words = 1e-5, 128, 49152
        layers = (LlamaLayer(sizes, GROUPS, epsilon) for _ in range(sizes.layers))
        self.layers = nn.ModuleList(layers)
        self.norm = nn.RMSNorm(sizes.features, eps=epsilon)
        self.head = nn.Linear(sizes.features, words, bias=False)
        turns = 100000.0 ** -(torch.arange(0, each, 2) / each)
        angles = (torch.arange(tokens)[:, None] * turns).repeat(1, 2)
        self.register_buffer("angles", torch.stack([angles.cos(), angles.sin()]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x, self.angles)
        return self.head(self.norm(x)[:, -1])


def captured(run: Callable[[], torch.Tensor]) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
    """What a function does as a CUDA graph, and where its result will be."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = run()
    return graph, result


def without_tf32() -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False


TRANSFORMERS = {"bert": Bert, "vit_base": Vit, "smollm2_135m": Llama}


def transformer(name: str) -> nn.Module:
    torch.manual_seed(0)
    return TRANSFORMERS[name]()


class CachedLlama:
    """The same network one token at a time, with keys and values of `capacity` tokens.

    Nothing changes its shape, so that a CUDA graph of one token serves for all: attention is to the
    whole cache, and a mask hides what is not there yet.
    """

    def __init__(self, capacity: int, device: str) -> None:
        torch.manual_seed(0)
        torch.set_grad_enabled(False)
        sizes, self.net = SMOLLM2_135M, Llama().eval().to(device)
        each, words = sizes.features // sizes.heads, self.net.head.out_features
        self.words = torch.randn(words, sizes.features, device=device)
        self.cache = torch.zeros((sizes.layers, 2, 1, GROUPS, capacity, each), device=device)
        turns = 100000.0 ** -(torch.arange(0, each, 2) / each)
        angles = (torch.arange(capacity)[:, None] * turns).repeat(1, 2)
        self.angles = torch.stack([angles.cos(), angles.sin()]).to(device)
        self.places = torch.arange(capacity, device=device)
        self.token = torch.ones(1, dtype=torch.int64, device=device)
        self.place = torch.zeros(1, dtype=torch.int64, device=device)

    def eager(self, token: int, place: int) -> np.ndarray[Any, Any]:
        """The logits behind a token at a place, on the host."""
        self._tell(token, place)
        logits: np.ndarray[Any, Any] = self._step().cpu().numpy()
        return logits

    def captured(self) -> Callable[[int, int], np.ndarray[Any, Any]]:
        """The same by a CUDA graph, which is captured now."""
        graph, logits = captured(self._step)

        def step(token: int, place: int) -> np.ndarray[Any, Any]:
            self._tell(token, place)
            graph.replay()
            on_host: np.ndarray[Any, Any] = logits.cpu().numpy()
            return on_host

        return step

    def _tell(self, token: int, place: int) -> None:
        self.token.fill_(token)
        self.place.fill_(place)

    def _step(self) -> torch.Tensor:
        x = self.words[self.token][None]
        angles = self.angles[:, self.place]
        seen = (self.places <= self.place)[None, None, None]
        for layer, (keys, values) in zip(self.net.layers, self.cache, strict=True):
            y = self._attend(layer.attention, layer.first(x), (angles, seen), keys, values)
            x = x + y
            y = layer.second(x)
            x = x + layer.narrow(functional.silu(layer.gate(y)) * layer.wide(y))
        logits: torch.Tensor = self.net.head(self.net.norm(x)[0, -1])
        return logits

    def _attend(
        self,
        attention: Attention,
        x: torch.Tensor,
        tables: tuple[torch.Tensor, torch.Tensor],
        keys: torch.Tensor,
        values: torch.Tensor,
    ) -> torch.Tensor:
        def heads(product: nn.Linear, count: int) -> torch.Tensor:
            return product(x).view(1, 1, count, -1).transpose(1, 2)

        (angles, seen), groups = tables, attention.groups
        keys.index_copy_(2, self.place, turned(heads(attention.k, groups), angles))
        values.index_copy_(2, self.place, heads(attention.v, groups))
        q = turned(heads(attention.q, attention.heads), angles)
        y = functional.scaled_dot_product_attention(
            q, keys, values, attn_mask=seen, enable_gqa=True
        )
        joined: torch.Tensor = attention.out(y.transpose(1, 2).reshape(1, 1, -1))
        return joined
