"""The tutorial's pipeline, command by command, on a SoC whose tuning chose other tiles."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import readme_commands
from support import command_line
from support.whole_way import QUICK

from codl.engine import engine
from codl.frontend.models.builder import ModelBuilder
from codl.ir import parse, to_text
from codl.ir.executable import Executable, GpuOp
from codl.ir.plan import Plan
from codl.ir.records.soc import Soc
from codl.ir.records.tuned import Trial, Tuned
from codl.jobs.bundle.archive import Archive
from codl.kernels import registry
from codl.kernels.source import source_digest
from codl.machine.placement import LocalSoc
from codl.measure import tuning_file
from codl.measure.dataset import Dataset
from codl.targets.placed import load_local

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "tutorial" / "quickstart-onnx.md"
MODEL = "small.onnx"
#: Measured too: ops of a kind whose features are asked for before those of convolutions, and whose
#: `gpu_direct` was not tuned.
OPS = "ops.csv"
#: What makes a command of the pipeline quick: nothing here depends on how fast anything is.
QUICKLY: dict[str, Sequence[str]] = {
    "tune": ("--budget", "0.001s"),
    "collect": ("--shares", "0.5"),
    "train": ("--no-evaluate", "--predictor", "codl"),
    "run": ("--no-profile",),
    "package": ("--no-profile",),
    "eval": ("--strategies", "cpu,gpu,codl", "--time", "0.02s", "--no-timelines", "--no-profile"),
    "explain": ("--rounds", "2", "--no-profile"),
}


def pipeline() -> list[list[str]]:
    """The words of every command of the pipeline, of a small model and without budgets."""
    every = [list(command.words[1:]) for command in readme_commands.commands(PAGE)]
    end = next(at for at, words in enumerate(every) if words[0] == "report") + 1
    commands = []
    for words in every[:end]:
        if "--budget" in words:
            at = words.index("--budget")
            del words[at : at + 2]
        model = f"{MODEL},{OPS}" if words[0] == "collect" else MODEL
        commands.append([model if word == "model.onnx" else word for word in words])
    return commands


#: The convolutions of the model.
CONVOLUTIONS = (
    "conv2d in=1x32x12x12 oc=64 kernel=1x1 act=relu",
    "conv2d in=1x64x12x12 oc=64 kernel=3x3 pad=1 act=relu",
)


def write_model(folder: Path) -> None:
    shapes = [",".join([f"1x2x{rows}x16"] * 3) for rows in (8, 12, 16, 24)]
    texts = (f'"attention in={shape} scale=0.25"' for shape in shapes)
    (folder / OPS).write_text("\n".join(["op", *texts, ""]))
    b = ModelBuilder("small")
    x = b.relu(b.conv(b.input("image", (1, 32, 12, 12)), 64, 1, pad=0))
    x = b.relu(b.conv(x, 64, 3, pad=1))
    b.output(b.fully_connected(b.flatten(b.max_pool(x, 2, 2)), 10))
    (folder / MODEL).write_bytes(b.build().SerializeToString())


def unusual(soc: Soc) -> list[Tuned]:
    """Each convolution of the model is fastest in the last choice of each of its variants."""
    results = []
    of_op: Any = [(op, variant) for op in map(parse, CONVOLUTIONS)
                  for variant in registry.variants(op, "gpu", soc)]  # fmt: skip
    for op, variant in of_op:
        *_, last = choices = variant.choices(op, soc)
        source = source_digest(variant.plan(op, soc, last))
        trials = tuple(Trial(choice, 1.0) for choice in choices)
        key = to_text(op), variant.name
        results.append(Tuned(*key, source, last, 2.0, 1.0, True, trials, "now", "0"))
    return results


class Lowered:
    """The digests of what engines lower, by the plan's strategy, and the executables."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.every: list[tuple[str, Executable]] = []
        self.last: Executable | None = None
        lower: Any = engine.lower

        def lowering(network: Any, plan: Plan, *arguments: Any, **options: Any) -> Executable:
            executable: Executable = lower(network, plan, *arguments, **options)
            self.every.append((plan.strategy, executable))
            return executable

        monkeypatch.setattr(engine, "lower", lowering)

    def taken(self, strategy: str) -> set[str]:
        """The digests of a strategy's executables since this was asked last."""
        taken = [executable for name, executable in self.every if name == strategy]
        self.every.clear()
        self.last = taken[-1] if taken else None
        return {executable.digest() for executable in taken}


@pytest.fixture
def lowered(monkeypatch: pytest.MonkeyPatch) -> Lowered:
    monkeypatch.setattr("codl.measure.collector.Rounds", lambda: QUICK)
    return Lowered(monkeypatch)


def codl(folder: Path, *words: str) -> None:
    done = command_line.run(folder, *words)
    assert done.code == 0, f"codl {' '.join(words)}: {done.stderr}"


@pytest.mark.long
def test_the_pipeline_runs_in_order_and_a_plan_has_one_executable(
    first_soc: LocalSoc, tmp_path: Path, lowered: Lowered
) -> None:
    write_model(tmp_path)
    digests: dict[str, set[str]] = {}
    for words in pipeline():
        codl(tmp_path, *words, *QUICKLY.get(words[0], ()))
        if words[0] == "soc":
            soc = load_local(tmp_path / "socs" / "host.yaml")
            tuning_file.add(Dataset(tmp_path / "lat_datasets" / "host"), soc, unusual(soc))
        digests[words[0]] = lowered.taken("codl")
    assert list(digests)[:6] == ["devices", "soc", "tune", "collect", "train", "search"]
    assert digests["run"] == digests["package"] == digests["eval"] == digests["explain"]
    assert len(digests["run"]) == 1

    # By another strategy, named or in a plan: `codl` went both ways above.
    how, plan = ["--strategy", "gpu"], "gpu.json"
    codl(tmp_path, "search", MODEL, "--soc", "host", *how, "-o", plan)
    ways = {}
    for by in (how, ["--plan", plan]):
        predicted = [MODEL, "--soc", "host", "--no-profile", *by]
        codl(tmp_path, "run", *predicted, "--rounds", "2")
        codl(tmp_path, "package", *predicted, "-o", "small.codl")
        ways[by[0]] = Archive(tmp_path / "small.codl").manifest["executable"]
    (digest,) = lowered.taken("gpu")
    assert set(ways.values()) == {digest}
    assert lowered.last is not None
    gpu_ops = [step for step in lowered.last.steps if isinstance(step, GpuOp)]
    convolutions = [step for step in gpu_ops if step.ops[0].startswith("conv2d ")]
    tuned = {(result.op, result.variant): result.choice for result in unusual(soc)}
    assert len(convolutions) == len(CONVOLUTIONS)
    for step in convolutions:
        assert step.choice == tuned[step.ops[0], step.variant]
