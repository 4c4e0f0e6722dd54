"""Names from elsewhere become files right inside a folder, or errors."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codl.errors import CodlError
from codl.files import inside
from codl.measure.dataset import Dataset


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../x", "a/b", "/etc/passwd", "a\\b", ".ssh", "-rf", "a\0b", "a\nb", " a", "a ",
     "x" * 256, "\u202egnp.exe", "\ud800"],
)  # fmt: skip
def test_what_is_no_plain_name_is_refused(name: str) -> None:
    for make in (lambda: inside(Path("out"), name), lambda: Dataset.of(name, Path("out"))):
        with pytest.raises(CodlError, match="must be a plain name"):
            make()


@pytest.mark.parametrize("name", ["sdm865", "Redmi Note 9", "kirin990-5g", "t_conv2d.csv", "Ω"])
def test_plain_names_are_kept(name: str) -> None:
    assert inside(Path("out"), name) == Path("out") / name


@given(name=st.text())
def test_no_name_leaves_the_folder(name: str) -> None:
    try:
        path = inside(Path("/out"), name)
    except CodlError:
        return
    assert path.parent == Path("/out")
    assert path.resolve().parent == Path("/out")
