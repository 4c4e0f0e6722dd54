"""Images as inputs: the arithmetic of a deployment file, and files that are none or do not fit."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from struct import pack
from typing import Any

import numpy as np
import pytest
from PIL import Image

from codl.errors import InvalidFileError, UnsupportedError
from codl.frontend.models.deployment import Preprocessing
from codl.ir import Network, Shape
from codl.measure.images import ImageReader

#: One bit more of anything is another byte.
EXACT = Preprocessing(scale=1, filter="nearest")


def network(*shape: int, kind: str | None = None) -> Network:
    inputs = {"image": Shape(*shape)}
    return Network("net", (), inputs, {}, types={} if kind is None else {"image": kind})


def image_file(folder: Path, values: Any, name: str = "a.png", mode: str | None = None) -> Path:
    image = Image.fromarray(np.asarray(values, np.uint8))
    (image if mode is None else image.convert(mode)).save(folder / name)
    return folder / name


def colors(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)


def read(path: Path, shape: Sequence[int], how: Preprocessing = EXACT) -> np.ndarray:
    return np.asarray(ImageReader(network(*shape), how)(path)["image"])


def test_values_are_scaled_and_normed_by_channel(tmp_path: Path) -> None:
    given = colors(5, 7)
    how = Preprocessing(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    found = read(image_file(tmp_path, given), (1, 3, 5, 7), how)
    expected = (given / 255 - np.array(how.mean)) / np.array(how.std)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected.transpose(2, 0, 1)[None], rtol=1e-5, atol=1e-6)


def test_order_and_layout_of_channels(tmp_path: Path) -> None:
    given = colors(4, 6)
    path = image_file(tmp_path, given)
    swapped = read(path, (1, 3, 4, 6), Preprocessing(scale=1, color="bgr"))
    np.testing.assert_array_equal(swapped[0], given.transpose(2, 0, 1)[::-1])
    last = read(path, (1, 4, 6, 3), Preprocessing(scale=1, layout="nhwc"))
    np.testing.assert_array_equal(last[0], given)
    one = read(path, (1, 1, 4, 6))
    red, green, blue = np.moveaxis(given.astype(float), -1, 0)
    np.testing.assert_allclose(one[0, 0], 0.299 * red + 0.587 * green + 0.114 * blue, atol=1)
    gray = image_file(tmp_path, given[..., 0], "gray.png")
    np.testing.assert_array_equal(read(gray, (1, 3, 4, 6))[0, 2], given[..., 0])


def test_the_middle_is_cut_out_of_the_resized_image(tmp_path: Path) -> None:
    """As by resizing first, which for a whole factor is exact."""
    given = colors(12, 24)
    found = read(image_file(tmp_path, given), (1, 3, 8, 8), Preprocessing(scale=1, resize=12))
    np.testing.assert_array_equal(found[0], given[2:10, 8:16].transpose(2, 0, 1))
    half = read(
        tmp_path / "a.png", (1, 3, 4, 4), Preprocessing(scale=1, resize=6, filter="nearest")
    )
    np.testing.assert_array_equal(half[0], given[3:11:2, 9:17:2].transpose(2, 0, 1))


def test_a_long_image_needs_no_room_for_its_length(tmp_path: Path) -> None:
    path = image_file(tmp_path, np.zeros((2, 20000, 3)))
    assert read(path, (1, 3, 224, 224), Preprocessing(resize=1 << 20)).shape == (1, 3, 224, 224)


def test_whole_numbers_stay_whole(tmp_path: Path) -> None:
    path, net = image_file(tmp_path, colors(4, 4)), network(1, 3, 4, 4, kind="uint8")
    (found,) = ImageReader(net, Preprocessing(scale=1, mean=(0.4,)))(path).values()
    assert (found == np.rint(found)).all()
    with pytest.raises(UnsupportedError, match=r"scale must be 1, got 0\.00392"):
        ImageReader(net, Preprocessing())


@pytest.mark.parametrize(
    ("shape", "how", "message"),
    [
        ((1, 4, 8, 8), Preprocessing(), "1x4x8x8, which as nchw is no image"),
        ((2, 3, 8, 8), Preprocessing(), "a batch of 1"),
        ((1, 8, 8, 3), Preprocessing(), "layout"),
        ((1, 1, 8, 8), Preprocessing(color="bgr"), "color is of 3 channels, .* has 1"),
        ((1, 3, 8, 8), Preprocessing(color="gray"), "color is of 1 channels, .* has 3"),
        ((1, 1, 8, 8), Preprocessing(mean=(1, 2, 3)), "mean is of 3 channels"),
        ((1, 3, 8, 9), Preprocessing(resize=8), "at least 9, .* got 8"),
    ],
)
def test_what_does_not_fit_to_the_input_is_refused(
    shape: tuple[int, ...], how: Preprocessing, message: str
) -> None:
    with pytest.raises(UnsupportedError, match=message):
        ImageReader(network(*shape), how)


def test_images_are_for_one_input() -> None:
    net = Network("net", (), {"a": Shape(1, 3, 8, 8), "b": Shape(1, 3, 8, 8)}, {})
    with pytest.raises(UnsupportedError, match="2 inputs"):
        ImageReader(net, Preprocessing())


def chunk(kind: bytes, content: bytes) -> bytes:
    own = kind + content
    return pack(">I", len(content)) + own + pack(">I", zlib.crc32(own))


def bomb(side: int) -> bytes:
    """A PNG of few bytes that says it has so many rows and columns."""
    head = chunk(b"IHDR", pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
    data = chunk(b"IDAT", zlib.compress(b"\0" * 100))
    return b"\x89PNG\r\n\x1a\n" + head + data + chunk(b"IEND", b"")


@pytest.mark.parametrize("side", [9000, 12000, 1 << 30])
def test_more_pixels_than_memory_holds_are_refused(tmp_path: Path, side: int) -> None:
    (tmp_path / "a.png").write_bytes(bomb(side))
    with pytest.raises(InvalidFileError, match=r"pixels|decompression bomb"):
        read(tmp_path / "a.png", (1, 3, 4, 4))


def test_broken_files_are_named(tmp_path: Path) -> None:
    whole = image_file(tmp_path, colors(40, 40)).read_bytes()
    script = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"
    for content in (b"", b"no image", whole[:200], whole[:-30], script, bomb(64)):
        (tmp_path / "a.png").write_bytes(content)
        with pytest.raises(InvalidFileError, match=r"a\.png: no image that can be read"):
            read(tmp_path / "a.png", (1, 3, 4, 4))
    with pytest.raises(InvalidFileError, match="no such file"):
        read(tmp_path / "none.png", (1, 3, 4, 4))


def test_pixels_without_a_meaning_are_refused(tmp_path: Path) -> None:
    see_through = np.full((4, 4, 4), 200)
    with pytest.raises(InvalidFileError, match="transparent"):
        read(image_file(tmp_path, see_through), (1, 3, 4, 4))
    see_through[..., 3] = 255
    assert read(image_file(tmp_path, see_through), (1, 3, 4, 4)).max() == 200
    Image.fromarray(np.full((4, 4), 40000, np.uint16)).save(tmp_path / "deep.png")
    with pytest.raises(InvalidFileError, match="of the kind I;16"):
        read(tmp_path / "deep.png", (1, 3, 4, 4))
