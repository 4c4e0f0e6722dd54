"""Einsum as products of matrices and sums, against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import helper
from support.references import check, model_of_values

SIZES = {"b": 2, "h": 3, "i": 4, "j": 5, "k": 6, "d": 7}


def tensor(indices: str, seed: int) -> NDArray[np.float32]:
    shape = [SIZES[index] for index in indices]
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
        "bihk,hkd->bid",
    ],
)
def test_of_two_tensors(equation: str, constant: bool) -> None:
    a, b = (tensor(t, i) for i, t in enumerate(equation.split("->")[0].split(",")))
    given, constants = ({"a": a}, {"b": b}) if constant else ({"a": a, "b": b}, {})
    node = helper.make_node("Einsum", ["a", "b"], ["y"], equation=equation)
    check(model_of_values([node], given, constants), given)


@pytest.mark.parametrize(
    "equation",
    ["ik,kj", "ij->ji", "i,j,k->ijk", "ij,kj->k", "ij,jk->ijk", "bik,kj->bi", "ii->i", "ii,ij->ij"],
)
def test_others_are_onnx_runtimes(equation: str) -> None:
    terms = equation.split("->")[0].split(",")
    given = {
        name: tensor(term, i) for i, (name, term) in enumerate(zip("abc", terms, strict=False))
    }
    node = helper.make_node("Einsum", list(given), ["y"], equation=equation)
    check(model_of_values([node], given), given, encloses=True)
