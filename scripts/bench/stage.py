r"""Co-execution against the ratio of two processors' speeds: what docs/results/curve.md is made of.

On an NVIDIA GPU of which only some multiprocessors are left to codl (see `codl_stage`), beside all
cores of the CPU; and on the cores of one CPU, divided between ncnn (the number before the colon)
and an OpenCL runtime for CPUs (the number behind it):

    python scripts/bench/stage.py --left 4,2,8,1,16 -o docs/results/curve-h100.json
    python scripts/bench/stage.py --cores 8:8,4:8,2:8,1:8,8:4 -o docs/results/curve-cores.json

Each of them is a SoC that is described, collected from, learned and evaluated as any other device,
but for rows of a side that two have in common (see `stage_socs`). With the defaults that takes at
most four minutes, half of it for the collection. The file is written after every model. Started
again with the same file, it goes on with what that lacks; a model that failed is tried again. So it
may be killed at any time, and a machine that is lent for ten minutes does

    python scripts/bench/stage.py --left 4,2,8,1,16 --within 570s --folder /tmp/curve -o curve.json

again and again. Fewer models, or a shorter collection, take less:

    python scripts/bench/stage.py --left 4 --models vgg16,yolov2 --budget 90s -o curve.json

Beside many cores it takes a longer one for plans to gain (docs/results/curve.md):

    python scripts/bench/stage.py --left 2 --budget 440s --collect 270s \
        --models yolov2,vgg16,posenet,resnet50 -o docs/results/curve-h200.json

One multiprocessor beside four threads is a pair of similar speed (docs/results/measurements.md has
the evaluation that follows):

    python scripts/bench/stage.py --left 1 --threads 4 --budget 190s --collect 190s \
        --models vgg16,yolov2,resnet50,posenet,mobilenet_v2,bert -o part-h200-4threads.json

SoC files, datasets and predictors are left in --folder. Nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
import csv
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

from curve_file import CurveFile, failed
from stage_socs import Stage, of_cores, of_multiprocessors, take_rows

from codl.errors import CodlError
from codl.files import ROOT
from codl.frontend.models import MEASURED
from codl.ir import to_text
from codl.ir.records import soc as socs
from codl.jobs.options import read_duration
from codl.machine.placement import LocalSoc, load
from codl.measure.tasks import load_ops
from codl.registry import VARIABLE

BENCH = Path(__file__).resolve().parent
PLUGIN = BENCH / "codl_stage"
CODL = (sys.executable, "-c", "from codl.cli import main; main()")
EVALUATE = (sys.executable, str(BENCH / "stage_models.py"))
#: Of a budget: the collection. What is left is for predictors and models.
COLLECTING = 0.5
#: Seconds beyond a budget after which what still runs hangs.
GRACE_S = 60.0
#: Less than this is not begun.
LEAST = 0.4


def main() -> None:
    try:
        _run(_options())
    except CodlError as error:
        sys.exit(f"Error: {error}")


def _run(options: argparse.Namespace) -> None:
    file, begin = options.output.resolve(), perf_counter()
    options.folder.mkdir(parents=True, exist_ok=True)
    os.chdir(options.folder)
    _prepare()
    within_s = read_duration(options.within) if options.within else None
    budget_s = read_duration(options.budget)
    stages = _stages(options)
    for stage in stages:
        spent_s = perf_counter() - begin
        left_s = budget_s if within_s is None else min(budget_s, within_s - spent_s)
        if left_s < LEAST * budget_s:
            _say(f"{stage.name} and what follows are left for another time")
            break
        try:
            take_rows(stage, (other for other in stages if other != stage))
            _measure(stage, options, file, left_s)
        except (CodlError, OSError, subprocess.SubprocessError) as error:
            _say(f"{stage.name}: {error}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--left", default="", help="multiprocessors of a GPU, by comma")
    parser.add_argument("--cores", default="", help="cores of either side as CPU:GPU, by comma")
    parser.add_argument("--threads", type=int, help="of the CPU with --left; one a core by default")
    parser.add_argument("--models", default=",".join(MEASURED), help="by comma")
    parser.add_argument("--budget", default="4m", help="of a SoC, all in all")
    parser.add_argument("--collect", help="of that, the collection; half of it by default")
    parser.add_argument("--within", help="begin nothing that would end later; no limit by default")
    parser.add_argument("--seconds", default="2", help="of measuring a model, at least")
    parser.add_argument("--rounds", default="3", help="turns of each strategy, at least")
    parser.add_argument("--device", default="nvidia", help="the OpenCL device of --left")
    parser.add_argument("--runtime", default="pocl", help="the OpenCL device of --cores")
    parser.add_argument("--commit", default="", help="codl's, where it is no checkout")
    parser.add_argument("--folder", type=Path, default=Path("curve"), help="where files are left")
    parser.add_argument("-o", "--output", type=Path, default=Path("curve.json"))
    options = parser.parse_args()
    if not options.left and not options.cores:
        parser.error("name some --left 1,2,4 or some --cores 8:8,4:8")
    return options


def _prepare() -> None:
    """Let every process that is started find codl and the plugin, and tell where it hangs."""
    os.environ["PYTHONFAULTHANDLER"] = "1"
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    os.environ[VARIABLE] = str(PLUGIN)


def _stages(options: argparse.Namespace) -> list[Stage]:
    """Those that are asked for; raises `CodlError` for what the machine does not have."""
    left, cores = _numbers(options.left, 1, "4,2"), _numbers(options.cores, 2, "8:8,4:8")
    stages = []
    if left:
        whole = _detect("whole", options.device, "--memory", "buffer")
        stages += [of_multiprocessors(whole, *numbers, options.threads) for numbers in left]
    if cores:
        divided = _detect("divided", options.runtime)
        stages += [of_cores(divided, *numbers) for numbers in cores]
    return stages


def _numbers(text: str, count: int, like: str) -> list[list[int]]:
    """Groups of so many numbers, with colons inside and commas between."""
    try:
        groups = [[int(part) for part in group.split(":")] for group in text.split(",") if group]
    except ValueError:
        groups = [[]]
    if any(len(group) != count for group in groups):
        raise CodlError(f"Expected numbers like {like}, got {text!r}.")
    return groups


def _detect(name: str, device: str, *how: str) -> LocalSoc:
    """The machine with its whole device, as an earlier run has described it or as it is."""
    if not socs.own_path_of(name).exists():
        on = ("--serial", "local", "--name", name, "--opencl-device", device)
        _codl(["soc", "detect", *on, *how], 2 * GRACE_S)
    return load(name)


def _measure(stage: Stage, options: argparse.Namespace, path: Path, budget_s: float) -> None:
    """Every model that the file lacks; raises `SubprocessError` where none can be."""
    file = CurveFile(path, options.commit)
    models = [m for m in options.models.split(",") if not file.is_measured(stage.name, m)]
    if not models:
        return
    files = [_ops(model) for model in models]
    end = perf_counter() + budget_s
    stage.soc.save(socs.own_path_of(stage.name))
    on = ["--soc", stage.name, "--serial", stage.serial]
    collect_s = min(read_duration(options.collect) or COLLECTING * budget_s, budget_s)
    how = ["--models", ",".join(files), "--budget", f"{collect_s:.0f}s", "--resume"]
    try:
        _codl(["collect", *on, *how], collect_s + GRACE_S)
    except CodlError as error:  # rows are on disk after every batch
        _say(f"{stage.name}: {error} What it measured before is taken.")
    file.forget(stage.name, models)
    _evaluate(stage, models, options, path, end)


def _ops(model: str) -> str:
    """A file of a model's ops: to import a model takes seconds, which every size would spend."""
    path = Path("ops") / f"{Path(model).stem}.csv"
    if not path.exists():
        ops = load_ops([model])
        path.parent.mkdir(exist_ok=True)
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([["op"], *([to_text(op)] for op in ops)])
    return str(path)


def _evaluate(
    stage: Stage, models: Sequence[str], options: argparse.Namespace, path: Path, end: float
) -> None:
    """Measure models in a process; where it dies, go on in another one behind the model it was at.

    Raises `SubprocessError` where it cannot begin.
    """
    left, how = list(models), ["--seconds", options.seconds, "--rounds", options.rounds]
    how += ["--commit", options.commit]
    while left and (left_s := end - perf_counter()) > 0:
        on = ["--soc", stage.name, "--serial", stage.serial, "--models", ",".join(left)]
        command = [*EVALUATE, *on, *how, "--budget", f"{left_s:.0f}", "-o", str(path)]
        try:
            subprocess.run(command, check=True, timeout=left_s + GRACE_S)
            return
        except subprocess.TimeoutExpired:
            reason = f"it was not done {GRACE_S:.0f} s after the budget of all models"
        except subprocess.CalledProcessError as error:
            if error.returncode > 0:  # errors of a model are caught there
                raise
            reason = f"the process was ended by signal {-error.returncode}"
        file = CurveFile(path, options.commit)
        left = [model for model in left if not file.has(stage.name, model)]
        if left:
            model, *left = left
            file.add(stage.soc.to_json(), stage.serial, failed(model, reason))
            _say(f"{stage.name} {model}: {reason}")
        how = [*how, "--no-train"]


def _codl(arguments: Sequence[str], limit_s: float) -> None:
    """A command of codl; raises `CodlError` where it fails, which it has explained, or hangs."""
    name = f"`codl {shlex.join(arguments)}`"
    with subprocess.Popen([*CODL, *arguments], stdout=subprocess.DEVNULL) as process:
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired as error:
            process.send_signal(signal.SIGABRT)  # Python tells where each of its threads is
            raise CodlError(f"{name} was ended after {limit_s:.0f} s.") from error
    if code:
        raise CodlError(f"{name} failed, exit code {code}.")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
