"""One pair of a data set: where its files are, and what they hold."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from torch import Tensor


class Truth(NamedTuple):
    """What is known of a pair's motion."""

    flow: Tensor  # [2, H, W] float32, or [4, 2, H, W] with four true values for a pixel; (u, v), pixels
    valid: Tensor  # [H, W] bool: where the truth is known
    occluded: Tensor | None  # [H, W] bool: no match in the second frame; None where the data set does not say


class FlowSample(NamedTuple):
    """A pair of frames and its truth."""

    name: str  # unique within the data set, made of folder and frame: "alley_1/frame_0001"
    frame1: Tensor  # [3, H, W] float32, display-referred, nominally 0 ... 1
    frame2: Tensor  # [3, H, W]
    flow: Tensor | None  # as in Truth; None where the data set keeps it to itself
    valid: Tensor | None
    occluded: Tensor | None


@dataclass(frozen=True)
class Record:
    """Where one pair is.

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
        """What an estimate depends on."""
        return self.frame1, self.frame2

    @property
    def files(self) -> tuple[Path, ...]:
        """Every file of the pair."""
        paths = (self.frame1, self.frame2, self.flow, self.occlusion, self.invalid)
        return tuple(path for path in paths if path is not None)
