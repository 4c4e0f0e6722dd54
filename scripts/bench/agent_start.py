"""What an agent costs before it answers: the bytes of its file, and milliseconds to import it.

Each time a new process, under `python -X importtime`: the modules' own times are added up, without
those of its dependencies and of what they import. At most 1 MiB and 500 ms are wanted.

    python scripts/bench/agent_start.py
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections import Counter

from codl.provenance import provenance
from codl.records.statistic import level
from codl.targets.agent_file import agent_file

AGENT = "codl.targets.agent"
#: What a device brings or is brought, as modules.
DEPENDENCIES = ("msgspec", "numpy", "platformdirs", "threadpoolctl", "yaml")
LINE = re.compile(r"import time:\s+(\d+) \|\s+\d+ \|\s+(\S+)")
#: So many packages are listed.
LISTED = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9, help="processes of each kind")
    args = parser.parse_args()
    runs = [beyond_ms(own_ms(*DEPENDENCIES), own_ms(AGENT)) for _ in range(args.rounds)]
    totals = sorted(sum(run.values()) for run in runs)
    packages = sum((Counter(by_package(run)) for run in runs), Counter())
    result = {
        "file_bytes": len(agent_file().content),
        "modules": len(runs[0]),
        "import_ms": {"level": round(level(totals), 1), "least": round(totals[0], 1)},
        "dearest_ms": {k: round(v / len(runs), 1) for k, v in packages.most_common(LISTED)},
    }
    print(json.dumps({**provenance(), **result}, indent=1))


def own_ms(*modules: str) -> dict[str, float]:
    """What every module took that importing these loads, without those that it imports."""
    command = [sys.executable, "-X", "importtime", "-c", f"import {', '.join(modules)}"]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=True)
    return {name: int(us) / 1e3 for us, name in LINE.findall(done.stderr)}


def beyond_ms(others: dict[str, float], whole: dict[str, float]) -> dict[str, float]:
    """The modules of `whole` that are not among the others."""
    return {name: ms for name, ms in whole.items() if name not in others}


def by_package(run: dict[str, float]) -> dict[str, float]:
    """Milliseconds by package: two names deep in codl, and what else is imported as one."""
    found: Counter[str] = Counter()
    for name, ms in run.items():
        is_own = name == "codl" or name.startswith("codl.")
        found[".".join(name.split(".")[:2]) if is_own else "standard library"] += ms
    return dict(found)


if __name__ == "__main__":
    main()
