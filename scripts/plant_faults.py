"""Plants faults in codl's own code, one at a time, and says who notices.

    python scripts/plant_faults.py --jobs 2 --json -o faults.json
    python scripts/plant_faults.py --only conv-bias-forgotten,halo-short --layer kernels

`planted_faults.yaml` has the faults: a text of a file, what stands there instead, and what that
breaks. Each is planted in a copy of codl. Then the tests named beside it run until the first one
fails, and models run as a user would have them, with the check before the first result. First of
all everything runs without a fault: what fails there says nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

import yaml

Item = TypeVar("Item")
Made = TypeVar("Made")

ROOT = Path(__file__).parent.parent
TABLE = Path(__file__).with_name("planted_faults.yaml")
LAYERS = ("frontend", "ir", "lower", "kernels", "runtime", "targets")
LIMIT_S = 240.0
COPIED = ("codl", "contrib", "tests", "conftest.py", "pyproject.toml")
DESCRIBE = """
import sys
from pathlib import Path
from support.devices import opened
from codl.machine.placement import describe
describe("planted", opened()[0]).save(Path(sys.argv[1]))
"""
#: A plugin for pytest: what fails is not made smaller, which would build many kernels.
UNSHRUNK = """
from hypothesis import Phase, settings
settings.register_profile("unshrunk", phases=[Phase.explicit, Phase.generate])
settings.load_profile("unshrunk")
"""
#: What the user had with the check on: an error, or right outputs with a warning; right ones
#: without, as the models do not meet the fault; a wrong one. Some faults have no models.
CHECKS = CAUGHT, HARMLESS, REACHED, NOT_ASKED = (
    "caught by the check", "harmless in the models", "reached the user", "not asked"
)  # fmt: skip


@dataclass(frozen=True)
class Fault:
    """`text` of `file` becomes `instead`; `tests` are pytest's arguments, `models` have a way."""

    name: str
    file: str
    text: str
    instead: str
    breaks: str
    tests: str
    models: tuple[str, ...]

    @property
    def layer(self) -> str:
        return Path(self.file).parts[1]

    def planted(self, text: str) -> str:
        if text.count(self.text) != 1:
            raise SystemExit(
                f"{self.name} no longer applies: {self.file} has its text {text.count(self.text)} "
                "times, and must have it once."
            )
        return text.replace(self.text, self.instead)


@dataclass(frozen=True)
class Found:
    """Who noticed a fault: the first test that failed, and what models did under the check."""

    fault: Fault
    test: str
    check: str
    detail: str

    @property
    def row(self) -> dict[str, Any]:
        return {**asdict(self.fault), "layer": self.fault.layer, "caught_by": self.test,
                "check": self.check, "detail": self.detail}  # fmt: skip


class Copy:
    """A copy of codl with its tests, caches of its own, and at most one fault."""

    _turns = count(1)

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        for item in ROOT.iterdir():
            if item.name in COPIED:
                (shutil.copytree if item.is_dir() else shutil.copy2)(item, folder / item.name)
            elif not item.name.startswith("."):
                (folder / item.name).symlink_to(item)
        (folder / "unshrunk.py").write_text(UNSHRUNK)
        self.caches.mkdir()

    @property
    def caches(self) -> Path:
        return self.folder / ".caches"

    def refresh(self, warm: Path) -> None:
        """What a fault left in caches is no other's."""
        shutil.rmtree(self.caches, ignore_errors=True)
        shutil.copytree(warm, self.caches)

    def found(self, fault: Fault, soc: Path) -> Found:
        path = self.folder / fault.file
        path.write_text(fault.planted(path.read_text()))
        # Python takes a compiled file of the same second and size for this one's.
        moment = path.stat().st_mtime_ns + next(self._turns) * 1_000_000_000
        os.utime(path, ns=(moment, moment))
        try:
            test = self.first_failure(fault.tests)
            check, detail = self.checked(fault.models, soc)
        finally:
            shutil.copy2(ROOT / fault.file, path)
        return Found(fault, test, check, detail)

    def problem(self, wanted: str | Sequence[str], soc: Path) -> str:
        """What is wrong without a fault, of tests or models; "" for nothing."""
        if isinstance(wanted, str):
            failed = self.first_failure(wanted)
            return f"{failed} fails" if failed else ""
        check, detail = self.checked(wanted, soc)
        return "" if check in (NOT_ASKED, HARMLESS) else f"{check}: {detail}"

    def first_failure(self, tests: str) -> str:
        """The first test that fails; "" where all pass."""
        if not tests:
            return ""
        options = ["-x", "-q", "-p", "unshrunk", "-o", f"cache_dir={self.caches}"]
        done = self.run(["-m", "pytest", *shlex.split(tests), *options])
        if done is None:
            return f"{tests} (no end)"
        code, said = done
        if code == 0:
            return ""
        named = re.search(r"^(?:FAILED|ERROR) (\S+)", said, re.MULTILINE)
        return named[1] if named else f"{tests} (exit {code})"

    def checked(self, models: Sequence[str], soc: Path) -> tuple[str, str]:
        """What a user has of these models, the worst of them, and what codl says."""
        if not models:
            return NOT_ASKED, ""
        script = str(self.folder / "scripts/planted_models.py")
        done = self.run([script, str(soc), str(self.caches), *models])
        if done is None:
            return CAUGHT, "no result, and no end"
        code, said = done
        rows = [json.loads(line) for line in said.splitlines() if line.startswith('{"case"')]
        for kind, outcome in (("wrong", REACHED), ("error", CAUGHT), ("fallback", CAUGHT)):
            for row in rows:
                if row["outcome"] == kind:
                    return outcome, f"{row['case']}: {kind}: {row['detail']}"
        if code:
            return CAUGHT, f"no result: {said.strip().splitlines()[-1] if said.strip() else code}"
        return HARMLESS, ""

    def run(self, arguments: Sequence[str]) -> tuple[int, str] | None:
        """A Python program of this copy; None where it does not end."""
        paths = f"{self.folder}{os.pathsep}{self.folder / 'tests'}"
        environment = {
            **os.environ,
            "PYTHONPATH": paths,
            "CODL_CACHE": str(self.caches / "d" / "codl"),
            "HOME": str(self.caches),
        }
        program = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            said, _ = program.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(program.pid, signal.SIGKILL)
            program.communicate()
            return None
        return program.returncode, said


def main() -> None:
    args = _arguments()
    faults = [one for one in read(TABLE) if _is_wanted(one, args)]
    for fault in faults:
        fault.planted((ROOT / fault.file).read_text())
    if not faults:
        raise SystemExit("No fault is of that name and layer.")
    with tempfile.TemporaryDirectory(prefix="codl-faults-") as folder:
        found = list(_planted(faults, Path(folder), args))
    rows = [one.row for one in found]
    if args.output:
        args.output.write_text(json.dumps(rows, indent=1) + "\n")
    print(json.dumps(rows, indent=1) if args.json else table(found))
    sys.exit(any(one.check == REACHED or not one.test for one in found))


def read(path: Path) -> list[Fault]:
    faults, content = [], yaml.safe_load(path.read_text())
    for entry in content["faults"]:
        suite, chosen, words = entry.pop("suite").partition(" -k ")
        tests = f"{content['suites'][suite]}{chosen}{words}"
        models = tuple(entry.pop("models", ()))
        faults.append(Fault(**entry, tests=tests, models=models))
    names = [one.name for one in faults]
    assert len(names) == len({*names}), "two faults have one name"
    return faults


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", help="names of faults, with commas")
    parser.add_argument("--layer", choices=LAYERS)
    parser.add_argument("--jobs", type=int, default=1, help="copies of codl at work at once")
    parser.add_argument("--no-control", action="store_true", help="run nothing without a fault")
    parser.add_argument("--caches", type=Path, help="kept for the next run, which is faster then")
    parser.add_argument("--json", action="store_true", help="print a list of all faults")
    parser.add_argument("-o", "--output", type=Path, help="a file for that list")
    return parser.parse_args()


def _is_wanted(fault: Fault, args: argparse.Namespace) -> bool:
    names = args.only.split(",") if args.only else [fault.name]
    return fault.name in names and args.layer in (None, fault.layer)


def _planted(faults: Sequence[Fault], folder: Path, args: argparse.Namespace) -> Iterable[Found]:
    copies = [Copy(folder / str(number)) for number in range(args.jobs)]
    soc = folder / "planted.yaml"
    done = copies[0].run(["-c", DESCRIBE, str(soc)])
    if done is None or done[0]:
        raise SystemExit(f"No device to plant faults on: {done and done[1]}")
    warm: Path = args.caches or folder / "warm"
    if warm.exists():
        for copy in copies:
            copy.refresh(warm)
    if not args.no_control:
        tests = list(dict.fromkeys(fault.tests for fault in faults))
        models = sorted({model for fault in faults for model in fault.models})
        wanted = [*tests, *(models[turn :: args.jobs] for turn in range(args.jobs))]
        problems = _each(copies, wanted, lambda copy, own: copy.problem(own, soc))
        for copy in copies:
            shutil.copytree(copy.caches, warm, dirs_exist_ok=True)
        if any(problems):
            raise SystemExit(f"Without a fault: {'; '.join(filter(None, problems))}")
    for copy in copies:
        copy.refresh(warm)

    def planted(copy: Copy, fault: Fault) -> Found:
        found = copy.found(fault, soc)
        copy.refresh(warm)
        print(f"{fault.name}: {found.test or 'NO TEST'}; {found.check}: {found.detail}",
              file=sys.stderr, flush=True)  # fmt: skip
        return found

    yield from _each(copies, faults, planted)


def _each(
    copies: Sequence[Copy], items: Sequence[Item], work: Callable[[Copy, Item], Made]
) -> list[Made]:
    """`work` of every item, in some copy that has nothing else to do."""
    idle: SimpleQueue[Copy] = SimpleQueue()
    for copy in copies:
        idle.put(copy)

    def one(item: Item) -> Made:
        copy = idle.get()
        try:
            return work(copy, item)
        finally:
            idle.put(copy)

    with ThreadPoolExecutor(len(copies)) as pool:
        return list(pool.map(one, items))


def table(found: Sequence[Found]) -> str:
    heads = ["layer", "planted", "caught by a test", *CHECKS]
    lines = [f"| {' | '.join(heads)} |", f"| --- |{' ---: |' * (len(heads) - 1)}"]
    for layer in (*LAYERS, "all"):
        own = [one for one in found if layer in (one.fault.layer, "all")]
        if own:
            checks = [sum(one.check == kind for one in own) for kind in CHECKS]
            counts = [len(own), sum(bool(one.test) for one in own), *checks]
            lines.append(f"| {layer} | {' | '.join(map(str, counts))} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
