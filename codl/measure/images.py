"""Images as inputs of a model, as a deployment file says."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from codl.errors import InvalidFileError, UnsupportedError
from codl.frontend.models.deployment import COLORS, Preprocessing
from codl.ir import Array, Network

#: Formats without scripts or programs in them.
FORMATS = ("BMP", "JPEG", "PNG", "PPM", "WEBP")
#: A file may say that it holds more than memory does.
MOST_PIXELS = 1 << 26
#: Kinds of pixels that have a meaning as 8 bits of red, green and blue, or of gray.
MODES = ("1", "L", "P", "RGB", "CMYK", "YCbCr")
#: Those with transparency; what lies behind them nobody knows.
TRANSPARENT = ("LA", "PA", "RGBA")


class ImageReader:
    """Reads images for the one input of a network.

    Raises `UnsupportedError` where its input holds no image, or another one than `how` says.
    """

    def __init__(self, network: Network, how: Preprocessing) -> None:
        if len(network.inputs) != 1:
            names = ", ".join(network.inputs)
            raise UnsupportedError(
                f"{network.name} has {len(network.inputs)} inputs ({names}), and images are for "
                "one: give .npz files."
            )
        ((self._name, self._shape),) = network.inputs.items()
        order = (0, 1, 2, 3) if how.layout == "nchw" else (0, 3, 1, 2)
        images, self._channels, self._height, self._width = (self._shape[i] for i in order)
        if images != 1 or self._channels not in COLORS.values():
            raise UnsupportedError(
                f"The input {self._name!r} of {network.name} is {self._shape}, which as "
                f"{how.layout} is no image: expected a batch of 1 and 1 or 3 channels. "
                "`preprocessing.layout` of a deployment file may say otherwise."
            )
        self._color = how.color or ("gray" if self._channels == 1 else "rgb")
        self._how, self._is_whole = how, _is_whole(network, self._name)
        self._check()

    def _check(self) -> None:
        """Refuse what does not fit to the input."""
        how, side = self._how, max(self._height, self._width)
        counts = {"color": COLORS[self._color], "mean": len(how.mean), "std": len(how.std)}
        for name, count in counts.items():
            if count != self._channels and (count != 1 or name == "color"):
                raise UnsupportedError(
                    f"preprocessing.{name} is of {count} channels, the input {self._name!r} has "
                    f"{self._channels}."
                )
        if how.resize is not None and how.resize < side:
            raise UnsupportedError(
                f"preprocessing.resize must be at least {side}, the larger side of the input "
                f"{self._name!r}, got {how.resize}."
            )
        if self._is_whole and how.scale != 1:
            raise UnsupportedError(
                f"The input {self._name!r} holds whole numbers: preprocessing.scale must be 1, got "
                f"{how.scale:g}."
            )

    def __call__(self, path: Path) -> dict[str, NDArray[Any]]:
        """The input of one image; raises `InvalidFileError` for what is none, or is broken."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", Image.DecompressionBombWarning)
                pixels = self._pixels(path)
        except InvalidFileError:
            raise
        except FileNotFoundError as error:
            raise InvalidFileError(path, "there is no such file.") from error
        except Exception as error:  # Pillow raises many unrelated types for broken files
            raise InvalidFileError(path, f"no image that can be read: {error}.") from error
        mean, std = (np.asarray(values, np.float32) for values in (self._how.mean, self._how.std))
        values = (pixels * np.float32(self._how.scale) - mean) / std
        if self._how.layout == "nchw":
            values = values.transpose(2, 0, 1)
        shaped = np.ascontiguousarray(values).reshape(tuple(self._shape))
        return {self._name: np.rint(shaped) if self._is_whole else shaped}

    def _pixels(self, path: Path) -> Array:
        """Rows, columns and channels of an image in the size of the input, from 0 to 255."""
        with Image.open(path, formats=FORMATS) as image:
            width, height = image.size
            if width * height > MOST_PIXELS:
                problem = f"{width}x{height} pixels are more than the {MOST_PIXELS} that are read."
                raise InvalidFileError(path, problem)
            image.load()
            opaque = _opaque(image, path).convert("L" if self._color == "gray" else "RGB")
        filtered = Image.Resampling[self._how.filter.upper()]
        size = (self._width, self._height)
        pixels: Array = np.asarray(
            opaque.resize(size, filtered, box=self._middle(width, height)), np.float32
        ).reshape(self._height, self._width, self._channels)
        return pixels[..., ::-1] if self._color == "bgr" else pixels

    def _middle(self, width: int, height: int) -> tuple[float, float, float, float]:
        """What of an image becomes the input: a part that is cut out needs no larger image."""
        if self._how.resize is None:
            return 0.0, 0.0, float(width), float(height)
        zoom = min(width, height) / self._how.resize
        wide, high = self._width * zoom, self._height * zoom
        left, top = (width - wide) / 2, (height - high) / 2
        return left, top, left + wide, top + high


def _opaque(image: Image.Image, path: Path) -> Image.Image:
    """The image without transparency that it does not use; raises `InvalidFileError`."""
    if image.mode in TRANSPARENT or "transparency" in image.info:
        (least, _) = image.convert("RGBA").getchannel("A").getextrema()
        if least != 255:
            raise InvalidFileError(path, "parts of it are transparent: put it on a background.")
        return image.convert("RGB")
    if image.mode not in MODES:
        problem = f"its pixels are of the kind {image.mode}: expected 8 bits of gray or colors."
        raise InvalidFileError(path, problem)
    return image


def _is_whole(network: Network, name: str) -> bool:
    return np.dtype(network.types.get(name, "float32")).kind != "f"
