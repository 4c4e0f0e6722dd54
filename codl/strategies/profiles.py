"""Where profiles of networks are kept, and which of them holds for a network on a device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from codl.errors import InvalidFileError, MismatchError
from codl.ir import Network
from codl.records.profile import FOLDER, NetworkProfile, load_profile
from codl.records.soc import Soc
from codl.runtime.placement import require_local
from codl.targets.base import Target
from codl.targets.environment import libraries_of


@dataclass(frozen=True)
class Profiling:
    """Profiles are read from a `folder` and kept there, or are those of one `file`.

    Those that were made or read are remembered by the digest of their network.
    """

    folder: Path = FOLDER
    file: Path | None = None
    _profiles: dict[str, NetworkProfile] = field(default_factory=dict, repr=False, compare=False)

    def wanted(self, network: Network, soc: Soc, tuning: str, target: Target) -> NetworkProfile:
        """What a profile must be of; nothing has run yet."""
        cpu, place = soc.cpu, require_local(soc).placement
        sides = {"cpu": cpu.name, "threads": str(place.threads), "limits": str(place.limits)}
        return NetworkProfile(
            model=network.name,
            network=network.digest,
            soc=soc.name,
            device={**target.open(), **sides, **libraries_of(target)},
            tuning=tuning,
        )

    def read(self, wanted: NetworkProfile, note: Callable[[str], None]) -> NetworkProfile | None:
        """The profile that is there for what is wanted.

        Raises `MismatchError` where a file that was named is of something else, and
        `InvalidFileError` where it cannot be read; what lies in the folder is then not used.
        """
        if wanted.network in self._profiles:
            return self._profiles[wanted.network]
        path = self.path(wanted)
        if self.file is None and not path.exists():
            return None
        try:
            profile = load_profile(path)
            profile.check(wanted, path)
        except (InvalidFileError, MismatchError) as error:
            if self.file is not None:
                raise
            note(f"{error} A new one is made.")
            return None
        self.remember(profile)
        return profile

    def path(self, profile: NetworkProfile) -> Path:
        return self.file or self.folder / profile.path

    def remember(self, profile: NetworkProfile) -> None:
        """Let this be the profile of its network from now on."""
        self._profiles[profile.network] = profile

    def of(self, network: Network) -> NetworkProfile | None:
        """What is remembered of a network."""
        return self._profiles.get(network.digest)
