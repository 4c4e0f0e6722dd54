"""Follows a model from `codl run MODEL` to its kernels, and counts what a reader meets on the way.

python scripts/way.py vgg16

Every op is split in half, so that both processors and all that they share are on the way; it ends
with the first inference. A call from one file into another is followed once, in the order of the
run. The frontend, the ops and the kernels count as one file each; how a device is opened is not
followed. To follow another tree, set PYTHONPATH to it, and say by --room which of its files count
as one.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from functools import cache
from json import dumps
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import codl
from codl.jobs.model import ModelJob
from codl.jobs.run import Run
from codl.kernels import registry

ROOT = Path(codl.__file__).parent
ROOMS = {"frontend": "frontend/.*", "kernels": "kernels/.*", "ops": "ir/ops/.*"}
#: Where a model enters the stages, the inference that ends the way, and what is not followed.
ENTRIES = {"load_network", "plan_of", "Engine.__init__", "Engine.feed", "Engine.run"}
END, ASIDE = "Engine.run", {"open_device", "OpenClDevice.__init__"}


class Place(NamedTuple):
    """A function, or a function inside it, and the file or room that has it."""

    file: str
    name: str


class Call(NamedTuple):
    """A call from one file into another."""

    source: Place
    target: Place


class Way:
    """Notes the functions of codl that are called on the way, and the calls between files."""

    def __init__(self, rooms: dict[str, str]) -> None:
        self._rooms, self._ended = rooms, False
        self._layers = layers()
        #: The layer of each file on the way; 0 is the highest.
        self.levels: dict[str, int] = {}
        self.names: dict[Place, None] = {}
        #: The first call between each two files.
        self.calls: dict[tuple[str, str], Call] = {}
        self._place = cache(self._placed)

    @contextmanager
    def follow(self) -> Iterator[None]:
        sys.setprofile(self._see)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _see(self, frame: FrameType, event: str, _: Any) -> None:
        here = None if self._ended else self._place(frame.f_code)
        if here is None:
            return
        if event == "return":
            self._ended = here.name == END
            return
        stack = [here, *self._callers(frame)]
        names = {place.name for place in stack}
        if event != "call" or not names & ENTRIES or names & ASIDE:
            return
        self.names[here] = None
        if frame.f_code.co_name == "<genexpr>":  # whoever asks for its next value does not call it
            return
        if len(stack) > 1 and stack[1].file != here.file:
            self.calls.setdefault((stack[1].file, here.file), Call(stack[1], here))

    def _callers(self, frame: FrameType) -> Iterator[Place]:
        caller = frame.f_back
        while caller is not None:
            place = self._place(caller.f_code)
            if place is not None:
                yield place
            caller = caller.f_back

    def _placed(self, code: CodeType) -> Place | None:
        """None of what is not codl's, and of a module itself."""
        path, name = Path(code.co_filename), re.split(r"\.<", code.co_qualname)[0]
        if not path.is_relative_to(ROOT) or name.startswith("<"):
            return None
        inside = path.relative_to(ROOT).as_posix()
        rooms = (room for room, files in self._rooms.items() if re.fullmatch(files, inside))
        file = next(rooms, inside)
        top = inside.split("/")[0].removesuffix(".py")
        self.levels.setdefault(file, self._layers.get(top, len(self._layers)))
        return Place(file, name)

    @property
    def files(self) -> list[str]:
        return [*dict.fromkeys(place.file for place in self.names)]

    def is_climb(self, call: Call) -> bool:
        """Whether it goes from a lower layer into a higher."""
        return self.levels[call.source.file] > self.levels[call.target.file]

    def steps(self) -> Iterator[tuple[Call, bool]]:
        """The calls between files, each with whether the reader has been in the second before."""
        seen: set[str] = set()
        for call in self.calls.values():
            seen.add(call.source.file)
            yield call, call.target.file in seen
            seen.add(call.target.file)


def layers() -> dict[str, int]:
    """The layer of each package, from the top, as the contract of imports has them."""
    (listed,) = re.findall(r"^layers = \[\n(.*?)^\]", (ROOT.parent / "pyproject.toml").read_text(),
                           re.MULTILINE | re.DOTALL)  # fmt: skip
    rows = (row for row in listed.splitlines() if not row.strip().startswith("#"))
    return {name: at for at, row in enumerate(rows) for name in re.findall(r"codl\.(\w+)", row)}


def halved(network: Any, soc: Any) -> dict[str, Any]:
    """A plan, as its file has it, with every op on both processors where that can be."""
    chains = []
    for layer in network.layers:
        own = {side: registry.variants(layer.op, side, soc) for side in ("cpu", "gpu")}
        names = {side: variants[0].name for side, variants in own.items() if variants}
        is_split = len(names) == 2 and "H" in layer.op.dims
        ratio = 0.5 if is_split else float("gpu" in names)
        used = names if is_split else dict([[*names.items()][-1]])
        chains.append({"ops": [layer.name], "dim": "H", "gpu_ratio": ratio,
                       "variants": {layer.name: used}})  # fmt: skip
    return {"version": 1, "model": network.name, "digest": network.digest, "soc": soc.name,
            "strategy": "half", "predictor": "none", "sharing": "missing", "predicted_ms": None,
            "chains": chains}  # fmt: skip


def run(model: str, soc: str, way: Way) -> None:
    """The command, with a plan that is made once the model is read."""
    plan_of = ModelJob.plan_of
    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as nowhere:
        plan = Path(folder) / "plan.json"

        def planned(job: ModelJob, network: Any, context: Any) -> Any:
            plan.write_text(dumps(halved(network, context.soc)))
            return plan_of(replace(job, plan=plan), network, context)

        ModelJob.plan_of = planned  # type: ignore[method-assign]
        with redirect_stdout(nowhere), way.follow():
            Run(model, soc=soc, rounds=1).run()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--soc", default="host")
    parser.add_argument("--room", action="append", default=[], metavar="NAME=FILES",
                        help="files, by a regular expression, that count as one")  # fmt: skip
    args = parser.parse_args()
    way = Way(ROOMS | dict(room.split("=", 1) for room in args.room))
    run(args.model, args.soc, way)
    returns = climbs = 0
    for call, is_return in way.steps():
        marks = ["again"] * is_return + ["up"] * way.is_climb(call)
        returns, climbs = returns + is_return, climbs + way.is_climb(call)
        print(f"{call.source.file:30} {call.source.name:32} -> {call.target.file}: "
              f"{call.target.name} {' '.join(marks)}")  # fmt: skip
    names = [place for place in way.names if place.file not in way._rooms]
    print(f"{len(way.files)} files, {climbs} climbs into a higher layer, {returns} returns to a "
          f"file already left, {len(names)} names")  # fmt: skip


if __name__ == "__main__":
    main()
