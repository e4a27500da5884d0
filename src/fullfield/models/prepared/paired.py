"""What RAFT and SEA-RAFT do alike to a pair of frames."""

from __future__ import annotations

from torch import Tensor

from fullfield.models.prepared.encoder import PreparedEncoder
from fullfield.models.prepared.motion import PreparedMotion, nan_guard
from fullfield.models.prepared.weights import Form
from fullfield.models.raft.model import RAFT
from fullfield.models.sea_raft.model import SEARAFT
from fullfield.nn import CorrelationPyramid
from fullfield.ops.fused.protocol import Passes


class PreparedPairs:
    """The encoders, the lookup between their features, and the motion features made of it.

    Args:
        reads: what the context encoder reads of a cell, from the first frame and from the second one.
        reuse: of the lookup, see :class:`fullfield.nn.CorrelationPyramid`.
    """

    def __init__(
        self,
        model: RAFT | SEARAFT,
        form: Form,
        passes: Passes,
        reads: tuple[tuple[int, ...], tuple[int, ...]],
        reuse: bool | None,
    ) -> None:
        self.passes, self.form, self.backend, self.reuse = passes, form, model.correlation, reuse
        self.features = PreparedEncoder(form, passes, model.fnet, ((0,), (1,)))
        self.context = PreparedEncoder(form, passes, model.cnet, reads)
        self.motion = PreparedMotion(form, passes, model.update_block.encoder)
        self.levels, self.radius = model.config.levels, model.config.radius

    def seen(self, cells: Tensor) -> tuple[Tensor, Tensor]:
        """Features [B, C, h, w] of both frames."""
        first, second = (self.features(cells, variant).permute(0, 3, 1, 2) for variant in (0, 1))
        return first, second

    def matched(
        self, cells: Tensor, way: int, seen: tuple[Tensor, Tensor] | None
    ) -> tuple[CorrelationPyramid, Tensor]:  # the lookup; [B, 1, 1, 1], the guard of frames and features
        """``way`` 1: from the second frame to the first. ``seen``: the features, where they are known already."""
        first, second = (self.seen(cells) if seen is None else seen)[:: 1 - 2 * way]
        lookup = CorrelationPyramid(
            first,
            second,
            self.levels,
            self.radius,
            backend=self.backend,
            out_dtype=self.form.dtype,
            reuse=self.reuse,
        )
        return lookup, nan_guard(cells, first, second)
