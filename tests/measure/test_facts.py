"""Facts that are measured: what latencies say, on made-up ones; and devices that are at hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from codl.errors import InvalidFileError
from codl.ir.records import soc as socs
from codl.machine.placement import LocalSoc


@pytest.mark.parametrize(
    ("change", "is_same"),
    [
        ({"description": "other"}, True),
        ({"cpu": {"clusters": []}}, True),
        ({"gpu": {"compute_units": 99}}, False),
        ({"name": "other"}, False),
    ],
)
def test_a_dataset_goes_on_where_only_what_describes_has_changed(
    first_soc: LocalSoc, change: dict[str, object], is_same: bool
) -> None:
    content = first_soc.to_dict()
    for key, value in change.items():
        content[key] = {**content[key], **value} if isinstance(value, dict) else value
    assert first_soc.is_as_in(content) is is_same
    assert not first_soc.is_as_in(None)


def test_values_of_a_soc_file_are_known_or_of_earlier_versions(first_soc: LocalSoc) -> None:
    content = first_soc.to_dict()
    content["gpu"] |= {"zero_copy": True, "preferred_memory": {"conv2d": "buffer"}}
    content["gpu"] |= {"svm_atomics": True, "signal": "flag", "svm": "none"}
    assert socs.from_dict(content, Path("x.yaml")) == first_soc.facts
    content["gpu"]["element"] = "some"
    with pytest.raises(InvalidFileError, match=r"gpu.element: must be one of"):
        socs.from_dict(content, Path("x.yaml"))
