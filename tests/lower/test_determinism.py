"""Equal arguments give equal executables: twice, in other processes, and on other machines."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from support.executables import SOCS, encoded, small_executable, small_network, small_plan
from support.simulated import SOC

from codl.ir.executable_json import decode
from codl.ir.records.soc import Soc
from codl.kernels.tuning import Tuning
from codl.lower.lowering import lower

TESTS = Path(__file__).parent.parent
#: Of the small executable on each of `SOCS`. They change with the form of executables, with
#: lowering and with the sources of kernels, and with nothing else: not from machine to machine.
#: `PYTHONPATH=tests python tests/lower/test_determinism.py` prints those of now.
GOLDEN = (
    "c43c5aeceb4ff799982e10080582c71ff8775e8824968ec1b18f309ec3652c35",
    "9437cebfd8a3243224dfacbe788e01a0b883b3bbd00a2a67ceaa79a45cceb461",
    "28bf623368c83203d69f636379f5a39834ede50aa43395e4027aed64d9abdfc2",
)


def digests() -> list[str]:
    return [small_executable(soc).digest() for soc in SOCS]


def test_the_digest_is_that_of_every_machine() -> None:
    assert tuple(digests()) == GOLDEN


@pytest.mark.parametrize("seed", ["1", "2"])
def test_other_processes_lower_alike(seed: str) -> None:
    """Whatever the order of their sets."""
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, __file__], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.split() == digests()


def test_weights_are_in_the_digest() -> None:
    network = small_network()
    first, *others = network.layers
    twice = {name: 2 * value for name, value in first.weights.items()}
    changed = replace(network, layers=(replace(first, weights=twice), *others))
    own, other = (lower(n, small_plan(n, SOC), SOC, Tuning()) for n in (network, changed))
    assert own.digest() == lower(network, small_plan(network, SOC), SOC, Tuning()).digest()
    assert own.network == other.network
    assert own.digest() != other.digest()


@pytest.mark.parametrize("soc", SOCS, ids=["mapped", "shared", "image"])
def test_a_file_has_the_digest_of_what_was_written(soc: Soc) -> None:
    executable = small_executable(soc)
    content, arrays = encoded(executable)
    read = decode(content, arrays.__getitem__)
    assert read.digest() == executable.digest()
    assert encoded(read)[0] == content


if __name__ == "__main__":
    print("\n".join(digests()))
