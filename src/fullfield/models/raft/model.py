"""RAFT, Recurrent All-Pairs Field Transforms (Teed and Deng, 2020): any frame size, memory linear in the pixels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from fullfield import _check
from fullfield._lazy import renamed
from fullfield.models import framing
from fullfield.models.network import Encoded, FlowNetwork
from fullfield.models.raft.config import RAFTConfig
from fullfield.models.raft.layers import Encoder, UpdateBlock
from fullfield.nn import CorrelationPyramid
from fullfield.nn.upsampling import convex_upsample

# Cells of flows whose predictions are up-sampled together in training: fewer launches, and memory for all of them.
_TOGETHER_CELLS = {"cuda": 3 << 17}


class RAFT(FlowNetwork):
    """RAFT, large or small, on the correlation lookup in linear memory.

    ::

        model = RAFT(RAFTConfig.large()).eval()
        model.load_checkpoint("raft-things.pth")
        with torch.inference_mode():
            flow = model(frame1, frame2)         # [B, 3, H, W] twice -> [B, 2, H, W]

    Submodules have the names of princeton's checkpoints. Outputs equal the original's with the same weights up to
    rounding; where the original fails (a level of one cell, frames under 128 pixels) they are finite.

    Args:
        config: by default :meth:`RAFTConfig.large`.
        correlation: backend of :class:`fullfield.nn.CorrelationPyramid`; None chooses.
    """

    config: RAFTConfig
    family = "RAFT"
    norm_prefix = "norm"

    def __init__(self, config: RAFTConfig | None = None, *, correlation: str | None = None) -> None:
        super().__init__()
        self.config = RAFTConfig.large() if config is None else config
        _check.require(isinstance(self.config, RAFTConfig), "config", "a RAFTConfig", _check.describe(self.config))
        self.correlation = correlation
        self.fnet = Encoder(self.config, self.config.feature_channels, "instance")
        joint = self.config.hidden_channels + self.config.context_channels
        self.cnet = Encoder(self.config, joint, self.config.context_norm)
        self.update_block = UpdateBlock(self.config)
        self._frozen = False

    def freeze_batch_norm(self, frozen: bool = True) -> None:
        """Keep batch norms on their stored statistics in training mode too, as RAFT trains after its first data set.

        The setting survives :meth:`train` until a call with False. The parameters of the norms still train.
        """
        self._frozen = frozen
        self.train(self.training)

    def train(self, mode: bool = True) -> RAFT:
        """Set training mode as in any module; frozen batch norms stay frozen (:meth:`freeze_batch_norm`)."""
        super().train(mode)
        if self._frozen:
            for module in self.modules():
                if isinstance(module, nn.BatchNorm2d):
                    module.eval()
        return self

    def forward(
        self,
        frame1: Tensor,  # [B, 3, H, W] RGB, uint8 or floating 0 ... 1, display-referred
        frame2: Tensor,  # [B, 3, H, W]
        updates: int | None = None,
        initial_flow: Tensor | None = None,  # [B, 2, h, w], any resolution
    ) -> Tensor:  # [B, 2, H, W] float32, (u, v) in pixels
        """Return the flow after the last update; only this one is up-sampled.

        Args:
            frame1: first frame, of any size; padded as princeton's evaluation does (``config.padding``).
            frame2: second frame, of the same size.
            updates: number of updates, by default ``config.updates``. With 0 the initial flow itself is up-sampled.
            initial_flow: flow to start from (warm start): a field that covers the frame at any resolution, in pixels
                of its own grid; see :func:`fullfield.models.framing.start_on_grid`.

        Raises:
            InputError: naming the argument that does not fit.
        """
        for flow in self._run(frame1, frame2, updates, initial_flow, every=False):
            last = flow
        return last

    def bidirectional(
        self,
        frame1: Tensor,
        frame2: Tensor,
        updates: int | None = None,
        initial_flow: Tensor | None = None,
        initial_backward: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:  # [B, 2, H, W] float32 twice
        """Return the forward and the backward flow; each frame goes through the feature encoder once.

        Args:
            frame1: first frame, as for :meth:`forward`.
            frame2: second frame.
            updates: number of updates, at least 1.
            initial_flow: start of the forward flow.
            initial_backward: start of the backward flow.
        """
        starts = initial_flow, initial_backward
        number, padding, directions = self._both_started(frame1, frame2, updates, *starts, fewest=1)
        flows = []
        for encoded, start in directions:
            *_, last = self._flows(encoded, start, number, padding, every=False)
            flows.append(last)
        return flows[0], flows[1]

    both_ways = renamed("both_ways", "bidirectional")

    def predictions(
        self, frame1: Tensor, frame2: Tensor, updates: int | None = None, initial_flow: Tensor | None = None
    ) -> list[Tensor]:  # updates × [B, 2, H, W] float32
        """Return the flow after every update (at least 1), for training; arguments as for :meth:`forward`."""
        if updates is not None:
            _check.number(updates, "updates", integer=True, low=1)
        return list(self._run(frame1, frame2, updates, initial_flow, every=True))

    def _run(
        self, frame1: Tensor, frame2: Tensor, updates: int | None, initial_flow: Tensor | None, *, every: bool
    ) -> Iterator[Tensor]:
        fewest = 0 if initial_flow is not None else 1
        number, padding, start = self._checked(frame1, frame2, updates, initial_flow, fewest=fewest)
        if number == 0 and start is not None:
            grid = framing.coordinate_grid(*_grid_size(start), start.device)
            start = (grid + start) - grid  # rounded as after an update
            yield padding.crop(8 * functional.interpolate(start, scale_factor=8, mode="bilinear"))
            return
        encoded = self.encode(self.prepare(frame1, padding), self.prepare(frame2, padding))
        yield from self._flows(encoded, start, number, padding, every=every)

    def _flows(
        self, encoded: Encoded, start: Tensor | None, updates: int, padding: framing.Padding, *, every: bool
    ) -> Iterator[Tensor]:
        fmap1, fmap2, net, context = encoded
        grid = framing.coordinate_grid(*_grid_size(net), net.device)
        coords = grid if start is None else grid + start
        lookup = self.pyramid(fmap1, fmap2)
        # Compiled, sizes would become conditions.
        trains = every and torch.is_grad_enabled() and not torch.compiler.is_compiling()
        together = _TOGETHER_CELLS.get(coords.device.type, 0) if trains else 0
        most = max(1, 2 * together // max(1, coords.numel()))
        waiting: list[tuple[Tensor, Tensor]] = []
        for update in range(updates):
            net, coords = self.step(lookup, net, context, coords, grid)
            last = update == updates - 1
            if every or last:
                waiting.append((coords - grid, net))
            if last or len(waiting) == most:
                yield from self._fine(waiting, padding)
                waiting = []

    def _fine(self, coarse: Sequence[tuple[Tensor, Tensor]], padding: framing.Padding) -> Sequence[Tensor]:
        """Enlarge flows in cells with their hidden states to the frames' size, in one pass."""
        flows, nets = zip(*coarse, strict=True)
        if len(coarse) == 1:
            return [padding.crop(self.upsample(flows[0], self.mask(nets[0])))]
        fine = padding.crop(self.upsample(torch.cat(flows), self.mask(torch.cat(nets))))
        batch = len(flows[0])  # slices, which may be written to, as the pieces that chunk gives may not
        return [fine[batch * number : batch * (number + 1)] for number in range(len(coarse))]

    def _context(self, frame1: Tensor, frame2: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG002 - as in other networks
        joint = self.cnet(frame1)
        net, context = joint.split((self.config.hidden_channels, self.config.context_channels), 1)
        return torch.tanh(net), torch.relu(context)

    def pyramid(self, fmap1: Tensor, fmap2: Tensor) -> CorrelationPyramid:
        """Return the pair's correlation lookup; in training on a GPU its results have the features' dtype."""
        c, learns = self.config, torch.is_grad_enabled() and fmap1.requires_grad and fmap1.is_cuda
        dtype = fmap1.dtype if learns else None
        return CorrelationPyramid(fmap1, fmap2, c.levels, c.radius, backend=self.correlation, out_dtype=dtype)

    def step(
        self,
        lookup: Callable[[Tensor], Tensor],
        net: Tensor,  # [B, hidden_channels, h, w]
        context: Tensor,  # [B, context_channels, h, w]
        coords: Tensor,  # [B, 2, h, w] float32: where each cell went, (x, y)
        grid: Tensor,  # [B, 2, h, w] float32: where it was
    ) -> tuple[Tensor, Tensor]:  # net, coords
        """Update once. No gradient flows through the incoming coordinates."""
        coords = coords.detach()
        features = lookup(coords).to(net.dtype)
        net, delta = self.update_block(net, context, features, (coords - grid).to(net.dtype))
        return net, coords + delta.to(coords.dtype)

    def mask(self, net: Tensor) -> Tensor | None:
        """Return the weights [B, 9·8·8, h, w] of the up-sampling before their softmax; None for the small model."""
        head = self.update_block.mask
        return None if head is None else 0.25 * head(net)

    def upsample(self, flow: Tensor, mask: Tensor | None) -> Tensor:
        """Enlarge a flow [B, 2, h, w] in cells to [B, 2, 8h, 8w] in pixels."""
        flow = 8 * flow
        if mask is None:
            size = (8 * flow.shape[-2], 8 * flow.shape[-1])
            return functional.interpolate(flow, size, mode="bilinear", align_corners=True)
        return convex_upsample(flow, mask, 8)


def _grid_size(field: Tensor) -> tuple[int, int, int]:
    """Return batch, rows and columns of [B, C, h, w]."""
    batch, _, rows, columns = field.shape
    return batch, rows, columns
