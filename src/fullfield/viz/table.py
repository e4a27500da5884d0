"""Flow as colour for video: one look-up a pixel, on any device."""

from __future__ import annotations

import torch
from torch import Tensor

from fullfield import _check
from fullfield.viz.wheel import flow_to_image

_SIDE = 511  # odd: no motion has an entry of its own
_REACH = 1.1  # the table goes a little beyond the scale: longer vectors are all drawn as at its edge
_FADING = 0.95  # of the followed scale, a picture
_SAMPLED, _SHARE = 8, 0.995  # every 8th row and column; the share of vectors within the followed scale


class FlowColors:
    """Pictures of a running flow in Middlebury's colours, from a table of 511×511 vectors.

    Differs from :func:`fullfield.viz.flow_to_image` by the table's steps of 1/232 of the scale.

    Args:
        max_motion: length of a vector that gets the pure colour, pixels. None follows the motion: at once to a longer
            one, by 5 % a picture to a shorter one.
        device: where the flows lie.
    """

    def __init__(self, max_motion: float | None = None, device: str | torch.device = "cpu") -> None:
        if max_motion is not None:
            _check.number(max_motion, "max_motion", above=0)
        self._fixed, self.max_motion = max_motion, float(max_motion or 0.0)
        axis = torch.linspace(-_REACH, _REACH, _SIDE, dtype=torch.float32)
        vectors = torch.stack([axis.expand(_SIDE, _SIDE), axis[:, None].expand(_SIDE, _SIDE)])
        colors = torch.zeros(_SIDE, _SIDE, 4, dtype=torch.uint8)
        colors[..., :3] = flow_to_image(vectors, max_motion=1.0).permute(1, 2, 0)
        self._table = colors.view(torch.int32).flatten().to(device)

    def draw(
        self,
        flow: Tensor,  # [2, H, W], pixels
    ) -> Tensor:  # [3, H, W] uint8
        """The next picture, on the flow's device; ``max_motion`` is its scale."""
        _check.tensor(flow, "flow", (2, "H", "W"), device=self._table.device)
        if self._fixed is None:
            self._follow(flow)
        # Half a step inside the edge of the circle that the table covers.
        limit = self.max_motion * (_REACH - 1 / _SIDE)
        length = torch.hypot(flow[0], flow[1]).clamp_(min=1e-12)
        shrink = (limit / length).clamp_(max=1.0).mul_((_SIDE - 1) / 2 / _REACH / self.max_motion)
        column, row = (flow * shrink).nan_to_num_(0.0).add_((_SIDE - 1) / 2).round_().int().unbind(0)
        packed = self._table.index_select(0, row.mul_(_SIDE).add_(column).flatten())
        return packed.view(torch.uint8).view(*flow.shape[1:], 4)[..., :3].permute(2, 0, 1)

    def _follow(self, flow: Tensor) -> None:
        some = flow[:, ::_SAMPLED, ::_SAMPLED].float()
        length = torch.hypot(some[0], some[1]).flatten()
        long = float(length.kthvalue(max(1, round(_SHARE * len(length)))).values)
        self.max_motion = max(long, _FADING * self.max_motion, 1e-3)
