"""How an image becomes the input of a model: the section `preprocessing` of deployment files."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Any

from codl.frontend.models.reading import Section, number, one_of, whole

KEYS = ("resize", "filter", "color", "layout", "scale", "mean", "std")
FILTERS = ("nearest", "bilinear", "bicubic")
#: Channels of an image in each order of them.
COLORS = {"rgb": 3, "bgr": 3, "gray": 1}
LAYOUTS = ("nchw", "nhwc")
#: Names of image files end so.
SUFFIXES = (".bmp", ".jpeg", ".jpg", ".png", ".ppm", ".webp")


@dataclass(frozen=True)
class Preprocessing:
    """An input is `(pixel * scale - mean) / std`, of pixels from 0 to 255.

    `mean` and `std` are of each channel, or one of all. The shorter side of an image becomes
    `resize`, and the middle is cut out; with None the whole image is stretched to the input's size.
    `color` is None for that of the input's channels: rgb of three, gray of one.
    """

    resize: int | None = None
    filter: str = "bilinear"
    color: str | None = None
    layout: str = "nchw"
    scale: float = 1 / 255
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)


def read_preprocessing(section: Section) -> Preprocessing:
    """A section of a file; raises `InvalidFileError` with line and key."""
    section.check_keys(KEYS)
    usual = Preprocessing()
    found = Preprocessing(
        resize=section.take("resize", whole(1), usual.resize),
        filter=section.take("filter", one_of(*FILTERS), usual.filter),
        color=section.take("color", one_of(*COLORS), usual.color),
        layout=section.take("layout", one_of(*LAYOUTS), usual.layout),
        scale=section.take("scale", _finite, usual.scale),
        mean=section.take("mean", _of_channels, usual.mean),
        std=section.take("std", _of_channels, usual.std),
    )
    if not all(found.std):
        section.refuse("nothing is divided by 0.", "std")
    return found


def _finite(value: Any) -> float:
    if isfinite(found := number(value)):
        return found
    raise ValueError("expected a finite number")


def _of_channels(value: Any) -> tuple[float, ...]:
    """One number, or one for each of three channels."""
    values = value if isinstance(value, list) else [value]
    if len(values) in COLORS.values():
        return tuple(map(_finite, values))
    raise ValueError("expected one number, or three in the order of the channels")
