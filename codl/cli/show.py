"""`codl show`: a plan, a bundle or an executable as a readable listing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import RenderableType

from codl import files
from codl.bundle.archive import EXECUTABLE, Archive
from codl.cli.listing import content, render
from codl.cli.output import JsonOption, OutputOption, emit, note
from codl.cli.plan_tables import plan_table
from codl.errors import CodlError, InvalidFileError
from codl.files import BUNDLE
from codl.ir.constants import array_digest
from codl.ir.executable import Executable
from codl.ir.executable_json import decode, encode
from codl.ir.plan import Plan, load_plan
from codl.jobs import options as opt
from codl.jobs.options import argument, option
from codl.lower import lower
from codl.measure import FOLDER as DATASETS
from codl.measure import tuning_file
from codl.measure.dataset import Dataset
from codl.records import soc as socs

FileArgument = Annotated[
    Path, argument(f"A plan or an executable (.json), or a bundle ({BUNDLE}).")
]
LowerOption = Annotated[
    str | None,
    option("--soc", help="Lower a plan for this SoC, and show the executable."),
]
ModelOption = Annotated[
    str | None,
    option("--model", help="The model of the plan, if not the built-in one of its name."),
]
ExecutableOption = Annotated[
    Path | None,
    option("--executable", help="Write the executable that is shown to this .json file."),
]


def show_file(
    file: FileArgument,
    soc: LowerOption = None,
    model: ModelOption = None,
    batch: opt.BatchOption = None,
    dataset: opt.DatasetsOption = DATASETS,
    executable: ExecutableOption = None,
    output: OutputOption = None,
    json: JsonOption = False,
) -> None:
    """No device is needed. With --soc a plan is lowered first: the listing is then that of its
    executable, which --executable keeps, without the arrays of its constants.

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
            _show_plan(loaded, as_json=json, output=output)
            return
        shown = _lowered(loaded, soc, model or loaded.model, batch, dataset)
    else:
        shown = _decoded(file, loaded)
    if executable is not None:
        text = loaded if isinstance(loaded, bytes) else encode(shown, array_digest)
        note(f"Wrote {files.write(executable, text)}")
    listing = content(shown)
    result: dict[str, Any] = {"kind": "executable", **listing}
    emit("show", result, lambda: render(listing), as_json=json, output=output)


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


def _show_plan(plan: Plan, *, as_json: bool, output: Path | None) -> None:
    result = {"kind": "plan", **plan.to_json()}
    result.pop("version")

    def table() -> RenderableType:
        return plan_table(plan)

    emit("show", result, table, as_json=as_json, output=output)
