"""Inputs from files: names and shapes are looked at before any number is."""

from __future__ import annotations

import struct
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest
from support.executables import small_network

from codl.errors import InvalidFileError
from codl.measure.inputs import read_file, read_npz

NETWORK = small_network()
SHAPE = tuple(NETWORK.inputs["x"])
GOOD = np.arange(np.prod(SHAPE), dtype=np.float32).reshape(SHAPE)


def header(shape: str) -> bytes:
    """The head of an .npy file that claims a shape, and 64 bytes behind it."""
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text) + 1) + text + b"\n" + bytes(64)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.uint8])
def test_arrays_are_read_as_numpy_does(tmp_path: Path, dtype: type, order: str) -> None:
    array = np.asarray(GOOD % 200, dtype, order=order)  # type: ignore[call-overload]
    np.savez(tmp_path / "x.npz", x=array)
    np.savez_compressed(tmp_path / "packed.npz", x=array)
    np.save(tmp_path / "x.npy", array)
    for found in (
        read_npz(tmp_path / "x.npz", NETWORK)["x"],
        read_npz(tmp_path / "packed.npz", NETWORK)["x"],
        read_file(tmp_path / "x.npy", "x", NETWORK),
    ):
        np.testing.assert_array_equal(found, array)
        assert found.dtype == dtype


def test_what_is_no_such_file_is_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, x=GOOD)
    good = path.read_bytes()
    bad_sum = bytearray(good)
    bad_sum[300] ^= 255
    np.save(tmp_path / "array.npy", GOOD)
    for content, problem in (
        (b"", "not a zip file"),
        (good[: len(good) // 2], "not a zip file"),
        (bytes(bad_sum), "Bad CRC-32"),
        ((tmp_path / "array.npy").read_bytes(), "not a zip file"),
    ):
        path.write_bytes(content)
        with pytest.raises(InvalidFileError, match=f"expected an .npz file .*{problem}"):
            read_npz(path, NETWORK)


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("x.npy", header("(1000000000, 1000000)"), "'x' must be 2x3x9x7, got"),
        ("x.npy", header("(2, 3, 9, 7)"), "'x' is cut short"),
        ("x.npy", header("(2, 3, 9, -7)"), "'x' must be 2x3x9x7, got"),
        ("x.npy", header("(" * 500), "expected an .npz file"),
        ("y.npy", header("(2, 3, 9, 7)"), "its arrays must be x, got y"),
        ("x.npy", b"\x93NUMPY\x09\x00", "version"),
    ],
)
def test_what_a_header_claims_costs_nothing(
    tmp_path: Path, name: str, content: bytes, problem: str
) -> None:
    with ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr(name, content)
    with pytest.raises(InvalidFileError, match=problem):
        read_npz(tmp_path / "x.npz", NETWORK)


def test_words_are_no_numbers(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.full(SHAPE, "a"))
    with pytest.raises(InvalidFileError, match="'x' holds <U1, and should hold numbers"):
        read_npz(tmp_path / "x.npz", NETWORK)
