"""What features of attention count, against the loops of the kernels gone through one by one."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from support.random_ops import attentions
from support.simulated import SOC as SIMULATED

from codl.ir.ops.matmul import Attention
from codl.kernels.attention import GpuDirect

V, PANEL = 16, 32
GPU = replace(
    SIMULATED.gpu,
    type="cpu",
    compute_units=1,
    max_work_group_size=4096,
    wave_size=1,
    vector_width=V,
    global_mem_cache_size=1 << 20,
    local_mem_bytes=1 << 18,
)
SOC = replace(SIMULATED, gpu=GPU)


def counted(op: Attention, rows: int, block: int, strip: int) -> Counter[str]:
    """What gpu_direct.cl does for a head."""
    found: Counter[str] = Counter()
    features, values = op.shapes[0][3], op.shapes[2][3]
    for begin in range(0, op.queries, strip):
        stop = min(begin + strip, op.queries)
        last = min(op.keys, op.first + stop) if op.causal else op.keys
        found["packed"] += last
        for row in range(begin, stop, rows):
            visible = op.first + min(row + rows, op.queries) if op.causal else op.keys
            for start in range(0, min(visible, op.keys), block):
                seen = min(block, op.keys - start, visible - start)
                found["row_blocks"] += rows
                found["powers"] += rows * -(-seen // V) * V
                macs = -(-seen // PANEL) * PANEL * features
                for column in range(0, values, PANEL):
                    width = min(values - column, PANEL)
                    if width in (V, PANEL):
                        macs += seen * width
                    else:
                        macs += seen * PANEL
                        found["partial_macs"] += rows * seen * PANEL
                found["padded_macs"] += rows * macs
    return found


@given(op=attentions())
@settings(max_examples=60)
def test_direct_attention_is_counted_tile_by_tile_and_block_by_block(op: Attention) -> None:
    variant = GpuDirect()
    choice = variant.choices(op, SOC)[0]
    strip = next(a for a in variant.plan(op, SOC).launches[0].args if isinstance(a, int))
    wanted = counted(op, choice["rows"], choice["keys"], strip)
    found = variant.features(op, SOC)
    per_key = 4 * (op.shapes[0][3] + op.shapes[2][3])
    # What a causal mask cuts off is known in the mean.
    near = 0.25 if op.causal else 1e-9
    slack = op.heads * 2 * choice["rows"] * PANEL * op.shapes[0][3] if op.causal else 0
    for name in ("padded_macs", "partial_macs", "powers", "row_blocks"):
        assert found[name] == pytest.approx(op.heads * wanted[name], rel=near, abs=slack), name
    packed = op.heads * wanted["packed"] * per_key
    assert found["packed_bytes"] == pytest.approx(packed, rel=near)
