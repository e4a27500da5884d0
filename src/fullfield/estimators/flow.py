"""Result of an estimation."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fullfield import _check
from fullfield.estimators._devices import to_device, to_host
from fullfield.estimators.bars import Bars

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fullfield.io.windows import FrameWindow

_PLANES = ("occlusion", "confidence")


@dataclass(frozen=True, eq=False)
class Flow:
    """Optical flow between two frames, and how it was computed.

    The tensors lie on the device that computed them. :meth:`cpu`, :meth:`numpy` and :meth:`save` copy them to the host.

    Attributes:
        flow: [2, H, W] float32: (u, v), x to the right, y down, in pixels of the first frame.
        valid: [H, W] bool: where the flow is known: where the first frame is, or as stored for a file.
        method, backend, parameters: what computed it; empty for a flow that was read from a file.
        seconds: time of the estimation alone, without reading and writing.
        window: the flow's place in the first frame and its pixel aspect, for an OpenEXR file; :meth:`save` writes it
            to one. None: the whole frame, square pixels.
        occlusion: [H, W] float32, 0 … 1, if requested: the probability that a pixel is hidden in the second frame.
        confidence: [H, W] float32, 0 … 1, if requested: the probability of an error under one pixel.
        stages: seconds of each part of the estimation, if it has parts.
        bars: rows and columns of one constant colour at the edges of both frames, which were not matched; None: none.
            The flow is 0 there, not valid, with occlusion 1 and confidence 0.
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
    bars: Bars | None = None

    def __post_init__(self) -> None:
        device = _check.check_tensor(self.flow, "flow", (2, "H", "W"), dtypes=[torch.float32]).device
        _check.check_tensor(self.valid, "valid", self.flow.shape[1:], dtypes=[torch.bool], device=device)
        for name in _PLANES:
            if getattr(self, name) is not None:
                _check.check_tensor(
                    getattr(self, name), name, self.flow.shape[1:], dtypes=[torch.float32], device=device
                )

    def __repr__(self) -> str:
        how = f", {self.method} ({self.backend})" if self.method else ""
        location = "" if self.device.type == "cpu" else f", on {self.device}"
        return f"Flow({self.width}×{self.height}{how}{location})"

    @property
    def height(self) -> int:
        """Number of rows."""
        return self.flow.shape[1]

    @property
    def width(self) -> int:
        """Number of columns."""
        return self.flow.shape[2]

    @property
    def device(self) -> torch.device:
        """Device that holds the tensors."""
        return self.flow.device

    def cpu(self) -> Flow:
        """Return the same result with its tensors on the host; itself if they are there.

        Tensors from a CUDA device come in page-locked memory; clone those that you keep in large numbers.
        """
        return self.to("cpu")

    def to(self, device: str | torch.device) -> Flow:
        """Return the same result with its tensors on ``device``; itself if they are there."""
        target = torch.empty(0, device=_check.resolve_available_device(device)).device  # with its index
        if target == self.device:
            return self

        def copy_values(values: Tensor) -> Tensor:
            return to_host(values) if target.type == "cpu" else to_device(values, target)

        return replace(
            self,
            flow=copy_values(_check.check_not_meta(self.flow, "flow")),
            valid=copy_values(self.valid),
            occlusion=None if self.occlusion is None else copy_values(self.occlusion),
            confidence=None if self.confidence is None else copy_values(self.confidence),
        )

    def numpy(self) -> NDArray[np.float32]:
        """Return the flow as an array [H, W, 2] on the host."""
        vectors = _check.check_not_meta(self.flow, "flow").permute(1, 2, 0)
        if vectors.device.type == "cpu":  # copied by NumPy: PyTorch's threads do not survive a fork
            return np.ascontiguousarray(vectors.numpy())
        return to_host(vectors.contiguous()).numpy()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the flow in the format of the suffix; see :func:`fullfield.io.write_flow`.

        An ``.exr`` also holds the window, and ``occlusion`` and ``confidence`` as channels ``occlusion.forward`` and
        ``confidence.forward``. Where the first frame was not known, it has the vectors of the surroundings, in bars
        zeros, marked by a channel ``valid``. The other formats hold the flow and its mask alone.
        """
        from fullfield.io import write_flow
        from fullfield.io.names import has_exr_suffix

        host = self.cpu()
        if not has_exr_suffix(path):
            write_flow(path, host.flow, host.valid)
            return
        from fullfield.io.vectors import build_named_map_planes

        maps = {name: getattr(host, name) for name in _PLANES if getattr(host, name) is not None}
        if self.method:
            write_flow(path, host.flow, window=self.window, planes=build_named_map_planes(maps, host.valid))
        else:
            write_flow(path, host.flow, host.valid, window=self.window, planes=build_named_map_planes(maps))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Flow:
        """Read a flow file, with what :meth:`save` writes; see :func:`fullfield.io.read_flow`."""
        from fullfield.io import read_flow
        from fullfield.io.names import has_exr_suffix

        data = read_flow(path)
        if not has_exr_suffix(path):
            return cls(data.flow, data.valid)
        from fullfield.io.flow import read_flow_window
        from fullfield.io.vectors import read_existing_forward_reliability_maps

        window, maps = read_flow_window(path), read_existing_forward_reliability_maps(path)
        return cls(
            data.flow,
            data.valid,
            window=window._replace(data=window.display),
            occlusion=maps.get("occlusion"),
            confidence=maps.get("confidence"),
        )
