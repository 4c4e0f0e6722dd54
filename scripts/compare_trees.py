"""Compares two checkouts by what they make of the built-in models: plans, executables, digests.

python scripts/compare_trees.py 8edb263
python scripts/compare_trees.py 8edb263 --models yolov2,bert --keep before.json

The other checkout is a commit, which is checked out in a folder of its own, or a folder. Nothing
runs on a device. Plans are those of the strategies for the SoC that ships; besides, every layer is
put whole, and cut in half, on the CPU that plays the GPU and on GPUs that hold floats, halves and
images. `executable` is the digest of all that a target gets; `structure` leaves the sources of
kernels and their macros out, so that it is the same where a source alone was written anew.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
MODELS = (
    "resnet50,mobilenet_v2,yolov2,vgg16,alexnet,mobilenet_v1,posenet,retinaface,"
    "fast_style_transfer,bert,vit_base,whisper_tiny_encoder,sd_unet_block,smollm2_135m"
)
SOC, STRATEGIES = "epyc2", ("cpu", "gpu", "mulayer", "codl-paper", "codl")
#: In how weights are packed, the digest of the source that reads them.
SOURCES = re.compile(rb'\\"digest\\": \\"[0-9a-f]{16}\\"')
#: How the layers of a network are put on a GPU that nobody measured.
WAYS = ("image2d", "first", "second", "third", "H", "OC")


def _any_of(*places: str) -> Any:
    """What lies at the first place that this checkout has."""
    for place in places:
        module, _, attribute = place.partition(":")
        try:
            return getattr(import_module(module), attribute)
        except (ImportError, AttributeError):
            continue
    raise SystemExit(f"This checkout has none of {', '.join(places)}.")


def described(models: list[str]) -> dict[str, Any]:
    """What the checkout on the path makes of the models."""
    import msgspec

    load_network = _any_of("codl.frontend.convert:load_network")
    soc = _any_of("codl.records.soc:load", "codl.ir.soc:load")(SOC)
    strategies = _any_of("codl.strategies:STRATEGIES")
    context = _any_of("codl.strategies:Context").of(soc)
    lower, no_tuning = _any_of("codl.lower:lower"), _any_of("codl.kernels.tuning:Tuning")()
    real = replace(
        soc.gpu,
        type="gpu",
        vector_width=4,
        compute_units=16,
        local_mem_bytes=48 << 10,
        max_work_group_size=1024,
    )
    gpus = {
        "cpu": soc.gpu,
        "float32": real,
        "float16": replace(real, element="float16"),
        "image": replace(real, element="float16", memory_types=("image2d", "buffer")),
    }

    def digests(network: Any, plan: Any, on: Any, tuning: Any) -> dict[str, Any]:
        executable = lower(network, plan, on, tuning)
        bare = msgspec.structs.replace(executable, texts={}, programs=())
        figures = {"plan": plan.fingerprint, "predicted_ms": plan.predicted_ms}
        text = msgspec.json.encode(bare, enc_hook=_packing, order="deterministic")
        figures["structure"] = sha256(SOURCES.sub(b"", text)).hexdigest()[:20]
        with suppress(TypeError):  # older checkouts have digests with weights alone
            figures["executable"] = executable.digest(weights=False)[:20]
        return figures

    found: dict[str, Any] = {}
    for name in models:
        network = load_network(name)
        rows = found[name] = {"network": {"digest": network.digest}}
        for strategy in STRATEGIES:
            begin = time.process_time()
            plan = strategies[strategy].plan(network, context)
            rows[strategy] = digests(network, plan, soc, context.tuning)
            rows[strategy]["cpu_s"] = round(time.process_time() - begin, 2)
        for gpu, side in gpus.items():
            on = replace(soc, gpu=side)
            for way in WAYS:
                try:
                    rows[f"{gpu}, {way}"] = digests(network, _put(network, on, way), on, no_tuning)
                except Exception as error:  # one that both checkouts raise is no difference
                    rows[f"{gpu}, {way}"] = {"error": f"{type(error).__name__}: {error}"}
        print(name, file=sys.stderr, flush=True)
    return found


def _packing(value: Any) -> Any:
    """How constants are packed, as executables without weights have it."""
    return value.how


def _put(network: Any, soc: Any, way: str) -> Any:
    """A plan of a chain for each layer: whole on the GPU where that can, or cut in half."""
    variants_of = _any_of("codl.kernels.registry:variants")
    chain, plan = _any_of("codl.ir.plan:Chain"), _any_of("codl.ir.plan:Plan")
    chains = []
    for layer in network.layers:
        sides = {side: variants_of(layer.op, side, soc) for side in ("cpu", "gpu")}
        if way in layer.op.dims and all(sides.values()):
            names = {side: own[0].name for side, own in sides.items()}
            chains.append(chain((layer.name,), way, 0.5, {layer.name: names}))
            continue
        side = "gpu" if sides["gpu"] else "cpu"
        at = {"second": 1, "third": 2}.get(way, 0) % len(sides[side])
        images = [v for v in sides[side] if "image" in str(getattr(v, "storage", ""))]
        variant = images[0] if way == "image2d" and images else sides[side][at]
        names = {layer.name: {side: variant.name}}
        chains.append(chain((layer.name,), "H", float(side == "gpu"), names))
    name, digest = network.name, network.digest
    return plan(name, digest, soc.name, "test", "none", "missing", None, tuple(chains))


@contextmanager
def checkout(other: str) -> Iterator[Path]:
    """The folder of a commit or a folder; raises `SystemExit` for what is neither."""
    if Path(other).is_dir():
        yield Path(other).resolve()
        return
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        add = ["git", "-C", str(ROOT), "worktree", "add", "--quiet", "--detach", str(tree), other]
        if subprocess.run(add, check=False).returncode:
            raise SystemExit(f"{other} is neither a folder nor a commit.")
        try:
            yield tree
        finally:
            remove = ["git", "-C", str(ROOT), "worktree", "remove", "--force", str(tree)]
            subprocess.run(remove, check=True)


def of_tree(tree: Path, models: str) -> dict[str, Any]:
    """What a checkout makes of the models, in a process of its own."""
    command = [sys.executable, str(Path(__file__).resolve()), "--describe", "--models", models]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    done = subprocess.run(command, cwd=tree, env=environment, stdout=subprocess.PIPE, check=True)
    content: dict[str, Any] = json.loads(done.stdout)
    return content


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for model, rows in before.items():
        for key, row in rows.items():
            for figure, was in row.items():
                if figure != "cpu_s" and (is_now := now[model].get(key, {}).get(figure)) != was:
                    yield f"{model}, {key}: {figure} was {was}, is {is_now}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("other", nargs="?", help="a commit, or the folder of a checkout")
    parser.add_argument("--models", default=MODELS, help="built-in models, by commas")
    parser.add_argument("--keep", type=Path, help="a file for what the other one makes, read again")
    parser.add_argument("--describe", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    models = asked.models.split(",")
    if asked.describe:
        print(json.dumps(described(models)))
        return
    if asked.keep and asked.keep.exists():
        before = json.loads(asked.keep.read_text())
    elif asked.other is None:
        parser.error("name a commit or a folder, or a file that was kept")
    else:
        with checkout(asked.other) as tree:
            before = of_tree(tree, asked.models)
        if asked.keep:
            asked.keep.write_text(json.dumps(before, indent=1))
    before, now = {name: before[name] for name in models}, of_tree(ROOT, asked.models)
    lines = list(differences(before, now))
    print("\n".join(lines))
    figures = sum(len(row) for rows in before.values() for row in rows.values())
    seconds = [
        sum(r.get("cpu_s", 0.0) for rows in c.values() for r in rows.values())
        for c in (before, now)
    ]
    print(f"{len(lines)} of {figures} figures differ; planning took {seconds[0]:.1f} s before and "
          f"{seconds[1]:.1f} s now")  # fmt: skip
    sys.exit(bool(lines))


if __name__ == "__main__":
    main()
