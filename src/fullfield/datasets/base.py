"""Base class of the data sets of flow."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from fullfield._check import InputError
from fullfield.datasets.listed import Listed
from fullfield.datasets.sample import FlowSample, Record, Truth
from fullfield.metrics import four_values

_ALL = slice(None)


class FlowDataset(Listed[Record, FlowSample]):
    """Pairs of frames with their true flow, read on access.

    Attributes:
        name: name under which results are stored, with split and pass.
        root: the folder.
        records: one :class:`Record` a pair, in a fixed order.
        doubled: whether the truth has twice the frame's size, four values for each pixel; None: where it has.
    """

    of = "frames"
    doubled: bool | None = False

    def _sample(self, index: int) -> FlowSample:
        frame1, frame2 = self.frames(index)
        truth = self.truth(index)
        flow, valid, occluded = (None, None, None) if truth is None else truth
        return FlowSample(self.records[index].name, frame1, frame2, flow, valid, occluded)

    def frames(self, index: int) -> tuple[Tensor, Tensor]:
        """Read the two frames of a pair: [3, H, W] float32, nominally 0 ... 1."""
        record = self.records[index]
        first, second = (self.read_frame(path) for path in (record.frame1, record.frame2))
        if first.shape != second.shape:
            raise InputError(f"{record.frame2}: is {_size(second)}, but {record.frame1} is {_size(first)}")
        return first, second

    def truth(self, index: int) -> Truth | None:
        """Read the true motion of a pair, as far as it is known."""
        record = self.records[index]
        if record.flow is None:
            return None
        flow, valid = self.read_flow(record.flow)
        values = flow
        if self.doubled or (self.doubled is None and self._is_doubled(flow, record.frame1)):
            values = four_values(flow, valid)
            valid = values.isfinite().all(1).all(0)
        if record.invalid is not None:
            valid = valid & ~self._mask(record.invalid, valid)
        return Truth(values, valid, self.read_occlusion(record, valid))

    def read_frame(self, path: Path) -> Tensor:
        """Read a frame as [3, H, W]."""
        from fullfield.io import read_frame

        frame = read_frame(path)
        return frame if frame.shape[0] == 3 else frame.expand(3, -1, -1)

    def read_flow(self, path: Path) -> tuple[Tensor, Tensor]:
        """Read a flow [2, H', W'] in pixels of the frame, and where it is known [H', W']."""
        from fullfield.io import read_flow

        flow, valid = read_flow(path)
        return flow, valid

    def _is_doubled(self, flow: Tensor, frame: Path) -> bool:
        from fullfield.io import frame_window

        _, _, width, height = frame_window(frame).display
        return flow.shape[-2:] == (2 * height, 2 * width)

    def read_occlusion(self, record: Record, valid: Tensor) -> Tensor | None:
        """Read where a pixel has no match in the second frame: bool, of the shape of ``valid``."""
        return None if record.occlusion is None else self._mask(record.occlusion, valid)

    def _mask(self, path: Path, valid: Tensor, channels: slice = _ALL) -> Tensor:
        """Return where the picture is not black in ``channels``; at twice the size, where one of four pixels is not."""
        from fullfield.io import read_frame

        mask = (read_frame(path, transfer="srgb")[channels] > 0).any(0)
        if mask.shape == (2 * valid.shape[0], 2 * valid.shape[1]):
            mask = torch.stack([mask[row::2, column::2] for row in (0, 1) for column in (0, 1)]).any(0)
        if mask.shape != valid.shape:
            raise InputError(f"{path}: is {_size(mask)}, but the true flow is {_size(valid)}")
        return mask


def _size(tensor: Tensor) -> str:
    return f"{tensor.shape[-1]}×{tensor.shape[-2]}"
