"""What the compilers of phones' GPUs make of kernels, where they are installed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support import command_line

from codl.ir import parse
from codl_phone_compilers import compiler, gpus
from codl_phone_compilers.programs import NeededOp, Program, programs_of
from codl_phone_compilers.report import figures, summary

ADRENO = gpus.GPUS["adreno630"]
NOT_HERE = f"the compilers of Adrenos are not installed: `{compiler.COMMANDS['adreno']}`"
needs_compiler = pytest.mark.skipif(not compiler.is_installed("adreno"), reason=NOT_HERE)
#: Of sizes that networks have, and what is added to them; small ones come beside, with which every
#: variant is checked.
OPS = (
    ("conv2d in=1x64x56x56 oc=64 kernel=3x3 pad=1 act=relu", ""),
    ("conv2d in=1x512x7x7 oc=512 kernel=3x3 pad=1 act=relu", ""),
    ("conv2d in=1x256x28x28 oc=256 kernel=1x1 act=relu", ""),
    ("conv2d in=1x3x224x224 oc=64 kernel=7x7 stride=2 pad=3 act=relu", ""),
    ("conv2d in=1x96x56x56 oc=96 kernel=3x3 pad=1 groups=96 act=clip:0:6", ""),
    ("fc in=1x1280x1x1 oc=1000", ""),
    ("pooling in=1x64x112x112 kernel=3x3 stride=2 pad=1", ""),
    ("pooling in=1x320x8x8 mode=avg kernel=8x8", ""),
    ("eltwise in=1x256x56x56,1x256x56x56 act=relu", ""),
    ("conv2d in=1x64x32x32 oc=64 kernel=7x7 pad=3 act=relu", ""),
    ("matmul in=128x768 matrix=768x768 act=gelu", ""),
    ("softmax in=12x128x128 axes=2", ""),
    ("norm in=1x128x768,1x1x768,1x1x768 axis=2", ""),
    ("conv2d in=1x64x160x160 oc=256 kernel=1x1 act=relu", "add"),
    ("conv2d in=1x192x14x14 oc=192 kernel=3x3 pad=1", "add"),
    ("conv2d in=1x384x3000x1 oc=384 kernel=3x1 stride=2x1 pad=1,0,1,0 act=gelu", ""),
)


@pytest.mark.parametrize("name", ["adreno630", "malig57"])
def test_default_choices_build_and_keep_registers_in_registers(name: str) -> None:
    gpu = gpus.GPUS[name]
    if not compiler.is_installed(gpu.family):
        pytest.skip(f"its compiler is not installed: `{compiler.COMMANDS[gpu.family]}`")
    networks = {"usual": [NeededOp(parse(text), mode) for text, mode in OPS]}
    socs = [gpus.soc_of(name, element) for element in ("float32", "half")]
    listed = programs_of(networks, socs)
    rows = figures(listed, compiler.compile_all(gpu, listed.programs.values()), gpu)
    assert [(row.name, row.error) for row in rows if row.error] == []
    assert len({row.variant for row in rows}) > 90
    told = summary(rows)
    assert told.pairs > 100
    assert told.pairs_in_memory == (), f"`codl kernels --for {name}` tells more"


@needs_compiler
def test_private_arrays_and_broken_kernels_are_seen(tmp_path: Path) -> None:
    body = "float a[64]; for (int i = 0; i < n; i++) a[i % 64] = x[i]; x[0] = a[n % 64];"
    sources = {"good": "x[n] = 1.0f;", "private": body, "wrong": "x[n] = nothing;"}
    made = [
        Program(f"{tmp_path} {name}", name, _kernel(text), "-cl-std=CL1.2", ("it",))
        for name, text in sources.items()
    ]
    results = compiler.compile_all(ADRENO, made).results
    good, private, wrong = (results[program.key] for program in made)
    assert (good["error"], private["error"]) == ("", "")
    assert (good["kernels"]["it"]["spills"], good["kernels"]["it"]["private_bytes"]) == (0, 0)
    assert private["kernels"]["it"]["spills"] >= 2
    assert private["kernels"]["it"]["private_bytes"] >= 256
    assert "nothing" in wrong["error"]


def _kernel(body: str) -> str:
    return f"__kernel void it(__global float *x, int n) {{ {body} }}"


def test_who_has_no_compiler_is_told_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(compiler.VARIABLE, str(tmp_path / "nothing"))
    done = command_line.run(tmp_path, "kernels", "--for", "sdm865")
    assert done.code == 1
    assert "`codl kernels --setup`" in " ".join(done.stderr.split())
    done = command_line.run(tmp_path, "kernels", "--for", "geforce")
    assert done.code == 1
    assert "adreno630" in done.stderr


@pytest.mark.parametrize(
    ("tools", "problem"),
    [
        ((), "`apt-get install --no-install-recommends mmdebstrap`"),
        (("mmdebstrap", "apt-get", "unshare", "newuidmap"), "http://127.0.0.1:1/debian"),
    ],
)
def test_a_setup_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tools: tuple[str, ...], problem: str
) -> None:
    monkeypatch.setenv(compiler.VARIABLE, str(tmp_path / "new"))
    monkeypatch.setenv("DEBIAN_MIRROR", "http://127.0.0.1:1/debian")
    monkeypatch.setattr(shutil, "which", lambda name: name if name in tools else None)
    done = command_line.run(tmp_path, "kernels", "--setup")
    assert done.code == 1
    assert problem in " ".join(done.stderr.split())
