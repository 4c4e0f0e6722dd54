"""Loading of a bundle as an engine."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from math import prod
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import msgspec
from numpy.typing import NDArray

from codl import yaml_file
from codl.bundle.archive import (
    CONSTANTS,
    EXECUTABLE,
    FIX,
    REFERENCE,
    Archive,
    network_from_json,
    read_arrays,
)
from codl.engine.engine import Engine
from codl.errors import CodlError, CodlWarning, DeviceError, MismatchError, WrongResultError
from codl.evaluation.closeness import Closeness, closeness, is_right, worst
from codl.ir import Network
from codl.ir.constants import array_digest, digest
from codl.ir.executable import Executable
from codl.ir.executable_json import decode
from codl.ir.plan import read_plan
from codl.records import soc as socs
from codl.records.results import Checked
from codl.runtime.placement import LocalSoc, Placement
from codl.runtime.program_cache import Binary, Offer
from codl.targets.local import LocalTarget
from codl.validate import verdicts

if TYPE_CHECKING:
    from codl.targets.base import Target

#: Facts of a SoC that a bundle does not depend on; nor does it on where the SoC is.
FREE = {"description", "power_w", "cpu.name", "cpu.threads", "gpu.driver"} | {
    "gpu.element",
    "gpu.arithmetic",
}


class _Reference(msgspec.Struct, frozen=True):
    """What the manifest says of outputs to compare with; arrays are known by their digests."""

    header: str
    cosine: float
    limit: float
    inputs: dict[str, str]
    outputs: dict[str, str]


def load(
    path: str | Path,
    *,
    soc: LocalSoc | None = None,
    connected: Callable[[LocalSoc], Target] = LocalTarget,
    trusted: bool = False,
    check: bool = True,
) -> Engine:
    """Make an engine of a bundle: nothing is imported, searched for or compiled.

    `soc` is the SoC to run on, if not as the bundle has it: with other cores, threads or hints;
    `connected` gives its target, by default this process.
    Where the driver is another one than the kernels were compiled with, they are compiled from
    source, with a `CodlWarning`. To `check` it, its outputs are compared with those that it brings,
    once on each device and driver. Raises `InvalidFileError` for a file that is damaged or no
    bundle, `MismatchError` where it is for another SoC, or where this user has not written it on
    this machine and it is not `trusted`, and `WrongResultError` where outputs differ.

    >>> engine = codl.load("model.codl")
    >>> y = engine(x)
    """
    archive = Archive(Path(path))
    if not (trusted or archive.is_own):
        raise MismatchError(
            f"{archive.path} was not written by this user on this machine, and what is in a bundle "
            "may read and write any memory of the process. Package the model here; or, if you "
            "trust whoever wrote it as you would a library, load it by `trusted=True`, or --trust."
        )
    with _readable(archive):
        recorded = soc_of(archive)
        plan = read_plan(archive.json("plan.json"), archive.path)
        network = network_from_json(archive.json("network.json"), archive.path)
        network = replace(network, content=str(archive.manifest.get("content", "")))
        compiled_for = msgspec.convert(archive.manifest["device"], dict[str, str])
        offer = Offer(compiled_for, _binaries(archive))
    chosen = recorded if soc is None else _checked(recorded, soc, archive)
    target = connected(chosen)
    identity = _open(target, offer, archive)
    is_same_driver = dict(offer.identity) == identity
    if not is_same_driver:
        _warn_of_driver(identity, archive)
    with archive.checking(CONSTANTS) as data:
        executable = _executable(archive, data)
        _check_ports(executable, network, archive)
        with _explained(archive):
            loaded = target.load(executable, tries=not is_same_driver)
    engine = Engine.of(loaded, network, plan, chosen)
    if check and not compare(engine, archive, target) and not (is_same_driver and archive.is_own):
        _warn(f"{archive.path} brings no outputs to compare with: nothing was compared.")
    return engine


def compare(engine: Engine, archive: Archive, target: Target) -> bool:
    """Compare an engine's outputs with those of its bundle, unless that was done here before.

    False where it has none. Raises `WrongResultError` where they differ, and closes the engine.
    """
    reference = archive.manifest.get("reference")
    if not reference:
        return False
    model = digest({"parts": archive.manifest["parts"]})
    slot, begin = verdicts.slot_of(model, [engine.executable], target), perf_counter()
    engine.checked = verdicts.load(slot)
    if engine.checked is not None:
        return True
    try:
        close, wanted = _compared(engine, reference, archive)
    except BaseException:
        engine.close()
        raise
    if not is_right(close, wanted.cosine, wanted.limit):
        engine.close()
        raise WrongResultError(
            f"{archive.path}: on this device its outputs are not those that were right where it "
            f"was made (cosine {close.cosine:.6f}, off by {close.max_rel_err:.2g} of the largest "
            "value). Package the model here, where other kernels stand in for what is wrong; "
            "--no-check, or check=False, runs it as it is."
        )
    engine.checked = Checked("the bundle's", close.cosine, close.max_rel_err, limit=wanted.limit)
    verdicts.store(slot, engine.checked)
    engine.checked = replace(engine.checked, ms=1e3 * (perf_counter() - begin))
    return True


def _compared(engine: Engine, content: Any, archive: Archive) -> tuple[Closeness, _Reference]:
    """How close outputs are to those of the bundle, and how close they should be."""
    with _readable(archive):
        wanted = msgspec.convert(content, _Reference)
        get = _of(read_arrays(archive.part(REFERENCE), wanted.header))
    got = engine({name: get(key) for name, key in wanted.inputs.items()})
    with _readable(archive):
        return worst(closeness(got[k], get(key)) for k, key in wanted.outputs.items()), wanted


def soc_of(archive: Archive) -> LocalSoc:
    """The SoC that a bundle was made for, and where; raises `InvalidFileError` if it has none."""
    with _readable(archive):
        placement = yaml_file.convert(archive.manifest["placement"], Placement, archive.path)
        return LocalSoc.of(socs.from_dict(archive.manifest["soc"], archive.path), placement)


def _executable(archive: Archive, constants: memoryview) -> Executable:
    """The executable; raises `InvalidFileError` where it is not sound, or of another version."""
    with _readable(archive):
        arrays = read_arrays(constants, archive.manifest["constants_header"])
    text = bytes(archive.text(EXECUTABLE))
    try:
        return decode(text, _of(arrays))
    except MismatchError:
        raise
    except CodlError as error:
        archive.refuse(f"{EXECUTABLE}: {error}", FIX)


def _check_ports(executable: Executable, network: Network, archive: Archive) -> None:
    """The network says of the inputs what the executable has."""
    said = {name: shape.elements for name, shape in network.inputs.items()}
    actual = {name: prod(port.shape) for name, port in executable.inputs.items()}
    if said != actual or set(network.outputs) != set(executable.outputs):
        archive.refuse("network.json and executable.json are of different networks.", FIX)


def _binaries(archive: Archive) -> tuple[Binary, ...]:
    """Drivers may crash on a binary that is damaged: all are checked before one is used."""
    return tuple(
        Binary(row["name"], row["source"], row["options"], bytes(archive.part(row["part"])))
        for row in msgspec.convert(archive.json("programs.json"), list[dict[str, str]])
    )


def _of(arrays: Mapping[str, NDArray[Any]]) -> Callable[[str], NDArray[Any]]:
    """Arrays by their digests.

    Integers are looked at before they are used: tables of offsets lead kernels through memory, and
    a changed one must not run before the sum of the whole part is known.
    """

    def get(digest: str) -> NDArray[Any]:
        if digest not in arrays:
            raise CodlError(f"There is no array {digest[:64]!r} in {CONSTANTS}.")
        array = arrays[digest]
        if array.dtype.kind in "iu" and array_digest(array) != digest:
            raise CodlError(f"The array {digest!r} in {CONSTANTS} is damaged.")
        return array

    return get


def _warn_of_driver(now: Mapping[str, str], archive: Archive) -> None:
    then = archive.manifest["device"]
    changed = ", ".join(
        f"{key} {then.get(key)!r} (now {now[key]!r})" for key in now if then.get(key) != now[key]
    )
    _warn(
        f"{archive.path}: the kernels were compiled for {changed}. They are compiled from source; "
        "package the model again to spare that."
    )


def _open(target: Target, offer: Offer, archive: Archive) -> dict[str, str]:
    """The identity of the device; raises `MismatchError` where the target does not have the SoC."""
    soc = target.soc
    try:
        return dict(target.open(offer))
    except CodlError as error:
        raise MismatchError(
            f"{archive.path} is for the SoC {soc.name!r} ({soc.cpu.name}, and {soc.gpu.name} by "
            f"{soc.gpu.platform}), which is not here: {error} Package the model for a SoC of this "
            "machine."
        ) from error


def _checked(recorded: LocalSoc, wanted: LocalSoc, archive: Archive) -> LocalSoc:
    """`wanted`, unless the bundle is for another SoC."""
    theirs, ours = _facts(recorded), _facts(wanted)
    changed = [
        f"{key} is {ours[key]!r}, not {theirs[key]!r}" for key in theirs if theirs[key] != ours[key]
    ]
    if changed:
        raise MismatchError(
            f"{archive.path} is for the SoC {recorded.name!r}, and the one given is another: "
            f"{'; '.join(changed)}. `codl package MODEL --soc {wanted.name}` makes one for it."
        )
    return wanted


def _facts(soc: LocalSoc) -> dict[str, Any]:
    sides = {"cpu": asdict(soc.cpu), "gpu": asdict(soc.gpu)}
    inner = {
        f"{side}.{key}": value for side, facts in sides.items() for key, value in facts.items()
    }
    outer = {"name": soc.name, "source": soc.source}
    return {key: value for key, value in (outer | inner).items() if key not in FREE}


@contextmanager
def _readable(archive: Archive) -> Iterator[None]:
    """What is wrong with JSON whose checksum is right: somebody else wrote it."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        archive.refuse(f"its content cannot be read ({error!r}).", FIX)


@contextmanager
def _explained(archive: Archive) -> Iterator[None]:
    try:
        yield
    except DeviceError as error:
        raise DeviceError(
            f"{archive.path} cannot run here: {error} A bundle has the kernels of one variant of "
            "a layer alone: package the model again, so that another one is taken."
        ) from error


def _warn(text: str) -> None:
    warnings.warn(text, CodlWarning, stacklevel=4)
