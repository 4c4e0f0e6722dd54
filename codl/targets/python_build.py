"""Python builds for devices without Python, with their program, in the agent's folder.

python.org's builds for Android are a library and its modules: a folder `lib` with `libpython3.x.so`
and `python3.x`. The program is made here. A build is sent as one archive, to a folder named by its
digest: a folder that is there is whole.
"""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from platformdirs import user_cache_dir

from codl.errors import CodlError, DeviceError, InvalidFileError, UnsupportedError
from codl.files import write
from codl.targets.device_shell import REFUSED, DeviceShell, ShellError

#: Value in place of a file or a command, for python.org's build that fits the device.
BRING = "bring"
#: File name suffixes of builds.
ENDINGS = (".tar.gz", ".tgz", ".tar.xz", ".tar.zst", ".tar")


@dataclass(frozen=True)
class Published:
    """A build published by python.org, with the SHA-256 of its file."""

    url: str
    sha256: str

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]


SITE = "https://www.python.org/ftp/python/3.14.7/python-3.14.7"
#: Builds for Android by machine. Wheels are searched for their version.
PUBLISHED: Mapping[str, Published] = {
    "aarch64": Published(
        f"{SITE}-aarch64-linux-android.tar.gz",
        "6d50cc3aa66e414a439594089bcdfb5f1264358155c70c1f00471c24cfb477fb",
    ),
    "x86_64": Published(
        f"{SITE}-x86_64-linux-android.tar.gz",
        "2c16ce2359565cd8c24f86cfb75630768ba6607e732946b294b969797f583b60",
    ),
}
FETCH_S = 60.0
#: Loader of programs of 64 bits on Android, and of Android alone.
LOADER = "/system/bin/linker64"
#: Programs by machine and C library, as `scripts/launchers.py` makes them.
PROGRAMS = Path(__file__).parent / "launchers"
#: Place of the library's file name in a program.
NAME = b"libpython3.so".ljust(32, b"\0")

#: Path of the library, with the folders before `lib` in the archive.
LIBRARY = re.compile(r"(?P<root>(?:[^/]+/)*)lib/libpython(?P<version>3\.\d{1,2})\.so[.\d]{0,8}")
#: Files that an agent never needs: folders, and modules whose libraries are not copied.
LEFT_OUT = re.compile(
    r"(test|idlelib|tkinter|turtledemo|ensurepip|lib2to3|pydoc_data|venv|config-[^/]*"
    r"|site-packages|dist-packages)/.*|(.*/)?__pycache__/.*"
    r"|lib-dynload/(_test|_tkinter|_ssl|_hashlib|_sqlite3|_ctypes_test|xx)[^/]*"
)
PROGRAM = "bin/python3"
UNPACK = (
    'rm -rf "$0.part" && mkdir -p "$0.part" && tar -x -f - -C "$0.part" '
    '|| { rm -rf "$0.part"; exit 1; }'
)
#: Replaces older builds with an unpacked one.
PUT = (
    'for old in "$1"/python-*; do [ "$old" = "$0.part" ] || rm -rf "$old"; done; mv "$0.part" "$0"'
)
CHECK_S, SEND_S = 120.0, 900.0


@dataclass(frozen=True)
class PythonBuild:
    """Files of a Python build by path, for one kind of device; `name` is its folder there."""

    version: str
    files: Mapping[str, bytes]

    @cached_property
    def packed(self) -> bytes:
        """An uncompressed tar archive, the only kind that some devices' tar reads."""
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as archive:
            for name, data in self.files.items():
                member = tarfile.TarInfo(name)
                member.size, member.mode = len(data), 0o755 if name == PROGRAM else 0o644
                archive.addfile(member, io.BytesIO(data))
        return stream.getvalue()

    @property
    def name(self) -> str:
        return f"python-{self.version}-{sha256(self.packed).hexdigest()[:16]}"


def is_file_of_build(text: str) -> bool:
    """Whether the value of `--python` is a build rather than a command."""
    return text == BRING or text.endswith(ENDINGS)


def bring(shell: DeviceShell, text: str) -> tuple[str, ...]:
    """Copy a build to a device if needed; returns the command that starts it.

    `text` is the file of a build, or `BRING` for python.org's. Raises `CodlError` for a missing
    build, and `DeviceError` if the device has no room for it or does not run it.
    """
    build = _build_for(shell, text)
    folder = f"{shell.folder}/{build.name}"
    if not shell.run(["sh", "-c", 'test -d "$0" && echo there || :', folder]):
        shell.run(["sh", "-c", UNPACK, folder], stdin=build.packed, limit_s=SEND_S)
        try:
            _check_starts(shell, f"{folder}.part/{PROGRAM}")
        except DeviceError:
            shell.run(["rm", "-rf", f"{folder}.part"])
            raise
        shell.run(["sh", "-c", PUT, folder, shell.folder])
    return (f"{folder}/{PROGRAM}",)


def _build_for(shell: DeviceShell, text: str) -> PythonBuild:
    """The named build, or python.org's for the device; raises `CodlError` if none fits."""
    machine = shell.run(["uname", "-m"]).decode().strip()
    is_android = shell.run(["sh", "-c", 'test -e "$0" && echo there || :', LOADER])
    program = PROGRAMS / f"{machine}-{'bionic' if is_android else 'glibc'}"
    if machine not in PUBLISHED or (text == BRING and not is_android):
        raise UnsupportedError(
            f"python.org has builds for Android on {' and '.join(PUBLISHED)}, and {shell.serial!r} "
            f"is {machine}{'' if is_android else ' without ' + LOADER}: name the command of a "
            "Python that is there by --python."
        )
    if text == BRING:
        return read_build(fetch(PUBLISHED[machine]), program)
    if not Path(text).is_file():
        raise CodlError(f"There is no file {text!r} with a build of Python.")
    return read_build(Path(text), program)


def fetch(build: Published) -> Path:
    """File of a build in the user's cache, downloaded once; raises `CodlError` on failure."""
    path = Path(user_cache_dir("codl")) / "pythons" / build.name
    if path.exists() and sha256(path.read_bytes()).hexdigest() == build.sha256:
        return path
    try:
        with urlopen(build.url, timeout=FETCH_S) as answer:
            content = answer.read()
    except (OSError, URLError) as error:
        reason = getattr(error, "reason", error)
        raise CodlError(
            f"{build.url} cannot be fetched ({reason}): get it where there is a network, and name "
            f"the file by --python {build.name}."
        ) from error
    if (digest := sha256(content).hexdigest()) != build.sha256:
        raise CodlError(
            f"{build.url} is not the file that codl knows: its SHA-256 is {digest}, not "
            f"{build.sha256}."
        )
    return write(path, content)


def read_build(path: Path, program: Path) -> PythonBuild:
    """Read a build from an archive, and add its program; raises `InvalidFileError`."""
    try:
        with tarfile.open(path) as archive:
            members = {member.name.removeprefix("./"): member for member in archive.getmembers()}
            match = next(filter(None, map(LIBRARY.fullmatch, sorted(members, key=len))), None)
            if match is None:
                raise InvalidFileError(path, "it has no lib/libpython3.x.so.")
            library = _content(archive, members[match[0]])
            modules = f"lib/python{match['version']}/"
            files = {}
            for name, member in _modules(members, match["root"] + modules):
                with suppress(KeyError):  # a link to a file missing in the archive
                    files[modules + name] = _content(archive, member)
    except (OSError, EOFError, tarfile.TarError) as error:
        raise InvalidFileError(path, f"it is no archive of a build of Python: {error}.") from error
    if f"{modules}os.py" not in files:
        raise InvalidFileError(path, f"it has no {match['root']}{modules}os.py.")
    name = match[0].rpartition("/")[2]
    files |= {f"lib/{name}": library, PROGRAM: launcher(program, name)}
    return PythonBuild(match["version"], dict(sorted(files.items())))


def launcher(program: Path, library: str) -> bytes:
    """A program that starts Python; the library is in `lib` beside the program's folder."""
    return program.read_bytes().replace(NAME, library.encode().ljust(len(NAME), b"\0"))


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    """Content of a file in an archive; follows links within the archive."""
    file = archive.extractfile(member)
    if file is None:
        raise tarfile.TarError(f"{member.name} is no file")
    return file.read()


def _modules(
    members: Mapping[str, tarfile.TarInfo], root: str
) -> Iterator[tuple[str, tarfile.TarInfo]]:
    """Files below `root` that an agent may need, with their relative paths."""
    for name, member in members.items():
        rest = name.removeprefix(root)
        is_file = member.isfile() or member.issym() or member.islnk()
        if rest != name and is_file and not LEFT_OUT.fullmatch(rest):
            yield rest, member


def _check_starts(shell: DeviceShell, program: str) -> None:
    """Raise `DeviceError` if a device does not start the Python of a build."""
    try:
        shell.run([program, "-I", "-S", "-B", "-c", "import os"], limit_s=CHECK_S)
    except ShellError as error:
        reason = error.problem.partition(": ")[2].rstrip(".")
        if error.code == REFUSED:
            raise DeviceError(
                f"{shell.serial!r} refuses to execute {program} ({reason}): {shell.folder} must "
                "let programs run; else use Termux's Python by its sshd."
            ) from error
        raise DeviceError(
            f"{program} does not start on {shell.serial!r} ({reason}): name another build by "
            "--python, or use Termux's Python by its sshd."
        ) from error
