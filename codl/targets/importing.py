"""Imports packages that codl needs, to see whether they work: some abort the process instead."""

from __future__ import annotations

from importlib import import_module
from time import perf_counter

from codl.errors import DeviceError, UnknownNameError
from codl.optional import BASE, PACKAGES


def import_package(name: str) -> float:
    """Import a package of codl's base or of an extra; the seconds that it took.

    Raises `DeviceError` where it cannot be imported, and `UnknownNameError` for any other package.
    """
    modules = {
        package: module for own in (BASE, *PACKAGES.values()) for module, package in own.items()
    }
    if name not in modules:
        raise UnknownNameError("package", name, modules)
    begin = perf_counter()
    try:
        import_module(modules[name])
    except Exception as error:
        raise DeviceError(f"{name} cannot be imported: {type(error).__name__}: {error}") from error
    return perf_counter() - begin
