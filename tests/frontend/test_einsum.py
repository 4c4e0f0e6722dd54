"""Einsum as products of matrices and sums, against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import helper
from support.references import check, model_of_values

from codl.errors import UnsupportedError
from codl.frontend.convert import convert
from codl.frontend.graph.onnx_import import import_onnx

SIZES = {"b": 2, "h": 3, "i": 4, "j": 5, "k": 6, "d": 7}


def tensor(indices: str, seed: int) -> NDArray[np.float32]:
    """Two and three along the axes that an equation leaves out."""
    shape = [
        size for i in indices.replace("...", ".") for size in ([2, 3] if i == "." else [SIZES[i]])
    ]
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize(
    "equation",
    [
        "ik,kj->ij",
        "ik,jk->ij",
        "ki,kj->ji",
        "bhid,bhjd->bhij",
        "bhij,bhjd->bhid",
        "bihd,bjhd->bhij",
        "bhij,bjhd->bihd",
        "i,j->ij",
        "i,i->",
        "i,i->i",
        "ij,ij->ij",
        "bij,k->bijk",
        "bik,kj->bi",
        "ik,kj",
        "...ik,...kj->...ij",
        "...ik,kj->...ij",
        "bihk,hkd->bid",
    ],
)
def test_of_two_tensors(equation: str, constant: bool) -> None:
    a, b = (tensor(t, i) for i, t in enumerate(equation.split("->")[0].split(",")))
    given, constants = ({"a": a}, {"b": b}) if constant else ({"a": a, "b": b}, {})
    node = helper.make_node("Einsum", ["a", "b"], ["y"], equation=equation)
    check(model_of_values([node], given, constants), given)


@pytest.mark.parametrize("equation", ["ij->ji", "ij->i", "bij->jb", "b...j->...b", "ij->"])
def test_of_one_tensor(equation: str) -> None:
    given = {"a": tensor(equation.split("->")[0], 0)}
    node = helper.make_node("Einsum", ["a"], ["y"], equation=equation)
    check(model_of_values([node], given), given)


@pytest.mark.parametrize(
    ("equation", "shapes", "message"),
    [("ii->i", ["ij"], "takes a diagonal"), ("i,j,k->ijk", ["i", "j", "k"], "got 3")],
)
def test_others_are_refused(equation: str, shapes: list[str], message: str) -> None:
    given = {name: tensor(t, 0) for name, t in zip("abc", shapes, strict=False)}
    if equation.startswith("ii"):
        given["a"] = np.ones((4, 4), np.float32)
    node = helper.make_node("Einsum", list(given), ["y"], equation=equation)
    with pytest.raises(UnsupportedError, match=message):
        convert(import_onnx(model_of_values([node], given), "test"))
