"""What kernel variants have unless they say otherwise."""

from __future__ import annotations

from typing import Any, ClassVar

from codl.ir.columns import (
    Columns,
    FeatureColumns,
)
from codl.ir.types import BLOCKED, ELEMENTS, PLANAR, Processor, Storage
from codl.kernels.base import Backend, Choice
from codl.kernels.feature_columns import (
    ChoiceColumns,
    first_choice,
    single,
)
from codl.records.soc import Soc


class OnCpu:
    """Base of CPU variants: takes any op of its kind, as a layer of an ncnn net."""

    processor: ClassVar[Processor] = "cpu"
    backend: ClassVar[Backend] = "ncnn"
    #: The CPU has the images of a batch side by side.
    takes_batch: ClassVar[bool] = True
    op_columns: ClassVar[type[Columns] | None] = None

    @property
    def is_plannable(self) -> bool:
        return True

    def refusal(self, op: Any, soc: Soc) -> str | None:
        return None


class OnGpu:
    """Base of GPU variants: takes any op of its kind, on any type of device, image by image."""

    processor: ClassVar[Processor] = "gpu"
    backend: ClassVar[Backend] = "opencl"
    is_plannable: ClassVar[bool] = True
    takes_batch: ClassVar[bool] = False
    meant_for: ClassVar[frozenset[str]] = frozenset({"cpu", "gpu"})
    adds_slowly_on: ClassVar[frozenset[str]] = frozenset()
    op_columns: ClassVar[type[Columns] | None] = None

    @property
    def among_planar(self) -> str | None:
        """The variant, by name, that is planned in its place among planar tensors, if any is."""
        return None

    def refusal(self, op: Any, soc: Soc) -> str | None:
        return None

    def block_counts(self, soc: Soc) -> tuple[int, ...]:
        """Numbers of blocks of output channels that a tile may have; none where that is no choice.

        Which of them a device is best with is found by a few ops.
        """
        return ()

    def block_choice(self, op: Any, soc: Soc, blocks: int) -> Choice | None:
        """The usual choice for an op on a device that is best with so many blocks."""
        return None


class ForStorage(OnGpu):
    """Base of GPU variants that there are several of, one for each storage."""

    #: Its name with tensors in the usual storage.
    base_name: ClassVar[str]

    def __init__(self, storage: Storage = BLOCKED) -> None:
        self.storage = storage
        self.name = f"{self.base_name}{storage.suffix}"


class ForPlanar(ForStorage):
    """Base of GPU variants on tensors of any rank, which lie planar, in floats or in halves."""

    def __init__(self, storage: Storage = PLANAR) -> None:
        super().__init__(storage)

    def stored_bytes(self, float32_bytes: int) -> float:
        """What takes so many bytes as floats, as it is stored."""
        return float32_bytes * (self.storage.element_bytes / ELEMENTS["float32"].bytes)


class ByColumns(OnCpu):
    """Base of variants of the CPU whose features are written once, over columns of many ops."""

    op_columns: ClassVar[type[Columns]]

    def features(self, op: Any, soc: Soc) -> dict[str, float]:
        return single(self.feature_columns(self.op_columns.of([op]), soc))

    def feature_columns(self, ops: Any, soc: Soc) -> FeatureColumns:
        """Features by name, each shaped (ops)."""
        raise NotImplementedError


class ByChoiceColumns(OnGpu):
    """Base of variants of the GPU whose features are written once, over columns of many ops."""

    op_columns: ClassVar[type[Columns]]

    def default_columns(self, ops: Any, soc: Soc) -> ChoiceColumns:
        """The choice that holds for each op untuned; without any parameters by default."""
        return {}

    def block_columns(self, ops: Any, soc: Soc, blocks: int) -> ChoiceColumns:
        """The same on a device that is best with so many blocks, of `block_counts`."""
        return self.default_columns(ops, soc)

    def block_choice(self, op: Any, soc: Soc, blocks: int) -> Choice | None:
        return first_choice(self.block_columns(self.op_columns.of([op]), soc, blocks))

    def features(self, op: Any, soc: Soc, choice: Choice | None = None) -> dict[str, float]:
        return single(self.feature_columns(self.op_columns.of([op]), soc, choice))

    def feature_columns(
        self, ops: Any, soc: Soc, choice: ChoiceColumns | None = None
    ) -> FeatureColumns:
        """Features by name, each shaped (ops), in the default choices where none are given."""
        raise NotImplementedError
