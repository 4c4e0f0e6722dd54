"""What scripts/render_docs.py makes of the code: the API's page, and the keys of files."""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from importlib import import_module
from pathlib import Path
from textwrap import indent, wrap
from typing import Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from markdown_tables import markdown

import codl
from codl import errors
from codl.cli.commands import filled
from codl.engine.engine import Engine
from codl.engine.stream import Stream
from codl.jobs.collect import CollectRun
from codl.jobs.evaluate import EvalRun
from codl.jobs.options import options_of
from codl.jobs.train import Trained
from codl.plan.strategies.model_search import FoundBound, FoundPlan
from codl.report.text_table import TextRow, TextSection, TextTable, words

INTRODUCTION = """# Python API

Generated from the code by `make docs`. [From Python](../howto/python.md) shows it at work.

A latency is in milliseconds, a size in bytes, a budget in seconds: names end in the unit. Arrays
are NumPy's; tensors of images are (images, channels, rows, columns). Functions raise a `CodlError`,
whose message says what was wrong and what would be right. What is not on this page may change from
version to version."""

#: Results of functions, with the attributes that the page lists beside the documented members.
RETURNED: Mapping[type, Sequence[str]] = {
    FoundPlan: ("plan", "search_ms", "placed"),
    FoundBound: ("model", "limit"),
    EvalRun: ("environment", "failed"),
    CollectRun: ("dataset", "done"),
    Trained: ("report",),
}
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
#: The list of built-in models in a help text, and the link that replaces it.
LISTED, MODEL = re.compile(r"built-in model \([^)]*\)"), "[built-in model](models.md)"


def api_reference() -> str:
    """docs/reference/api.md: parameters that several functions share have a table of their own."""
    functions = {
        name: getattr(codl, name) for name in codl.__all__ if inspect.isroutine(getattr(codl, name))
    }
    every = Counter(row for function in functions.values() for row in _options(function).values())
    shared = {row for row, times in every.items() if times > 1}
    parts = [INTRODUCTION, "## Functions"]
    for name, function in functions.items():
        options = _options(function)
        parts += [f"### codl.{name}", _signature(f"codl.{name}", function, options, shared)]
        parts += _prose(function)
        if own := [(f"`{key}`", row[1]) for key, row in options.items() if row not in shared]:
            parts.append(_table("parameter", own))
    parts += ["## Shared parameters", _table("parameter", sorted(shared))]
    parts += ["## The engine", *_prose(Engine), *_members(Engine)]
    parts += ["## Streams", *_prose(Stream), *_members(Stream)]
    parts.append("## What functions return")
    for kind, shown in RETURNED.items():
        parts += [f"### {kind.__name__}", *_prose(kind), *_members(kind, shown)]
    parts += ["## Errors", _errors()]
    return "\n\n".join(parts) + "\n"


def _signature(
    name: str,
    function: Any,
    options: Mapping[str, tuple[str, str]],
    shared: AbstractSet[tuple[str, str]],
) -> str:
    """A parameter a line, as a block of Python; shared ones by name alone."""
    job = getattr(function, "job", None)
    returned = (
        get_type_hints(job.run)["return"] if job else inspect.signature(function).return_annotation
    )
    lines, others, is_keyword = [], [], False
    for key, parameter in inspect.signature(job or function).parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY and not is_keyword:
            lines.append("*,")
            is_keyword = True
        if is_keyword and options.get(key) in shared:
            others.append(key)
        else:
            lines.append(f"{_declared(job, parameter)},")
    lines += wrap(f"# shared: {', '.join(others)}", 90, subsequent_indent="# ") if others else []
    body = "".join(f"    {line}\n" for line in lines)
    return f"```python\n{name}(\n{body}) -> {_name(returned)}\n```"


def _declared(job: Any, parameter: inspect.Parameter) -> str:
    hints = get_type_hints(job) if job else {}
    star = "*" if parameter.kind is parameter.VAR_POSITIONAL else ""
    default = "" if parameter.default is parameter.empty else f" = {_shown(parameter.default)}"
    kind = _name(hints.get(parameter.name, parameter.annotation))
    return f"{star}{parameter.name}: {kind}{default}"


def _name(hint: Any) -> str:
    """A type as it is written, without its modules."""
    return hint.__name__ if isinstance(hint, type) else re.sub(r"\b(\w+\.)+", "", str(hint))


def _options(function: Any) -> dict[str, tuple[str, str]]:
    """The options of a function's job: each as it is declared, and its help on the command line."""
    if (job := getattr(function, "job", None)) is None:
        return {}
    parameters = inspect.signature(job).parameters
    return {
        name: (f"`{_declared(job, parameters[name])}`", LISTED.sub(MODEL, filled(option.help)))
        for name, (_, option) in options_of(job).items()
        if name in parameters
    }


def _table(of: str, rows: Iterable[tuple[str, ...]]) -> str:
    columns = (words(of), words("what it is"))
    return markdown(TextTable("", columns, (TextSection("", tuple(map(TextRow, rows))),)))


def _shown(value: Any) -> str:
    if isinstance(value, Path):
        return repr(value.name)
    return repr(value) if isinstance(value, str | float | int | tuple | None) else "..."


def _prose(documented: Any) -> Iterator[str]:
    """A docstring's paragraphs, and its examples as blocks of Python."""
    for paragraph in (inspect.getdoc(documented) or "").split("\n\n"):
        examples = EXAMPLE.findall(paragraph)
        yield "\n".join(["```python", *examples, "```"]) if examples else paragraph


def _members(kind: type, shown: Sequence[str] = ()) -> Iterator[str]:
    """Some attributes of a class, then its documented properties and methods."""
    hints = kind.__annotations__
    rows: list[tuple[str, ...]] = [(f"`{name}`", f"`{hints[name]}`") for name in shown]
    for name, member in vars(kind).items():
        if name.startswith("_") and name != "__call__":
            continue
        function = member.fget if isinstance(member, property) else member
        if inspect.isfunction(function) and (text := inspect.getdoc(function)):
            call = "" if isinstance(member, property) else "()"
            written = "engine(inputs)" if name == "__call__" else f"{name}{call}"
            rows.append((f"`{written}`", text.split("\n\n")[0].replace("\n", " ")))
    if rows:
        yield _table("attribute or method", rows)


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
    """The keys of a class of data, `module:Class`, without inherited ones, and its docstring.

    An asterisk marks a required key.
    """
    module, _, name = place.partition(":")
    kind = getattr(import_module(module), name)
    hints = get_type_hints(kind, include_extras=False)
    rows = []
    inherited = {key for base in kind.__mro__[1:] for key in getattr(base, "__annotations__", ())}
    for key, hint, default in _fields(kind, hints):
        if key not in inherited and get_origin(hint) is not ClassVar:
            star = "\\*" if default is None else ""
            rows.append(TextRow((f"`{key}`{star}", f"{spelled(hint)}{default or ''}")))
    columns = (words("key"), words("type"))
    caption = tuple(" ".join(p.split()) for p in (inspect.getdoc(kind) or "").split("\n\n"))
    return TextTable(name, columns, (TextSection("", tuple(rows)),), caption)


def _fields(kind: type, hints: Mapping[str, Any]) -> Iterator[tuple[str, Any, str | None]]:
    """Name, type and default of each field; None where it is required."""
    if issubclass(kind, msgspec.Struct):
        for field in msgspec.structs.fields(kind):
            yield field.encode_name, hints[field.name], None if field.required else ""
        return
    for about in dataclasses.fields(kind):
        required = about.default is dataclasses.MISSING
        if required and about.default_factory is dataclasses.MISSING:
            yield about.name, hints[about.name], None
        else:
            is_empty = required or about.default in (None, "", ())
            yield about.name, hints[about.name], "" if is_empty else f" = `{about.default}`"


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
