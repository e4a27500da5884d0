"""One pair of a data set: its files, and their content."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils.data._utils.collate import collate, default_collate_fn_map

from fullfield import _check
from fullfield._check import InputError


class Truth(NamedTuple):
    """True motion of a pair, as far as it is known."""

    flow: Tensor  # [2, H, W] float32, or [4, 2, H, W] with four true values for a pixel; (u, v), pixels
    valid: Tensor  # [H, W] bool: where the truth is known
    occluded: Tensor | None  # [H, W] bool: no match in the second frame; None where the data set does not say


class FlowSample(NamedTuple):
    """Pair of frames and its truth."""

    name: str  # unique within the data set, made of folder and frame: "alley_1/frame_0001"
    frame1: Tensor  # [3, H, W] float32, display-referred, nominally 0 ... 1
    frame2: Tensor  # [3, H, W]
    flow: Tensor | None  # as in Truth; None where the data set keeps it to itself
    valid: Tensor | None
    occluded: Tensor | None

    def __repr__(self) -> str:
        held = [
            f"{field}={None if value is None else _check.describe(value)}"
            for field, value in zip(self._fields[1:], self[1:], strict=True)
        ]
        return f"FlowSample({self.name!r}, {', '.join(held)})"


def _batched(samples: Sequence[FlowSample], **options: Any) -> FlowSample:
    """Collate as PyTorch does for named tuples, but leave an entry None that no sample has."""
    made: list[Any] = []
    for field, values in zip(FlowSample._fields, zip(*samples, strict=True), strict=True):
        without = [sample.name for sample, value in zip(samples, values, strict=True) if value is None]
        if 0 < len(without) < len(samples):
            raise InputError(f"{without[0]}: expected {field} like the other pairs of the batch, got none")
        made.append(None if without else collate(list(values), **options))
    return FlowSample(*made)


# PyTorch's own place for it: a DataLoader over a data set needs no collate_fn.
default_collate_fn_map[FlowSample] = _batched


@dataclass(frozen=True)
class Record:
    """Files of one pair.

    Attributes:
        name: unique within the data set; usable as a relative path.
        sequence, index: pairs of one sequence follow each other by index; a gap breaks the motion.
    """

    name: str
    frame1: Path
    frame2: Path
    flow: Path | None = None
    occlusion: Path | None = None
    invalid: Path | None = None
    sequence: str = ""
    index: int = 0

    @property
    def inputs(self) -> tuple[Path, Path]:
        """Files that an estimate depends on."""
        return self.frame1, self.frame2

    @property
    def files(self) -> tuple[Path, ...]:
        """Every file of the pair."""
        paths = (self.frame1, self.frame2, self.flow, self.occlusion, self.invalid)
        return tuple(path for path in paths if path is not None)
