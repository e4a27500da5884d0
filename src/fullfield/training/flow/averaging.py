"""The moving average of a network's weights."""

from __future__ import annotations

import copy

import torch
from torch import nn

from fullfield import _check


class AveragedWeights:
    """A copy of a network whose weights follow it slowly (exponential moving average).

    Floating buffers, such as a batch norm's statistics, are averaged as well; others are copied. All of it takes a few
    kernels a step.

    Args:
        model: the network that is trained.
        keep: how much of the average a step keeps; less during the first steps, (1 + n) / (10 + n) of step n.

    Attributes:
        model: the copy, in evaluation mode.
    """

    def __init__(self, model: nn.Module, keep: float = 0.999) -> None:
        _check.number(keep, "keep", low=0.0, below=1.0)
        self.keep = keep
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        pairs = [
            (own, its)
            for own, its in zip(_tensors(self.model), _tensors(model), strict=True)
            if own.numel() and own.data_ptr() != its.data_ptr()
        ]
        floating = [pair for pair in pairs if pair[0].is_floating_point()]
        other = [pair for pair in pairs if not pair[0].is_floating_point()]
        self._own, self._its = [pair[0] for pair in floating], [pair[1] for pair in floating]
        self._own_other, self._its_other = [pair[0] for pair in other], [pair[1] for pair in other]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Follow the network after ``step`` steps."""
        keep = min(self.keep, (1 + step) / (10 + step))
        if self._own:
            torch._foreach_lerp_(self._own, self._its, 1 - keep)
        if self._own_other:
            torch._foreach_copy_(self._own_other, self._its_other)


def _tensors(model: nn.Module) -> list[torch.Tensor]:
    return [part.detach() for part in (*model.parameters(), *model.buffers())]
