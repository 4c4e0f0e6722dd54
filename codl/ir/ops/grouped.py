"""What convolution and its transpose share: channels in groups."""

from __future__ import annotations

from dataclasses import dataclass

from codl.ir.ops.base import Op
from codl.ir.ops.window import Size2
from codl.ir.region import Span


@dataclass(frozen=True, kw_only=True)
class GroupedOp(Op):
    """A cut through OC leaves groups whole (`channel_step`)."""

    kernel: Size2
    out_channels: int
    groups: int = 1

    @property
    def problem(self) -> str | None:
        if self.groups < 1:
            return f"groups must be at least 1, got {self.groups}."
        if not self.input.c % self.groups and not self.out_channels % self.groups:
            return None
        return (
            f"groups={self.groups} must divide the {self.input.c} input and "
            f"{self.out_channels} output channels."
        )

    @property
    def is_depthwise(self) -> bool:
        return self.groups > 1 and self.groups == self.input.c == self.out_channels

    @property
    def carries_channels(self) -> bool:
        return self.is_depthwise

    @property
    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        weight = (self.out_channels, self.input.c // self.groups, *self.kernel)
        return {"weight": weight, "bias": (self.out_channels,)}

    @property
    def channel_step(self) -> int:
        return 1 if self.groups == 1 else self.out_channels // self.groups

    def group_span(self, channels: Span) -> Span:
        """The groups that the output `channels` belong to."""
        per_group = self.out_channels // self.groups
        return Span(channels.start // per_group, -(-channels.stop // per_group))

    def group_inputs(self, channels: Span) -> Span:
        """The input channels of those groups."""
        if self.groups == 1 and channels.start < channels.stop:
            return Span(0, self.input.c)
        groups, per_group = self.group_span(channels), self.input.c // self.groups
        return Span(groups.start * per_group, groups.stop * per_group)
