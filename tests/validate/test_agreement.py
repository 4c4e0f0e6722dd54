"""Classes of several samples, beside the reference's and beside labels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from codl.errors import InvalidFileError
from codl.validate.closeness import agreement, read_labels


def one_hot(*places: int) -> list[np.ndarray]:
    return [np.eye(10)[place] + np.linspace(0.0, 0.1, 10) for place in places]


def test_shares_are_of_the_samples() -> None:
    found = agreement(one_hot(1, 2, 3, 0), one_hot(1, 2, 9, 1))
    assert (found.samples, found.top1, found.top5) == (4, 0.5, 0.75), "9 is among the five of 3"
    assert found.accuracy is None


def test_labels_tell_how_often_either_is_right() -> None:
    found = agreement(one_hot(1, 2, 3, 0), one_hot(1, 2, 9, 1), [1, 5, 3, 1])
    assert (found.accuracy, found.reference_accuracy) == (0.5, 0.5)


def test_what_is_no_number_is_no_class() -> None:
    (output,) = one_hot(4)
    output[7] = np.nan
    assert agreement([output], one_hot(4)).top1 == 1.0


def test_labels_are_read_by_the_names_of_files(tmp_path: Path) -> None:
    file = tmp_path / "labels.txt"
    file.write_text("b.npz 7\n\na file.npz 3\n")
    assert read_labels(file, ["a file.npz", "b.npz"]) == [3, 7]
    with pytest.raises(InvalidFileError, match="no label of"):
        read_labels(file, ["c.npz"])
    file.write_text("b.npz 7\nb.npz cat\n")
    with pytest.raises(InvalidFileError, match="line 2"):
        read_labels(file, ["b.npz"])
    file.write_text("b.npz " + "7" * 5000)
    with pytest.raises(InvalidFileError, match="line 1"):
        read_labels(file, ["b.npz"])
    with pytest.raises(InvalidFileError, match="no such file"):
        read_labels(tmp_path / "none.txt", [])
