"""YAML files: what would take far more room than its text is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from codl.errors import InvalidFileError
from codl.ir import yaml_file
from codl_published.mapped_tables import load_mapping

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
