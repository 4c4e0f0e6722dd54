"""What the compilers of phones' GPUs make of every kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from codl.errors import CodlError
from codl.frontend.convert import load_structure
from codl.frontend.models import BUILT_IN
from codl.ir import parse
from codl.jobs.job import SILENT, Reporter
from codl.phone_compilers import compiler, gpus
from codl.phone_compilers.figures import figures, summary, worst
from codl.phone_compilers.programs import NeededOp, exported, needs, programs_of


def set_up_compilers(*, mali: bool, reporter: Reporter = SILENT) -> None:
    """Set the compilers of Adrenos up, and those of Malis; raises `CodlError` where that fails."""
    families: tuple[gpus.Family, ...] = ("adreno", "mali") if mali else ("adreno",)
    for family in families:
        reporter.stage(
            f"Setting up the compilers of {family.capitalize()} GPUs in {compiler.folder()}"
        )
        compiler.set_up(family)
    reporter.note(f"The compilers are in {compiler.folder()}")


def compile_kernels(
    gpu: str,
    *,
    models: Sequence[str],
    ops: Sequence[str],
    variants: Sequence[str],
    precisions: Sequence[str],
    all_choices: bool,
    brief: bool,
    jobs: int | None,
    reporter: Reporter = SILENT,
) -> dict[str, Any]:
    """What `codl kernels --json` holds; the words are those of that command.

    Raises `CodlError` for names that are none, and where the compilers are not set up.
    """
    key, played = gpus.find(gpu)
    compiler.check_installed(played.family)
    socs = [gpus.soc_of(gpu, precision) for precision in precisions]
    listed = programs_of(_networks(models, ops), socs, all_choices=all_choices)
    if variants:
        listed = listed.only(variants)
    if not listed.programs:
        raise CodlError(f"No kernel variant of {', '.join(variants)} is needed there.")
    with reporter.progress(f"Compiling for {played.label}") as update:
        done = compiler.compile_all(played, listed.programs.values(), jobs=jobs, progress=update)
    rows = figures(listed, done, played)
    return {
        "gpu": key,
        "label": played.label,
        "compiler": done.version,
        "packages": compiler.packages(played.family),
        "summary": asdict(summary(rows)),
        "kernels": [asdict(row) for row in (worst(rows) if brief else rows)],
    }


def _networks(models: Sequence[str], ops: Sequence[str]) -> dict[str, list[NeededOp]]:
    if ops:
        return {"ops": [NeededOp(parse(text)) for text in ops]}
    if models:
        return {name: needs(load_structure(name)) for name in models}
    return {name: needs(load_structure(name)) for name in BUILT_IN} | exported()
