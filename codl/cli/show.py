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
from codl.report.text_table import TextRow, TextSection, TextTable, Value, words


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


#: The most names that are listed of what uses a buffer.
MOST_NAMES = 3


def content(executable: Executable) -> dict[str, Any]:
    """A listing as plain data: its keys are those of `codl show --json`."""
    launches = [command.program for command in executable.commands if isinstance(command, Launch)]
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
        "buffers": buffers(executable),
        "programs": [
            {"name": program.name, "options": program.options, "launches": launches.count(number)}
            for number, program in enumerate(executable.programs)
        ],
        "nets": [_net(net) for net in executable.nets],
        "setup": [_line(command, executable) for command in executable.setup],
        "stages": [
            {
                "label": stage.label,
                "commands": [_line(command, executable) for command in stage.commands],
            }
            for stage in executable.stages
        ],
    }


def buffers(executable: Executable) -> list[dict[str, Any]]:
    """Every buffer with the tensors that lie in it, one after the other."""
    users: list[dict[str, None]] = [{} for _ in executable.buffers]
    for tensor in executable.tensors:
        users[tensor.buffer][tensor.name] = None
    return [
        {
            "buffer": number,
            "place": buffer.place,
            "bytes": buffer.bytes,
            "image": None if buffer.image is None else str(buffer.image),
            "tensors": list(users[number]),
        }
        for number, buffer in enumerate(executable.buffers)
    ]


def _net(net: Net) -> dict[str, Any]:
    library = "ncnn" if isinstance(net, NcnnNet) else "ONNX Runtime"
    layers = [
        {"name": layer.name, "op": layer.op, "variant": layer.variant} for layer in net.layers
    ]
    return {"label": net.label, "library": library, "layers": layers}


def _line(command: Command, executable: Executable) -> dict[str, Any]:
    """The side, the kind, what it is for, and sizes of one command."""
    side: Processor = "gpu" if isinstance(command, Launch) else "cpu"
    kind = "run" if isinstance(command, RunNet) else type(command).__name__.lower()
    return {
        "side": side,
        "kind": kind,
        "label": _label(command, executable),
        "detail": _detail(command, executable),
    }


def _label(command: Command, executable: Executable) -> str:
    if isinstance(command, RunNet):
        return executable.nets[command.net].label
    step: int | None = getattr(command, "step", None)
    if step is None:
        if not isinstance(command, Fill):
            return ""
        return executable.tensors[command.target.tensor].name
    work = executable.steps[step]
    way = {"to_gpu": " to the GPU", "to_cpu": " to the CPU"}
    return work.label + (way.get(work.direction, "") if isinstance(work, Transfer) else "")


def _detail(command: Command, executable: Executable) -> str:
    if isinstance(command, Launch):
        sizes = "x".join(map(str, command.global_size))
        local = "x".join(map(str, command.local_size or ()))
        groups = f" in groups of {local}" if local else ""
        signals = "" if command.signals is None else f", signals {command.signals}"
        return f"{command.kernel}, {sizes} work-items{groups}{signals}"
    if isinstance(command, RunNet):
        net = executable.nets[command.net]
        return f"{_net(net)['library']}, {len(net.layers)} layers"
    if isinstance(command, Copy | Fill):
        region = command.target.region
        shape = region.shape(executable.tensors[command.target.tensor].shape)
        return f"{region}, {shape.bytes:,} bytes"
    if isinstance(command, Map | Unmap):
        buffer = executable.buffers[command.buffer]
        how = f" to {command.access}, signals {command.signals}" if isinstance(command, Map) else ""
        return f"buffer {command.buffer}, {buffer.bytes:,} bytes{how}"
    return f"event {command.event}" if isinstance(command, Wait) else ""


def render(listing: dict[str, Any]) -> Group:
    """The same as tables."""
    title = f"{listing['model']} on {listing['soc']}, executable {listing['digest'][:16]}"
    places = [(place["place"], place["buffers"], place["bytes"]) for place in listing["memory"]]
    programs = [(own["name"], own["launches"], own["options"]) for own in listing["programs"]]
    nets = [
        (
            own["label"],
            own["library"],
            ", ".join(f"{x['name']} ({x['variant']})" for x in own["layers"]),
        )
        for own in listing["nets"]
    ]
    stages = [("once, before the first inference", listing["setup"])]
    stages += [(stage["label"], stage["commands"]) for stage in listing["stages"]]
    commands = tuple(
        TextSection(
            label,
            tuple(
                TextRow(tuple(one[k] for k in ("side", "kind", "label", "detail"))) for one in own
            ),
        )
        for label, own in stages
        if own
    )
    heads = tuple(map(words, ("side", "kind", "what", "sizes")))
    return Group(
        TextTable.plain(title, ("place", "buffers", "bytes"), places),
        TextTable.plain(
            "", ("buffer", "place", "bytes", "tensors"), map(_buffer, listing["buffers"])
        ),
        TextTable.plain("", ("program", "launches", "options"), programs),
        TextTable.plain("", ("net", "library", "layers"), nets),
        TextTable("What runs, in order", heads, commands),
    )


def _buffer(buffer: dict[str, Any]) -> tuple[Value, ...]:
    names = buffer["tensors"]
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    text = ", ".join(names[:MOST_NAMES]) + more if names else "scratch of kernels"
    place = ", ".join(filter(None, (buffer["place"], buffer["image"])))
    return str(buffer["buffer"]), place, buffer["bytes"], text
