"""Plans whose CPU ops are all in one library, as far as it takes them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any
from unittest.mock import patch

from codl.jobs.doctor import LIBRARY_PACKAGES
from codl.kernels import registry

#: The CPU's libraries that are installed here.
INSTALLED = tuple(name for name, package in LIBRARY_PACKAGES.items() if find_spec(package))


@contextmanager
def preferred(library: str) -> Iterator[None]:
    """Inside, an op's default variant on the CPU is the library's, where it has one."""
    usual = registry.candidates

    def candidates(kind: str, processor: Any, *args: Any, **options: Any) -> list[list[Any]]:
        listed = usual(kind, processor, *args, **options)
        return [sorted(group, key=lambda variant: variant.backend != library) for group in listed]

    with patch.object(registry, "candidates", candidates):
        yield
