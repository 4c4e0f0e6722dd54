"""Runs random ONNX graphs under random plans, each output beside ONNX Runtime's.

    python scripts/fuzz_graphs.py --count 2000 -o graphs.jsonl
    python scripts/fuzz_graphs.py --count 20000 -o graphs.jsonl --resume --jobs 2
    python scripts/fuzz_graphs.py --count 2000 --plans gpu,split --device pocl -o pocl.jsonl
    python scripts/fuzz_graphs.py --only 1:4711 --plans split

Graph K of a seed is the same on every machine. Each runs in a worker process, so that a crash or a
hang costs one graph. What is wrong is made smaller, mostly to a few nodes, and lies as an .onnx
file, with its inputs beside it, in the folder named after the results. docs/howto/validate.md says
what the graphs are and what counts as right.

What graphs had no part of once, and the form that has it now (`--forms` takes some of these):

- opsets before 13, from 7 on: `opset`
- ir_version 3 to 11, with constants as inputs where the version has them so: `ir`
- sparse initializers, by places and by indices: `sparse`
- weights in a file beside the model: `external`
- weights of graphs inside of nodes, as initializers and as Constants: `branch`
- names of other scripts, of spaces and marks, long ones, and those that passes make: `names`
- NaN and infinities that nodes make of inputs without any: `strays`

What they still have no part of: models above 40,000 elements a tensor, loops, functions, sequences
and strings, training, decoders with states, graphs of thousands of nodes
(tests/frontend/test_long_graphs.py), nodes that draw numbers (tests/engine/test_nonfinite.py).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import numpy as np  # noqa: E402
from support.graph_checks import PLANS, Outcome, kind_of_plan, outcome_of, shrink  # noqa: E402
from support.random_forms import FORMS, written  # noqa: E402
from support.random_graphs import RandomGraph  # noqa: E402
from support.random_nodes import draw_graph  # noqa: E402

#: Workers are replaced after so many graphs, and one that takes longer than this hangs.
MOST_GRAPHS, LIMIT_S = 300, 180.0
#: One graph at a time is drawn in this process.
DRAWING = Lock()
KINDS = ("right", "refused", "wrong", "traceback", "crashed", "hung")


def main() -> None:
    args = _arguments()
    plans, args.forms = args.plans.split(","), args.forms.split(",")
    if not {*args.forms} <= {*FORMS, "none"}:
        sys.exit(
            f"--forms must be some of {', '.join(FORMS)}, or none, got {','.join(args.forms)!r}."
        )
    if not set(plans) <= set(PLANS):
        sys.exit(f"--plans must be some of {', '.join(PLANS)}, got {args.plans!r}.")
    if args.only:
        seed, index = (int(part) for part in args.only.split(":"))
        wanted = [(seed, index, plan) for plan in plans]
    else:
        every = range(args.first, args.first + args.count)
        wanted = [(args.seed, index, kind_of_plan(index, plans)) for index in every]
    done = _done(args) if args.output and args.resume else {}
    left: SimpleQueue[tuple[int, int, str]] = SimpleQueue()
    for case in wanted:
        if case not in done:
            left.put(case)
    rows = [done[case] for case in wanted if case in done]
    folder = (
        args.output.with_suffix("") if args.output else Path(tempfile.mkdtemp(prefix="graphs-"))
    )
    with ThreadPoolExecutor(args.jobs) as pool:
        made = [pool.submit(lambda: list(_work(args, left, folder))) for _ in range(args.jobs)]
        rows += [row for future in made for row in future.result()]
    summary = summary_of(rows)
    print(json.dumps(summary, indent=1) if args.json else _text(summary))
    sys.exit(any(summary["all"][kind] for kind in KINDS[2:]))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--first", type=int, default=0, help="the index of the first graph")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plans", default=",".join(PLANS), help=f"some of {', '.join(PLANS)}")
    parser.add_argument(
        "--forms", default=",".join(FORMS), help=f"some of {', '.join(FORMS)}, or none"
    )
    parser.add_argument("--only", metavar="SEED:K", help="this one graph, under each of the plans")
    parser.add_argument("--device", help="the OpenCL device, by driver or name")
    parser.add_argument("--jobs", type=int, default=1, help="worker processes")
    parser.add_argument("--no-shrink", action="store_true", help="leave failures as they are")
    parser.add_argument("--resume", action="store_true", help="leave out what -o has already")
    parser.add_argument("-o", "--output", type=Path, help="a line of JSON for each graph")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    return parser.parse_args()


def _done(args: argparse.Namespace) -> dict[tuple[int, int, str], dict[str, Any]]:
    """Rows of an earlier run; a line that was cut off is made again."""
    rows = {}
    for line in args.output.read_text().splitlines() if args.output.exists() else ():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        rows[row["seed"], row["graph"], row["plan"]] = row
    return rows


def _work(
    args: argparse.Namespace, left: SimpleQueue[tuple[int, int, str]], folder: Path
) -> Iterator[dict[str, Any]]:
    """Rows of graphs, one after the other, in a worker process that is replaced where it ends."""
    worker = Worker(args.device, args.forms)
    while True:
        try:
            case = left.get_nowait()
        except Empty:
            break
        seed, index, plan = case
        outcome = worker.outcome((seed, index), plan, f"{seed}:{index}")
        row = {"seed": seed, "graph": index, "plan": plan, **outcome.row}
        if outcome.is_failure:
            row["smallest"] = []
            if outcome.kind not in ("crashed", "hung"):  # drawing alone may do so here, too
                with DRAWING:
                    graph = draw_graph(seed, index, args.forms)
                    row["smallest"] = _kept(args, worker, graph, outcome, case, folder)
            print(f"{seed}:{index} {plan}: {outcome.kind}: {outcome.reason}: {outcome.detail}\n"
                  f"    {' '.join(row['smallest'])}", file=sys.stderr, flush=True)  # fmt: skip
        if args.output:
            args.output.parent.mkdir(parents=True, exist_ok=True)
            with args.output.open("a") as file:
                file.write(json.dumps(row) + "\n")
        yield row
    worker.close()


def _kept(
    args: argparse.Namespace, worker: Worker, graph: RandomGraph, outcome: Outcome,
    case: tuple[int, int, str], folder: Path,
) -> list[str]:  # fmt: skip
    """Write a failure in its smallest form; the types of its nodes."""
    seed, index, plan = case
    if not args.no_shrink:
        graph = shrink(graph, outcome, lambda own: worker.outcome(own, plan, f"{seed}:{index}"))
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / f"{outcome.kind}-{seed}-{index}-{plan}"
    stem.with_suffix(".onnx").write_bytes(written(graph).SerializeToString())
    np.savez(stem.with_suffix(".npz"), **graph.feeds)  # type: ignore[arg-type]
    again = f"python scripts/fuzz_graphs.py --only {seed}:{index} --plans {plan}"
    stem.with_suffix(".txt").write_text(
        f"{again}\n{outcome.kind}: {outcome.reason}\n{outcome.detail}\n"
    )
    return [node.op_type for node in graph.nodes]


class Worker:
    """A process that runs graphs; a new one where it crashed, hung, or ran many."""

    def __init__(self, device: str | None, forms: Sequence[str]) -> None:
        self.device, self.forms, self.graphs = device, forms, 0
        self._start()

    def _start(self) -> None:
        context = get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(
            target=_serve, args=(theirs, self.device, self.forms), daemon=True
        )
        self.process.start()
        theirs.close()
        self.graphs = 0
        ready = self.pipe.recv()
        if ready is not None:
            sys.exit(ready)

    def outcome(self, graph: RandomGraph | tuple[int, int], plan: str, seed: str) -> Outcome:
        if self.graphs >= MOST_GRAPHS:
            self.close()
            self._start()
        self.graphs += 1
        start, answer = time.monotonic(), None
        try:
            self.pipe.send((graph, plan, seed))
            for _ in range(2):
                if not self.pipe.poll(LIMIT_S):
                    self.process.kill()
                    ended = "hung", f"more than {LIMIT_S:.0f} s"
                    break
                answer = self.pipe.recv()
                if isinstance(answer, Outcome):
                    return answer
        except (EOFError, OSError):
            self.process.join(10)
            ended = "crashed", f"exit code {self.process.exitcode}"
        self._start()
        seconds = time.monotonic() - start
        if answer is None:  # codl has not begun
            return Outcome("refused", f"ONNX Runtime {ended[0]}", ended[1], seconds=seconds)
        return Outcome(*ended, seconds=seconds)

    def close(self) -> None:
        self.pipe.close()
        self.process.join(10)
        if self.process.is_alive():
            self.process.kill()


def _serve(pipe: Connection, device: str | None, forms: Sequence[str]) -> None:
    """The worker: graphs in, outcomes out; compiled kernels are kept for this process alone."""
    from codl.errors import CodlError
    from codl.machine import cache

    with tempfile.TemporaryDirectory(prefix="codl-graphs-") as folder:
        os.environ[cache.VARIABLE] = os.environ[cache.STATE_VARIABLE] = folder
        try:
            soc, target = opened(device)
        except CodlError as error:
            pipe.send(str(error))
            return
        pipe.send(None)
        while True:
            try:
                graph, plan, seed = pipe.recv()
            except EOFError:
                return
            graph = draw_graph(*graph, forms) if isinstance(graph, tuple) else graph
            pipe.send(outcome_of(graph, plan, soc, target, seed, lambda: pipe.send("referred")))


def opened(device: str | None) -> tuple[Any, Any]:
    """This machine with an OpenCL device, as a SoC and as a target."""
    from codl.targets.connect import connect
    from codl.targets.detect import detect

    soc = detect(connect("local"), "fuzz", device=device)
    return soc, connect("local", soc)


def summary_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Counts of outcomes, of all graphs and by plan and profile."""

    def counts(some: list[dict[str, Any]]) -> dict[str, Any]:
        kinds = Counter(row["kind"] for row in some)
        right = [row for row in some if row["kind"] == "right"]
        return {
            "graphs": len(some),
            **{kind: kinds[kind] for kind in KINDS},
            "supported": sum(not row["enclosed"] for row in right),
            "enclosed": sum(row["enclosed"] > 0 for row in right),
            "blurred": sum(row["blurred"] > 0.5 for row in right),
        }

    refusals = Counter(row["reason"] for row in rows if row["kind"] == "refused")
    return {
        "all": counts(rows),
        "plans": {p: counts([r for r in rows if r["plan"] == p]) for p in PLANS
                  if any(r["plan"] == p for r in rows)},
        "profiles": {p: counts([r for r in rows if r["profile"].partition(" ")[0] == p])
                     for p in sorted({r["profile"].partition(" ")[0] for r in rows})},
        "refusals": dict(refusals.most_common()),
        "seconds": round(sum(row["seconds"] for row in rows), 1),
    }  # fmt: skip


def _text(summary: dict[str, Any]) -> str:
    columns = ("graphs", *KINDS, "supported", "enclosed", "blurred")
    lines = [f"{'':10}" + "".join(f"{name:>11}" for name in columns)]
    parts = {"all": summary["all"], **summary["plans"], **summary["profiles"]}
    for name, counts in parts.items():
        lines.append(f"{name:10}" + "".join(f"{counts[column]:11}" for column in columns))
    refusals = ", ".join(f"{name} {count}" for name, count in summary["refusals"].items())
    return "\n".join([*lines, f"refused: {refusals or 'none'}", f"{summary['seconds']} s"])


if __name__ == "__main__":
    main()
