"""Whatever the other end says: an answer, or an error of codl's, on either side."""

from __future__ import annotations

import random
import re
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.hostile_ends import ASKED, EVERY, fuzz_agent, fuzz_host
from support.random_messages import WORDS, message

from codl import errors
from codl.errors import CodlError, DeviceError
from codl.targets import adb, device_shell
from codl.targets import install as agents
from codl.targets.device_shell import DeviceShell
from codl.targets.install import PURPOSES, AgentCheck, fetch_wheels, install

#: Texts that are near to what `adb devices` prints.
LISTS = st.lists(st.sampled_from(["R58M1", "\t", "device", "-s1", "offline", " ", "\n", "\x1b[2J"]))
#: What pip may be given of what a device said.
PLAIN = re.compile(r"[A-Za-z0-9_.]+", re.ASCII)


def test_a_host_takes_or_refuses_whatever_an_agent_answers() -> None:
    answered, refused = fuzz_host(40 * len(ASKED))
    assert answered > 310
    assert refused > 200


def test_an_agent_answers_or_refuses_whatever_a_host_asks() -> None:
    """What fails there is always told as an error of codl's: it is no defect."""
    found = fuzz_agent(12 * len(EVERY))
    assert {kind for kind in found if not hasattr(errors, kind)} == {"Answered", "FrameError"}
    assert {"CodlError", "DeviceError"} <= {*found}
    assert found["Answered"] > 10


@settings(max_examples=50)
@given(st.one_of(st.text(), LISTS.map("".join)))
def test_what_adb_lists_is_serials_and_states(said: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adb, "output_of", lambda command: said)
        found = adb.devices()
        assert "`adb devices` lists" in adb.absent("R58M1")
    for serial, _ in found:
        try:
            shell = adb.shell_of(serial)
        except CodlError:
            continue
        assert shell.client[2] == serial.removeprefix(adb.PREFIX)
        assert not serial.startswith("-")


@settings(max_examples=30)
@given(st.binary(max_size=200))
def test_a_shell_that_says_anything_is_no_device(said: bytes) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeviceShell, "run", lambda shell, arguments, **how: said)
        shell = DeviceShell("X", ("sh", "-c"), ".codl")
        check = device_shell.shell_check("a shell", lambda: shell, "Fix it.")
        for finding in check.findings(None):  # type: ignore[arg-type]
            assert finding.ok == (said.strip() == b"codl")
        with pytest.raises(
            DeviceError, match=r"no Python 3\.10 or later|is not the file that was sent"
        ):
            install(shell, packages=False)


def test_what_a_device_says_of_its_python_reaches_pip_as_plain_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only codl's own packages are looked for, whatever the device says that it lacks."""
    commands: list[list[str]] = []

    def run(command: list[str], **how: Any) -> subprocess.CompletedProcess[bytes]:
        commands.append(command)
        return subprocess.CompletedProcess(command, 1, b"", b"")

    monkeypatch.setattr(agents.subprocess, "run", run)
    dice = random.Random(3)
    for _ in range(1000):
        said = message(dice, AgentCheck)
        assert said is not None
        assert {*said.missing} <= {*PURPOSES}
        facts = {"python": "3.11.2", "machine": "x86_64", "libc": "glibc 2.36", "abi": "cpython"}
        facts[dice.choice([*facts])] += dice.choice(WORDS)
        fetch_wheels("ncnn", msgspec.structs.replace(said, **facts), Path("wheels"))
    given = {part for own in commands for part in own[own.index("--python-version") :]}
    odd = {part for part in given if not PLAIN.fullmatch(part)}
    assert odd == {"--python-version", "--platform", "--dest"}
    assert len(commands) > 10


def test_packages_that_codl_does_not_need_are_not_brought() -> None:
    packages = {"--index-url=http://x": None, "evil": None, "ncnn": None, "numpy": "2.0"}
    text = msgspec.json.encode({**dict.fromkeys(AgentCheck.__struct_fields__, ""), "brought": [],
                                "packages": packages})  # fmt: skip
    assert msgspec.json.decode(text, type=AgentCheck).missing == {"ncnn": "the CPU side"}
