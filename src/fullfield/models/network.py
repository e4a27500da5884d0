"""Base class of the flow networks: arguments, frames, features and both directions of a pair."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor, nn

from fullfield import _check
from fullfield.models import framing

if TYPE_CHECKING:
    from fullfield.models.shape import NetworkShape


class Encoded(NamedTuple):
    """Features, state and context of one pair, at 1/8 of the padded frames."""

    fmap1: Tensor  # [B, C, h, w]
    fmap2: Tensor
    net: Tensor  # [B, C', h, w], the initial hidden state
    context: Tensor  # [B, C'', h, w]


class FlowNetwork(nn.Module):
    """Network with a feature encoder ``fnet`` and a context encoder ``cnet`` whose correlation is looked up."""

    config: NetworkShape
    correlation: str | None
    fnet: Any
    cnet: Any

    def prepare(self, frame: Tensor, padding: framing.Padding) -> Tensor:
        """Return a frame with the values, size and dtype that the encoders take."""
        return padding.pad(framing.normalized(frame, self.fnet.conv1.weight.dtype))

    def encode(self, frame1: Tensor, frame2: Tensor) -> Encoded:
        """Return features, state and context of prepared frames [B, 3, 8h, 8w].

        Both frames go through the feature encoder in one pass, unless they are large.
        """
        return Encoded(*self._features(frame1, frame2), *self._context(frame1, frame2))

    def _features(self, frame1: Tensor, frame2: Tensor) -> tuple[Tensor, Tensor]:
        return framing.encoded(self.fnet, frame1, frame2)

    def _context(self, frame1: Tensor, frame2: Tensor) -> tuple[Tensor, Tensor]:
        raise NotImplementedError

    def _checked(
        self, frame1: Tensor, frame2: Tensor, updates: int | None, initial_flow: Tensor | None, *, fewest: int
    ) -> tuple[int, framing.Padding, Tensor | None]:
        """Return the number of updates, the padding, and the initial flow in cells."""
        _, height, width = framing.check_frames(frame1, frame2, self.fnet.conv1.weight.device)
        count = self.config.updates if updates is None else updates
        _check.number(count, "updates", integer=True, low=fewest)
        padding = framing.padding_for(height, width, self.config.padding)
        return count, padding, framing.given_start(initial_flow, frame1, padding)

    def _both_encoded(
        self, frame1: Tensor, frame2: Tensor, padding: framing.Padding
    ) -> tuple[Encoded, Encoded]:  # forward and backward
        """Encode a pair in both directions; each frame goes through the feature encoder once."""
        one, two = self.prepare(frame1, padding), self.prepare(frame2, padding)
        fmap1, fmap2 = self._features(one, two)
        forward = Encoded(fmap1, fmap2, *self._context(one, two))
        return forward, Encoded(fmap2, fmap1, *self._context(two, one))
