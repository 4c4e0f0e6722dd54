"""Reading and writing of YAML files as dataclasses, with errors that name key and value."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
import yaml

from codl import files
from codl.errors import InvalidFileError, UnknownNameError

T = TypeVar("T")
#: Upper bound of any size or count of a device or tensor.
MOST = 1 << 48
Positive: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=MOST)]
Threads: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=4096)]
NotNegative: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MOST)]
#: Upper bounds of a file's nesting, and of its values with aliases expanded.
MOST_DEEP, MOST_NODES = 100, 1_000_000
_WHERE = re.compile(r"(?P<problem>.*) - at (?P<of_key>`key` in )?`\$\.?(?P<keys>.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<key>.*)`")


class Loader(yaml.SafeLoader):
    """A YAML loader that refuses deep nesting and duplicate keys, and limits aliases.

    Nested aliases may need far more memory than their text. `1:30` is text as in YAML 1.2, not 90.
    """

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        #: Number of values that each anchored node stands for, by its id.
        self._sizes: dict[int, int] = {}
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        is_alias = self.check_event(yaml.AliasEvent)
        self._depth += 1
        if self._depth > MOST_DEEP:
            problem = f"nested deeper than {MOST_DEEP} levels"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if node is not None:
            self._count(node, mark, is_alias=is_alias)
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    problem = f"the key {key.value!r} is there twice"
                    raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
                seen.add(key.value)
        return node

    def resolve(self, kind: Any, value: Any, implicit: Any) -> str:
        tag: str = super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]
        is_number = kind is yaml.ScalarNode and tag.endswith((":int", ":float"))
        return self.DEFAULT_SCALAR_TAG if is_number and ":" in value else tag

    def _count(self, node: yaml.Node, mark: yaml.Mark, *, is_alias: bool) -> None:
        if not is_alias:
            inner = node.value if isinstance(node, yaml.CollectionNode) else ()
            parts = [
                part
                for kinds in inner
                for part in (kinds if isinstance(kinds, tuple) else (kinds,))
            ]
            self._sizes[id(node)] = 1 + sum(self._sizes[id(part)] for part in parts)
        size = self._sizes.get(id(node), MOST_NODES)  # unknown for a node inside itself
        if size >= MOST_NODES:
            problem = f"aliases stand for more than {MOST_NODES} values, or for themselves"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)


def read(path: Path, kind: type[T]) -> T:
    """The dataclass in a file; raises `InvalidFileError`."""
    return convert(read_content(path), kind, path)


def read_content(path: Path, loader: type[Loader] = Loader) -> Any:
    """Parsed content of a YAML file; raises `InvalidFileError` for invalid YAML."""
    try:
        return yaml.load(files.read_text(path), loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # such as for an impossible date
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error)
        raise InvalidFileError(path, f"not YAML: {problem}.", where=where) from error


def convert(
    content: Any,
    kind: type[T],
    path: Path | str,
    *,
    fix: str = "",
    dec_hook: Callable[[Any, Any], Any] | None = None,
) -> T:
    """A dataclass from parsed content; raises `InvalidFileError` for a wrong or missing key.

    `dec_hook` reads types unknown to msgspec; errors end with `fix`.
    """
    _refuse_unknown(content, kind, path, "", fix)
    try:
        return msgspec.convert(content, kind, dec_hook=dec_hook)
    except msgspec.ValidationError as error:
        raise explained(str(error), content, kind, path, fix) from error


def write(content: Any, path: Path, *, comment: str = "") -> Path:
    """Write a YAML file atomically, and make its folder."""
    text = yaml.safe_dump(content, sort_keys=False, width=100)
    return files.write(path, f"# {comment}\n{text}" if comment else text)


def _refuse_unknown(content: Any, kind: Any, path: Path | str, where: str, fix: str) -> None:
    if is_dataclass(plain := get_origin(kind) or kind):  # maybe generic
        hints = get_type_hints(plain)
        types = {field.name: hints[field.name] for field in fields(plain)}
        for key, value in content.items() if isinstance(content, Mapping) else ():
            if key not in types:
                reason = str(UnknownNameError("key", str(key), types))
                raise InvalidFileError(path, reason, where=where or "top", fix=fix)
            _refuse_unknown(value, types[key], path, f"{where}.{key}".lstrip("."), fix)
    elif get_origin(kind) in (Union, UnionType):  # such as `PowerW | None`
        for inner in get_args(kind):
            _refuse_unknown(content, inner, path, where, fix)
    elif isinstance(content, Mapping) and get_args(kind):
        for key, value in content.items():
            _refuse_unknown(value, get_args(kind)[-1], path, f"{where}.{key}", fix)
    elif isinstance(content, list) and get_args(kind):
        for number, value in enumerate(content):
            _refuse_unknown(value, get_args(kind)[0], path, f"{where}[{number}]", fix)


def explained(
    message: str, content: Any, kind: Any, path: Path | str, fix: str = "", *, within: str = ""
) -> InvalidFileError:
    """msgspec's message in codl's form: the key, the expected value, and the actual one.

    `within` is the place of `content` in the file.
    """
    refuse = partial(InvalidFileError, path, fix=fix)
    inner = f"{within}, " if within else ""
    match = _WHERE.fullmatch(message)
    problem, keys = (match["problem"], match["keys"]) if match else (message, "")
    if missing := _MISSING.fullmatch(problem):
        where = f"{keys}.{missing['key']}".lstrip(".")
        return refuse("the key is missing.", where=inner + where)
    got, where = content, keys or "top"
    for key in re.findall(r"\.{3}|[^.\[\]]+", keys):
        if key == "...":  # msgspec does not name the entry of a mapping
            return refuse(f"{_uncapped(problem)}.", where=inner + where)
        got = got[int(key) if isinstance(got, list) else key]
        kind = _inner(kind, key)
    if match and match["of_key"]:
        got, kind = ", ".join(map(str, got)), get_args(kind)[0]
    if "enum value" in problem:
        choices = [choice for part in _parts(kind) for choice in get_args(part)]
        problem = f"must be one of {', '.join(str(c) or repr(c) for c in choices)}"
    elif not problem.startswith("Expected `"):  # a rule of the dataclass itself
        return refuse(f"{_uncapped(problem)}.", where=inner + where)
    problem = _uncapped(problem.split(", got ")[0])
    return refuse(f"{problem}, got {got!r:.60}.", where=inner + where)


def _uncapped(problem: str) -> str:
    return (problem[:1].lower() + problem[1:]).replace("`", "")


def _parts(kind: Any) -> tuple[Any, ...]:
    """The types of a union; any other type alone."""
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _inner(kind: Any, key: str) -> Any:
    """The type of the value under a key, as far as it is known."""
    for part in _parts(kind):
        if is_dataclass(part):
            return get_type_hints(part).get(key)
    arguments = get_args(kind)
    return arguments[0] if arguments and key.isdigit() else arguments[-1] if arguments else None
