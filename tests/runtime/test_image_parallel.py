"""Images of a batch side by side on the CPU."""

from __future__ import annotations

import os
from dataclasses import replace
from threading import Barrier, get_ident

import numpy as np
import pytest
from support.kernel_runs import assert_close, cut, operands, reference, run_cpu
from support.some import some

from codl.ir import Region, Span, parse
from codl.kernels import registry
from codl.machine.placement import LocalSoc
from codl.machine.threads import ImageParallel
from codl.runtime.actions import WORTH_SHARING, copy_in_parts


def lanes_of(soc: LocalSoc, images: int) -> ImageParallel:
    return ImageParallel.of(soc.placement.cpu_cores, soc.placement.threads, images)


@pytest.fixture
def wide(first_soc: LocalSoc) -> LocalSoc:
    """As if the CPU side had four cores; they are this machine's, in turns."""
    cores = sorted(os.sched_getaffinity(0))
    return replace(
        first_soc, placement=replace(first_soc.placement, cpu_cores=tuple(cores * 4)[:4])
    )


@pytest.mark.parametrize(
    ("images", "lanes", "threads"), [(1, 1, 4), (2, 2, 2), (3, 3, 1), (4, 4, 1), (9, 4, 1)]
)
def test_lanes_share_the_threads(images: int, lanes: int, threads: int, wide: LocalSoc) -> None:
    found = lanes_of(wide, images)
    assert (found.count, found.threads) == (lanes, threads)


def test_items_come_back_in_order_from_lanes_that_run_at_once(wide: LocalSoc) -> None:
    meet, seen = Barrier(3, timeout=10), set()

    def work(item: int) -> int:
        if item < 3:  # each waits for the others, so they must be under way together
            meet.wait()
            seen.add(get_ident())
        return item * item

    assert lanes_of(wide, 3).each(work, range(7)) == [n * n for n in range(7)]
    assert len(seen) == 3
    assert get_ident() in seen, "the calling thread is a lane"


@pytest.mark.parametrize("wrong", [0, 5])
def test_an_error_ends_all_lanes_and_is_raised(wrong: int, wide: LocalSoc) -> None:
    def work(item: int) -> None:
        if item == wrong:
            raise ValueError(f"item {item}")

    with pytest.raises(ValueError, match=f"item {wrong}"):
        lanes_of(wide, 6).each(work, range(6))
    assert lanes_of(wide, 6).each(str, range(2)) == ["0", "1"]


@pytest.mark.parametrize(
    "text",
    [
        "conv2d in=5x20x11x9 oc=24 kernel=3 pad=1 act=relu",
        "pooling in=5x20x11x9 kernel=3 stride=2",
        "fc in=5x20x3x3 oc=10",
        "eltwise in=5x20x7x9,1x20x7x9",
    ],
)
def test_a_batch_side_by_side_is_what_the_reference_computes(text: str, wide: LocalSoc) -> None:
    op = parse(text)
    inputs, weights = operands(op)
    part = Region.whole(op.output)._replace(images=Span(1, 5))
    expected = cut(reference(op, inputs, weights), part)
    for variant in some(registry.variants(op.restrict(part), "cpu", wide)):
        got = run_cpu(variant, op, part, inputs, weights, wide)
        assert_close(variant, op.restrict(part), got, expected)
        assert np.isfinite(got).all()


@pytest.mark.parametrize("elements", [100, WORTH_SHARING // 4])
def test_images_are_copied_to_where_they_belong(elements: int, wide: LocalSoc) -> None:
    """Between parts of larger arrays, as homes are, by one thread and by several."""
    source = np.arange(5 * 2 * elements, dtype=np.float32).reshape(5, 2, elements)
    target = np.zeros((5, 3, elements), np.float32)
    copy_in_parts(replace(lanes_of(wide, 5), count=3), target[:, 1:], source)
    np.testing.assert_array_equal(target[:, 1:], source)
    assert not target[:, 0].any()
