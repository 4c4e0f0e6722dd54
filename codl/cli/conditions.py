"""Options that keep a device's conditions under control while it measures."""

from __future__ import annotations

from typing import Annotated

import typer

from codl.cli.base_options import duration, positive, read_seconds
from codl.cli.output import note, warn
from codl.measure.cool_down import HOT_C, LONGEST_S, CoolDown
from codl.targets.base import Target

GovernorOption = Annotated[
    str | None,
    typer.Option(
        "--governor",
        help="Let this governor choose the clocks, such as performance, where the device permits "
        "that; the former one is put back afterwards. By default it is left alone.",
        show_default=False,
    ),
]
CoolDownOption = Annotated[
    str,
    typer.Option(
        "--cool-down",
        callback=duration,
        help="How long to pause at most, each time that the device is hot or throttled; 0 for no "
        "pauses.",
    ),
]
HotOption = Annotated[
    float,
    typer.Option(
        "--hot",
        callback=positive,
        help="From how many degrees Celsius on its processors are hot.",
    ),
]
#: As they are given.
COOL_DOWN = f"{LONGEST_S:.0f}s"


def control(target: Target, governor: str | None, cool_down: str, hot: float = HOT_C) -> CoolDown:
    """Set what is asked for, with a warning about what is refused; what waits for a hot device."""
    longest_s = read_seconds(cool_down)
    assert longest_s is not None
    if governor is not None:
        for place, reason in target.set_governor(governor).refused.items():
            warn(
                f"The governor {governor!r} is not set for {place}: {reason}. Rows say which "
                "clocks they were measured at."
            )
    return CoolDown(target.conditions, note, hot_c=hot, longest_s=longest_s)
