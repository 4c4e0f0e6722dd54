"""Inputs from files, and what is said of files that are none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.executables import small_network

from codl.errors import InvalidFileError
from codl.measure.inputs import read_file, read_npz

NETWORK = small_network()
SHAPE = tuple(NETWORK.inputs["x"])
GOOD = np.arange(np.prod(SHAPE), dtype=np.float32).reshape(SHAPE)


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
        (b"", "No data left"),
        (good[: len(good) // 2], "not a zip file"),
        (bytes(bad_sum), "Bad CRC-32"),
        ((tmp_path / "array.npy").read_bytes(), "it is one array"),
    ):
        path.write_bytes(content)
        with pytest.raises(InvalidFileError, match=f"expected an .npz file .*{problem}"):
            read_npz(path, NETWORK)


def test_names_and_shapes_are_those_of_the_network(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, y=GOOD)
    with pytest.raises(InvalidFileError, match="its arrays must be x, got y"):
        read_npz(path, NETWORK)
    for wrong in (GOOD[:, :1], GOOD[..., :0]):
        np.savez(path, x=wrong)
        with pytest.raises(InvalidFileError, match="'x' must be 2x3x9x7, got"):
            read_npz(path, NETWORK)
    with pytest.raises(InvalidFileError, match="there is no such file"):
        read_npz(tmp_path / "none.npz", NETWORK)
