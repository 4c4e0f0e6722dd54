"""Every fault of the table still has its place in codl's code."""

import pytest

from scripts.plant_faults import ROOT, TABLE, Fault, read

FAULTS = read(TABLE)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_can_be_planted(fault: Fault) -> None:
    text = (ROOT / fault.file).read_text()
    planted = fault.planted(text)
    assert planted != text
    compile(planted, fault.file, "exec") if fault.file.endswith(".py") else None
