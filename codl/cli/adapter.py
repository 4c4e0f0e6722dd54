"""Commands of typer, made of functions whose parameters are jobs or have an `Option`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import typer

from codl.cli.output import TERMINAL, tell
from codl.jobs.options import Option, OptionError

#: Types of defaults that are shown; a sequence is described by its option's help.
SHOWN = (bool, int, float, str, Path)
USUAL_SOC = (
    "By default CODL_SOC, the one that was measured here last, or for plans alone one that comes "
    "with codl."
)


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """A command for typer: each field of a job that has an option is an option of the command."""
    hints = get_type_hints(command, include_extras=True)
    jobs: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    parameters: list[inspect.Parameter] = []
    options: dict[str, Option] = {}

    def add(name: str, hint: Any, default: Any) -> bool:
        metadata = getattr(hint, "__metadata__", ())
        option = next((each for each in metadata if isinstance(each, Option)), None)
        if option is not None:
            options[name] = option
            parameters.append(_parameter(name, option, get_args(hint)[0], default))
        return option is not None

    for name, parameter in inspect.signature(command).parameters.items():
        if name in jobs:
            kinds = get_type_hints(jobs[name], include_extras=True)
            for field in fields(jobs[name]):
                default = inspect.Parameter.empty if _is_required(field) else _default(field)
                add(field.name, kinds[field.name], default)
        elif not add(name, hints[name], parameter.default):
            parameters.append(
                parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
            )

    @wraps(command)
    def called(**values: Any) -> None:
        given = _read(options, {name: values.pop(name) for name in options})
        try:
            made = {
                name: kind(
                    reporter=TERMINAL,
                    **{f.name: given.pop(f.name) for f in fields(kind) if f.name in given},
                )
                for name, kind in jobs.items()
            }
            command(**made, **given, **values)
        except OptionError as error:
            raise typer.BadParameter(str(error), param_hint=[*error.names]) from error

    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {p.name: p.annotation for p in parameters}
    return called


def _is_required(field: Any) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _default(field: Any) -> Any:
    return field.default_factory() if field.default is MISSING else field.default


def _parameter(name: str, option: Option, hint: Any, default: Any) -> inspect.Parameter:
    """An option as a parameter of typer's; its value is None where it is not given."""
    inner = str if option.read else _inner(hint)
    if default is not inspect.Parameter.empty:
        is_shown = isinstance(default, SHOWN) and not (option.usual or option.many)
        default = option.text or (default if is_shown else None)
        if option.read and default is not None:
            default = str(default) if isinstance(default, str | Path) else None
    kind: Any = list[inner] if option.many else inner  # type: ignore[valid-type]
    usual = f" {USUAL_SOC}" if option.usual else ""
    how: dict[str, Any] = {"help": f"{option.help}{usual}", "min": option.least, "max": option.most}
    metavar = option.metavar
    if metavar is None and inner is not bool and option.names:
        long = next(name for name in option.names if name.startswith("--"))
        metavar = long.strip("-").replace("-", "_").upper()
    info = (
        typer.Option(*option.names, **how, metavar=metavar)
        if option.names
        else typer.Argument(**how, metavar=metavar)
    )
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind | None if default is None else kind, info],
    )


def _inner(hint: Any) -> Any:
    """The type of a value, or of each of several, without None."""
    if get_origin(hint) in (Union, UnionType):
        return _inner(next(kind for kind in get_args(hint) if kind is not NoneType))
    return _inner(get_args(hint)[0]) if get_origin(hint) is not None else hint


def _read(options: Mapping[str, Option], texts: Mapping[str, Any]) -> dict[str, Any]:
    """The values of the options that were given; raises `typer.BadParameter` for wrong usage."""
    values: dict[str, Any] = {}
    for name, value in texts.items():
        option = options[name]
        if value is None or (option.many and not value):
            continue
        try:
            values[name] = option.read(value) if option.read else value
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint=[*option.names]) from error
        if problem := option.problem(values[name]):
            raise typer.BadParameter(f"{problem}.", param_hint=[*option.names])
    for name, option in options.items():
        if name not in values and option.usual is not None:
            values[name], said = option.usual(values)
            if said:
                tell(said)
    return values
