"""Importing other people's tables: files written here, with simulated numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from codl.cli.app import app
from codl.errors import CodlError, InvalidFileError, MismatchError
from codl.ir import Shape, parse
from codl.ir.ops.convolution import Conv2d
from codl.ir.ops.window import Size2
from codl.ir.records import soc as socs
from codl.measure.dataset import Dataset
from codl_published.importer import Imported, import_tables
from codl_published.mapped_tables import fitted

MAPPINGS = Path(__file__).parents[1] / "mappings"
HEAD = "phone,model,op,ih,iw,ic,oh,ow,oc,kh,kw,stride,cpu1_us,cpu2_us,cpu4_us,gpu_us"
#: Simulated latencies of two phones; the first two lines repeat an op in two networks.
CONVS = f"""{HEAD}
redmi,simulated-a,x,299,299,3,149,149,32,3,3,2,3000,2000,1000,1500
redmi,simulated-b,x,299,299,3,149,149,32,3,3,2,3000,2000,1100,1600
redmi,simulated-b,y,28,28,64,14,14,64,3,3,2,400,300,200,-1
redmi,simulated-b,z,28,28,64,28,28,64,5,3,1,900,500,300,nan
vivo_z3,simulated-a,x,299,299,3,149,149,32,3,3,2,1,2,3,4
"""
TRANSFERS = """phone,shape_nchw,cpu_to_gpu_us,gpu_to_cpu_us
redmi,"1,32,149,149",5000,4000
redmi,"1,1001",50,40
"""


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def written(name: str, text: str) -> Path:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def import_convs(text: str = CONVS, *, soc: str = "redmi", device: str | None = None) -> Imported:
    return import_tables(
        [written("conv_cpu_gpu.csv", text)],
        soc,
        mapping_file=MAPPINGS / "conv_cpu_gpu.yaml",
        device=device,
        root=Path("data"),
        write_soc=True,
    )


def import_other(text: str, mapping: dict[str, object], *, resume: bool = False) -> Imported:
    """With a mapping of its own, as SoC `phone`."""
    path = written("mapping.yaml", yaml.safe_dump(mapping))
    how = {"write_soc": not resume, "resume": resume}
    return import_tables(
        [written("table.csv", text)], "phone", mapping_file=path, root=Path("data"), **how
    )


def test_rows_of_a_phone() -> None:
    done = import_convs()
    assert (done.rows, done.failed, done.soc, done.source) == (16, 2, "redmi", "replayed")
    data = Dataset(Path("data/redmi"))
    rows = data.table("conv2d_cpu_replayed").read()
    assert [row.latency_ms for row in rows] == pytest.approx([1.0, 1.1, 0.2, 0.3])
    assert [row.run for row in rows] == [f"import1/simulated-{run}" for run in "abbb"]
    assert rows[0].op == rows[1].op == rows[0].part
    assert {row.source for row in rows} == {"replayed"}
    threads = data.table("conv2d_cpu_replayed_threads1").read()
    assert [row.latency_ms for row in threads] == pytest.approx([3.0, 3.0, 0.4, 0.9])
    gpu = data.table("conv2d_gpu_replayed").read()
    assert [row.status for row in gpu] == ["ok", "ok", "failed", "failed"]
    assert "no latency" in gpu[2].reason
    ops = [parse(row.op) for row in rows]
    assert [str(op.output) for op in ops[1:]] == ["1x32x149x149", "1x64x14x14", "1x64x28x28"]


def test_the_manifest_says_where_the_rows_come_from() -> None:
    import_convs()
    manifest = Dataset(Path("data/redmi")).manifest()
    run = manifest["runs"]["import1"]
    assert manifest["source"] == "replayed"
    assert manifest["soc"] == socs.load("redmi").to_dict()
    assert manifest["files"]["t_conv2d_gpu_replayed.csv"] == 4
    assert run["tables"][0]["file"] == "conv_cpu_gpu.csv"
    assert len(run["tables"][0]["sha256"]) == 64
    assert run["origin"]["licence"] == "none given"
    assert run["mapping"]["content"]["unit"] == "us"


def test_the_soc_file_comes_from_the_mapping() -> None:
    import_convs()
    soc = socs.load("redmi")
    assert soc.is_replayed
    assert (soc.gpu.name, soc.cpu.threads, soc.gpu.is_cpu) == ("Adreno 506", 4, False)
    with pytest.raises(CodlError, match=r"holds a dataset. Go on with it by --resume"):
        import_convs()
    written(
        "socs/other.yaml",
        yaml.safe_dump(soc.to_dict(), sort_keys=False)
        .replace("Adreno 506", "Mali")
        .replace("redmi", "other"),
    )
    with pytest.raises(CodlError, match=r"describes 'other' otherwise"):
        import_convs(soc="other", device="redmi")


def test_transfers_are_added_and_nothing_twice() -> None:
    import_convs()
    table = written("trans.csv", TRANSFERS)

    def again() -> Imported:
        mapping = MAPPINGS / "data_trans.yaml"
        return import_tables([table], "redmi", mapping_file=mapping, root=Path("data"), resume=True)

    assert again().rows == 4
    rows = Dataset(Path("data/redmi")).table("data_sharing").read()
    found = {(row.direction, row.shape): row.latency_ms for row in rows}
    assert found == {
        ("to_gpu", "1x32x149x149"): 5.0,
        ("to_cpu", "1x32x149x149"): 4.0,
        ("to_gpu", "1x1001x1x1"): pytest.approx(0.05),
        ("to_cpu", "1x1001x1x1"): pytest.approx(0.04),
    }
    assert list(Dataset(Path("data/redmi")).manifest()["runs"]) == ["import1", "import2"]
    with pytest.raises(CodlError, match=r"trans.csv was imported .* before, as import2"):
        again()
    assert len(Dataset(Path("data/redmi")).table("data_sharing").read()) == 4


def test_a_column_for_each_device() -> None:
    head = "model,operation,input_shape,input_channel,output_shape,stride,kernel,filter,group,"
    lines = (
        "CONV_2D,224,3,224,1,1,64,1,320,1013",
        "DEPTHWISE_CONV_2D,31,384,14,2,5,1,1,122,398",
        "CONV_2D_GROUP,112,24,56,2,3,24,3,98,266",
        "MAX_POOL_2D,114,64,56,2,3,-,-,126,351",
        "MEAN,7,1024,1024,-,0,-,-,16,42",
        "FULLY_CONNECTED,-,2048,-,-,-,1000,-,159,478",
        "CONCATENATION,28,64,28,-,4,256,-,42,130",
    )
    table = "\n".join([head + "pixel4_us,mi8se_us", *(f"simulated,{line}" for line in lines)])
    done = import_tables(
        [written("ops.csv", table)],
        "adreno616",
        mapping_file=MAPPINGS / "gpu_ops_tflite.yaml",
        device="mi8se",
        root=Path("data"),
        write_soc=True,
    )
    assert done.rows == 6
    assert done.skipped == {"no op of the mapping is like it": 1}
    data = Dataset(Path("data/adreno616"))
    found = {row.op: row.latency_ms for table in data.tables().values() for row in table.read()}
    assert found == {
        "conv2d in=1x3x224x224 oc=64 kernel=1x1": pytest.approx(1.013),
        "conv2d in=1x384x31x31 oc=384 kernel=5x5 stride=2x2 groups=384": pytest.approx(0.398),
        "conv2d in=1x24x112x112 oc=24 kernel=3x3 stride=2x2 pad=0,0,1,1 groups=3": 0.266,
        "pooling in=1x64x114x114 kernel=3x3 stride=2x2": pytest.approx(0.351),
        "pooling in=1x1024x7x7 mode=avg kernel=7x7": pytest.approx(0.042),
        "fc in=1x2048x1x1 oc=1000": pytest.approx(0.478),
    }


sizes = st.tuples(st.integers(1, 60), st.integers(1, 9), st.integers(1, 4), st.integers(0, 3))


@given(sizes, sizes)
def test_padding_gives_the_output_that_was_measured(
    rows: tuple[int, int, int, int], columns: tuple[int, int, int, int]
) -> None:
    """Any convolution with symmetric padding is found again, in what it computes."""
    (h, kh, sh, ph), (w, kw, sw, pw) = rows, columns
    if min(h + 2 * ph - kh, w + 2 * pw - kw) < 0 or 2 * ph >= kh or 2 * pw >= kw:
        return
    out = Size2((h + 2 * ph - kh) // sh + 1, (w + 2 * pw - kw) // sw + 1)
    kernel, stride = Size2(kh, kw), Size2(sh, sw)
    shape, pad = fitted(Shape(1, 2, h, w), out, kernel=kernel, stride=stride)
    op = Conv2d(inputs=(shape,), out_channels=3, kernel=kernel, stride=stride, pad=pad)
    assert op.out_hw == out
    assert shape.h <= h
    assert shape.w <= w
    if not pad.top + pad.bottom:
        assert (h - kh) // sh + 1 >= out.h
    assert 0 <= pad.bottom - pad.top <= 1


@pytest.mark.parametrize(
    ("size", "out", "kernel", "stride", "expected"),
    [
        (299, 149, 3, 2, (299, 0, 0)),  # VALID
        (28, 28, 3, 1, (28, 1, 1)),  # SAME
        (112, 56, 3, 2, (112, 0, 1)),  # SAME, the odd element behind
        (28, 14, 1, 2, (28, 0, 0)),
        (10, 3, 3, 2, (8, 0, 0)),  # rows that no window reaches
    ],
)
def test_known_paddings(
    size: int, out: int, kernel: int, stride: int, expected: tuple[int, int, int]
) -> None:
    shape, pad = fitted(
        Shape(1, 1, size, size),
        Size2(out, out),
        kernel=Size2(kernel, kernel),
        stride=Size2(stride, stride),
    )
    assert (shape.h, pad.top, pad.bottom) == (shape.w, pad.left, pad.right) == expected


BAD_LINES = [
    (",32,3,3,2,", ",32.5,3,3,2,", r"line 2: oc must be a whole number .* got '32.5'"),
    ("299,299,3,149,149", "299,299,3,600,149", r"line 2: an output of 600 cannot be reached"),
    (",1000,1500", ",fast,1500", r"line 2: cpu4_us must be a latency in us, got 'fast'"),
    (",1000,1500", ",1000", r"line 2: expected 16 values"),
    ("oc,", "channels,", r"line 1: there is no column 'oc'; there are phone, .*The mapping is"),
    ("redmi,", "galaxy,", r"no line has phone = 'redmi'; there are galaxy, vivo_z3"),
]


@pytest.mark.parametrize(("old", "new", "message"), BAD_LINES, ids=[b[2][:30] for b in BAD_LINES])
def test_bad_tables_write_nothing(old: str, new: str, message: str) -> None:
    with pytest.raises(InvalidFileError, match=message):
        import_convs(CONVS.replace(old, new))
    assert [path.name for path in Path().iterdir()] == ["conv_cpu_gpu.csv"]


CONV = {"kind": "conv2d", "in": ["c", "h", "w"], "out": ["c", "h", "w"], "kernel": 1}
GPU = {"column": "t", "processor": "gpu"}
GOOD = {"unit": "s", "ops": [CONV], "latencies": [GPU]}
BAD_MAPPINGS = [
    ({**GOOD, "unit": "ns"}, "unit: must be one of us, ms, s, got 'ns'"),
    ({**GOOD, "units": "s"}, "Unknown key 'units'. Did you mean 'unit'"),
    ({"unit": "s"}, "it maps nothing"),
    ({"unit": "s", "ops": [CONV]}, "ops and latencies belong together"),
    ({**GOOD, "latencies": [{**GPU, "processor": "npu"}]}, "one of cpu, gpu, got 'npu'"),
    ({**GOOD, "latencies": [{**GPU, "threads": 2}]}, "threads must be of .* on the cpu"),
    ({**GOOD, "latencies": [{"processor": "gpu"}]}, r"latencies\[0\].column: the key is missing"),
    ({**GOOD, "ops": [{**CONV, "kind": "conv3d"}]}, r"ops\[0\].kind: must be one of conv2d"),
    ({**GOOD, "ops": [{**CONV, "kind": "pooling"}]}, "mode must be avg or max"),
    ({**GOOD, "ops": [{**CONV, "in": ["c"]}]}, "expected array of length 3"),
    ({**GOOD, "ops": [{k: v for k, v in CONV.items() if k != "out"}]}, "give out"),
    ({**GOOD, "socs": {"phone": {"gpu": {"names": "x"}}}}, "Unknown key 'names'.*'name'"),
]


@pytest.mark.parametrize(
    ("mapping", "message"), BAD_MAPPINGS, ids=[b[1][:24] for b in BAD_MAPPINGS]
)
def test_bad_mappings(mapping: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidFileError, match=message) as caught:
        import_other("c,h,w,t\n1,1,1,1\n", mapping)
    assert "mapping.yaml" in str(caught.value)
    assert not Path("data").exists()


def test_units_filters_and_padding_columns() -> None:
    padded = {k: v for k, v in CONV.items() if k != "kernel"} | {"kernel": 3, "pad": "p"}
    mapping = {**GOOD, "ops": [padded], "where": {"good": ["yes", 1]}}
    done = import_other(
        "c,h,w,p,good,t\n8,7,5,1,yes,0.002\n8,7,5,1,no,1\n8,7,5,1,1,0.004\n", mapping
    )
    assert (done.rows, dict(done.skipped)) == (2, {"the mapping's `where` leaves it out": 1})
    rows = Dataset(Path("data/phone")).table("conv2d_gpu_replayed").read()
    assert [row.latency_ms for row in rows] == pytest.approx([2.0, 4.0])
    assert rows[0].op == "conv2d in=1x8x7x5 oc=8 kernel=3x3 pad=1"
    with pytest.raises(InvalidFileError, match=r"pad gives an output of 1x8x5x3, .* say 1x8x7x5"):
        import_other("c,h,w,p,good,t\n8,7,5,0,yes,0.002\n", mapping, resume=True)


def test_a_measured_soc_takes_no_rows_of_others() -> None:
    import_convs()
    text = Path("socs/redmi.yaml").read_text().replace("source: replayed\n", "")
    written("socs/host.yaml", text.replace("redmi", "host"))
    with pytest.raises(MismatchError, match="whose latencies are measured by codl itself"):
        import_convs(soc="host", device="redmi")
    with pytest.raises(CodlError, match=r"There is no socs/new.yaml: --write-soc makes"):
        import_tables([Path("conv_cpu_gpu.csv")], "new", root=Path("data"))


# The tables of the original CoDL


PARTS = "CNN,COMP,T_FLOPS,SD_PAD,SD_COMP,SD_UNPAD,PDIM,PRATIO,IH,IW,IC,OC,KH,KW,SH,SW,A,B"


def original(name: str, text: str, *, resume: bool = False) -> Dataset:
    how = {"write_soc": not resume, "resume": resume}
    import_tables([written(name, text)], "sdm855", root=Path("data"), **how)
    return Dataset(Path("data/sdm855"))


def test_parts_of_an_op_belong_to_the_whole() -> None:
    """An 8-row output cut to 6 rows (the GPU's share 0.2) and to 24 of 32 channels; simulated."""
    lines = ("1,0.0,10,10,16,32", "1,0.2,8,10,16,32", "4,0.25,10,10,16,24", "1,0.5,30,30,16,32")
    text = "\n".join([PARTS, *(f"NET,2.5,0,0,0,0,{line},3,3,1,1,1,1" for line in lines)])
    data = original("t_conv2d_cpu_direct_20220110.csv", text)
    rows = data.table("conv2d_cpu_replayed").read()
    whole = "conv2d in=1x16x10x10 oc=32 kernel=3x3"
    assert [(row.op, row.dim, row.share) for row in rows[:3]] == [
        (whole, "H", 1.0),
        (whole, "H", 0.8),
        (whole, "OC", 0.75),
    ]
    assert rows[1].part == "conv2d in=1x16x8x10 oc=32 kernel=3x3"
    assert rows[3].op == rows[3].part
    assert {row.latency_ms for row in rows} == {2.5}
    assert {row.run for row in rows} == {"import1/NET"}


def test_blocks_and_products_become_ops() -> None:
    gpu = "CNN,COMP,T_WARP,T_WARP_ICB,SD_COMP,PDIM,PRATIO,OH,OWB,ICB,OCB,KS,S,N_WARP"
    data = original("t_conv2d_gpu_direct.csv", f"{gpu}\nNET,1.5,0,0,0,1,1.0,14,3,4,8,3,2,9\n")
    (row,) = data.table("conv2d_gpu_replayed").read()
    assert str(parse(row.op).output) == "1x32x14x15"
    assert row.op == "conv2d in=1x16x29x31 oc=32 kernel=3x3 stride=2x2"
    gemm = "CNN,PACK_LB,PACK_RB,COMP,SD,PDIM,PRATIO,M,K,N\nNET,0,0.5,2,0,1,0.0,64,32,196\n"
    data = original("t_conv2d_cpu_gemm_1.csv", gemm, resume=True)
    (row,) = data.table("conv2d_cpu_replayed").read()
    assert (row.op, row.latency_ms) == ("conv2d in=1x32x1x196 oc=64 kernel=1x1", 2.5)


def test_data_sharing_of_the_original() -> None:
    head = "T_DT_IN,T_MAP_IN,T_MAP_OUT,T_SYNC,T_UNMAP_IN,T_UNMAP_OUT,T_DT_OUT,T_SYNC_2,"
    text = f"{head}IH,IW,IC,OH,OW,OC,DATA_IN,DATA_OUT\n1,2,3,4,5,6,7,0,8,9,10,4,5,6,720,120\n"
    rows = original("t_data_sharing.csv", text).table("data_sharing").read()
    assert [(r.direction, r.shape, r.latency_ms) for r in rows] == [
        ("to_cpu", "1x10x8x9", 12.0),
        ("to_gpu", "1x6x4x5", 16.0),
    ]
    assert (rows[0].transform_ms, rows[0].sync_ms, rows[1].map_ms) == (1, 4, 3)


def test_lines_with_more_values_than_names() -> None:
    """Deviations and the partition stand between latencies and sizes; the first line names none."""
    head = "T_DT_IN,T_MAP_IN,T_MAP_OUT,T_SYNC,T_UNMAP_IN,T_UNMAP_OUT,T_DT_OUT,T_SYNC_2,"
    line = "1,2,3,4,5,6,7,0,90,91,92,93,94,95,96,97,1,0.5,8,9,10,4,5,6,720,120"
    text = f"{head}IH,IW,IC,OH,OW,OC,DATA_IN,DATA_OUT\n{line}\n"
    rows = original("t_data_sharing.csv", text).table("data_sharing").read()
    assert [(r.direction, r.shape, r.latency_ms) for r in rows] == [
        ("to_cpu", "1x10x8x9", 12.0),
        ("to_gpu", "1x6x4x5", 16.0),
    ]
    head = "CNN,T_OP,IH,IW,IC,OC,KH,KW,SH,SW,DH,DW,FLOPS,PARAMS"
    text = f"{head}\nNET,2.5,3.1,4,0.5,10,10,16,16,3,3,1,1,1,1,9,9\n"
    data = original("t_op_cpu_winograd_20220301.csv", text, resume=True)
    (row,) = data.table("conv2d_cpu_replayed").read()
    assert (row.part, row.dim, row.share) == ("conv2d in=1x16x10x10 oc=16 kernel=3x3", "OC", 0.5)
    bad = f"{head}\nNET,2.5,3.1,1,0,10,10,16,16\n"
    with pytest.raises(InvalidFileError, match="line 2: expected 14 values"):
        original("t_op_cpu_gemm.csv", bad, resume=True)


def test_the_terms_of_winograd_are_one_op() -> None:
    """Tiles of 6x6 outputs have 8x8 points, each a product as long as COMP; simulated."""
    head = (
        "CNN,PAD,TR_IN,TR_OUT,COMP,UNPAD,T_PAD,T_TR_IN,T_COMP,T_TR_OUT,T_UNPAD,SD_PAD,SD_TR_IN,"
        "SD_COMP,SD_TR_OUT,SD_UNPAD,PDIM,PRATIO,IH,IW,IC,OH,OW,OC,PIH,PIW,POH,POW,OT,MAX_IC_THR,"
        "MAX_OC_THR,TOTAL_OT_COUNT,M,K,N,MB,KB,NB,MAX_MB_THR,MAX_NB_THR"
    )
    line = (
        "NET,0.25,1,2,0.125,0,0,0,0,0,0,1,1,1,1,1,1,0.0,"
        "26,26,16,24,24,32,26,26,24,24,6,4,8,16,32,16,16,8,4,8,1,1"
    )
    data = original("t_conv2d_cpu_winograd_combined.csv", f"{head}\n{line}\n")
    (row,) = data.table("conv2d_cpu_replayed").read()
    assert row.op == "conv2d in=1x16x26x26 oc=32 kernel=3x3"
    assert str(parse(row.op).output) == "1x32x24x24"
    assert row.latency_ms == 0.25 + 1 + 64 * 0.125 + 2
    with pytest.raises(InvalidFileError, match="not a table that ops can be made of"):
        original("t_conv2d_cpu_winograd.csv", "CNN,PAD\nNET,1\n", resume=True)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("t_mulayer_conv2d_cpu.csv", "COST,F0\n1,1\n", "the original CoDL has t_conv"),
        ("conv.csv", "a\n1\n", "Any other table needs a mapping"),
        ("t_op_cpu_gemm.csv", "T_OP,IH\n1,1\n", "line 1: there is no column 'IW'"),
        ("t_conv2d_cpu_gemm.csv", "COMP,PACK_LB,PACK_RB,M,K,N\nx,1,1,1,1,1\n", "line 2: COMP must"),
    ],
)
def test_tables_that_are_none_of_the_original(name: str, text: str, message: str) -> None:
    with pytest.raises(InvalidFileError, match=message):
        original(name, text)
    assert not Path("data").exists()


@pytest.mark.parametrize("mapping", ["conv_cpu_gpu", str(MAPPINGS / "conv_cpu_gpu.yaml")])
def test_the_command(mapping: str) -> None:
    table = written("t.csv", CONVS)
    command = ["dataset", "import", str(table), "--soc", "redmi", "--mapping", mapping]
    result = CliRunner().invoke(app, [*command, "--write-soc", "--json"])
    assert result.exit_code == 0
    content = json.loads(result.stdout)
    known = {"rows": 16, "failed": 2, "soc": "redmi", "source": "replayed"}
    assert {key: content[key] for key in known} == known
    info = CliRunner().invoke(app, ["dataset", "info", "--soc", "redmi", "--json"])
    assert json.loads(info.stdout)["source"] == "replayed"


def test_latencies_complete_published_facts() -> None:
    """What is published goes into the replayed SoC; only the rest is what is usual."""
    path = Path("t_conv2d_op_cpu.csv")
    head = "CNN,T_OP,SD_T_OP,PDIM,PRATIO,IH,IW,IC,OC,KH,KW,SH,SW,DH,DW,FLOPS,PARAMS"
    path.write_text(f"{head}\nNET,2.5,1,1,0,10,10,16,32,3,3,1,1,1,1,9,9\n")
    with pytest.raises(CodlError, match=r"kirin990.yaml has only published facts: --write-soc"):
        import_tables([path], "kirin990", root=Path("data"))
    import_tables([path], "kirin990", root=Path("data"), write_soc=True)
    soc = socs.load("kirin990")
    assert soc.is_replayed
    assert (soc.gpu.compute_units, soc.gpu.wave_size, soc.cpu.threads) == (16, 8, 4)
    assert (soc.gpu.name, soc.gpu.driver) == ("Mali-G76 MP16", "unknown")
    assert [cluster.max_mhz for cluster in soc.cpu.clusters] == [1950, 2360, 2860]
    assert "kirin990.yaml" in soc.sources["gpu.wave_size"]
    assert "gpu.driver" not in soc.sources
    assert soc.description == "Kirin 990 5G, replayed from somebody's measurements"
    import_tables([path], "kirin990", root=Path("other"))
