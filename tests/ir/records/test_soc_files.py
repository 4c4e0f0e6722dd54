"""SoC files and placements that somebody else wrote: they are read, or one error says why not."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.simulated import SOC

from codl import files
from codl.errors import CodlError, InvalidFileError
from codl.files import own_or_shipped
from codl.ir import yaml_file
from codl.ir.records import soc as socs
from codl.machine import placement
from codl.machine.placement import Placement

#: What is put into a file: YAML's own marks, and values that are none of a SoC's.
PIECES = st.one_of(
    st.sampled_from(["", "-1", "1e999", ".nan", "null", "[]", "{}", "&a *a", "<<: *a", "2026-99-99",
                     "!!python/object:os.system x", "\t", ": ", "- ", "'", '"', "\0", "é" * 300,
                     "9" * 5000]),
    st.text(max_size=8),
)  # fmt: skip


@st.composite
def damaged(draw: st.DrawFn, text: str) -> str:
    """A text with up to three of its parts replaced."""
    for _ in range(draw(st.integers(1, 3))):
        begin = draw(st.integers(0, len(text)))
        end = min(len(text), begin + draw(st.integers(0, 20)))
        text = text[:begin] + draw(PIECES) + text[end:]
    return text


QUICK = settings(max_examples=60)


@QUICK
@given(text=damaged("cpu_cores: [0, 1]\ngpu_cores: []\nicd: none\ncpu_threads: 1\n"))
def test_a_placement_is_read_or_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "there.yaml"
    placement.beside(path).write_bytes(text.encode(errors="surrogatepass"))
    try:
        found = placement.read(SOC, path, is_here=False)
    except CodlError:
        return
    assert found is not None
    assert isinstance(found.placement, Placement)


@pytest.mark.parametrize("value", ["2026-99-99", "9" * 5000])
def test_yaml_that_its_reader_stumbles_over_is_a_wrong_file(tmp_path: Path, value: str) -> None:
    path = tmp_path / "there.yaml"
    path.write_text(f"name: {value}\n")
    with pytest.raises(CodlError, match=r"there\.yaml"):
        socs.read(path)


@pytest.mark.parametrize("name", ["../../evil", "a/b", ".hidden", "-o", "x\n"])
def test_a_name_that_is_a_path_is_refused(name: str, tmp_path: Path) -> None:
    """Folders are named after it."""
    path = yaml_file.write({**SOC.to_dict(), "name": name}, tmp_path / "soc.yaml")
    with pytest.raises(InvalidFileError, match=r"name: .* cannot be the name of a file"):
        socs.read(path)
    with pytest.raises(CodlError, match="cannot be the name of a file"):
        socs.own_path_of(name)


USUAL = Path("predictors")


def test_what_the_user_has_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    own, others = tmp_path / "own", tmp_path / "codl"
    monkeypatch.setattr(files, "ROOTS", (tmp_path / "nowhere", others))
    (others / "predictors" / "board").mkdir(parents=True)
    assert own_or_shipped("board", USUAL, USUAL) == others / "predictors" / "board"
    assert own_or_shipped("phone", USUAL, USUAL) == USUAL / "phone"
    assert own_or_shipped("board", own, USUAL) == own / "board"
    (USUAL / "board").mkdir(parents=True)
    assert own_or_shipped("board", USUAL, USUAL) == USUAL / "board"
