"""Runs the console commands of README.md and docs/, in order, in one empty folder.

    python scripts/readme_commands.py --folder tried --short
    python scripts/readme_commands.py --folder tried --soc socs/host.yaml --only README.md
    python scripts/readme_commands.py --folder tried --model exported.onnx

What cannot run on this machine alone is listed with the reason: another device, a cluster, a SoC
or a file that is not there. Each command's exit code and seconds are printed; the exit code is 1
where one fails. `--short` bounds what measures for minutes. With `--soc` the SoC `host` is that of
a file, and `--tuning` is what was tuned for it; else the commands detect it.
"""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE, STDOUT, TimeoutExpired
from time import perf_counter

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
#: The SoC that the pages measure and run on.
SOC = "host"
#: Where a command runs that needs no other device.
HERE = re.compile(r"local$|process$|replay:")
#: Files that a command reads or writes, by their ends.
FILES = re.compile(r"\.(onnx|csv|json|npz|yaml|codl|html|png|pftrace|txt|zip)$")
#: Options whose value is written.
WRITTEN = {"-o", "--output", "--outputs", "--write-plan"}
#: What `--short` sets for a command that measures, whatever the page says.
SHORT = {
    "collect": ("--budget", "2m"),
    "tune": ("--budget", "10s"),
    "eval": ("--time", "0.5s"),
    "doctor": ("--budget", "20s"),
    "bench": ("--budget", "20s"),
}
#: Options with which a command measures nothing.
UNTIMED = {"--all", "--quick", "ui"}


@dataclass(frozen=True)
class Command:
    """A line of a page, its words as a shell has them; the first is `codl`."""

    page: str
    words: tuple[str, ...]

    @property
    def text(self) -> str:
        return shlex.join(self.words)

    def value(self, *options: str) -> str | None:
        """What the first of some options is set to."""
        for option, value in zip(self.words, self.words[1:], strict=False):
            if option in options:
                return value
        return None

    def shortened(self) -> Command:
        if self.words[1] not in SHORT or UNTIMED & {*self.words}:
            return self
        option, value = SHORT[self.words[1]]
        words = list(self.words)
        if option in words:
            at = words.index(option)
            words[at : at + 2] = []
        return Command(self.page, (*words, option, value))

    def obstacle(self, folder: Path) -> str:
        """Why it cannot run on this machine alone, in a folder; "" where it can."""
        for option, value in zip(self.words, self.words[1:], strict=False):
            if option in ("--serial", "--on") and not HERE.match(value):
                return f"needs the device {value}"
            if option == "--dask":
                return f"needs the Dask scheduler {value}"
            if option == "--opencl-device":
                return f"needs the OpenCL device {value}"
            if option == "--soc" and value not in (SOC, *_described(folder)):
                return f"needs the SoC {value}"
            if option not in WRITTEN and not value.startswith("-"):
                for name in value.split(","):
                    if FILES.search(name) and not any(folder.glob(name)):
                        return f"needs the file {name}"
            if option == "--inputs" and not (folder / value).exists():
                return f"needs {value}"
        return ""


def commands(page: Path, root: Path = ROOT) -> Iterator[Command]:
    """The `codl` commands of a page's console blocks; those that `&&` joins are several."""
    for block in BLOCK.finditer(page.read_text()):
        for line in block[1].replace("\\\n", " ").splitlines():
            if line.startswith("$ "):
                words = shlex.split(line.removeprefix("$ "), comments=True)
                for text in " ".join(map(shlex.quote, words)).split("'&&'"):
                    if text.split()[:1] == ["codl"]:
                        yield Command(str(page.relative_to(root)), tuple(shlex.split(text)))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--folder", type=Path, required=True, help="where they run: empty, or new")
    parser.add_argument("--soc", type=Path, help="the file of the SoC `host`")
    parser.add_argument("--tuning", type=Path, help="the file of what was tuned for it")
    parser.add_argument("--model", type=Path, help="the file that pages call model.onnx")
    parser.add_argument("--only", nargs="*", help="pages, as README.md docs/howto/bundle.md")
    parser.add_argument("--short", action="store_true", help="bound what measures for minutes")
    parser.add_argument("--limit", type=float, help="seconds that a command may take")
    parser.add_argument("--verbose", action="store_true", help="print all that the commands print")
    parser.add_argument("--list", action="store_true", help="run nothing")
    asked = parser.parse_args()
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    chosen = [page for page in pages if not asked.only or str(page.relative_to(ROOT)) in asked.only]
    asked.folder.mkdir(parents=True, exist_ok=True)
    if any(asked.folder.iterdir()):
        parser.error(f"--folder: {asked.folder} must be empty")
    _place(asked.soc, asked.folder / "socs" / f"{SOC}.yaml")
    _place(asked.tuning, asked.folder / "lat_datasets" / SOC / "tuning.json")
    _place(asked.model, asked.folder / "model.onnx")
    for data in asked.model.parent.glob(f"{asked.model.name}.data") if asked.model else ():
        _place(data, asked.folder / data.name)
    failed, done = 0, set()
    for command in (command for page in chosen for command in commands(page)):
        run = command.shortened() if asked.short else command
        reason = "ran before" if run.words in done else run.obstacle(asked.folder)
        if asked.short and "--all" in run.words:
            reason = "measures everything"
        if asked.soc and run.words[1:3] == ("soc", "detect"):
            reason = "the SoC is given"
        if reason or asked.list:
            print(f"left out  {run.page}: {run.text}  ({reason})", flush=True)
            continue
        done.add(run.words)
        begin = perf_counter()
        code, said = _run(run, asked.folder, asked.limit)
        took = f"{perf_counter() - begin:7.1f} s"
        print(f"exit {code:<3} {took}  {run.page}: {run.text}", flush=True)
        failed += bool(code)
        if code or asked.verbose:
            lines = said.strip().splitlines()
            shown = lines if asked.verbose else lines[-8:]
            print("".join(f"    {line}\n" for line in shown), end="", flush=True)
    print(f"{len(done)} ran, {failed} failed")
    return int(failed > 0)


def _described(folder: Path) -> list[str]:
    """SoCs that the commands before described."""
    return [path.stem for path in (folder / "socs").glob("*.yaml")]


def _place(file: Path | None, to: Path) -> None:
    if file is not None:
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, to)


def _run(command: Command, folder: Path, limit: float | None) -> tuple[int, str]:
    """The exit code, 124 where it took too long, and what it printed."""
    words = [str(Path(sys.executable).with_name("codl")), *command.words[1:]]
    words = [match for word in words for match in _expanded(word, folder)]
    try:
        done = subprocess.run(
            words, cwd=folder, stdout=PIPE, stderr=STDOUT, text=True, timeout=limit
        )
    except TimeoutExpired:
        return 124, f"stopped after {limit} s"
    return done.returncode, done.stdout


def _expanded(word: str, folder: Path) -> list[str]:
    """The files that a pattern names, as a shell has them."""
    found = sorted(folder.glob(word)) if "*" in word and " " not in word else []
    return [str(path.relative_to(folder)) for path in found] or [word]


if __name__ == "__main__":
    sys.exit(main())
