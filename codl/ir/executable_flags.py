"""What an executable says of flags: each has memory of its own, and one command that raises it."""

from __future__ import annotations

from codl.ir.executable import FLAG_BYTES, VERSION, VERSIONS, Executable, Raise
from codl.ir.executable_ops import UnfitError


def check_flags(executable: Executable) -> None:
    """Raise `UnfitError` with what does not hold, and its value."""
    flags = {n: own for n, own in enumerate(executable.buffers) if own.place == "flag"}
    raised = [one.buffer for one in executable.commands if isinstance(one, Raise)]
    if executable.version not in VERSIONS or (flags and executable.version == VERSION):
        raise UnfitError(f"flags in an executable of version {executable.version}")
    if any(isinstance(one, Raise) for one in executable.setup):
        raise UnfitError("a flag that is raised once, in the setup")
    for number, buffer in flags.items():
        if buffer.bytes != FLAG_BYTES:
            raise UnfitError(f"buffers[{number}], a flag of {buffer.bytes} bytes")
    for number in raised:
        if number not in flags or raised.count(number) > 1:
            raise UnfitError(f"buffers[{number}] is raised, which is no flag, or another's")
    for place, tensor in enumerate(executable.tensors):
        if tensor.buffer in flags:
            raise UnfitError(f"tensors[{place}] lies in a flag, buffers[{tensor.buffer}]")
