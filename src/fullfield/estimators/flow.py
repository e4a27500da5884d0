"""The result of an estimation."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fullfield import _check

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fullfield.io import FrameWindow


@dataclass(frozen=True, eq=False)
class Flow:
    """Optical flow between two frames, and how it was found.

    Attributes:
        flow: [2, H, W] float32 on the CPU: (u, v), x to the right, y down, in pixels of the first frame.
        valid: [H, W] bool: where the flow is known (everywhere for an estimate; as stored for a file).
        method, backend, parameters: what computed it; empty for a flow that was read from a file.
        seconds: time of the estimation alone, without reading and writing.
        window: where the flow lies in the first frame, and the shape of its pixels, of an OpenEXR file; :meth:`save`
            writes it to one. None: all of the frame, square pixels.
        occlusion: [H, W] float32, 0 … 1, if it was asked for: how likely a pixel is to be hidden in the second frame;
            over 0.5 says hidden.
        confidence: [H, W] float32, 0 … 1, if it was asked for: the probability of an error under one pixel.
        stages: seconds of each part of the estimation, where it has parts.
    """

    flow: Tensor
    valid: Tensor
    method: str = ""
    backend: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    window: FrameWindow | None = None
    occlusion: Tensor | None = None
    confidence: Tensor | None = None
    stages: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check.tensor(self.flow, "flow", (2, "H", "W"), dtypes=[torch.float32])
        _check.tensor(self.valid, "valid", self.flow.shape[1:], dtypes=[torch.bool])
        for name in ("occlusion", "confidence"):
            if getattr(self, name) is not None:
                _check.tensor(getattr(self, name), name, self.flow.shape[1:], dtypes=[torch.float32])

    def __repr__(self) -> str:
        how = f", {self.method} ({self.backend})" if self.method else ""
        return f"Flow({self.width}×{self.height}{how})"

    @property
    def height(self) -> int:
        """Rows."""
        return self.flow.shape[1]

    @property
    def width(self) -> int:
        """Columns."""
        return self.flow.shape[2]

    def numpy(self) -> NDArray[np.float32]:
        """The flow as an array [H, W, 2]."""
        return self.flow.permute(1, 2, 0).contiguous().numpy()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the flow in the format of the suffix, with its window where that is ``.exr``; see
        :func:`fullfield.io.write_flow`."""
        from fullfield.io import write_flow
        from fullfield.io.names import is_exr

        write_flow(path, self.flow, self.valid, window=self.window if is_exr(path) else None)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Flow:
        """Read a flow file; see :func:`fullfield.io.read_flow`."""
        from fullfield.io import flow_window, read_flow
        from fullfield.io.names import is_exr

        data = read_flow(path)
        found = flow_window(path) if is_exr(path) else None
        return cls(data.flow, data.valid, window=None if found is None else found._replace(data=found.display))
