"""The table of docs/predictors.md of one SoC, from what `codl train --json` printed.

codl train --soc host --json > train.json
python scripts/bench/host_table.py train.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

NAMES = ("flops_linear", "codl_linear", "random_forest", "gbdt", "codl")
CLASSES = ("cpu", "gpu")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("result", type=Path)
    result = json.loads(parser.parse_args().result.read_text())
    rows = [row for row in result["predictors"] if row["split"] == "shape"]
    found = {(row["target"], row["name"]): row for row in rows}
    print("| target | rows | " + " | ".join(f"`{name}`" for name in NAMES[:-1]), end="")
    print(" | `codl` 10 % | 5 % | MAPE | in the 90 % interval |")
    print("| --- " * (len(NAMES) + 5) + "|")
    for target in dict.fromkeys(row["target"] for row in rows):
        if target.startswith("mulayer"):
            continue
        own = found.get((target, "codl"))
        if own is None:
            continue
        others = [text(found.get((target, name)), "acc10") for name in NAMES[:-1]]
        mine = [text(own, key) for key in ("acc10", "acc5", "mape", "coverage90")]
        print(f"| `{target}` | {own['n_train']:,} | {' | '.join([*others, *mine])} |")
    print(f"\nTraining {result['train_s']:.1f} s, evaluating {result['evaluate_s']:.0f} s. Bytes:")
    print(json.dumps(result["bytes"]))


def text(row: Mapping[str, Any] | None, key: str) -> str:
    value = None if row is None else row.get(key)
    return "" if value is None else f"{value:.0f}" if key != "mape" else f"{value:.1f}"


if __name__ == "__main__":
    main()
