"""Co-execution against the ratio of two processors' speeds: an NVIDIA GPU of every size.

    python scripts/bench/stage.py --left 2,4,8 --models vgg16,resnet50 --budget 60s -o curve.json

Of the GPU only some multiprocessors are left to codl (see `codl_stage`), beside all cores of the
CPU. For each number a SoC is described, measured, learned and evaluated on its own, as for any
other device. What is written has a row for each number and model: latencies of either processor and
of codl's plan, what was predicted, and the gain over the better processor. Run it in an empty
folder: SoC files, datasets and predictors are left there.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from codl.errors import CodlError
from codl.ir import soc as socs
from codl.ir import yaml_file

PLUGIN = Path(__file__).with_name("codl_stage")
STRATEGIES = ("cpu", "gpu", "codl")


@dataclass(frozen=True)
class Point:
    """Latencies (see `codl.ir.statistic`) in milliseconds of a model with so many left."""

    left: int
    model: str
    cpu_ms: float
    gpu_ms: float
    codl_ms: float
    predicted_ms: float

    @property
    def ratio(self) -> float:
        """How many times as fast as the CPU the GPU is."""
        return self.cpu_ms / self.gpu_ms

    @property
    def gain(self) -> float:
        """Over the better processor."""
        return min(self.cpu_ms, self.gpu_ms) / self.codl_ms


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--left", default="1,2,4,8,16", help="multiprocessors, by comma")
    parser.add_argument("--models", default="vgg16,yolov2,resnet50,posenet,mobilenet_v2")
    parser.add_argument("--budget", default="60s", help="of a collection")
    parser.add_argument("--seconds", default="3", help="of measuring a model")
    parser.add_argument("--device", default="nvidia")
    parser.add_argument("-o", "--output", type=Path, default=Path("curve.json"))
    options = parser.parse_args()
    whole = _detect(options.device)
    points: list[Point] = []
    for left in map(int, options.left.split(",")):
        try:
            points += _measured(whole, left, options)
        except (CodlError, subprocess.CalledProcessError) as error:
            print(f"{left} multiprocessors: {error}", file=sys.stderr, flush=True)
        rows = [asdict(p) | {"ratio": p.ratio, "gain": p.gain} for p in points]
        content = {"source": "measured", "gpu": whole["gpu"]["name"], "of": _of(whole)}
        options.output.write_text(json.dumps({**content, "points": rows}, indent=1) + "\n")


def _detect(device: str) -> dict[str, Any]:
    """The SoC file of the machine with its whole GPU."""
    _codl(
        "soc", "detect", "--serial", "local", "--name", "whole", "--device", device, "--no-measure"
    )
    return dict(yaml_file.read_content(socs.path_of("whole")))


def _of(whole: dict[str, Any]) -> int:
    return int(whole["gpu"]["compute_units"])


def _measured(whole: dict[str, Any], left: int, options: argparse.Namespace) -> list[Point]:
    """Describe, collect, train and evaluate the SoC with so many multiprocessors."""
    name, serial = f"stage{left}", f"stage:{left}"
    gpu = whole["gpu"]
    described = (
        f"{gpu['name']}, {left} of {_of(whole)} multiprocessors, beside {whole['cpu']['name']}"
    )
    soc = {**whole, "name": name, "description": described, "gpu": {**gpu, "compute_units": left}}
    yaml_file.write(soc, socs.own_path_of(name), comment="Written by scripts/bench/stage.py.")
    place = Path("socs/whole.local.yaml").read_text()
    Path(f"socs/{name}.local.yaml").write_text(place)
    on = ("--soc", name, "--serial", serial)
    _codl("collect", *on, "--ops", options.models, "--budget", options.budget)
    _codl("train", "--soc", name, "--predictor", "codl", "--no-evaluate")
    out = Path(f"eval-{name}.json")
    how = ("--strategies", ",".join(STRATEGIES), "--seconds", options.seconds, "--no-timelines")
    _codl("eval", *on, "--models", options.models, *how, "-o", str(out))
    rows = json.loads(out.read_text())["rows"]
    models = dict.fromkeys(row["model"] for row in rows)
    found = [_point(left, model, rows) for model in models]
    return [point for point in found if point]


def _point(left: int, model: str, rows: list[dict[str, Any]]) -> Point | None:
    own = {r["strategy"]: r for r in rows if r["model"] == model and r["status"] == "ok"}
    if not own.keys() >= set(STRATEGIES):
        return None
    cpu, gpu, codl = (own[name]["latency_ms"]["p20"] for name in STRATEGIES)
    point = Point(left, model, cpu, gpu, codl, own["codl"]["predicted_ms"])
    print(
        f"{left:3} left {model:20} cpu {cpu:8.3f} gpu {gpu:8.3f} codl {codl:8.3f} ms, "
        f"predicted {point.predicted_ms:8.3f}; GPU/CPU {point.ratio:5.2f}, gain {point.gain:5.3f}",
        flush=True,
    )
    return point


def _codl(*arguments: str) -> None:
    """A codl command with the plugin, whose results go to a file."""
    command = [sys.executable, "-c", "from codl.cli import main; main()"]
    subprocess.run(
        [*command, "--plugin", str(PLUGIN), *arguments], check=True, stdout=subprocess.DEVNULL
    )


if __name__ == "__main__":
    main()
