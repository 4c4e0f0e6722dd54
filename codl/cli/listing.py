"""What an executable allocates, compiles and runs, as lines for people and as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group
from rich.text import Text

from codl.ir.executable import (
    Access,
    Command,
    Copy,
    Executable,
    Fill,
    Launch,
    Map,
    NcnnNet,
    Net,
    Raise,
    RunNet,
    Transfer,
    Unmap,
    Wait,
)
from codl.ir.types import Processor
from codl.report.text_table import Table

#: The most names that are listed of what uses a buffer.
MOST_NAMES = 3


def content(executable: Executable) -> dict[str, Any]:
    """A listing as plain data: its keys are those of `codl show --json`."""
    return {
        "model": executable.model,
        "network": executable.network,
        "soc": executable.soc,
        "digest": executable.digest(),
        "memory": memory(executable),
        "buffers": buffers(executable),
        "programs": programs(executable),
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


def memory(executable: Executable) -> list[dict[str, Any]]:
    """Buffers and bytes by place."""
    places = dict.fromkeys(buffer.place for buffer in executable.buffers)
    return [
        {
            "place": place,
            "buffers": sum(buffer.place == place for buffer in executable.buffers),
            "bytes": executable.bytes(place),
        }
        for place in places
    ]


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


def programs(executable: Executable) -> list[dict[str, Any]]:
    """Every program with the number of its launches in one inference."""
    launches = [
        command.program for command in executable.commands if isinstance(command, Launch | Raise)
    ]
    return [
        {"name": program.name, "options": program.options, "launches": launches.count(number)}
        for number, program in enumerate(executable.programs)
    ]


def _net(net: Net) -> dict[str, Any]:
    library = "ncnn" if isinstance(net, NcnnNet) else "ONNX Runtime"
    layers = [
        {"name": layer.name, "op": layer.op, "variant": layer.variant} for layer in net.layers
    ]
    return {"label": net.label, "library": library, "layers": layers}


def _line(command: Command, executable: Executable) -> dict[str, Any]:
    """The side, the kind, what it is for, and sizes of one command."""
    side: Processor = "gpu" if isinstance(command, Launch | Raise) else "cpu"
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
        return _name(command.target, executable) if isinstance(command, Fill) else ""
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
    if isinstance(command, Raise):
        return f"flag in buffer {command.buffer}, signals {command.signals}"
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


def _name(access: Access, executable: Executable) -> str:
    return executable.tensors[access.tensor].name


def render(listing: dict[str, Any]) -> Group:
    """The same as tables."""
    title = f"{listing['model']} on {listing['soc']}, executable {listing['digest'][:16]}"
    allocated = Table("place", "buffers", "bytes", title=title)
    for place in listing["memory"]:
        allocated.add_row(place["place"], str(place["buffers"]), f"{place['bytes']:,}")
    parts: list[Table] = [allocated, _buffers(listing["buffers"])]
    compiled = Table("program", "launches", "options")
    for place in listing["programs"]:
        compiled.add_row(place["name"], str(place["launches"]), place["options"])
    nets = Table("net", "library", "layers")
    for place in listing["nets"]:
        layers = ", ".join(f"{x['name']} ({x['variant']})" for x in place["layers"])
        nets.add_row(place["label"], place["library"], layers)
    commands = Table("side", "kind", "what", "sizes", title="What runs, in order")
    _add_commands(commands, "once, before the first inference", listing["setup"])
    for stage in listing["stages"]:
        _add_commands(commands, stage["label"], stage["commands"])
    return Group(*parts, compiled, nets, commands)


def _buffers(listed: Sequence[dict[str, Any]]) -> Table:
    table = Table("buffer", "place", "bytes", "tensors")
    for buffer in listed:
        names = buffer["tensors"]
        more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
        none = "flag" if buffer["place"] == "flag" else "scratch of kernels"
        text = ", ".join(names[:MOST_NAMES]) + more if names else none
        place = (
            buffer["place"] if buffer["image"] is None else f"{buffer['place']}, {buffer['image']}"
        )
        table.add_row(str(buffer["buffer"]), place, f"{buffer['bytes']:,}", text)
    return table


def _add_commands(table: Table, label: str, commands: Sequence[dict[str, Any]]) -> None:
    if not commands:
        return
    table.add_section()
    table.add_row("", "", Text(label, "bold"), "")
    for command in commands:
        table.add_row(command["side"], command["kind"], command["label"], command["detail"])
