"""Heads with several outputs, recurrent networks and generators: what `export_models.py` adds.

PyTorch's libraries have these with parts around them that no exporter takes (the choice of boxes,
samplers) or not at all. Each is small, and shaped as published ones are.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torchvision.models import segmentation

#: By name, the size of the images, or how many values a step or the noise has.
SIZES = {
    "ssd_head": 96,
    "retina_head": 97,
    "yolo_head": 96,
    "deeplab_head": 97,
    "lraspp_head": 96,
    "fcn_aux": 97,
    "unet": 96,
    "keypoints": 95,
    "lstm": 24,
    "gru": 24,
    "crnn": 64,
    "gan_generator": 16,
    "vae_decoder": 16,
    "super_resolution": 33,
    "style_transfer": 64,
}


def example(name: str) -> Any:
    """An input of a network, from PyTorch's random numbers."""
    size = SIZES[name]
    shapes = {
        **dict.fromkeys(("lstm", "gru"), (1, 9, size)),
        "gan_generator": (1, size, 1, 1),
        "vae_decoder": (1, size),
    }
    return torch.rand(shapes.get(name, (1, 3, size, size)))


def network(name: str) -> nn.Module:
    """One of `SIZES`, with new weights."""
    makers: dict[str, Callable[[], nn.Module]] = {
        **{kind: lambda: Detector(name) for kind in ("ssd_head", "retina_head", "yolo_head")},
        **{kind: lambda: Recurrent(name) for kind in ("lstm", "gru", "crnn")},
        "deeplab_head": lambda: Segmenter(segmentation.deeplabv3_mobilenet_v3_large),
        "lraspp_head": lambda: Segmenter(segmentation.lraspp_mobilenet_v3_large),
        "fcn_aux": lambda: Segmenter(segmentation.fcn_resnet50, aux_loss=True),
        "unet": UNet,
        "keypoints": Keypoints,
        "gan_generator": gan_generator,
        "vae_decoder": vae_decoder,
        "super_resolution": SuperResolution,
        "style_transfer": style_transfer,
    }
    return makers[name]()


def block(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.SiLU())


class Detector(nn.Module):
    """Three levels of features with heads on each; outputs that other nodes read."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, widths = kind, (16, 32, 48)
        self.stem = block(3, 16, 2)
        self.levels = nn.ModuleList(block(max(16, width - 16), width, 2) for width in widths)
        self.side = nn.ModuleList(nn.Conv2d(width, 24, 1) for width in widths)
        self.boxes, self.scores = nn.Conv2d(24, 3 * 4, 3, 1, 1), nn.Conv2d(24, 3 * 7, 3, 1, 1)
        self.both = nn.Conv2d(24, 3 * 12, 1)

    def forward(self, x: Any) -> Any:
        features, x = [], self.stem(x)
        for level, side in zip(self.levels, self.side, strict=True):
            x = level(x)
            features.append(side(x))
        if self.kind != "ssd_head":  # each level adds the next smaller one
            for at in (1, 0):
                larger = functional.interpolate(features[at + 1], size=features[at].shape[-2:])
                features[at] = features[at] + larger
        if self.kind == "yolo_head":
            raw = [self.rows(self.both(feature), 12) for feature in features]
            joined = torch.cat(raw, 1)
            centres, sizes = joined[..., :2].sigmoid() * 2 - 0.5, joined[..., 2:4].sigmoid()
            return torch.cat([centres, (2 * sizes) ** 2], -1), joined[..., 4:].sigmoid(), raw[0]
        boxes = torch.cat([self.rows(self.boxes(feature), 4) for feature in features], 1)
        scores = torch.cat([self.rows(self.scores(feature), 7) for feature in features], 1)
        if self.kind == "ssd_head":
            return boxes, scores.softmax(-1)
        return boxes.exp(), scores, scores.sigmoid(), *features

    @staticmethod
    def rows(x: Any, values: int) -> Any:
        """The predictions of all places, in rows of `values`."""
        return x.permute(0, 2, 3, 1).reshape(x.shape[0], -1, values)


class Segmenter(nn.Module):
    """All outputs of torchvision's network, and the probabilities of the first."""

    def __init__(self, make: Callable[..., nn.Module], **options: Any) -> None:
        super().__init__()
        self.net = make(weights=None, weights_backbone=None, num_classes=6, **options)

    def forward(self, x: Any) -> Any:
        outputs = tuple(self.net(x).values())
        return (*outputs, outputs[0].softmax(1))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([block(3, 12), block(12, 24), block(24, 36)])
        ups = nn.ConvTranspose2d(36, 24, 2, 2), nn.ConvTranspose2d(24, 12, 2, 2)
        self.up, self.after = nn.ModuleList(ups), nn.ModuleList([block(48, 24), block(24, 12)])
        self.last = nn.Conv2d(12, 5, 1)

    def forward(self, x: Any) -> Any:
        levels: list[Any] = []
        for layer in self.down:
            x = layer(functional.max_pool2d(x, 2) if levels else x)
            levels.append(x)
        for up, after, side in zip(self.up, self.after, levels[1::-1], strict=True):
            x = after(torch.cat([up(x), side], 1))
        logits = self.last(x)
        return logits, logits.sigmoid()


class Keypoints(nn.Module):
    """Heat maps, the largest value of each, and their mean columns (a soft argmax)."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(block(3, 16, 2), block(16, 32, 2), nn.Conv2d(32, 5, 1))

    def forward(self, x: Any) -> Any:
        maps = self.net(x)
        weights = maps.flatten(2).softmax(-1).reshape(maps.shape)
        columns = torch.linspace(0, 1, maps.shape[-1])
        return maps, maps.amax((2, 3)), (weights.sum(2) * columns).sum(-1)


class Recurrent(nn.Module):
    """Two bidirectional layers of cells; a `crnn` reads the columns of an image as steps."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.reads_images = kind == "crnn"
        self.convolutions = nn.Sequential(block(3, 16, 2), block(16, 24, 2))
        cells = nn.GRU if kind == "gru" else nn.LSTM
        width = 24 * SIZES[kind] // 4 if self.reads_images else SIZES[kind]
        self.cells = cells(width, 20, num_layers=2, bidirectional=True, batch_first=True)
        self.last = nn.Linear(40, 11)

    def forward(self, x: Any) -> Any:
        if self.reads_images:
            x = self.convolutions(x).permute(0, 3, 1, 2).flatten(2)
        steps, _ = self.cells(x)
        return self.last(steps).log_softmax(-1), steps


class SuperResolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(block(3, 16), nn.Conv2d(16, 27, 3, 1, 1), nn.PixelShuffle(3))

    def forward(self, x: Any) -> Any:
        larger = functional.interpolate(x, scale_factor=3, mode="bilinear", align_corners=False)
        return (self.net(x) + larger).clamp(0, 1)


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        half = [nn.ReflectionPad2d(1), nn.Conv2d(width, width, 3), nn.InstanceNorm2d(width)]
        self.net = nn.Sequential(
            *half, nn.ReLU(), nn.ReflectionPad2d(1), nn.Conv2d(width, width, 3)
        )

    def forward(self, x: Any) -> Any:
        return x + self.net(x)


def gan_generator() -> nn.Module:
    widths, layers = (SIZES["gan_generator"], 48, 24, 12, 3), list[nn.Module]()
    for at, (inputs, outputs) in enumerate(pairwise(widths)):
        stride, pad = (2, 1) if at else (1, 0)
        layers.append(nn.ConvTranspose2d(inputs, outputs, 4, stride, pad, bias=False))
        layers += [nn.Tanh()] if outputs == 3 else [nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers)


def vae_decoder() -> nn.Module:
    size = SIZES["vae_decoder"]
    first = nn.Linear(size, 32 * 49), nn.GELU(), nn.Unflatten(1, (32, 7, 7))
    larger = nn.Upsample(scale_factor=2), block(32, 16), nn.Upsample(scale_factor=2)
    return nn.Sequential(*first, *larger, nn.Conv2d(16, 1, 3, 1, 1), nn.Sigmoid())


def style_transfer() -> nn.Module:
    first = (
        nn.ReflectionPad2d(4),
        nn.Conv2d(3, 24, 9),
        nn.InstanceNorm2d(24, affine=True),
        nn.ReLU(),
    )
    inner = nn.Conv2d(24, 24, 3, 2, 1), nn.ReLU(), Residual(24), Residual(24)
    last = nn.Upsample(scale_factor=2), nn.ReflectionPad2d(1), nn.Conv2d(24, 3, 3)
    return nn.Sequential(*first, *inner, *last)
