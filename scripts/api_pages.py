"""What scripts/render_docs.py makes of the code: the API's page, and the keys of files."""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from importlib import import_module
from pathlib import Path
from textwrap import indent
from typing import Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

import codl
from codl import errors, frames
from codl.cli.commands import filled
from codl.engine.engine import Engine
from codl.jobs.collect import CollectRun
from codl.jobs.evaluate import EvalRun
from codl.jobs.job import options_of
from codl.jobs.train import Trained
from codl.report.text_table import Column, TextRow, TextSection, TextTable, words
from codl.strategies.model_search import FoundBound, FoundPlan

INTRODUCTION = """# Python API

Generated from the code by `make docs`. [From Python](../howto/python.md) shows it at work.

A latency is in milliseconds, a size in bytes, a budget in seconds: names end in the unit. Arrays
are NumPy's; tensors of images are (images, channels, rows, columns). Functions raise a `CodlError`,
whose message says what was wrong and what would be right. What is not on this page may change from
version to version."""

#: Functions whose whole documentation lies elsewhere.
DOCUMENTED: Mapping[str, Any] = {
    "dataset": frames.dataset_frame,
    **{name: getattr(frames, name) for name in ("predictions", "results")},
}
#: What functions return.
RETURNED = (FoundPlan, FoundBound, EvalRun, CollectRun, Trained)
#: Names of types as a reader calls them.
NAMES: Mapping[Any, str] = {
    float: "number",
    int: "whole number",
    str: "text",
    bool: "true or false",
    Any: "any value",
    type(None): "null",
    Path: "path",
}
EXAMPLE = re.compile(r"^>>> ?(.*)$", re.MULTILINE)


def api_reference() -> str:
    """docs/reference/api.md."""
    functions = [name for name in codl.__all__ if inspect.isroutine(getattr(codl, name))]
    parts = [INTRODUCTION, "## Functions"]
    for name in functions:
        function = getattr(codl, name)
        parts += [f"### codl.{name}", _signature(f"codl.{name}", function)]
        parts += _prose(DOCUMENTED.get(name, function))
        if job := getattr(function, "job", None):
            parts.append(_options(job))
    parts += ["## The engine", *_prose(Engine), *_members(Engine)]
    parts.append("## What functions return")
    for kind in RETURNED:
        parts += [f"### {kind.__name__}", *_prose(kind), *_members(kind)]
    parts += ["## Errors", _errors()]
    return "\n\n".join(parts) + "\n"


def _signature(name: str, function: Any) -> str:
    """A parameter a line, as a block of Python."""
    job = getattr(function, "job", None)
    signature = inspect.signature(job or function)
    hints = get_type_hints(job) if job else {}
    returned = get_type_hints(job.run)["return"] if job else signature.return_annotation
    lines, is_keyword = [], False
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not is_keyword:
            lines.append("*,")
            is_keyword = True
        star = "*" if parameter.kind is parameter.VAR_POSITIONAL else ""
        default = "" if parameter.default is parameter.empty else f" = {_shown(parameter.default)}"
        lines.append(f"{star}{parameter.name}: {_type(hints, parameter)}{default},")
    body = "".join(f"    {line}\n" for line in lines)
    return f"```python\n{name}(\n{body}) -> {_name(returned)}\n```"


def _type(hints: Mapping[str, Any], parameter: inspect.Parameter) -> str:
    return _name(hints.get(parameter.name, parameter.annotation))


def _name(hint: Any) -> str:
    """A type as it is written, without its modules."""
    return hint.__name__ if isinstance(hint, type) else re.sub(r"\b(\w+\.)+", "", str(hint))


def _options(job: type) -> str:
    """The options of a job: each with its help, as the command line has it."""
    rows = [
        TextRow((f"`{name}`", filled(option.help))) for name, (_, option) in options_of(job).items()
    ]
    columns = (words("parameter"), words("what it is"))
    return TextTable("", columns, (TextSection("", tuple(rows)),)).to_markdown()


def _shown(value: Any) -> str:
    if isinstance(value, Path):
        return repr(value.name)
    return repr(value) if isinstance(value, str | float | int | tuple | None) else "..."


def _prose(documented: Any) -> Iterator[str]:
    """A docstring's paragraphs, and its examples as blocks of Python."""
    for paragraph in (inspect.getdoc(documented) or "").split("\n\n"):
        examples = EXAMPLE.findall(paragraph)
        yield "\n".join(["```python", *examples, "```"]) if examples else paragraph


def _members(kind: type) -> Iterator[str]:
    """The public attributes and methods of a class, in its order."""
    rows = []
    if dataclasses.is_dataclass(kind):
        fields = dataclasses.fields(kind)
        shown = [field for field in fields if not field.name.startswith("_")]
        rows = [TextRow((f"`{field.name}`", f"`{field.type}`")) for field in shown]
    for name, member in vars(kind).items():
        if name.startswith("_") and name != "__call__":
            continue
        function = member.fget if isinstance(member, property) else member
        if inspect.isfunction(function) and (text := inspect.getdoc(function)):
            call = "" if isinstance(member, property) else "()"
            shown = "engine(inputs)" if name == "__call__" else f"{name}{call}"
            rows.append(TextRow((f"`{shown}`", text.split("\n\n")[0].replace("\n", " "))))
    if rows:
        table = (words("attribute or method"), words("what it is"))
        yield TextTable("", table, (TextSection("", tuple(rows)),)).to_markdown()


def _errors() -> str:
    """The tree of errors, as a list."""
    lines = []

    def add(kind: type, depth: int) -> None:
        summary = (inspect.getdoc(kind) or "").split("\n\n")[0].replace("\n", " ")
        lines.append(indent(f"- `{kind.__name__}`: {summary}", "  " * depth))
        for below in kind.__subclasses__():
            if below.__module__ == errors.__name__:
                add(below, depth + 1)

    add(errors.CodlError, 0)
    lines.append(f"\n`CodlWarning`: {inspect.getdoc(errors.CodlWarning)}")
    return "\n".join(lines)


def keys_content(place: str) -> TextTable:
    """The keys of a class of data, `module:Class`, that no class above has; then what it says."""
    module, _, name = place.partition(":")
    kind = getattr(import_module(module), name)
    hints = get_type_hints(kind, include_extras=False)
    rows = []
    inherited = {key for base in kind.__mro__[1:] for key in getattr(base, "__annotations__", ())}
    for key, hint, default in _fields(kind, hints):
        if key not in inherited and get_origin(hint) is not ClassVar:
            rows.append(TextRow((f"`{key}`", spelled(hint), default)))
    columns = (words("key"), words("type"), Column("without it", numeric=False))
    caption = tuple(" ".join(p.split()) for p in (inspect.getdoc(kind) or "").split("\n\n"))
    return TextTable(name, columns, (TextSection("", tuple(rows)),), caption)


def _fields(kind: type, hints: Mapping[str, Any]) -> Iterator[tuple[str, Any, str]]:
    if issubclass(kind, msgspec.Struct):
        for field in msgspec.structs.fields(kind):
            yield field.encode_name, hints[field.name], "required" if field.required else ""
        return
    for about in dataclasses.fields(kind):
        required = about.default is dataclasses.MISSING
        required &= about.default_factory is dataclasses.MISSING
        yield about.name, hints[about.name], "required" if required else _default(about.default)


def _default(value: Any) -> str:
    is_empty = value is dataclasses.MISSING or value in (None, "", ())
    return "" if is_empty else f"`{value}`"


def spelled(hint: Any) -> str:
    """A type in words."""
    origin, parts = get_origin(hint), get_args(hint)
    if hint in NAMES:
        return NAMES[hint]
    if origin is Literal:
        return ", ".join(f"`{part}`" for part in parts)
    if origin in (Union, types.UnionType):
        named = [spelled(part) for part in parts if part is not type(None)]
        return " or ".join([*named, *(["null"] if type(None) in parts else [])])
    if origin is not None and hasattr(origin, "__metadata__"):
        return spelled(parts[0])
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"{spelled(parts[1])} by {_key(parts[0])}"
    if isinstance(origin, type) and issubclass(origin, Sequence | AbstractSet):
        inner = [part for part in parts if part is not Ellipsis]
        return f"list of {spelled(inner[0])}" if inner else "list"
    return f"`{getattr(hint, '__name__', str(hint))}`"


def _key(hint: Any) -> str:
    return "name" if hint is str else spelled(hint)
