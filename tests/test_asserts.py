"""Tests can fail: none asserts only in a loop that may be empty, or only what hardly ever fails."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
CONTRIB = TESTS.parent / "contrib"
#: What goes through all of something, and has as many elements as that, or a multiple of them.
THROUGH = ("dict", "enumerate", "list", "pairwise", "product", "reversed", "set", "sorted", "tuple",
           "items", "keys", "values", "zip")  # fmt: skip


def functions(tree: ast.Module) -> list[ast.FunctionDef]:
    """Those that are tests."""
    every = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    return [node for node in every if node.name.startswith("test_")]


def literals(body: list[ast.stmt]) -> set[str]:
    """Names that are literals with something in them."""
    return {
        target.id
        for node in body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name) and node.value and has_elements(node.value, set())
    }


def has_elements(node: ast.expr, known: set[str]) -> bool:
    """Whether it is seen at once that there is something to go through."""
    if isinstance(node, ast.IfExp):
        return has_elements(node.body, known) and has_elements(node.orelse, known)
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        given = [x.value for x in node.elts if isinstance(x, ast.Starred)]
        return len(given) < len(node.elts) or any(has_elements(x, known) for x in given)
    if isinstance(node, ast.Dict):
        return bool(node.keys)
    if isinstance(node, ast.Constant):
        return bool(node.value)
    if isinstance(node, ast.Name):
        return node.id in known
    if not isinstance(node, ast.Call):
        return False
    name = called(node)
    if name in ("some", "count"):
        return True
    if name == "range":
        return all(isinstance(x, ast.Constant | ast.UnaryOp) for x in node.args)
    given = [node.func.value] if isinstance(node.func, ast.Attribute) else node.args
    is_strict = any(own.arg == "strict" and own.value for own in node.keywords)
    enough = any if name == "zip" and is_strict else all
    return name in THROUGH and bool(given) and enough(has_elements(x, known) for x in given)


def called(node: ast.expr) -> str:
    if not isinstance(node, ast.Call):
        return ""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def is_check(node: ast.AST) -> bool:
    """Whether a statement fails a test by itself: as an assert, or what is called for that."""
    if isinstance(node, ast.Assert):
        return True
    if isinstance(node, ast.With):
        return any(called(x.context_expr) in ("raises", "warns") for x in node.items)
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)


def checks(body: list[ast.stmt], known: set[str], *, sure: bool = True) -> Iterator[bool]:
    """Of each check whether it is reached, whatever there is to go through."""
    for node in body:
        if is_check(node):
            yield sure
        inner = sure and not (isinstance(node, ast.For) and not has_elements(node.iter, known))
        for field in ("body", "orelse", "finalbody"):
            if not isinstance(node, ast.FunctionDef | ast.ClassDef):
                yield from checks(getattr(node, field, []), known, sure=inner)


def is_weak(node: ast.Assert) -> bool:
    """Whether it holds of almost anything: above 0, not None, of some type."""
    test = node.test
    if isinstance(test, ast.Compare) and isinstance(test.comparators[-1], ast.Constant):
        (operator, *_), value = test.ops, test.comparators[-1].value
        return (isinstance(operator, ast.Gt) and value == 0) or (
            isinstance(operator, ast.IsNot) and value is None
        )
    return called(test) == "isinstance"


FILES = sorted(path for folder in (TESTS, CONTRIB) for path in folder.rglob("test_*.py"))


@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(TESTS.parent)) for path in FILES])
def test_every_test_reaches_an_assert_that_may_fail(path: Path) -> None:
    """`support.some.some` says of a loop that it must not be empty."""
    tree = ast.parse(path.read_text())
    empty, weak = [], []
    for function in functions(tree):
        reached = list(checks(function.body, literals(tree.body) | literals(function.body)))
        asserts = [node for node in ast.walk(function) if isinstance(node, ast.Assert)]
        others = any(is_check(node) and node not in asserts for node in ast.walk(function))
        if reached and not any(reached):
            empty.append(f"{function.name}:{function.lineno}")
        if asserts and not others and all(map(is_weak, asserts)):
            weak.append(f"{function.name}:{function.lineno}")
    assert (empty, weak) == ([], [])
