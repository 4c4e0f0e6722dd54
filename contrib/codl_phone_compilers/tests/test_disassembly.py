"""What is read of the compilers' listings: counts that were made by hand."""

from __future__ import annotations

import pytest

from codl_phone_compilers.disassembly import READERS

ADRENO = """MESA: info: NIR (final form) for CL shader (null):
impl __wrapped_twice {
}
scratch: 64
Native code for unnamed CL shader (null) with blake3 00
mov.f32f32 r0.x, c0.x
l2:
(sy)mad.f32 r0.x, r0.y, r0.z, r0.x
(rpt1)mad.f32 r1.x, r1.y, r1.z, r1.x
l4:
(nop2) ldp.u32 r2.x, p[0], 1
(rpt3)mad.f32 r1.x, r1.y, r1.z, r1.x
mad.f16 hr1.x, hr1.y, hr1.z, hr1.x
ldg.u32 r3.x, g[r0.x], 4
br p0.y, #l4
br p0.x, #l2
(rpt5)nop
bar.g
stg.u32 g[r0.x], r3.x, 4
end
; CL prog 1/1: 40 instr, 6 nops, 34 non-nops, 1 mov, 0 cov, 80 dwords
; CL prog 1/1: 0 last-baryf, 0 last-helper, 3 half, 12 full, 24 constlen
; CL prog 1/1: 2 sstall, 7 (ss), 3 systall, 2 (sy), 2 loops
; CL prog 1/1: 8 max_waves, 1 double_threadsize
; 10 preamble-instr, 0 early-preamble
"""
BIFROST = """impl __wrapped_twice {
block0 {
   FMA.f32 is no machine code
} from block1
clause_0:
    *FMA.f32 r0, r1, r2, r0
    +NOP t1
clause_1:
    *FMA.v2f16 r0, r1, r2, r0
    +LOAD.i32.tl r4, r5
    *FMA.f32 r0, r1, r2, r0
    +JUMP t1, clause_1
SHADER-DB: MESA_SHADER_KERNEL shader: 8 inst, 4 tuples, 2 clauses, 3.500000 cycles, \
3.5 arith, 0.0 texture, 0.0 vary, 2.0 ldst, 12 quadwords, 2 threads, 0 preloads, 1 loops, \
0:1 spills:fills
"""
VALHALL = """impl __wrapped_twice {
} from block1
   MOV.i32 r0, r1
   FMA.f32 r0, r1, r2, r0
   LOAD.i32.slot0 @r1, thread_local_pointer.w0, offset:0
   BRANCHZ.eq.reconverge 0x0, offset:-3
   NOP.end
SHADER-DB: MESA_SHADER_KERNEL shader: 5 inst, 2.0 cycles, 1.0 fma, 0.5 cvt, 0.0 sfu, 0.0 v, \
0.0 t, 2.0 ls, 16 quadwords, 1 threads, 1 loops, 2:3 spills:fills
"""


@pytest.mark.parametrize(
    ("family", "dump", "counts", "hot"),
    [
        (
            "adreno",
            ADRENO,
            {"instructions": 30, "registers": 12, "half_registers": 3, "private_bytes": 64,
             "spills": 1, "waves": 8, "wave_items": 128, "barriers": 1, "loops": 2},
            {"slots": 10, "macs": 5, "private": 1},
        ),
        (
            "mali",
            BIFROST,
            {"instructions": 8, "registers": 32, "spills": 1, "waves": 2, "loops": 1},
            {"slots": 4, "macs": 3, "private": 1},
        ),
        (
            "mali",
            VALHALL,
            {"instructions": 5, "registers": 64, "spills": 5, "waves": 1, "loops": 1},
            {"slots": 3, "macs": 1, "private": 1},
        ),
    ],
    ids=["Adreno", "Bifrost", "Valhall"],
)  # fmt: skip
def test_listings_are_counted(
    family: str, dump: str, counts: dict[str, int], hot: dict[str, int]
) -> None:
    [(name, figures)] = READERS[family](dump)
    assert name == "twice"
    assert {key: figures[key] for key in counts} == counts
    assert figures["hot"] == hot
