"""`codl quantize`: a model whose products have matrices of 4 or 8 bits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from codl import files
from codl.cli.output import JsonOption, emit, note
from codl.errors import CodlError
from codl.jobs.options import ModelArgument, writable
from codl.report.text_table import Table

if TYPE_CHECKING:
    import onnx

FileOption = Annotated[
    Path, typer.Option("-o", "--output", help="The .onnx file to write.", callback=writable)
]
BitsOption = Annotated[
    int, typer.Option("--bits", help="Bits of a number: {codl.cli.help_words:bits}.")
]
BlockOption = Annotated[
    int,
    typer.Option(
        "--block",
        help="Numbers along k that share a scale: {codl.ir.ops.matmul_quantized:BLOCKS}.",
    ),
]
SymmetricOption = Annotated[
    bool, typer.Option("--symmetric", help="No zero points: a block's middle stands for 0.")
]
Int8Option = Annotated[
    bool,
    typer.Option(
        "--int8-rows",
        help="Let kernels round the rows that a matrix is multiplied by to 8 bits, block by block.",
    ),
]
DynamicOption = Annotated[
    bool,
    typer.Option(
        "--dynamic",
        help="With --bits 8: while the model runs, round the rows to 8 bits too, by the range of "
        "the whole tensor, and multiply whole numbers. A column has one scale, no blocks.",
    ),
]
CapacityOption = Annotated[
    int | None,
    typer.Option(
        "--capacity",
        min=1,
        help="Write a decoder ({codl.frontend.decoders:DECODERS}) with its key-value cache, for at "
        "most this many tokens: for `codl bench llm`.",
    ),
]


def quantize_model(
    model: ModelArgument,
    output: FileOption,
    bits: BitsOption = 4,
    block: BlockOption = 32,
    symmetric: SymmetricOption = False,
    int8_rows: Int8Option = False,
    dynamic: DynamicOption = False,
    capacity: CapacityOption = None,
    json: JsonOption = False,
) -> None:
    """Every block of a column has a scale and a zero point. Kernels read the packed numbers: such a
    model takes an eighth, or a quarter, of the memory. It is an ONNX model as ONNX Runtime's
    quantiser writes it (com.microsoft.MatMulNBits; with --dynamic, DynamicQuantizeLinear and
    MatMulInteger), and runs there too.

    [dim]Examples:[/dim]
    codl quantize smollm2_135m --bits 4 --block 32 -o smollm2_int4.onnx
    codl quantize qwen3_0_6b --capacity 2048 -o qwen3_int4.onnx
    codl quantize model.onnx --bits 8 --block 128 --symmetric -o model_int8.onnx
    codl quantize bert --bits 8 --dynamic -o bert_int8.onnx
    """
    from codl.frontend.quantize import check_format, quantize, quantize_dynamic

    check_format(bits, block)
    if output.suffix != ".onnx":
        raise typer.BadParameter(f"must end in .onnx, got {output}", param_hint="--output")
    if dynamic and (bits != 8 or symmetric or int8_rows or capacity is not None):
        words = "goes with --bits 8, and without --symmetric, --int8-rows and --capacity"
        raise typer.BadParameter(words, param_hint="--dynamic")
    name, proto = _loaded(str(model), capacity)
    if dynamic:
        made, ops = quantize_dynamic(proto)
    else:
        made, ops = quantize(proto, bits=bits, block=block, symmetric=symmetric, int8=int8_rows)
    _save(made, output)
    note(f"Wrote {output}")
    result = {
        "model": name,
        "file": str(output),
        "bits": bits,
        "block": None if dynamic else block,
        "bytes": output.stat().st_size,
        "ops": [asdict(op) for op in ops],
    }
    emit("quantize", result, lambda: _table(result), as_json=json)


def _loaded(model: str, capacity: int | None) -> tuple[str, onnx.ModelProto]:
    """The name of a model, and all of it."""
    from codl.frontend import models
    from codl.frontend.decoders import exported

    if capacity is not None:
        return model, exported(model, capacity)
    source = models.load(model)
    return source.name, source.proto


def _save(proto: onnx.ModelProto, path: Path) -> None:
    """Raises `CodlError` for a model that is too large for one file, or for the disk."""
    import onnx

    try:
        with files.writing(path) as partial:
            onnx.save(proto, partial, format="protobuf")
    except ValueError as error:
        raise CodlError(f"The model does not fit in {path}, ONNX allows 2 GB: {error}.") from error


def _table(result: Mapping[str, Any]) -> Table:
    title = f"{result['file']}, {result['bytes'] / 1e6:.1f} MB"
    table = Table("product", "k", "n", "packed MB", title=title, title_justify="left")
    for op in result["ops"]:
        table.add_row(op["op"], str(op["k"]), str(op["n"]), f"{op['bytes'] / 1e6:.3f}")
    packed = sum(op["bytes"] for op in result["ops"])
    blocks = f"in blocks of {result['block']}" if result["block"] else "by columns"
    table.caption = (
        f"{len(result['ops'])} products of {result['model']} with {result['bits']} bits {blocks}: "
        f"{packed / 1e6:.1f} MB with scales"
    )
    return table
