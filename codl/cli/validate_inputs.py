"""What `codl validate` feeds a model: arrays or images of files, or random ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from codl.cli.deployed import read_inputs
from codl.cli.output import note
from codl.errors import CodlError
from codl.frontend.models.deployment import Deployment
from codl.frontend.models.preprocessing import SUFFIXES, Preprocessing
from codl.ir import Network
from codl.measure.inputs import random_inputs
from codl.optional import explained
from codl.validate.references import Model, Values
from codl.validate.samples import Reader, Samples

NPZ = ".npz"


def files_of(given: Path | None) -> list[Path]:
    """The files of inputs: those of a folder by name, the one that is given, or none.

    Raises `CodlError` for a folder without any, and for one that holds arrays and images.
    """
    if given is None or not given.is_dir():
        return [] if given is None else [given]
    kinds = {NPZ: [NPZ], "image": list(SUFFIXES)}
    there = sorted(one for one in given.iterdir() if one.is_file())
    found = {
        name: [one for one in there if one.suffix.lower() in kind] for name, kind in kinds.items()
    }
    arrays, images = found.values()
    if not (arrays or images):
        raise CodlError(
            f"--input names the folder {given}, in which there is no {NPZ} file and no image "
            f"({', '.join(SUFFIXES)})."
        )
    if arrays and images:
        raise CodlError(
            f"--input names the folder {given}, in which there are {len(arrays)} {NPZ} files and "
            f"{len(images)} images: keep them in folders of their own."
        )
    if left := len(there) - len(arrays) - len(images):
        note(f"{left} other files in {given} are left out.")
    return arrays or images


def samples_of(
    model: Model, files: Sequence[Path], deployed: Deployment | None, seed: int
) -> Samples:
    """Inputs from files; without any those that a deployment names, or random ones.

    Each file is read once now, so that a broken one ends nothing that has taken hours.
    """
    network = model.network
    readers = _readers(network, files, deployed, seed)
    samples = Samples([partial(_shaped, model, reader) for reader in readers])
    for sample in samples:
        assert sample
    return samples


def _shaped(model: Model, reader: Reader) -> Values:
    return model.shaped(reader())


def _readers(
    network: Network, files: Sequence[Path], deployed: Deployment | None, seed: int
) -> list[Reader]:
    if files and files[0].suffix.lower() in SUFFIXES:
        return _image_readers(network, files, deployed)

    def usual(own: Network) -> Mapping[str, NDArray[Any]]:
        return random_inputs(own, seed)

    wanted: list[Path | None] = [*files] or [None]
    return [partial(read_inputs, network, file, deployed, usual) for file in wanted]


@explained()
def _image_readers(
    network: Network, files: Sequence[Path], deployed: Deployment | None
) -> list[Reader]:
    from codl.measure.images import ImageReader

    how = deployed.preprocessing if deployed else None
    if how is None:
        how = Preprocessing()
        note(
            "No deployment file says how images are preprocessed: they are stretched to the size "
            "of the input, in rgb (or gray) from 0 to 1."
        )
    read = ImageReader(network, how)
    return [partial(read, file) for file in files]
