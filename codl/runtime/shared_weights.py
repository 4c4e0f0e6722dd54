"""Memory, weights and states that executables of one model share, of which one runs at a time.

The steps of a decoder need the same memory by turns, and mostly the same weights: kernels that
compute fewer channels read the first of those that others read, and nets that compute other rows
have the same weights. So all of this is there once, as far as it is equal, and counted once. What
lasts from run to run, as caches do, is one state for all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from codl.errors import MismatchError
from codl.ir.constants import Constants
from codl.ir.executable import (
    Buffer,
    Constant,
    Executable,
    Fill,
    GpuOp,
    NcnnNet,
    NcnnPart,
    Place,
    Tensor,
    Transfer,
)
from codl.ir.executable_check import state_tensors
from codl.ir.ops.base import Array
from codl.ir.types import ImageSize, Processor, Storage
from codl.lower.nets import without_hints
from codl.runtime.loaded import Footprint
from codl.runtime.memory import DeviceMemory

if TYPE_CHECKING:
    from codl.runtime.ort_net import ArrangedWeights

#: Buffers of one kind: their place, and the size where they are images.
Kind: TypeAlias = tuple[Place, ImageSize | None]
#: What bytes are counted as. Staging memory and flags, which keep a state from one run to the next,
#: belong to one executable and are not counted, as nowhere.
Account: TypeAlias = Literal["cpu", "gpu", "cpu_weights", "gpu_weights", ""]
ACCOUNTS: dict[Place, Account] = {"cpu": "cpu", "shared": "cpu", "gpu": "gpu"}


@dataclass(eq=False)
class Item:
    """Something that is held for all executables that need it."""

    key: Any
    thing: Any
    bytes: int
    account: Account
    #: The arrays that it was made of, until all that may share it are loaded.
    made_of: list[Array] = field(default_factory=list)


class SharedResources:
    """All that is held for some executables of one network, the first of which is the usual one."""

    def __init__(self, executables: Sequence[Executable]) -> None:
        self._items: list[Item] = []
        #: The memory of every input and output: such as suits all executables.
        self.ports: dict[str, Buffer] = {}
        #: What the largest buffer of a kind takes, the second largest, ...: as much as in any.
        self.sizes: dict[tuple[Kind, int], int] = {}
        for executable in executables:
            buffers = executable.buffers
            for number, name in _port_names(executable).items():
                buffer = buffers[number]
                other = self.ports.get(name, buffer)
                place: Place = "shared" if "shared" in (buffer.place, other.place) else buffer.place
                self.ports[name] = Buffer(place, max(buffer.bytes, other.bytes))
            for number, rank in _ranks(executable).items():
                self.sizes[rank] = max(self.sizes.get(rank, 0), buffers[number].bytes)
        #: ncnn is told the usual shapes: by these it picks how to compute.
        self.params = {
            without_hints(part.param): part.param
            for net in executables[0].nets
            if isinstance(net, NcnnNet)
            for part in net.parts
        }

    def find(self, key: Any, fits: Callable[[Item], bool] = lambda item: True) -> Item | None:
        """An item of a key that fits."""
        return next((item for item in self._items if item.key == key and fits(item)), None)

    def keep(self, item: Item) -> Any:
        self._items.append(item)
        return item.thing

    @cached_property
    def arranged(self) -> ArrangedWeights:
        """Weights that ONNX Runtime arranges; the library is loaded where a net needs it."""
        from codl.runtime.ort_net import ArrangedWeights

        return ArrangedWeights()

    def complete(self) -> None:
        """Nothing more is loaded: weights are with kernels and libraries alone."""
        for item in self._items:
            item.made_of = []
        if "arranged" in vars(self):
            self.arranged.close()

    def close(self) -> None:
        """Let everything go, when all sessions are closed."""
        self._items = []
        if "arranged" in vars(self):
            self.arranged.close()

    @property
    def footprint(self) -> Footprint:
        """Everything, each thing once."""
        total: Counter[Account] = Counter()
        for item in self._items:
            total[item.account] += item.bytes
        return Footprint(total["cpu"], total["gpu"], total["cpu_weights"], total["gpu_weights"])


def _ranks(executable: Executable) -> dict[int, tuple[Kind, int]]:
    """By number the buffers that only one inference needs: their kind, and rank by size in it."""
    lasting = {tensor.buffer for tensor, _ in _fills(executable)}
    kept = {*_port_names(executable), *lasting, *_states(executable)}
    by_kind: dict[Kind, list[int]] = {}
    for number, buffer in enumerate(executable.buffers):
        if number not in kept and buffer.place in ACCOUNTS:
            by_kind.setdefault((buffer.place, buffer.image), []).append(number)
    return {
        number: (kind, rank)
        for kind, numbers in by_kind.items()
        for rank, number in enumerate(sorted(numbers, key=lambda n: -executable.buffers[n].bytes))
    }


def _port_names(executable: Executable) -> dict[int, str]:
    """By number the buffers of inputs and outputs; callers see the arrays whichever is active."""
    every = {**executable.outputs, **executable.inputs}
    return {executable.tensors[every[name].tensor].buffer: name for name in sorted(every)}


class Share:
    """One executable's part of what is common; `user` is its number."""

    def __init__(self, common: SharedResources, user: int, executable: Executable) -> None:
        self._shared, self.user, self._executable = common, user, executable
        self._ports, self._states = _port_names(executable), _states(executable)
        #: What is in the buffers that are filled once and for all, but for those that several
        #: constants go through.
        self._filled: dict[int, tuple[Storage, Constants]] = {
            tensor.buffer: (tensor.storage, constants)
            for tensor, constants in _fills(executable)
            if executable.buffers[tensor.buffer].place != "staging"
        }
        self._ranks = _ranks(executable)

    @property
    def arranged(self) -> ArrangedWeights:
        return self._shared.arranged

    def memory(
        self, number: int, buffer: Buffer, make: Callable[[Buffer], DeviceMemory]
    ) -> DeviceMemory:
        """Memory that others use too, each in its turn; not what is to keep something."""
        key: Any = (self.user, number)
        if number in self._ports:
            key = self._ports[number]
            buffer = self._shared.ports[key]
        elif number in self._states:
            key = self._states[number]
        elif number in self._filled:
            key = (self._filled[number], buffer)
        elif number in self._ranks:
            key = self._ranks[number]
            buffer = Buffer(buffer.place, self._shared.sizes[key], buffer.image)
        item = self._shared.find(("memory", key))
        if item is None:
            account = ACCOUNTS.get(buffer.place, "")
            item = Item(("memory", key), make(buffer), buffer.bytes, account)
            self._shared.keep(item)
        memory: DeviceMemory = item.thing
        return memory

    def constant(
        self, constant: Constant, steps: set[int], values: Array, make: Callable[[], Any]
    ) -> Any:
        """A constant as kernels take it: another's that begins with the same elements."""
        ops = [
            step for step in (self._executable.steps[n] for n in steps) if isinstance(step, GpuOp)
        ]
        # Variants may read one packed array, such as those of many rows and of one.
        key = ("constant", frozenset(op.label for op in ops), constant.name)
        flat, shape = values.reshape(-1), values.shape if constant.is_image else None

        def fits(item: Item) -> bool:
            (other,) = item.made_of
            if other.dtype != values.dtype or (shape is not None and other.shape != shape):
                return False
            return np.array_equal(other.reshape(-1)[: flat.size], flat)

        item = self._shared.find((*key, shape), fits)
        if item is not None:
            return item.thing
        made = make()
        return self._shared.keep(Item((*key, shape), made, made.size, "gpu_weights", [values]))

    def net(self, part: NcnnPart, arrays: list[Array], make: Callable[[str], Any]) -> Any:
        """An ncnn net: another's that differs in the shapes alone that ncnn is told in advance."""
        text = without_hints(part.param)
        key = ("net", text, tuple(sorted(part.options.items())))
        item = self._shared.find(
            key,
            lambda other: (
                len(other.made_of) == len(arrays)
                and all(map(np.array_equal, other.made_of, arrays))
            ),
        )
        if item is not None:
            return item.thing
        made = make(self._shared.params.get(text, part.param))
        size = sum(array.nbytes for array in arrays if array.size > 1)
        return self._shared.keep(Item(key, made, size, "cpu_weights", arrays))

    def array(self, values: Array) -> Array:
        """Weights that a net reads where they lie: another's that are equal."""
        key = ("array", values.shape, values.dtype)
        item = self._shared.find(key, lambda other: np.array_equal(other.thing, values))
        if item is None:
            item = Item(key, values, values.nbytes, "cpu_weights")
            self._shared.keep(item)
        array: Array = item.thing
        return array

    def count(self, weight_bytes: int) -> None:
        """Weights of a net of another library, which are nobody else's."""
        self._shared.keep(Item(None, None, weight_bytes, "cpu_weights"))


def _states(executable: Executable) -> dict[int, tuple[str, Processor]]:
    """By number the buffers of states: which it is, and of which processor."""
    tensors = executable.tensors
    return {tensors[number].buffer: key for key, number in state_tensors(executable).items()}


def check_states(executables: Sequence[Executable]) -> None:
    """Raise `MismatchError` where processors keep other parts of a state in one than in another.

    Or the same part stored in another way.
    """

    def held(executable: Executable) -> dict[tuple[str, Processor], str]:
        tensors = executable.tensors
        kept = {key: tensors[number] for key, number in state_tensors(executable).items()}
        return {key: f"{tensor.held} ({tensor.storage})" for key, tensor in kept.items()}

    first, *others = map(held, executables)
    for other in others:
        for name, processor in sorted(first.keys() | other.keys()):
            part, part_there = (parts.get((name, processor), "nothing") for parts in (first, other))
            if part != part_there:
                raise MismatchError(
                    f"One plan lets the {processor} keep {part} of the state {name!r}, another "
                    f"{part_there}: plans that run by turns must cut what writes it alike, and "
                    "store it so."
                )


def _fills(executable: Executable) -> Iterator[tuple[Tensor, Constants]]:
    """The tensors that are filled once and for all, on either processor, and with what."""
    tensors, steps = executable.tensors, executable.steps
    for fill in executable.setup:
        if isinstance(fill, Fill):
            constants = executable.constants[fill.constant.constants]
            yield tensors[fill.target.tensor], constants
            if fill.step is not None:
                step = steps[fill.step]
                assert isinstance(step, Transfer)
                yield tensors[step.target.tensor], constants
