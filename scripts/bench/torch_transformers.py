"""The built-in transformers in PyTorch, of the same shapes, with weights of its own from a seed."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from codl.frontend.models.transformers import BASE, Transformer


class Attention(nn.Module):
    """Of tokens to themselves."""

    def __init__(self, sizes: Transformer) -> None:
        super().__init__()
        self.heads = sizes.heads
        self.q, self.k, self.v, self.out = (
            nn.Linear(sizes.features, sizes.features) for _ in range(4)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, tokens, features = x.shape
        q, k, v = (
            f(x).view(n, tokens, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v)
        )
        y = functional.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(n, tokens, features))


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


TRANSFORMERS = {"bert": Bert, "vit_base": Vit}


def transformer(name: str) -> nn.Module:
    torch.manual_seed(0)
    return TRANSFORMERS[name]()
