"""`codl show`: a plan, a bundle or an executable as a readable listing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group

from codl import files
from codl.cli.output import Output, note
from codl.errors import CodlError, InvalidFileError
from codl.files import BUNDLE
from codl.ir.constants import array_digest
from codl.ir.executable import (
    Command,
    Copy,
    Executable,
    Fill,
    Launch,
    Map,
    NcnnNet,
    Net,
    RunNet,
    Transfer,
    Unmap,
    Wait,
)
from codl.ir.executable_json import decode, encode
from codl.ir.plan import Plan, load_plan
from codl.ir.records import soc as socs
from codl.ir.types import Processor
from codl.jobs import options as opt
from codl.jobs.bundle.archive import EXECUTABLE, Archive
from codl.jobs.options import argument, option
from codl.lower.lowering import lower
from codl.measure import FOLDER as DATASETS
from codl.measure import tuning_file
from codl.measure.dataset import Dataset
from codl.report.results import SearchResult, parse_as
from codl.report.tables import plan_content
from codl.report.text_table import TextTable, listed_in_short


def show_file(
    out: Output,
    file: Annotated[Path, argument(f"A plan or an executable (.json), or a bundle ({BUNDLE}).")],
    soc: Annotated[
        str | None, option("--soc", help="Lower a plan for this SoC, and show the executable.")
    ] = None,
    model: Annotated[
        str | None,
        option("--model", help="The model of the plan, if not the built-in one of its name."),
    ] = None,
    batch: opt.BatchOption = None,
    dataset: opt.DatasetsOption = DATASETS,
    executable: Annotated[
        Path | None,
        option("--executable", help="Write the executable that is shown to this .json file."),
    ] = None,
) -> None:
    """No device is needed. With --soc a plan is lowered first, and its executable is shown;
    --executable writes it, without its arrays.

    [dim]Examples:[/dim]
    codl show yolov2.codl
    codl show plan.json
    codl show plan.json --soc host --executable yolov2.json
    codl show yolov2.json --json
    """
    loaded = _read(file)
    if isinstance(loaded, Plan):
        if soc is None:
            if executable is not None:
                raise typer.BadParameter("a plan is lowered for a SoC.", param_hint="--soc")
            result = {"kind": "plan", **loaded.to_json()}
            del result["version"]  # of the plan's format
            table = plan_content(parse_as(SearchResult, result))
            out.emit("show", result, lambda: table)
            return
        shown = _lowered(loaded, soc, model or loaded.model, batch, dataset)
    else:
        shown = _decoded(file, loaded)
    if executable is not None:
        text = loaded if isinstance(loaded, bytes) else encode(shown, array_digest)
        note(f"Wrote {files.write(executable, text)}")
    listing = content(shown)
    result = {"kind": "executable", **listing}
    out.emit("show", result, lambda: render(listing))


def _read(file: Path) -> Plan | bytes:
    """A plan, or the JSON of an executable; raises `InvalidFileError` for what is neither."""
    if file.suffix == BUNDLE:
        return bytes(Archive(file).part(EXECUTABLE))
    text = files.read_bytes(file)
    keys = files.parse_json(text, file)
    if isinstance(keys, dict) and "chains" in keys:
        return load_plan(file)
    if isinstance(keys, dict) and "buffers" in keys:
        return text
    raise InvalidFileError(file, "expected a plan, an executable or a bundle.")


def _decoded(file: Path, text: bytes) -> Executable:
    try:
        return decode(text, _no_array)
    except CodlError as error:
        raise InvalidFileError(file, f"its executable cannot be shown: {error}") from error


def _no_array(digest: str) -> Any:
    raise CodlError(f"The array {digest} is not beside the executable.")


def _lowered(plan: Plan, soc: str, model: str, batch: int | None, dataset: Path) -> Executable:
    from codl.frontend.convert import load_network  # what needs no model needs no ONNX

    described = socs.load(soc)
    tuning = tuning_file.read(Dataset.found(described.name, dataset), described)
    return lower(load_network(model, batch), plan, described, tuning)


def content(executable: Executable) -> dict[str, Any]:
    """A listing as plain data: its keys are those of `codl show --json`."""
    launches = [command.program for command in executable.commands if isinstance(command, Launch)]
    users: list[dict[str, None]] = [{} for _ in executable.buffers]
    for tensor in executable.tensors:
        users[tensor.buffer][tensor.name] = None
    return {
        "model": executable.model,
        "network": executable.network,
        "soc": executable.soc,
        "digest": executable.digest(),
        "memory": [
            {
                "place": place,
                "buffers": sum(buffer.place == place for buffer in executable.buffers),
                "bytes": executable.bytes(place),
            }
            for place in dict.fromkeys(buffer.place for buffer in executable.buffers)
        ],
        "buffers": [
            {
                "buffer": number,
                "place": buffer.place,
                "bytes": buffer.bytes,
                "image": None if buffer.image is None else str(buffer.image),
                "tensors": list(names),
            }
            for number, (buffer, names) in enumerate(zip(executable.buffers, users, strict=True))
        ],
        "programs": [
            {"name": program.name, "options": program.options, "launches": launches.count(number)}
            for number, program in enumerate(executable.programs)
        ],
        "nets": [
            {
                "label": net.label,
                "library": _library(net),
                "layers": [
                    {"name": layer.name, "op": layer.op, "variant": layer.variant}
                    for layer in net.layers
                ],
            }
            for net in executable.nets
        ],
        "setup": [_line(command, executable) for command in executable.setup],
        "stages": [
            {
                "label": stage.label,
                "commands": [_line(command, executable) for command in stage.commands],
            }
            for stage in executable.stages
        ],
    }


def _library(net: Net) -> str:
    return "ncnn" if isinstance(net, NcnnNet) else "ONNX Runtime"


def _line(command: Command, executable: Executable) -> dict[str, Any]:
    """The side and the kind of a command, what it is for, and its sizes."""
    side: Processor = "gpu" if isinstance(command, Launch) else "cpu"
    kind, detail, label = type(command).__name__.lower(), "", ""
    if (step := getattr(command, "step", None)) is not None:
        work = executable.steps[step]
        way = {"to_gpu": " to the GPU", "to_cpu": " to the CPU"}
        label = work.label + (way.get(work.direction, "") if isinstance(work, Transfer) else "")
    match command:
        case RunNet():
            net = executable.nets[command.net]
            kind, label = "run", net.label
            detail = f"{_library(net)}, {len(net.layers)} layers"
        case Launch():
            sizes = "x".join(map(str, command.global_size))
            local = "x".join(map(str, command.local_size or ()))
            groups = f" in groups of {local}" if local else ""
            signals = "" if command.signals is None else f", signals {command.signals}"
            detail = f"{command.kernel}, {sizes} work-items{groups}{signals}"
        case Copy() | Fill():
            region, tensor = command.target.region, executable.tensors[command.target.tensor]
            label = label or tensor.name
            detail = f"{region}, {region.shape(tensor.shape).bytes:,} bytes"
        case Map() | Unmap():
            detail = f"buffer {command.buffer}"
            if isinstance(command, Map):
                detail += f" to {command.access}, signals {command.signals}"
        case Wait():
            detail = f"event {command.event}"
    return {"side": side, "kind": kind, "label": label, "detail": detail}


def render(listing: dict[str, Any]) -> Group:
    """The same as tables."""
    title = f"{listing['model']} on {listing['soc']}, executable {listing['digest'][:16]}"
    places = [tuple(place.values()) for place in listing["memory"]]
    buffers = [
        (str(one["buffer"]), ", ".join(filter(None, (one["place"], one["image"]))), one["bytes"],
         listed_in_short(one["tensors"], 3) or "scratch of kernels")
        for one in listing["buffers"]
    ]  # fmt: skip
    programs = [(own["name"], own["launches"], own["options"]) for own in listing["programs"]]
    nets = [
        (net["label"], net["library"], ", ".join(f"{x['name']} ({x['variant']})" for x in layers))
        for net in listing["nets"]
        if (layers := net["layers"])
    ]
    commands = {"once, before the first inference": listing["setup"]}
    commands |= {stage["label"]: stage["commands"] for stage in listing["stages"]}
    rows = {label: [tuple(one.values()) for one in own] for label, own in commands.items() if own}
    return Group(
        TextTable.plain(title, ("place", "buffers", "bytes"), places),
        TextTable.plain("", ("buffer", "place", "bytes", "tensors"), buffers),
        TextTable.plain("", ("program", "launches", "options"), programs),
        TextTable.plain("", ("net", "library", "layers"), nets),
        TextTable.plain("What runs, in order", ("side", "kind", "what", "sizes"), rows),
    )
