"""Stretches of a network that are alike: a transformer has one block many times.

What chains take, and what moves between them, follows from the ops of their layers, from how these
read each other's outputs, and from how long those are read. Layers and points have numbers for all
that, the same wherever it is the same; what is computed of a stretch then holds for all like it.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass

from codl.ir import Network
from codl.plan.halo_propagation import Walk


@dataclass(frozen=True)
class Alike:
    """Numbers of the layers, and of the points before each and behind the last.

    Two stretches of at most `longest` layers are alike if their first points and all of their
    layers have the same numbers.
    """

    layers: Sequence[int]
    points: Sequence[int]
    longest: int

    @classmethod
    def of(
        cls,
        network: Network,
        notes: Sequence[Hashable],
        live: Sequence[Sequence[str]],
        last_reader: Mapping[str, int],
        lone: Collection[str],
        longest: int,
    ) -> Alike:
        """`notes` are whatever else makes layers differ, their ops foremost.

        `live` are the tensors at every point; constants that are `lone` are of their layer alone.
        """
        maker = {layer.output: at for at, layer in enumerate(network.layers)}

        def seen_from(at: int, name: str) -> tuple[Hashable, int]:
            """A tensor by where it is from, and for how long it is still read."""
            if name in lone:
                return "", 0
            source = at - maker[name] if name in maker else name
            return source, min(last_reader[name] - at, longest + 1)

        layers = [
            (notes[at], *(seen_from(at, name) for name in (*layer.inputs, layer.output)))
            for at, layer in enumerate(network.layers)
        ]
        points = [tuple(seen_from(at, name) for name in own) for at, own in enumerate(live)]
        return cls(_numbers(layers), _numbers(points), longest)

    def content(self, walk: Walk) -> Hashable:
        """What walks have in common that are alike; of a longer one itself."""
        first = min(walk.starts)
        if walk.stop - first > self.longest:
            return walk
        starts = tuple(sorted(walk.stop - start for start in walk.starts))
        own = tuple(self.layers[first : walk.stop])
        return walk.dim, walk.step, starts, self.points[first], own


def _numbers(contents: Sequence[Hashable]) -> list[int]:
    """The same number for the same content."""
    known: dict[Hashable, int] = {}
    return [known.setdefault(content, len(known)) for content in contents]
