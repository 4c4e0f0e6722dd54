"""Shells of devices: serials, what reaches the shell, the agent, its packages, and their checks."""

from __future__ import annotations

import ast
import io
import os
import sys
import zipfile
from collections.abc import Iterator
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.devices_under_test import findings, under_test
from support.python_builds import wheel
from support.some import some

from codl.errors import CodlError, DeviceError, UnknownNameError
from codl.targets import adb, agent_archive, ssh
from codl.targets.checks import Finding
from codl.targets.connect import ADB_PATTERN, SSH_PATTERN, connect, transport_of
from codl.targets.connection import AgentLostError
from codl.targets.device_shell import END, DeviceShell, ShellError
from codl.targets.install import (
    ARCHIVE,
    LAUNCHER,
    AgentCheck,
    agent_file,
    build,
    fetch_wheels,
    install,
    launcher,
    packed_wheels,
)
from codl.targets.local import LocalTarget
from codl.targets.remote import RemoteTarget

ROOT = Path(__file__).parents[2]
#: The shell of this machine: what its client is given runs here, so all but the way is real.
HERE = DeviceShell("here", ("sh", "-c"), ".codl")
#: What the file of an agent may take of a device.
MOST_BYTES = 1 << 20
#: Texts that an operating system takes as an argument.
ARGUMENT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)


def shell_in(folder: Path, fixes: dict[str, str] | None = None) -> DeviceShell:
    return DeviceShell("here", ("sh", "-c"), str(folder), fixes or {})


@pytest.mark.parametrize(
    ("serial", "ending"),
    [
        ("ssh://pi@board.local", ["--", "pi@board.local"]),
        ("ssh://pi@10.0.0.7:2222", ["-p", "2222", "--", "pi@10.0.0.7"]),
        ("ssh://[fe80::1]:22", ["-p", "22", "--", "fe80::1"]),
    ],
)
def test_addresses_become_command_lines(serial: str, ending: list[str]) -> None:
    client = ssh.shell_of(serial).client
    assert client[0] == "ssh"
    assert list(client[-len(ending) :]) == ending
    assert transport_of(serial).pattern == SSH_PATTERN


@pytest.mark.parametrize(
    "serial",
    [
        "ssh://",
        "ssh://-oProxyCommand=touch x",
        "ssh://board;reboot",
        "ssh://board:99999",
    ],
)
def test_addresses_cannot_become_options(serial: str) -> None:
    with pytest.raises(CodlError, match="must be like ssh://pi@board"):
        ssh.shell_of(serial)


@pytest.mark.parametrize(
    "serial",
    [
        "R58M123ABC",
        "192.168.1.5:5555",
        "[fe80::1%wlan0]:5555",
        "adb:NODIGIT",
        "adb:adb-R58M (2)._adb-tls-connect._tcp",
        "adb:1;reboot",
    ],
)
def test_serials_of_phones(serial: str) -> None:
    client = adb.shell_of(serial).client
    assert client == ("adb", "-s", serial.removeprefix("adb:"), "shell", "-T")
    assert transport_of(serial).pattern == ADB_PATTERN


@pytest.mark.parametrize("serial", ["-s1", "adb:-s1", "adb:", "adb: ", "a\n1", "adb:a\x1b"])
def test_serials_cannot_become_options(serial: str) -> None:
    with pytest.raises(CodlError, match="must be as `adb devices`"):
        adb.shell_of(serial)


def test_another_command_may_be_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ssh.VARIABLE, "my-ssh -F 'a file'")
    assert ssh.shell_of("ssh://board").client[:4] == ("my-ssh", "-F", "a file", "-T")


@given(arguments=st.lists(ARGUMENT, min_size=1, max_size=4))
def test_arguments_arrive_as_they_are(arguments: list[str]) -> None:
    script = "import sys; sys.stdout.buffer.write('\\0'.join(sys.argv[1:]).encode('utf-8'))"
    said = HERE.run([sys.executable, "-X", "utf8", "-S", "-c", script, *arguments])
    assert said.decode().split("\0") == arguments


def test_files_arrive_whole(tmp_path: Path) -> None:
    path, content = tmp_path / "it's a $(file)", bytes(range(256)) * 1000
    HERE.write(str(path), content)
    assert path.read_bytes() == content
    assert [own.name for own in tmp_path.iterdir()] == [path.name]


def test_failures_say_what_was_said_and_what_to_do() -> None:
    shell = DeviceShell("X", ("sh", "-c"), ".codl", {"no room": "Make room."})
    with pytest.raises(ShellError, match=r"'sh' on 'X' ended with code 3: no room\. Make room\.$"):
        shell.run(["sh", "-c", "echo no room >&2; exit 3"])
    with pytest.raises(ShellError, match=r"took longer than 0\.1 s"):
        shell.run(["sleep", "5"], limit_s=0.1)
    with pytest.raises(ShellError, match="'no-such-client' is not installed"):
        DeviceShell("X", ("no-such-client",), ".codl").run(["true"])


def test_the_agents_file_is_small_and_the_same_each_time() -> None:
    file = agent_file()
    agent_file.cache_clear()
    build.cache_clear()
    assert agent_file() == file
    assert len(file) <= MOST_BYTES
    names = zipfile.ZipFile(io.BytesIO(file)).namelist()
    assert {"__main__.py", "BUILD", "codl/targets/agent.py", "codl/kernels/common.cl"} <= {*names}
    assert not [name for name in names if name.startswith(("codl/jobs/doctor/", "/", ".."))]


def test_an_agent_has_nothing_that_only_the_host_needs() -> None:
    names = zipfile.ZipFile(io.BytesIO(agent_file())).namelist()
    packages = ("jobs", "cli", "plan", "predict", "report", "validate")
    for place in packages:
        assert (ROOT / "codl" / place).is_dir()
        assert not [file for file in names if file.startswith(f"codl/{place}/")]


def test_an_agent_has_every_module_that_its_modules_begin_with() -> None:
    archive = zipfile.ZipFile(io.BytesIO(agent_file()))
    names = {name for name in archive.namelist() if name.startswith("codl/")}
    sources = [archive.read(name) for name in names if name.endswith(".py")]
    for module in some({module for source in sources for module in begins_with(source)}):
        path = module.replace(".", "/")
        assert names & {f"{path}.py", f"{path}/__init__.py"}, module


def begins_with(source: bytes) -> Iterator[str]:
    """The modules of codl that a module imports when it is imported."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("codl"):
            yield node.module or ""


def test_an_agent_is_installed_once(tmp_path: Path) -> None:
    shell = shell_in(tmp_path / "codl")
    first, again = (install(shell, [sys.executable]) for _ in range(2))
    assert (first.is_new, again.is_new) == (True, False)
    assert first.checked.can_serve
    assert first.checked.missing == {}
    assert sorted(own.name for own in (tmp_path / "codl").iterdir()) == [LAUNCHER, ARCHIVE]


def test_a_damaged_agent_is_replaced(tmp_path: Path) -> None:
    shell = shell_in(tmp_path)
    install(shell, [sys.executable])
    archive = tmp_path / ARCHIVE
    archive.write_bytes(archive.read_bytes()[:-100])
    (tmp_path / "codl-0123").mkdir()  # what an older agent unpacked
    assert install(shell, [sys.executable]).is_new
    assert sorted(own.name for own in tmp_path.iterdir()) == [LAUNCHER, ARCHIVE]
    assert archive.read_bytes() == agent_file()


def test_an_old_python_is_named(tmp_path: Path) -> None:
    old = tmp_path / "python3"
    old.write_text("#!/bin/sh\necho 3 8\n")
    old.chmod(0o755)
    with pytest.raises(DeviceError, match=r"no Python 3\.10 or later on 'here'; tried .*\(3\.8\)"):
        install(shell_in(tmp_path), [str(old)])
    with pytest.raises(DeviceError, match=r"tried /no/python\. Install one"):
        install(shell_in(tmp_path), ["/no/python"])


def test_an_installed_agent_answers_as_this_machine(tmp_path: Path) -> None:
    shell = shell_in(tmp_path)
    install(shell, [sys.executable])
    command = shell.command(launcher(shell))
    with (
        closing(connect("local")) as here,
        closing(RemoteTarget("there", command, build=build())) as there,
    ):
        assert there.describe() == here.describe()
    assert (tmp_path / f"codl-{build()}" / "codl" / "targets" / "agent.py").is_file()


def test_an_agent_unpacks_where_it_may_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside, home = tmp_path / "beside", tmp_path / "home"
    beside.mkdir()
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(tmp_path)
    assert agent_archive.room(str(beside / ARCHIVE)) == str(beside)
    closed = {str(beside)}
    may = os.access
    monkeypatch.setattr(
        agent_archive.os, "access", lambda path, mode: path not in closed and may(path, mode)
    )
    assert agent_archive.room(str(beside / ARCHIVE)) == str(home / ".codl")
    closed.add(str(home / ".codl"))
    assert agent_archive.room(str(beside / ARCHIVE)) == str(tmp_path / ".codl")


def test_a_full_device_keeps_no_part_of_an_agent(tmp_path: Path) -> None:
    (tmp_path / f"{ARCHIVE}.part").symlink_to("/dev/full")
    with pytest.raises(DeviceError, match=r"No space left on device\. Make room on the device"):
        install(shell_in(tmp_path), [sys.executable])
    assert list(tmp_path.iterdir()) == []
    assert install(shell_in(tmp_path), [sys.executable]).is_new


def test_an_agent_that_has_no_room_to_unpack_says_so(tmp_path: Path) -> None:
    """No file may be larger than some KiB there, which modules are."""
    shell = shell_in(tmp_path)
    install(shell, [sys.executable])
    before = sorted(tmp_path.iterdir())
    line = shell.command(launcher(shell))[-1]
    command, limited = ([*shell.client, text] for text in (line, f"ulimit -f 8; exec {line}"))
    with (
        closing(RemoteTarget("there", limited, build=build())) as there,
        pytest.raises(AgentLostError, match=r"cannot be unpacked there: .*Make room on the device"),
    ):
        there.describe()
    assert sorted(tmp_path.iterdir()) == before
    with closing(RemoteTarget("there", command, build=build())) as there:
        there.describe()


#: A Python of this machine that sees no packages, as on a device that has none.
BARE = [sys.executable, "-S"]


def device(
    python: str, machine: str, libc: str, abi: str, *, executable: str = "python3"
) -> AgentCheck:
    """What an agent without packages tells of its Python."""
    return AgentCheck("", python, executable, machine, "Linux", libc, abi, {}, ())


@pytest.mark.parametrize(
    "python",
    [
        device("3.12.1", "aarch64", "bionic 34", "cpython"),
        device("3.14.6", "riscv64", "bionic 35", "cpython"),
        device("3.13.1", "aarch64", "glibc 2.36", "cpythont"),
        device("3.11.2", "aarch64", "glibc 2.36", "pypy"),
        device("3.11.2", "--index-url=x", "glibc 2.36", "cpython"),
    ],
)
def test_what_has_no_wheels_is_asked_of_nobody(python: AgentCheck, tmp_path: Path) -> None:
    assert python.platforms == ()
    problem = fetch_wheels("msgspec", python, tmp_path)
    assert problem.startswith("There are no wheels for")
    fix = "by PIP_FIND_LINKS" if python.is_android else "`pip install msgspec`"
    assert fix in problem


PHONE = device("3.14.6", "aarch64", "bionic 34", "cpython", executable="/com.termux/python3")


def only_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pip search for wheels in this folder alone."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))


def test_a_phone_takes_wheels_of_its_level_and_older_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of ncnn alone: it asks for packages that have no wheel for Android."""
    assert PHONE.platforms[0] == "android_34_arm64_v8a"
    assert PHONE.platforms[-1] == "android_21_arm64_v8a"
    name = "ncnn-1.2-cp314-cp314-android_24_arm64_v8a.whl"
    wheel(tmp_path / "wheels", "ncnn", "1.2", needs="tqdm").rename(tmp_path / "wheels" / name)
    only_in(tmp_path / "wheels", monkeypatch)
    assert fetch_wheels("ncnn", PHONE, tmp_path / "to") == ""
    assert [path.name for path in (tmp_path / "to").iterdir()] == [name]
    old = msgspec.structs.replace(PHONE, libc="bionic 23")
    problem = fetch_wheels("ncnn", old, tmp_path / "old")
    assert problem.startswith("No wheel for Python 3.14 on Android, aarch64 was found by pip (")
    assert problem.endswith(
        "`pkg upgrade` brings a Python for which there is one, then `pip install --no-deps ncnn`."
    )


@pytest.mark.parametrize(
    ("package", "fix"),
    [
        ("numpy", "`pkg install python-numpy`"),
        ("pyopencl", "`pip install --no-build-isolation --no-deps pyopencl`"),
    ],
)
def test_what_has_no_wheel_for_android_says_how_termux_gets_it(
    package: str, fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_in(tmp_path, monkeypatch)
    problem = fetch_wheels(package, PHONE, tmp_path / "to")
    assert problem.startswith("No wheel for Python 3.14 on Android, aarch64 was found by pip (")
    assert fix in problem
    other = msgspec.structs.replace(PHONE, executable="python3")
    assert "by PIP_FIND_LINKS" in fetch_wheels(package, other, tmp_path / "to")


def test_only_what_can_be_imported_is_packed(tmp_path: Path) -> None:
    members = {"a_b-1.0.data__purelib__more.py": "1", "a_b-1.0.data__scripts__run": "2"}
    archive = tmp_path / "all.zip"
    archive.write_bytes(packed_wheels([wheel(tmp_path, "a_b", "1.0", **members)]))
    names = {n for n in zipfile.ZipFile(archive).namelist() if "dist-info" not in n}
    assert names == {"a-b==1.0/a_b.py", "a-b==1.0/more.py"}


def test_missing_packages_are_brought_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel(tmp_path / "wheels", "ncnn", "1.2")
    only_in(tmp_path / "wheels", monkeypatch)
    home = tmp_path / "home"
    first, again = (install(shell_in(home), BARE) for _ in range(2))
    assert (first.brought, again.brought) == (("ncnn==1.2",), ())
    for done in (first, again):
        assert done.checked.packages["ncnn"] == "1.2"
        assert done.checked.brought == ("ncnn",)
        assert not done.checked.can_serve
        assert {*done.fixes} == {*done.checked.missing} == {*done.checked.packages} - {"ncnn"}
    (packages,) = home.glob("packages-*")
    assert [own.name for own in packages.iterdir()] == ["ncnn==1.2"]
    assert not (home / agent_archive.BROUGHT).exists()


def test_packages_are_left_alone_where_that_is_asked(tmp_path: Path) -> None:
    done = install(shell_in(tmp_path), BARE, packages=False)
    assert done.brought == ()
    assert done.fixes["msgspec"] == "The agent has a stand-in for it."


def test_the_devices_own_are_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Path(agent_archive.packages_folder(str(tmp_path)))
    for name in ("numpy==99.0", "nowhere==1.0", "numpy==98.0.7.part"):
        (place / name).mkdir(parents=True)
    assert agent_archive.brought(str(tmp_path)) == {"nowhere": ("1.0", str(place / "nowhere==1.0"))}
    monkeypatch.setitem(agent_archive.FIRST, "numpy", (99,))
    assert agent_archive.versions(str(tmp_path))["numpy"] == "99.0"


def test_damaged_packages_are_not_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = packed_wheels([wheel(tmp_path / "wheels", "ncnn", "1.2")])
    home = tmp_path / "home"
    home.mkdir()
    sent = home / agent_archive.BROUGHT
    sent.write_bytes(content[:-1])
    assert agent_archive.add(str(home / ARCHIVE), sha256(content).hexdigest()) == 1
    assert "is not what was sent" in capsys.readouterr().err
    assert [*home.iterdir()] == [sent]


SERIAL = "R58M123ABC"
HELLO = "List of devices attached\\n"
#: An `adb` that says what it was made to say, and runs shell commands here.
ADB = """#!/bin/sh
case "$1" in
version) echo "Android Debug Bridge version 1.0.41" ;;
devices) printf "{listed}" ;;
-s) {shell} ;;
esac
"""
RUNS = 'sh -c "$5"'
WELCOMES = f"printf 'Welcome\\n{END.decode()}'"


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose programs come before all others."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def program(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


def of(serial: str) -> dict[str, Finding]:
    return findings(transport_of(serial).checks(serial), under_test())


def phone(path: Path, *, listed: str, shell: str = RUNS) -> dict[str, Finding]:
    program(path, "adb", ADB.format(listed=HELLO + listed, shell=shell))
    return of(SERIAL)


def test_a_phone_that_is_there_passes(path: Path) -> None:
    found = phone(path, listed=f"emulator-5554\\tdevice\\n{SERIAL}\\tdevice\\n")
    assert list(found) == ["adb client", "adb shell"]
    assert all(one.ok for one in found.values())
    assert "version 1.0.41" in found["adb client"].detail


@pytest.mark.parametrize(
    ("said", "fix"),
    [
        ("error: device unauthorized.", "allow this computer"),
        ("error: device offline", "adb reconnect offline"),
        ("error: insufficient permissions for device", "udev"),
        ("error: more than one device", "adb:usb:1-2"),
        (f"error: device '{SERIAL}' not found", "`adb devices` lists emulator-5554 (device)"),
    ],
)
def test_a_phone_in_another_state(path: Path, said: str, fix: str) -> None:
    shell = f'echo "{said}" >&2; exit 1'
    found = phone(path, listed="emulator-5554\\tdevice\\n", shell=shell)["adb shell"]
    assert not found.ok
    assert fix in found.fix
    assert found.fix not in found.detail


@pytest.mark.parametrize("serial", ["NODIGIT", "adb-R58M (2)._adb-tls-connect._tcp"])
def test_a_serial_is_what_the_server_lists(serial: str, path: Path) -> None:
    program(path, "adb", ADB.format(listed=f"{HELLO}{serial}\\tdevice\\n", shell=RUNS))
    assert all(one.ok for one in of(serial).values())
    with pytest.raises(UnknownNameError, match="Unknown serial 'prcess'"):
        transport_of("prcess")


def test_a_shell_that_says_something_else(path: Path) -> None:
    found = phone(path, listed=f"{SERIAL}\\tdevice\\n", shell=WELCOMES)["adb shell"]
    assert not found.ok
    assert "printed 'Welcome' instead of 'codl'" in found.detail


@pytest.mark.parametrize("serial", [SERIAL, "ssh://board"])
def test_a_client_that_is_not_installed(
    serial: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(ssh.VARIABLE, raising=False)
    found = of(serial)
    assert not any(one.ok for one in found.values())
    (first, *_) = found.values()
    assert "is not installed on this machine" in first.detail
    assert "Install" in first.fix


def test_a_host_that_refuses(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ssh.VARIABLE, raising=False)
    script = '[ "$1" = -V ] && echo OpenSSH_9 >&2 && exit; echo "Permission denied" >&2; exit 255'
    program(path, "ssh", f"#!/bin/sh\n{script}\n")
    found = of("ssh://board")
    assert found["ssh client"].ok
    assert found["ssh client"].detail.endswith("OpenSSH_9")
    assert not found["ssh connection"].ok
    assert "Permission denied" in found["ssh connection"].detail
    assert "ssh-copy-id" in found["ssh connection"].fix


def test_only_packages_that_codl_needs_are_imported() -> None:
    target = LocalTarget()
    assert target.import_package("msgspec") >= 0
    with pytest.raises(UnknownNameError, match="Unknown package 'os'"):
        target.import_package("os")


def test_a_package_that_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(DeviceError, match="jinja2 cannot be imported: ModuleNotFoundError"):
        LocalTarget().import_package("jinja2")
