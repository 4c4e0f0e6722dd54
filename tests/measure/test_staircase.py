"""The wave size in staircases that are made up, and the kernel that measures real ones."""

from __future__ import annotations

import numpy as np
import pytest

from codl.errors import DeviceError
from codl.measure.facts import wave_size
from codl.measure.facts.staircase import Staircase, find_wave
from codl.runtime.opencl import OpenClDevice
from codl.runtime.probe import BareDevice

TURN_MS = 0.03


def staircase(
    size: int, *, most: int = 256, noise: float = 0.1, seed: int = 0, crowded: int = 10_000
) -> Staircase:
    """A climb of one turn an item up to `size`, and of hardly anything behind it.

    `noise` is in turns; one sample of twenty is much longer. From `crowded` items on waves wait for
    each other.
    """
    random, items = np.random.default_rng(seed), np.arange(1, most + 1)
    turns = 2 + np.minimum(items, size) + 0.005 * items + 0.7 * np.maximum(items - crowded, 0)
    samples = turns + noise * np.abs(random.standard_normal((9, most)))
    samples += (random.random(samples.shape) < 0.05) * random.exponential(10.0, samples.shape)
    rounds = (TURN_MS * samples).tolist()
    return Staircase(tuple(items.tolist()), tuple(map(tuple, rounds)))


@pytest.mark.parametrize("noise", [0.0, 0.1, 0.3])
@pytest.mark.parametrize("size", [4, 8, 16, 32, 64, 128])
def test_the_wave_is_where_the_climb_ends(size: int, noise: float) -> None:
    assert find_wave(staircase(size, noise=noise, seed=size)).size == size


@pytest.mark.parametrize("size", [32, 64, 128])
def test_large_waves_are_found_in_noise_of_more_than_a_turn(size: int) -> None:
    assert find_wave(staircase(size, noise=3.0)).size == size


@pytest.mark.parametrize(("size", "crowded"), [(8, 24), (16, 48), (32, 128), (64, 192)])
def test_a_second_climb_of_a_crowded_unit_is_none_of_its_wave(size: int, crowded: int) -> None:
    assert find_wave(staircase(size, crowded=crowded)).size == size


def test_a_climb_to_the_end_has_no_step() -> None:
    found = find_wave(staircase(64, most=64))
    assert found.size is None
    assert found.reason == "no step: the latency climbs up to 64 work-items, the most that were " \
        "measured"  # fmt: skip


def test_no_climb_at_all_has_no_step() -> None:
    found = find_wave(staircase(1))
    assert found.size is None
    assert found.reason == "no step: the latency is the same from 1 to 256 work-items"


@pytest.mark.parametrize("seed", range(5))
def test_noise_alone_has_no_step(seed: int) -> None:
    random = np.random.default_rng(seed)
    rounds = random.exponential(1.0, (9, 256)).tolist()
    assert find_wave(Staircase(tuple(range(1, 257)), tuple(map(tuple, rounds)))).size is None


def test_a_knee_that_is_no_power_of_two_is_no_wave() -> None:
    assert find_wave(staircase(48)).size is None


def test_the_climb_of_some_work_items_only_is_enough() -> None:
    whole = staircase(32)
    some = [at for at, items in enumerate(whole.items) if items <= 8 or items % 4 == 0]
    rounds = tuple(tuple(own[at] for at in some) for own in whole.rounds_ms)
    assert find_wave(Staircase(tuple(whole.items[at] for at in some), rounds)).size == 32


def test_the_turns_of_the_kernel_are_computed(gpu: OpenClDevice) -> None:
    turns = wave_size.Turns.on(BareDevice(gpu.device))
    turns.check(3)
    turns.next[:] = np.roll(turns.next, 1)
    with pytest.raises(DeviceError, match="computes the turns of the staircase wrongly"):
        turns.check(3)


def test_a_device_whose_clock_records_nothing_is_named(
    gpu: OpenClDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BareDevice, "run", lambda *arguments: 0.0)
    with pytest.raises(DeviceError, match="16384 dependent loads take 0"):
        wave_size._links(wave_size.Turns.on(BareDevice(gpu.device)))


def test_the_wave_of_a_cpu_is_one_work_item(gpu: OpenClDevice) -> None:
    device = BareDevice(gpu.device)
    if not device.is_cpu:
        pytest.skip("a real GPU's wave is measured")
    fact = wave_size.measure_wave_size(device)
    assert (fact.value, fact.points) == (1, ())
