"""Files: bounded readers of every format, plain names, a writer that leaves no half, and a lock."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import command_line
from support.executables import small_network
from support.fuzzing import fuzz
from support.readers import READERS
from support.simulated import SOC

from codl import files
from codl.errors import CodlError, InvalidFileError, UnwritableFileError
from codl.files import BusyError, inside
from codl.ir import parse, yaml_file
from codl.jobs.bundle import loading
from codl.measure.dataset import CsvTable, Dataset, OpRow
from codl.measure.inputs import read_file, read_npz
from codl.measure.tasks import read_csv
from codl_published.mapped_tables import load_mapping

#: Has a folder until its input ends.
HOLDER = """
import sys
from pathlib import Path
from codl import files
with files.locked(Path(sys.argv[1])):
    print("has it", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "not JSON"),
        (b"[" * 100_000, "not JSON: maximum recursion depth"),
        (b"9" * 6_000, "not JSON: Exceeds the limit"),
        (b'{"a": NaN}', "not JSON"),
        (b'{"a": 1e999}', "not JSON: 1e999 is no number of JSON"),
    ],
)
def test_what_is_no_json_is_one_clear_error(content: bytes, problem: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(InvalidFileError, match=problem) as error:
        files.read_json(tmp_path / "x.json")
    assert str(error.value).startswith(str(tmp_path / "x.json"))
    assert len(str(error.value)) < 500


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path, problem in (
        (tmp_path / "none", "there is no such file"),
        (tmp_path, "cannot be read: Is a directory"),
        (tmp_path / "\0", "cannot be read: embedded null byte"),
        (Path("/dev/zero"), "holds more than 64 MiB"),
    ):
        with pytest.raises(InvalidFileError, match=problem):
            files.read_bytes(path)
    (tmp_path / "latin").write_bytes(b"caf\xe9")
    with pytest.raises(InvalidFileError, match="not text in UTF-8"):
        files.read_text(tmp_path / "latin")


def test_a_file_takes_its_place_whole_or_not_at_all(tmp_path: Path) -> None:
    path = files.write(tmp_path / "new" / "a.txt", "first")
    assert path.stat().st_mode & 0o777 == 0o666 & ~_umask()
    with pytest.raises(TypeError), files.writing(path) as partial:
        partial.write_text(7)  # type: ignore[arg-type]
    assert path.read_text() == "first"
    assert list(path.parent.iterdir()) == [path]


def test_a_link_is_replaced_and_a_device_is_written_to(tmp_path: Path) -> None:
    """Links of a folder from a stranger lead nowhere; a device must not become a file."""
    outside, link = tmp_path / "outside", tmp_path / "link"
    outside.write_text("mine")
    link.symlink_to(outside)
    files.write(link, "other")
    assert (outside.read_text(), link.read_text(), link.is_symlink()) == ("mine", "other", False)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    files.write(pipe, "content")
    assert os.read(reader, 99) == b"content"
    os.close(reader)
    assert pipe.is_fifo()


@pytest.mark.parametrize("target", ["", "file/below", "/proc/none/x", "/dev/null/x"])
def test_a_target_is_checked_before_any_work(target: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(UnwritableFileError, match="cannot be written"):
        files.check_writable(tmp_path / target)
    files.check_writable(tmp_path / "file")
    files.check_writable(tmp_path / "new" / "deep" / "file")
    files.check_folder(tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_what_was_there_is_set_aside_once(tmp_path: Path) -> None:
    path = tmp_path / "host.yaml"
    assert files.set_aside(path) is None
    kept = []
    for content in ("by hand", "by hand", "another"):
        path.write_text(content)
        kept.append(files.set_aside(path))
    first, again, other = kept
    assert first == again != other
    assert first is not None
    assert first.read_text() == "by hand"


def test_one_process_at_a_time_has_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    command = [sys.executable, "-c", HOLDER, str(folder)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as other:  # type: ignore[call-overload]
        assert other.stdout.readline() == "has it\n"
        with (
            pytest.raises(BusyError, match="Another process of codl works on"),
            files.locked(folder),
        ):
            pass
        other.stdin.close()
        with files.locked(folder, wait_s=60):
            assert folder.is_dir()
    assert other.returncode == 0


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def test_a_pipe_that_nobody_writes_to_is_no_file(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    os.mkfifo(path)
    with pytest.raises(InvalidFileError, match="this is a pipe, and no file"):
        files.read_json(path)


#: How editors and spreadsheets save a table.
SAVED = {
    "a mark": lambda text: text.encode("utf-8-sig"),
    "UTF-16": lambda text: text.encode("utf-16"),
    "Windows-1252": lambda text: text.encode("cp1252"),
    "lines of separators": lambda text: f"{text},,\n,,\n".encode(),
    "other ends of lines": lambda text: text.replace("\n", "\r\n").encode(),
}


@pytest.mark.parametrize("saved", SAVED.values(), ids=SAVED)
def test_tables_are_read_as_editors_save_them(saved: Any, tmp_path: Path) -> None:
    path = tmp_path / "ops.csv"
    path.write_bytes(saved('op,note,more\n"fc in=1x4x1x1 oc=3",f\xfcr,x\n'))
    assert read_csv(path) == [parse("fc in=1x4x1x1 oc=3")]
    table = CsvTable(tmp_path / "t_x.csv", OpRow)
    row = OpRow(op="a", dim="H", share=1.0, part="b", latency_ms=1.0, reason="f\xfcr")
    table.append(row)
    plain = table.path.read_bytes()
    table.path.write_bytes(saved(plain.decode()))
    assert table.read() == [row]
    table.repair()
    table.append(row)
    assert table.read() == [row, row]
    assert table.path.read_bytes().startswith(plain.splitlines()[0])


def test_a_c_locale_shows_what_it_can(tmp_path: Path) -> None:
    (tmp_path / "socs").mkdir()
    replace(SOC, name="board", description="f\xfcr").save(tmp_path / "socs" / "board.yaml")
    settings = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    settings["CODL_HOME"] = str(tmp_path)
    done = command_line.python(command_line.MAIN, "soc", "list", env=settings)
    assert "f\\xfcr" in done.stdout


def test_columns_may_be_separated_by_semicolons(tmp_path: Path) -> None:
    path = tmp_path / "ops.csv"
    path.write_text("op;note\neltwise in=1x2x3x3,1x2x3x3 act=relu;x\n;\n")
    assert read_csv(path) == [parse("eltwise in=1x2x3x3,1x2x3x3 act=relu")]


def test_what_is_no_table_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "ops.csv"
    for content in (b"op\n\x81\x8d\n", b'op\n"fc', bytes(range(256))):
        path.write_bytes(content)
        with pytest.raises(InvalidFileError):
            read_csv(path)


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../x", "a/b", "/etc/passwd", "a\\b", ".ssh", "-rf", "a\0b", "a\nb", " a", "a ",
     "x" * 256, "\u202egnp.exe", "\ud800"],
)  # fmt: skip
def test_what_is_no_plain_name_is_refused(name: str) -> None:
    for make in (lambda: inside(Path("out"), name), lambda: Dataset.of(name, Path("out"))):
        with pytest.raises(CodlError, match="must be a plain name"):
            make()


@pytest.mark.parametrize("name", ["sdm865", "Redmi Note 9", "kirin990-5g", "t_conv2d.csv", "Ω"])
def test_plain_names_are_kept(name: str) -> None:
    assert inside(Path("out"), name) == Path("out") / name


@given(name=st.text())
def test_no_name_leaves_the_folder(name: str) -> None:
    try:
        path = inside(Path("/out"), name)
    except CodlError:
        return
    assert path.parent == Path("/out")
    assert path.resolve().parent == Path("/out")


LAUGHS = "\n".join(
    ["a0: &a0 [x, x]", *(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 40))]
)
MERGES = "\n".join(
    ["a0: &a0 {x: 1}", *(f"a{i}: &a{i} {{<<: [*a{i - 1}, *a{i - 1}]}}" for i in range(1, 40))]
)


@pytest.mark.parametrize("reader", ["file", "mapping"])
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[" * 5_000, "line 1: not YAML: nested deeper than 100 levels"),
        (LAUGHS, "not YAML: aliases stand for more than"),
        (MERGES, "not YAML: aliases stand for more than"),
        ("a: &a [*a]", "not YAML: aliases stand for more than"),
        ("a: !!python/object/apply:os.system [x]", "not YAML"),
        ("a: 1\nb: {c: 1, d: 2, c: 3}", "line 2: not YAML: the key 'c' is there twice"),
        ("[", "line 1: not YAML"),
    ],
)
def test_what_is_no_yaml_is_one_clear_error(
    reader: str, text: str, problem: str, tmp_path: Path
) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text)
    read = {
        "file": yaml_file.read_content,
        "mapping": lambda path: load_mapping(path, "x"),
    }[reader]
    with pytest.raises(InvalidFileError) as error:
        read(path)
    assert problem in str(error.value)
    assert len(str(error.value)) < 500


def test_aliases_are_read(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("a: &a {x: [1, 2]}\nb: *a\nc: {<<: *a, y: 3}\n")
    content = yaml_file.read_content(path)
    assert content == {"a": {"x": [1, 2]}, "b": {"x": [1, 2]}, "c": {"x": [1, 2], "y": 3}}


def test_keys_may_replace_merged_ones_and_times_are_text(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("a: &a {x: 1, z: 0x10}\nc: {<<: *a, x: 2}\nt: 1:30\nu: [1:30.5, -1.5]\n")
    content = yaml_file.read_content(path)
    assert content["c"] == {"x": 2, "z": 16}
    assert content["t"] == "1:30"
    assert content["u"] == ["1:30.5", -1.5]


@pytest.mark.parametrize("name", READERS)
@pytest.mark.filterwarnings("ignore")
def test_mutated_files_are_read_or_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "_warn", lambda text: None)
    count = 10 if name in ("models", "predictors") else 60
    _, refused = fuzz(READERS[name](tmp_path), count, 5)
    assert refused > 0


NETWORK = small_network()
SHAPE = tuple(NETWORK.inputs["x"])
GOOD = np.arange(np.prod(SHAPE), dtype=np.float32).reshape(SHAPE)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.uint8])
def test_arrays_are_read_as_numpy_does(tmp_path: Path, dtype: type, order: str) -> None:
    array = np.asarray(GOOD % 200, dtype, order=order)  # type: ignore[call-overload]
    np.savez(tmp_path / "x.npz", x=array)
    np.savez_compressed(tmp_path / "packed.npz", x=array)
    np.save(tmp_path / "x.npy", array)
    for found in (
        read_npz(tmp_path / "x.npz", NETWORK)["x"],
        read_npz(tmp_path / "packed.npz", NETWORK)["x"],
        read_file(tmp_path / "x.npy", "x", NETWORK),
    ):
        np.testing.assert_array_equal(found, array)
        assert found.dtype == dtype


def test_what_is_no_such_file_is_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, x=GOOD)
    good = path.read_bytes()
    bad_sum = bytearray(good)
    bad_sum[300] ^= 255
    np.save(tmp_path / "array.npy", GOOD)
    for content, problem in (
        (b"", "No data left"),
        (good[: len(good) // 2], "not a zip file"),
        (bytes(bad_sum), "Bad CRC-32"),
        ((tmp_path / "array.npy").read_bytes(), "it is one array"),
    ):
        path.write_bytes(content)
        with pytest.raises(InvalidFileError, match=f"expected an .npz file .*{problem}"):
            read_npz(path, NETWORK)


def test_names_and_shapes_are_those_of_the_network(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, y=GOOD)
    with pytest.raises(InvalidFileError, match="its arrays must be x, got y"):
        read_npz(path, NETWORK)
    for wrong in (GOOD[:, :1], GOOD[..., :0]):
        np.savez(path, x=wrong)
        with pytest.raises(InvalidFileError, match="'x' must be 2x3x9x7, got"):
            read_npz(path, NETWORK)
    with pytest.raises(InvalidFileError, match="there is no such file"):
        read_npz(tmp_path / "none.npz", NETWORK)
