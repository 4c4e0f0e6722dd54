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
from codl.kernels.tuning import Tuning
from codl.lower import lower
from codl.records.soc import Soc

TESTS = Path(__file__).parent.parent
#: Of the small executable on each of `SOCS`. They change with the form of executables, with
#: lowering and with the sources of kernels, and with nothing else: not from machine to machine.
#: `PYTHONPATH=tests python tests/lower/test_determinism.py` prints those of now.
GOLDEN = (
    "f058db75f3c18ab70c4833d4468fe62e052b2a5108af5e2e7057d93f1ba4c45d",
    "d4481414f4e5413025b36efce2cefd2e3b312bc95d776a6246a0fdfeeb1df3e9",
    "5d4dcf40609543bc51f18df269e5e3f7f390283fe521141830b7b7e20c8a69df",
    "074a4cdf29206d7a4c137be97324d7a01c7989a64d2ee75756ac3b2bd9422c7f",
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


@pytest.mark.parametrize("soc", SOCS, ids=["mapped", "shared", "image", "flags"])
def test_a_file_has_the_digest_of_what_was_written(soc: Soc) -> None:
    executable = small_executable(soc)
    content, arrays = encoded(executable)
    read = decode(content, arrays.__getitem__)
    assert read.digest() == executable.digest()
    assert encoded(read)[0] == content


if __name__ == "__main__":
    print("\n".join(digests()))
