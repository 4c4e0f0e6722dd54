"""Names that are imported when they are asked for."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

import pytest

import codl.graph
import codl.ops


@pytest.mark.parametrize("package", [codl.graph, codl.ops], ids=lambda package: package.__name__)
def test_every_name_is_found_and_none_is_a_module(package: ModuleType) -> None:
    for name in package.__all__:
        assert not isinstance(getattr(package, name), ModuleType)
        with pytest.raises(ModuleNotFoundError):
            import_module(f"{package.__name__}.{name}")


def test_other_names_are_missing() -> None:
    with pytest.raises(AttributeError, match=r"module 'codl\.graph' has no attribute 'nothing'"):
        codl.graph.nothing  # noqa: B018
