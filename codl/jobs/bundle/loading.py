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

from codl.engine.engine import Engine
from codl.errors import CodlError, CodlWarning, DeviceError, MismatchError, WrongResultError
from codl.ir import Network, yaml_file
from codl.ir.constants import array_digest, digest
from codl.ir.executable import Executable
from codl.ir.executable_json import decode
from codl.ir.plan import read_plan
from codl.ir.records import soc as socs
from codl.ir.records.results import Checked
from codl.ir.types import PROCESSORS
from codl.jobs.bundle.archive import (
    CONSTANTS,
    EXECUTABLE,
    REFERENCE,
    Archive,
    network_from_json,
    read_arrays,
)
from codl.machine.placement import LocalSoc, Placement
from codl.measure.closeness import Closeness, closeness, is_right, worst
from codl.runtime.loaded import Binary, Offer
from codl.targets.local import LocalTarget
from codl.validate import verdicts

if TYPE_CHECKING:
    from codl.targets.base import Target

#: Facts of a SoC that may differ from the bundle's, as may its placement.
FREE = (
    *("description", "power_w", "cpu.name", "cpu.threads"),
    *("gpu.driver", "gpu.element", "gpu.arithmetic"),
)


class _Reference(msgspec.Struct, frozen=True):
    """Reference inputs and outputs in the manifest, as digests of arrays by name."""

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
    """Make an engine of a bundle, without import, search or compilation.

    `soc` replaces the bundle's SoC, with other cores, threads or hints. `connected` makes its
    target, by default in this process. Under another driver, kernels are compiled from source, with
    a `CodlWarning`. With `check`, outputs are compared with the bundle's reference, once for each
    device and driver.

    Raises `InvalidFileError` for a damaged file or no bundle, and `WrongResultError` where outputs
    differ. Raises `MismatchError` for another SoC, or for a stranger's bundle without `trusted`.

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
        try:
            loaded = target.load(executable, tries=not is_same_driver)
        except DeviceError as error:
            raise DeviceError(
                f"{archive.path} cannot run here: {error} A bundle has the kernels of one variant "
                "of a layer alone: package the model again, so that another one is taken."
            ) from error
    engine = Engine.of(loaded, network, plan, chosen)
    if check and not compare(engine, archive, target) and not (is_same_driver and archive.is_own):
        _warn(f"{archive.path} brings no outputs to compare with: nothing was compared.")
    return engine


def compare(engine: Engine, archive: Archive, target: Target) -> bool:
    """Compare an engine's outputs with its bundle's reference; False without a reference.

    A recorded verdict of this device is reused. Raises `WrongResultError` and closes the engine
    where outputs differ.
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
    """Closeness of the engine's outputs to the reference, and the reference with its limits."""
    with _readable(archive):
        wanted = msgspec.convert(content, _Reference)
        get = _of(read_arrays(archive.part(REFERENCE), wanted.header))
    got = engine({name: get(key) for name, key in wanted.inputs.items()})
    with _readable(archive):
        return worst(closeness(got[k], get(key)) for k, key in wanted.outputs.items()), wanted


def soc_of(archive: Archive) -> LocalSoc:
    """A bundle's SoC with its placement; raises `InvalidFileError` where the manifest has none."""
    with _readable(archive):
        placement = yaml_file.convert(archive.manifest["placement"], Placement, archive.path)
        return LocalSoc.of(socs.from_dict(archive.manifest["soc"], archive.path), placement)


def _executable(archive: Archive, constants: memoryview) -> Executable:
    """The executable; raises `InvalidFileError` for an unsound one, `MismatchError` by version."""
    with _readable(archive):
        arrays = read_arrays(constants, archive.manifest["constants_header"])
    text = bytes(archive.text(EXECUTABLE))
    try:
        return decode(text, _of(arrays))
    except MismatchError:
        raise
    except CodlError as error:
        archive.refuse(f"{EXECUTABLE}: {error}")


def _check_ports(executable: Executable, network: Network, archive: Archive) -> None:
    """Refuse a network whose inputs or outputs differ from the executable's."""
    said = {name: shape.elements for name, shape in network.inputs.items()}
    actual = {name: prod(port.shape) for name, port in executable.inputs.items()}
    if said != actual or set(network.outputs) != set(executable.outputs):
        archive.refuse("network.json and executable.json are of different networks.")


def _binaries(archive: Archive) -> tuple[Binary, ...]:
    """The compiled programs, all verified first: drivers may crash on a damaged binary."""
    return tuple(
        Binary(row["name"], row["source"], row["options"], bytes(archive.part(row["part"])))
        for row in msgspec.convert(archive.json("programs.json"), list[dict[str, str]])
    )


def _of(arrays: Mapping[str, NDArray[Any]]) -> Callable[[str], NDArray[Any]]:
    """A function that returns an array by its digest.

    Integer arrays are verified here: kernels follow tables of offsets before the checksum of the
    whole part is known.
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
    """Open the target; returns the device's identity. Raises `MismatchError` for another SoC."""
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
    """The `wanted` SoC; raises `MismatchError` where its facts differ from the recorded SoC's."""
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
    facts = {"name": soc.name, "source": soc.source}
    for side in PROCESSORS:
        facts |= {f"{side}.{key}": fact for key, fact in asdict(getattr(soc, side)).items()}
    return {key: value for key, value in facts.items() if key not in FREE}


@contextmanager
def _readable(archive: Archive) -> Iterator[None]:
    """Turn errors of content with a right checksum into `InvalidFileError`."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        archive.refuse(f"its content cannot be read ({error!r}).")


def _warn(text: str) -> None:
    warnings.warn(text, CodlWarning, stacklevel=4)
