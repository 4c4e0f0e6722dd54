"""Published facts of a SoC beside those of devices: which are the same chip, and what is kept.

Names and versions are those that drivers of these GPUs give, as in reports of their users.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.simulated import SOC

from codl.ir.records import soc as socs
from codl.ir.records.soc import Chip, PublishedSoc, Soc
from codl.targets.detect import completed, contradiction

ADRENO = "QUALCOMM Adreno(TM)"


def published(name: str) -> PublishedSoc:
    soc = socs.read(name)
    assert isinstance(soc, PublishedSoc)
    return soc


def found(gpu: str, version: str, chip: Chip | None = None, type: str = "gpu") -> Soc:
    side = replace(SOC.gpu, name=gpu, opencl_version=version, type=type)
    return replace(SOC, gpu=side, chip=chip)


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("sdm865", found(ADRENO, "OpenCL 2.0 Adreno(TM) 650", Chip("SM8250"))),
        ("sdm865", found(ADRENO, "OpenCL 3.0")),
        ("kirin970", found("Mali-G72", "OpenCL 2.0 v1.r14p0", Chip("", "", ("hisilicon,hi3670",)))),
        ("dimensity8050", found("Mali-G77 MC9 r0p1", "OpenCL 2.0 v1.r32p1", Chip("MT6893Z"))),
    ],
)
def test_a_device_may_be_the_published_chip(name: str, device: Soc) -> None:
    assert contradiction(published(name), device, "X") == ""


@pytest.mark.parametrize(
    ("name", "device", "said"),
    [
        ("sdm865", found(ADRENO, "OpenCL 3.0 Adreno(TM) 730"), "Adreno(TM) 730"),
        ("sdm865", found(ADRENO, "OpenCL 3.0", Chip("SM8450")), "'SM8450'"),
        ("sdm865", found("Mali-G77", "OpenCL 2.0"), "Mali-G77"),
        ("sdm865", found("cpu-cortex-a77-0xd0d", "OpenCL 3.0 PoCL", type="cpu"), "cpu-cortex-a77"),
        ("kirin970", found("Mali-G71", "OpenCL 2.0", Chip("kirin970")), "Mali-G71"),
    ],
)
def test_another_chip_is_named_beside_the_published_one(name: str, device: Soc, said: str) -> None:
    soc = published(name)
    problem = contradiction(soc, device, "R58M123ABC")
    assert said in problem
    assert "'R58M123ABC'" in problem
    assert f"{name!r} is {soc.description}" in problem
    assert str(soc.gpu.name) in problem


def test_values_of_the_device_go_first_and_published_ones_fill_gaps() -> None:
    soc = published("sdm865")
    device = found(ADRENO, "OpenCL 2.0 Adreno(TM) 650")
    device = replace(device, gpu=replace(device.gpu, global_mem_cache_size=0, compute_units=3))
    whole = completed(soc, device)
    assert whole.description == "Snapdragon 865 (SM8250)"
    assert (whole.gpu.name, whole.gpu.compute_units) == (ADRENO, 3)
    assert whole.gpu.global_mem_cache_size == 131072
    assert whole.cpu.clusters == soc.cpu.clusters
    assert "original CoDL" in whole.sources["gpu.global_mem_cache_size"]
    assert whole.sources["cpu.clusters"].startswith("published: ")
    assert "gpu.compute_units" not in whole.sources
    assert socs.from_dict(whole.to_dict(), socs.own_path_of("sdm865")) == whole
