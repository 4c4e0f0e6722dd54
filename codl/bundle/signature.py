"""Whether a bundle was written by this user on this machine: a sum that takes a key of theirs.

Drivers run the compiled kernels that they are given, so those of a stranger are not used. The key
lies in the user's state folder, or where the variable CODL_STATE says, and never leaves it.
"""

from __future__ import annotations

import hmac
import warnings
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from secrets import token_bytes
from typing import Any

from codl import files
from codl.errors import CodlError, CodlWarning
from codl.ir.constants import digest
from codl.runtime.cache import state_folder

#: The key of a manifest that holds its signature, which is of all others.
SIGNATURE = "signature"
NAME, KEY_BYTES = "bundles.key", 32


def signed(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest with a signature; where no key can be kept a `CodlWarning`, and none."""
    path = state_folder() / NAME
    try:
        if not path.exists():
            _make_key(path)
        return {**manifest, SIGNATURE: _signature(manifest, path)}
    except CodlError as error:
        text = (
            f"The bundle has no signature, so it will count as a stranger's here, too: {error} "
            "CODL_STATE names another folder for the key."
        )
        warnings.warn(text, CodlWarning, stacklevel=2)
    return dict(manifest)


def is_own(manifest: Mapping[str, Any]) -> bool:
    """Whether this user signed it here; it names the sums of all parts of the bundle."""
    with suppress(CodlError):
        signature = manifest.get(SIGNATURE)
        own = _signature(manifest, state_folder() / NAME)
        return isinstance(signature, str) and hmac.compare_digest(signature.encode(), own.encode())
    return False


def _make_key(path: Path) -> None:
    with files.writing(path) as partial:
        partial.touch(mode=0o600)
        partial.write_bytes(token_bytes(KEY_BYTES))


def _signature(manifest: Mapping[str, Any], path: Path) -> str:
    content = {key: value for key, value in manifest.items() if key != SIGNATURE}
    return hmac.new(files.read_bytes(path), digest(content).encode(), sha256).hexdigest()
