"""OpenVINO, loaded without its usage reports.

`import openvino` reports itself to its maker's analytics, from a process that it starts, where the
package `openvino_telemetry` can be imported; where not, OpenVINO has a stand-in that does nothing.
Its own command to opt out writes to the user's home, and reports that.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

TELEMETRY = "openvino_telemetry"


@contextmanager
def without_reports() -> Iterator[None]:
    """Inside, OpenVINO finds no telemetry package; what was imported before stays."""
    before = {name: module for name, module in sys.modules.items() if name == TELEMETRY}
    sys.modules[TELEMETRY] = None  # type: ignore[assignment]  # so Python marks what is not there
    try:
        yield
    finally:
        del sys.modules[TELEMETRY]
        sys.modules.update(before)


with without_reports():
    import openvino

__all__ = ["openvino", "without_reports"]
