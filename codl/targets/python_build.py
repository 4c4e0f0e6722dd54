"""Python for a device without one: a build and its program, in the agent's folder.

python.org's builds for Android are a library and its modules: a folder `lib` with
`libpython3.x.so` and `python3.x`. `codl.targets.elf` makes the program. A build is sent as one
archive with a list of digests, by which a later check finds damage.
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
from tempfile import NamedTemporaryFile
from urllib.error import URLError
from urllib.request import urlopen

from platformdirs import user_cache_dir

from codl.errors import CodlError, DeviceError, InvalidFileError, UnsupportedError
from codl.targets.device_shell import REFUSED, DeviceShell, ShellError
from codl.targets.elf import MACHINES, SharedLibrary, launcher, read_library

#: In place of a file or a command: the build of python.org that fits the device.
BRING = "bring"
#: Endings of the files of builds.
ENDINGS = (".tar.gz", ".tgz", ".tar.xz", ".tar.zst", ".tar")


@dataclass(frozen=True)
class Published:
    """A build that python.org publishes, with the SHA-256 of its file."""

    url: str
    sha256: str

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]


SITE = "https://www.python.org/ftp/python/3.14.7/python-3.14.7"
#: Builds for Android by machine. Wheels are found for their version.
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

#: Path of the library, with the folders before `lib` in the archive.
LIBRARY = re.compile(r"(?P<root>(?:[^/]+/)*)lib/libpython(?P<version>3\.\d+)\.so[.\d]*")
#: Files that an agent never needs: folders, and modules whose libraries are not brought.
LEFT_OUT = re.compile(
    r"(test|idlelib|tkinter|turtledemo|ensurepip|lib2to3|pydoc_data|venv|config-[^/]*"
    r"|site-packages|dist-packages)/.*|(.*/)?__pycache__/.*"
    r"|lib-dynload/(_test|_tkinter|_ssl|_hashlib|_sqlite3|_ctypes_test|xx)[^/]*"
)
PROGRAM, MANIFEST = "bin/python3", "MANIFEST"
#: Checks all files by their list, and the list by its digest; run by the Python of the build.
CHECK = """\
import hashlib, sys
folder, wanted = sys.argv[1:]
digest = lambda name: hashlib.sha256(open(folder + "/" + name, "rb").read()).hexdigest()
lines = open(folder + "/MANIFEST").read().splitlines()
bad = [n for d, n in (line.split("  ", 1) for line in lines) if digest(n) != d]
print("same" if digest("MANIFEST") == wanted and not bad else "not the same", *bad[:3])
"""
UNPACK = (
    'rm -rf "$0.part" && mkdir -p "$0.part" && tar -x -f - -C "$0.part" '
    '|| { rm -rf "$0.part"; exit 1; }'
)
#: Puts a build in place of older ones.
PUT = (
    'for old in "$1"/python-*; do [ "$old" = "$0.part" ] || rm -rf "$old"; done; mv "$0.part" "$0"'
)
CHECK_S, SEND_S = 120.0, 900.0


@dataclass(frozen=True)
class PythonBuild:
    """Files by their names, for one kind of device; `name` is their folder there."""

    source: str
    version: str
    library: SharedLibrary
    files: Mapping[str, bytes]

    @cached_property
    def manifest(self) -> bytes:
        lines = (f"{sha256(data).hexdigest()}  {name}\n" for name, data in self.files.items())
        return "".join(lines).encode()

    @property
    def digest(self) -> str:
        return sha256(self.manifest).hexdigest()

    @property
    def name(self) -> str:
        return f"python-{self.version}-{self.digest[:16]}"

    @property
    def disk_bytes(self) -> int:
        """Bytes on a disk with blocks of 4 KiB."""
        return sum(-(-len(data) // 4096) * 4096 for data in self.files.values())

    def packed(self) -> bytes:
        """A tar archive, uncompressed: some devices' tar reads no other."""
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as archive:
            for name, data in {**self.files, MANIFEST: self.manifest}.items():
                member = tarfile.TarInfo(name)
                member.size, member.mode = len(data), 0o755 if name == PROGRAM else 0o644
                archive.addfile(member, io.BytesIO(data))
        return stream.getvalue()


def is_file_of_build(text: str) -> bool:
    """Whether the value of `--python` is a build, and no command."""
    return text == BRING or text.endswith(ENDINGS)


def bring(shell: DeviceShell, text: str) -> tuple[str, ...]:
    """Put a build on a device unless it is there; the command that starts it.

    `text` is the file of a build, or `BRING` for python.org's. Raises `CodlError` where there is no
    build, and `DeviceError` where the device has no room for it, or does not run it.
    """
    build = _build_for(shell, text)
    folder = f"{shell.folder}/{build.name}"
    if _check(shell, folder, build) != "same":
        shell.check_room(build.disk_bytes, f"Python {build.version}")
        shell.run(["sh", "-c", UNPACK, folder], stdin=build.packed(), limit_s=SEND_S)
        try:
            result = _check(shell, f"{folder}.part", build, is_there=True)
            if result != "same":
                raise DeviceError(
                    f"{folder} on {shell.serial!r} is not what was sent ({result}): try again."
                )
        except DeviceError:
            shell.run(["rm", "-rf", f"{folder}.part"])
            raise
        shell.run(["sh", "-c", PUT, folder, shell.folder])
    return (f"{folder}/{PROGRAM}",)


def _build_for(shell: DeviceShell, text: str) -> PythonBuild:
    """The named build, or python.org's for the device; checked to fit the device."""
    machine = shell.run(["uname", "-m"]).decode().strip()
    if text == BRING:
        known = published(shell.serial, machine)
        _check_fits(shell, machine, known.name, SharedLibrary(machine, "bionic", ""))
        return read_build(fetch(known))
    build = read_build(_checked_file(Path(text)))
    _check_fits(shell, machine, build.source, build.library)
    return build


def published(serial: str, machine: str) -> Published:
    """The build for a device's machine; raises `UnsupportedError` where there is none."""
    if machine not in PUBLISHED:
        raise UnsupportedError(
            f"python.org has no build for Android on {machine!r}, which {serial!r} is, but on "
            f"{' and '.join(PUBLISHED)}: name the command of a Python that is there by --python."
        )
    return PUBLISHED[machine]


def fetch(build: Published) -> Path:
    """File of a build in the user's cache, fetched once; raises `CodlError` where that fails."""
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
    _check_digest(build.url, content, build)
    path.parent.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(dir=path.parent, delete=False) as part:
        part.write(content)
    return Path(part.name).replace(path)


def _checked_file(path: Path) -> Path:
    """A named file; one with the name of a published build must be that build."""
    if not path.is_file():
        raise CodlError(f"There is no file {str(path)!r} with a build of Python.")
    for build in PUBLISHED.values():
        if build.name == path.name:
            _check_digest(str(path), path.read_bytes(), build)
    return path


def _check_digest(source: str, content: bytes, build: Published) -> None:
    digest = sha256(content).hexdigest()
    if digest != build.sha256:
        raise CodlError(
            f"{source} is not the file that codl knows: its SHA-256 is {digest}, not "
            f"{build.sha256}; get it again from {build.url}."
        )


def read_build(path: Path) -> PythonBuild:
    """Read a build from an archive; raises `InvalidFileError`."""
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
                with suppress(KeyError):  # a link to what the archive does not have
                    files[modules + name] = _content(archive, member)
    except (OSError, EOFError, tarfile.TarError) as error:
        raise InvalidFileError(path, f"it is no archive of a build of Python: {error}.") from error
    try:
        facts = read_library(match[0].rpartition("/")[2], library)
    except UnsupportedError as error:
        raise InvalidFileError(path, f"{match[0]} cannot be started. {error}") from error
    if f"{modules}os.py" not in files:
        raise InvalidFileError(path, f"it has no {match['root']}{modules}os.py.")
    files |= {f"lib/{facts.name}": library, PROGRAM: launcher(facts)}
    return PythonBuild(path.name, match["version"], facts, dict(sorted(files.items())))


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    """Content of a file; a link within the archive is followed."""
    file = archive.extractfile(member)
    if file is None:
        raise tarfile.TarError(f"{member.name} is no file")
    return file.read()


def _modules(
    members: Mapping[str, tarfile.TarInfo], root: str
) -> Iterator[tuple[str, tarfile.TarInfo]]:
    """Files under a folder that an agent may need, with their names in the folder."""
    for name, member in members.items():
        rest = name.removeprefix(root)
        is_file = member.isfile() or member.issym() or member.islnk()
        if rest != name and is_file and not LEFT_OUT.fullmatch(rest):
            yield rest, member


def _check_fits(shell: DeviceShell, machine: str, source: str, library: SharedLibrary) -> None:
    """Raise `DeviceError` for a build of another kind of device."""
    loader = MACHINES[library.machine].loaders[library.libc]
    if machine != library.machine:
        problem = f"{shell.serial!r} is {machine}"
    elif shell.run(["sh", "-c", 'test -e "$0" || echo missing', loader]):
        problem = f"{shell.serial!r} has no {loader}"
    else:
        return
    raise DeviceError(
        f"{source} is for {library.machine} with {library.libc}, and {problem}: name a build for "
        "the device, or the command of a Python that is there, by --python."
    )


def _check(shell: DeviceShell, folder: str, build: PythonBuild, *, is_there: bool = False) -> str:
    """Run the check of the Python in a folder; its output, empty where there is none.

    Raises `DeviceError` where it `is_there` and does not run.
    """
    program = f"{folder}/{PROGRAM}"
    command = [program, "-I", "-S", "-B", "-c", CHECK, folder, build.digest]
    try:
        return shell.run(command, limit_s=CHECK_S).decode(errors="replace").strip()
    except ShellError as error:
        if not is_there:
            return ""
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
