"""The original CoDL's program measures; here by a double that is a real program."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import sshd
from typer.testing import CliRunner

from codl.cli.app import app
from codl.errors import CodlError, DeviceError, MismatchError
from codl.ir import parse
from codl.ir.records import soc as socs
from codl.measure.collector import Collected
from codl.measure.dataset import Dataset, OpRow
from codl.targets import ssh
from codl_original import collector
from codl_original.collector import shell_of
from codl_original.program import Options, as_run, op_command, read_stat

#: A line as the program prints it, with simulated numbers.
STAT = (
    b"I test/codl_run/conv2d_test_v2.cc:229] "
    b"Stat: si 10, stat [0.0121,3.8125,0.5], std_pect [9.1,-nan,4]\n"
)
CONVS = (
    "conv2d in=1x16x10x10 oc=32 kernel=3x3 pad=1",
    "conv2d in=1x16x10x10 oc=32 kernel=1x1",
    "conv2d in=1x16x9x9 oc=32 kernel=3x3 stride=2 pad=1 act=relu",
)
OTHERS = (
    "pooling in=1x16x8x8 kernel=2 stride=2",
    "pooling in=1x16x8x8 mode=avg kernel=2 stride=2",
    "fc in=1x16x4x4 oc=24",
    "eltwise in=1x16x4x4,1x16x4x4",
    "conv2d in=1x16x10x10 oc=16 kernel=3x3 groups=16",
)


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def program(tmp_path: Path) -> str:
    """The double as a program that can be run."""
    path = tmp_path / "codl op run"  # a name that a shell would take apart
    source = Path(__file__).with_name("codl_op_run_double.py").read_text().splitlines()[1:]
    path.write_text("\n".join([f"#!{sys.executable}", *source]))
    path.chmod(0o755)
    return str(path)


def collect(
    program: str, *ops: str, shares: Sequence[float] = (1.0,), resume: bool = False
) -> tuple[Dataset, Collected]:
    soc, dataset = collector.soc_of("sdm855"), Dataset(Path("data/sdm855"))
    options = Options(program=program)
    tasks = collector.make_tasks(map(parse, ops), soc, options, shares)
    done = collector.collect(
        collector.HERE, dataset, soc, tasks, options, serial="local", resume=resume
    )
    return dataset, done


def rows_of(dataset: Dataset) -> dict[str, list[OpRow]]:
    return {name: table.read() for name, table in dataset.tables().items()}


def test_a_recorded_line() -> None:
    stat = read_stat(b"I a.cc:1] Round 0, latency 5 ms\n" + STAT)
    assert stat.parts_ms == (0.0121, 3.8125, 0.5)
    assert stat.latency_ms == pytest.approx(4.3246)
    assert stat.rounds_ms == ()
    assert read_stat(STAT.replace(b"\n", b"\r\n")).parts_ms == stat.parts_ms


def test_rounds_that_count() -> None:
    lines = [f"I mace/utils/op_delay_tool.h:147] [{n},1,1]\n" for n in range(21)]
    stat = read_stat("".join([*lines, "I b.cc:2] [1,2]\n"]).encode() + STAT)
    assert stat.rounds_ms == tuple(n + 2.0 for n in range(10, 21))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b"Stat:", b"Sta:", "no line that begins with Stat:; its last line is 'I test"),
        (b"[0.0121,3.8125,0.5]", b"", "measured nothing"),
        (b"3.8125", b"nan", "are no latencies"),
        (b"3.8125", b"-5", "are no latencies"),
        (b"3.8125", b"inf", "are no latencies"),
        (b"0.0121,3.8125,0.5", b"0,0,0", "are no latencies"),
        (b"3.8125", b"x", "expected numbers such as"),
        (b"[0.0121", b"0.0121", "expected numbers such as"),
        (STAT, STAT + STAT, "2 lines of Stat:"),
        (STAT, b"", "no line that begins"),
    ],
)
def test_lines_that_are_no_latency(old: bytes, new: bytes, message: str) -> None:
    with pytest.raises(DeviceError, match=message):
        read_stat(STAT.replace(old, new))


@given(st.binary(max_size=300), st.integers(0, len(STAT)))
def test_any_output_is_a_latency_or_an_error(noise: bytes, at: int) -> None:
    try:
        stat = read_stat(STAT[:at] + noise + STAT[at:])
    except DeviceError:
        return
    assert 0 < stat.latency_ms < float("inf")


def test_command_of_a_convolution() -> None:
    """One that the original's documents show: 416 columns padded to 418, on the CPU."""
    op = as_run(parse("conv2d in=1x3x416x416 oc=32 kernel=3x3 pad=1"))
    assert op is not None
    assert op == parse("conv2d in=1x3x418x418 oc=32 kernel=3x3")
    command = op_command(op, "cpu", Options(program="/p", memory_type="buffer"))
    assert command[0] == "env"
    assert " ".join(command[command.index("/p") :]) == (
        "/p --compute --cpu_affinity_policy=1 --rounds=21 --gpu_memory_type=1 --num_threads=4 "
        "--part_dim=1 --part_ratio=0.000000 --cu_hint=1 --op_type=Conv2D "
        "--input_shape=1,418,418,3 --weight_shape=32,3,3,3 --strides=1,1"
    )


def test_commands_of_other_ops() -> None:
    pool = parse("pooling in=1x16x8x8 mode=avg kernel=2 stride=2")
    command = op_command(pool, "gpu", Options())
    assert {"MACE_OPENCL_PROFILING=1", "MACE_DURATION_COLLECT_GRANULARITY=Fine"} <= set(command)
    assert {"--cu_hint=2", "--part_ratio=1.000000", "--num_threads=1"} <= set(command)
    assert " ".join(command[-5:]) == (
        "--op_type=Pooling --input_shape=1,8,8,16 --weight_shape=16,16,2,2 --strides=2,2 "
        "--pooling_type=1"
    )
    command = op_command(parse("fc in=1x16x4x5 oc=24"), "cpu", Options())
    assert command[-2:] == ("--input_shape=1,4,5,16", "--weight_shape=24,16,4,5")


def test_rows_have_the_kernels_own_names(
    program: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DOUBLE_LOG", str(tmp_path / "log"))
    dataset, done = collect(program, *CONVS, *OTHERS)
    rows = rows_of(dataset)
    assert " ".join(sorted(rows)) == (
        "conv2d_cpu_mace_direct conv2d_cpu_mace_gemm conv2d_cpu_mace_winograd "
        "conv2d_gpu_mace_image fc_cpu_mace_gemv fc_gpu_mace_image pooling_cpu_mace_direct_avg "
        "pooling_cpu_mace_direct_max pooling_gpu_mace_image_avg pooling_gpu_mace_image_max"
    )
    assert (done.rows, done.failed, done.left, done.stopped) == (12, 0, 0, "done")
    every = [row for own in rows.values() for row in own]
    assert {row.source for row in every} == {"replayed"}
    (winograd,) = rows["conv2d_cpu_mace_winograd"]
    assert winograd.part == "conv2d in=1x16x12x12 oc=32 kernel=3x3"
    assert (winograd.latency_ms, winograd.runs) == (4.875, 11)
    assert winograd.p20_ms == pytest.approx(4.875 * 1.02)
    assert winograd.p80_ms == pytest.approx(4.875 * 1.08)
    (direct,) = rows["conv2d_cpu_mace_direct"]
    assert direct.part == "conv2d in=1x16x11x11 oc=32 kernel=3x3 stride=2x2"
    (pool,) = rows["pooling_cpu_mace_direct_max"]
    assert (direct.latency_ms, pool.latency_ms) == (3.75, 2.5)
    log = (tmp_path / "log").read_text()
    assert "MACE_DURATION_COLLECT_GRANULARITY=Fine" in log
    assert "--num_threads=4" in log
    manifest = dataset.manifest()
    assert manifest["source"] == "replayed"
    assert manifest["runs"]["run1"]["runner"] == "codl_op_run"
    assert manifest["runs"]["run1"]["protocol"]["rounds"] == 21


def test_parts_and_resuming(program: str) -> None:
    dataset, first = collect(program, CONVS[0])
    with pytest.raises(CodlError, match="--resume"):
        collect(program, CONVS[0])
    dataset, second = collect(program, CONVS[0], shares=(0.5, 1.0), resume=True)
    assert (first.rows, second.rows, second.skipped) == (2, 4, 2)
    rows = rows_of(dataset)["conv2d_gpu_mace_image"]
    whole = "conv2d in=1x16x12x12 oc=32 kernel=3x3"
    kinds = {(row.op, row.dim, row.share) for row in rows}
    assert kinds == {(whole, "H", 1.0), (whole, "H", 0.5), (whole, "OC", 0.5)}
    assert "conv2d in=1x16x7x12 oc=32 kernel=3x3" in {row.part for row in rows}


def test_failures_are_rows(program: str) -> None:
    convs = [f"conv2d in=1x16x11x{w} oc=32 kernel=3x3" for w in (13, 14, 15)]
    dataset, done = collect(program, *convs)
    assert (done.rows, done.failed) == (6, 6)
    rows = {row.part: row for row in rows_of(dataset)["conv2d_cpu_mace_winograd"]}
    reasons = [rows[conv].reason for conv in convs]
    assert "ended with code 134: F mace/core/runtime/opencl" in reasons[0]
    assert "measured nothing" in reasons[1]
    assert "cpu_mace_winograd has 5 parts and the program printed 6" in reasons[2]
    assert {row.latency_ms for row in rows.values()} == {0.0}


class GoesAway:
    """A device whose cable is pulled after some commands."""

    def __init__(self, commands: int) -> None:
        self.left = commands

    def run(self, arguments: Sequence[str], *, stdin: bytes = b"", limit_s: float = 60.0) -> bytes:
        self.left -= 1
        if self.left < 0:
            raise DeviceError("device '3a9c4f5' not found.")
        return collector.HERE.run(arguments, stdin=stdin, limit_s=limit_s)


def test_a_device_that_goes_away_writes_no_row(program: str) -> None:
    soc, dataset = collector.soc_of("sdm855"), Dataset(Path("data/sdm855"))
    options = Options(program=program)
    tasks = collector.make_tasks(map(parse, CONVS), soc, options, [1.0])
    with pytest.raises(DeviceError, match=r"not found.*--resume goes on"):
        collector.collect(GoesAway(2), dataset, soc, tasks, options, serial="3a9c4f5")
    kept = [row for own in rows_of(dataset).values() for row in own]
    assert [row.status for row in kept] == ["ok", "ok"]
    done = collector.collect(
        collector.HERE, dataset, soc, tasks, options, serial="3a9c4f5", resume=True
    )
    assert (done.rows, done.skipped, done.left) == (4, 2, 0)


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("")
    for path in ("/no/where", str(plain)):
        with pytest.raises(DeviceError, match=rf"no program '{path}' on 'local'.*--program"):
            collector.check_program(collector.HERE, path, "local")
        command = ["collect-original", "--soc", "sdm855", "--program", path]
        assert CliRunner().invoke(app, command).exit_code == 1
    assert not Path("socs").exists()
    with pytest.raises(DeviceError, match="not found"):
        collector.check_program(GoesAway(0), "/no/where", "3a9c4f5")


@pytest.mark.skipif(sshd.SERVER is None, reason="there is no sshd")
def test_over_a_devices_shell(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program's path, which has spaces, and its arguments arrive as they are."""
    folder = tmp_path / "ssh"
    folder.mkdir()
    with sshd.serving(folder) as server:
        monkeypatch.setenv(ssh.VARIABLE, server.client)
        serial = server.serial
        shell = shell_of(serial)
        collector.check_program(shell, program, serial)
        soc, options = collector.soc_of("sdm855"), Options(program=program)
        task, *_ = collector.make_tasks(map(parse, CONVS), soc, options, [1.0])
        assert collector.measured(shell, task, options, run="run1").status == "ok"


def test_socs_are_not_mixed(program: str) -> None:
    """A SoC with published facts is completed; one of codl's own kernels takes no such rows."""
    soc = collector.soc_of("sdm855")
    assert soc.is_replayed
    assert (soc.gpu.compute_units, soc.cpu.threads) == (2, 4)
    assert collector.soc_of("sdm855") == socs.load("sdm855") == soc
    text = Path("socs/sdm855.yaml").read_text().replace("source: replayed\n", "")
    Path("socs/mine.yaml").write_text(text.replace("sdm855", "mine"))
    with pytest.raises(MismatchError, match=r"mine.yaml describes a SoC of codl's own kernels"):
        collector.soc_of("mine")


def run(*arguments: str) -> dict[str, object]:
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    content: dict[str, object] = json.loads(result.stdout)
    return content


def test_from_the_program_to_a_plan(program: str) -> None:
    """Rows are collected, predictors trained on them, and a plan is made of named kernels."""
    Path("ops.csv").write_text("op\n" + "\n".join(f'"{conv}"' for conv in (*CONVS, OTHERS[0])))
    command = ["collect-original", "--soc", "sdm855", "--program", program]
    done = run(*command, "--ops", "ops.csv", "--shares", "0.5,1")
    assert (done["failed"], done["left"]) == (0, 0)
    trained = run("train", "--soc", "sdm855", "--predictor", "codl_linear")
    names = {own["name"] for own in trained["predictors"]}  # type: ignore[attr-defined]
    assert names == {"codl_linear"}
    plan = run("search", "op_chain", "--soc", "sdm855", "--predictor", "codl_linear")
    chains = plan["chains"]
    assert isinstance(chains, list)
    assert "mace_" in json.dumps(chains)
