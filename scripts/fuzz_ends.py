"""Both ends of a connection with another that says anything: an answer or one clear error each.

Messages are right by their types alone: a host asks agents that answer so, and hosts ask so of an
agent without a device. `scripts/fuzz.py` has frames that are not even that.

    python scripts/fuzz_ends.py --count 10000
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from support.hostile_ends import fuzz_agent, fuzz_host


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=10_000, help="of either end")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    answered, refused = fuzz_host(args.count, args.seed)
    print(f"host: {answered} agents gave an answer, {refused} an error, none anything else")
    found = fuzz_agent(args.count, args.seed)
    print(f"agent: {', '.join(f'{kind} {count}' for kind, count in found.most_common())}")


if __name__ == "__main__":
    main()
