"""RAFT, Recurrent All-Pairs Field Transforms (Teed and Deng, 2020): any frame size, memory linear in the pixels."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from fullfield import _check
from fullfield.models import framing
from fullfield.models.network import ConvolutionBeforeNorm, EncodedFrames, FlowNetwork
from fullfield.models.raft.config import RAFTConfig
from fullfield.nn import CorrelationPyramid
from fullfield.nn.upsampling import convex_upsample


def get_norm_constructor(kind: str) -> Callable[[int], nn.Module]:
    """Return the constructor of a norm, which takes the number of channels."""
    return {"instance": nn.InstanceNorm2d, "batch": nn.BatchNorm2d, "none": nn.Identity}[kind]


class ResidualBlock(nn.Module):
    """Residual block whose shortcut is a 1×1 convolution with a norm if the shape changes.

    Parameters are named ``conv1``, ``norm1`` and so on, those of the shortcut ``downsample.0`` and ``.1``.

    Args:
        convs: inputs, outputs, side of the kernel and stride of each convolution.
        norm: constructor of a norm, which takes the number of channels.
        norm_name_prefix: prefix of the norms in the published files.
    """

    def __init__(
        self,
        convs: Sequence[tuple[int, int, int, int]],
        norm: Callable[[int], nn.Module],
        norm_name_prefix: str = "norm",
    ) -> None:
        super().__init__()
        self._names = [(f"conv{number}", f"{norm_name_prefix}{number}") for number in range(1, len(convs) + 1)]
        for (conv, behind), (inputs, outputs, side, stride) in zip(self._names, convs, strict=True):
            self.add_module(conv, ConvolutionBeforeNorm(inputs, outputs, side, stride, padding=side // 2))
            self.add_module(behind, norm(outputs))
        inputs, outputs, stride = convs[0][0], convs[-1][1], math.prod(stride for *_, stride in convs)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(ConvolutionBeforeNorm(inputs, outputs, 1, stride), norm(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block to [B, inputs, H, W]; the result is [B, outputs, H / stride, W / stride]."""
        y = x
        for conv, norm in self._names:
            y = torch.relu_(getattr(self, norm)(getattr(self, conv)(y)))
        return torch.relu_(self.downsample(x) + y)


class Encoder(nn.Module):
    """Encoder of a 7×7 stem and three pairs of blocks at 1/2, 1/4 and 1/8 of the frame."""

    def __init__(self, config: RAFTConfig, outputs: int, norm: str) -> None:
        super().__init__()
        half, quarter, eighth = config.encoder_channels

        def build_block(inputs: int, outputs: int, stride: int) -> ResidualBlock:
            inner = outputs // 4
            shallow = ((inputs, outputs, 3, stride), (outputs, outputs, 3, 1))
            bottleneck = ((inputs, inner, 1, 1), (inner, inner, 3, stride), (inner, outputs, 1, 1))
            return ResidualBlock(bottleneck if config.bottleneck else shallow, get_norm_constructor(norm))

        self.conv1 = ConvolutionBeforeNorm(3, half, 7, 2, padding=3)
        self.norm1 = get_norm_constructor(norm)(half)
        self.layer1 = nn.Sequential(build_block(half, half, 1), build_block(half, half, 1))
        self.layer2 = nn.Sequential(build_block(half, quarter, 2), build_block(quarter, quarter, 1))
        self.layer3 = nn.Sequential(build_block(quarter, eighth, 2), build_block(eighth, eighth, 1))
        self.conv2 = nn.Conv2d(eighth, outputs, 1)
        self.dropout = nn.Dropout2d(config.dropout)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, frames: Tensor) -> Tensor:
        """Encode [B, 3, H, W] in −1 … 1, with sides in multiples of eight, to [B, outputs, H / 8, W / 8]."""
        x = torch.relu_(self.norm1(self.conv1(frames)))
        x = self.layer3(self.layer2(self.layer1(x)))
        out: Tensor = self.dropout(self.conv2(x))
        return out


class MotionEncoder(nn.Module):
    """Encoder of correlation and flow to motion features, the last two of which are the flow itself.

    Args:
        looked_up: channels of the correlation features.
        correlation: channels of a 1×1 and perhaps a 3×3 convolution on them.
        flow: channels of two convolutions on the flow.
        motion: channels of the result.
    """

    by_products = False
    """Apply the 1×1 convolution as a product. On a CPU whose weights are channels-last this saves one pair a copy of
    its features, which a lookup returns channels-first."""

    def __init__(self, looked_up: int, correlation: Sequence[int], flow: Sequence[int], motion: int) -> None:
        super().__init__()
        self.convc1 = nn.Conv2d(looked_up, correlation[0], 1)
        self.convc2 = nn.Conv2d(correlation[0], correlation[1], 3, padding=1) if len(correlation) == 2 else None
        self.convf1 = nn.Conv2d(2, flow[0], 7, padding=3)
        self.convf2 = nn.Conv2d(flow[0], flow[1], 3, padding=1)
        self.conv = nn.Conv2d(correlation[-1] + flow[-1], motion - 2, 3, padding=1)

    def forward(self, flow: Tensor, features: Tensor) -> Tensor:
        """Encode flow [B, 2, h, w] and features [B, looked_up, h, w], of one dtype, to [B, motion, h, w]."""
        from_correlation = torch.relu_(
            _apply_1x1_convolution(self.convc1, features) if self.by_products else self.convc1(features)
        )
        if self.convc2 is not None:
            from_correlation = torch.relu_(self.convc2(from_correlation))
        from_flow = torch.relu_(self.convf2(torch.relu_(self.convf1(flow))))
        both = torch.relu_(self.conv(torch.cat((from_correlation, from_flow), 1)))
        return torch.cat((both, flow), 1)


def _apply_1x1_convolution(conv: nn.Conv2d, features: Tensor) -> Tensor:
    """Apply a 1×1 convolution to [B, C, h, w] as one product; the result is channels-last."""
    return functional.linear(features.permute(0, 2, 3, 1), conv.weight.flatten(1), conv.bias).permute(0, 3, 1, 2)


def _compute_next_gru_state(net: Tensor, x: Tensor, convz: nn.Module, convr: nn.Module, convq: nn.Module) -> Tensor:
    """Apply one step of a gated recurrent unit whose products are convolutions."""
    joint = torch.cat((net, x), 1)
    update = torch.sigmoid(convz(joint))
    reset = torch.sigmoid(convr(joint))
    candidate = torch.tanh(convq(torch.cat((reset * net, x), 1)))
    return (1 - update) * net + update * candidate


class SquareGRU(nn.Module):
    """Gated recurrent unit with 3×3 convolutions."""

    def __init__(self, hidden: int, inputs: int) -> None:
        super().__init__()
        self.convz, self.convr, self.convq = (nn.Conv2d(hidden + inputs, hidden, 3, padding=1) for _ in range(3))

    def forward(self, net: Tensor, x: Tensor) -> Tensor:
        """Return the next hidden state."""
        return _compute_next_gru_state(net, x, self.convz, self.convr, self.convq)


class SeparableGRU(nn.Module):
    """Two gated recurrent units, one along rows and then one along columns."""

    def __init__(self, hidden: int, inputs: int) -> None:
        super().__init__()

        def convolve_along(kernel: tuple[int, int]) -> nn.Conv2d:
            return nn.Conv2d(hidden + inputs, hidden, kernel, padding=(kernel[0] // 2, kernel[1] // 2))

        self.convz1, self.convr1, self.convq1 = (convolve_along((1, 5)) for _ in range(3))
        self.convz2, self.convr2, self.convq2 = (convolve_along((5, 1)) for _ in range(3))

    def forward(self, net: Tensor, x: Tensor) -> Tensor:
        """Return the next hidden state."""
        net = _compute_next_gru_state(net, x, self.convz1, self.convr1, self.convq1)
        return _compute_next_gru_state(net, x, self.convz2, self.convr2, self.convq2)


class FlowHead(nn.Module):
    """Head that predicts a step of the flow from the hidden state."""

    def __init__(self, hidden: int, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(hidden, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, 2, 3, padding=1)

    def forward(self, net: Tensor) -> Tensor:
        """Predict the step [B, 2, h, w] from [B, hidden, h, w]."""
        step: Tensor = self.conv2(torch.relu_(self.conv1(net)))
        return step


def build_two_layer_convolution(inputs: int, inner: int, outputs: int, last_kernel: int) -> nn.Sequential:
    """Return a 3×3 convolution, a rectifier and a second convolution; indices 0 and 2 have weights, as published."""
    return nn.Sequential(
        nn.Conv2d(inputs, inner, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(inner, outputs, last_kernel, padding=last_kernel // 2),
    )


class UpdateBlock(nn.Module):
    """Layers that run once per update, and the head that predicts the up-sampling weights."""

    def __init__(self, config: RAFTConfig) -> None:
        super().__init__()
        hidden = config.hidden_channels
        gru = SeparableGRU if config.separable_gru else SquareGRU
        self.encoder = MotionEncoder(
            config.levels * (2 * config.radius + 1) ** 2,
            config.correlation_channels,
            config.flow_channels,
            config.motion_channels,
        )
        self.gru = gru(hidden, config.context_channels + config.motion_channels)
        self.flow_head = FlowHead(hidden, config.head_channels)
        learned = config.learned_upsampling
        self.mask = build_two_layer_convolution(hidden, config.head_channels, 9 * 8 * 8, 1) if learned else None

    def forward(self, net: Tensor, context: Tensor, features: Tensor, flow: Tensor) -> tuple[Tensor, Tensor]:
        """Return the next hidden state and the step of the flow."""
        net = self.gru(net, torch.cat((context, self.encoder(flow, features)), 1))
        return net, self.flow_head(net)


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
        _check.require(
            isinstance(self.config, RAFTConfig), "config", "a RAFTConfig", _check.describe_value(self.config)
        )
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
                of its own grid; see :func:`fullfield.models.framing.resample_flow_to_cells`.

        Raises:
            InputError: naming the argument that does not fit.
        """
        for flow in self._iterate_flows(frame1, frame2, updates, initial_flow, upsample_each=False):
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

        Arguments are as for :meth:`forward`, with at least one update; each direction has its own initial flow.
        """
        starts = initial_flow, initial_backward
        number, padding, directions = self._resolve_call_and_encode_both_directions(
            frame1, frame2, updates, *starts, min_updates=1
        )
        flows = []
        for encoded, start in directions:
            *_, last = self._iterate_updated_flows(encoded, start, number, padding, upsample_each=False)
            flows.append(last)
        return flows[0], flows[1]

    def predictions(
        self, frame1: Tensor, frame2: Tensor, updates: int | None = None, initial_flow: Tensor | None = None
    ) -> list[Tensor]:  # updates × [B, 2, H, W] float32
        """Return the flow after every update (at least 1), for training; arguments as for :meth:`forward`."""
        if updates is not None:
            _check.check_number(updates, "updates", integer=True, low=1)
        return list(self._iterate_flows(frame1, frame2, updates, initial_flow, upsample_each=True))

    def _iterate_flows(
        self, frame1: Tensor, frame2: Tensor, updates: int | None, initial_flow: Tensor | None, *, upsample_each: bool
    ) -> Iterator[Tensor]:
        min_updates = 0 if initial_flow is not None else 1
        number, padding, start = self._check_and_resolve_call_arguments(
            frame1, frame2, updates, initial_flow, min_updates=min_updates
        )
        if number == 0 and start is not None:
            grid = framing.create_coordinate_grid_like(start)
            start = (grid + start) - grid  # rounded as after an update
            yield padding.crop(8 * functional.interpolate(start, scale_factor=8, mode="bilinear"))
            return
        encoded = self.encode(
            self.normalize_and_pad_frame(frame1, padding), self.normalize_and_pad_frame(frame2, padding)
        )
        yield from self._iterate_updated_flows(encoded, start, number, padding, upsample_each=upsample_each)

    def _iterate_updated_flows(
        self,
        encoded: EncodedFrames,
        start: Tensor | None,
        updates: int,
        padding: framing.Padding,
        *,
        upsample_each: bool,
    ) -> Iterator[Tensor]:
        fmap1, fmap2, net, context = encoded
        grid = framing.create_coordinate_grid_like(net)
        coords = grid if start is None else grid + start
        lookup = self.build_pyramid(fmap1, fmap2)
        # Compiled, sizes would become conditions.
        trains = upsample_each and torch.is_grad_enabled() and not torch.compiler.is_compiling()
        together = _TOGETHER_CELLS.get(coords.device.type, 0) if trains else 0
        max_waiting = max(1, 2 * together // max(1, coords.numel()))
        waiting: list[tuple[Tensor, Tensor]] = []
        for update in range(updates):
            net, coords = self.update_hidden_state_and_coords(lookup, net, context, coords, grid)
            last = update == updates - 1
            if upsample_each or last:
                waiting.append((coords - grid, net))
            if last or len(waiting) == max_waiting:
                yield from self._upsample_predictions(waiting, padding)
                waiting = []

    def _upsample_predictions(
        self, flows_and_states: Sequence[tuple[Tensor, Tensor]], padding: framing.Padding
    ) -> Sequence[Tensor]:
        """Enlarge flows in cells with their hidden states to the frames' size, in one pass."""
        flows, nets = zip(*flows_and_states, strict=True)
        if len(flows_and_states) == 1:
            return [padding.crop(self.upsample(flows[0], self.predict_mask(nets[0])))]
        fine = padding.crop(self.upsample(torch.cat(flows), self.predict_mask(torch.cat(nets))))
        batch = len(flows[0])  # slices, which may be written to, as the pieces that chunk gives may not
        return [fine[batch * number : batch * (number + 1)] for number in range(len(flows_and_states))]

    def _encode_state_and_context(self, frame1: Tensor, frame2: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG002 - as in other networks
        joint = self.cnet(frame1)
        net, context = joint.split((self.config.hidden_channels, self.config.context_channels), 1)
        return torch.tanh(net), torch.relu(context)

    def build_pyramid(self, fmap1: Tensor, fmap2: Tensor) -> CorrelationPyramid:
        """Return the pair's correlation lookup; in training on a GPU its results have the features' dtype."""
        c, learns = self.config, torch.is_grad_enabled() and fmap1.requires_grad and fmap1.is_cuda
        dtype = fmap1.dtype if learns else None
        return CorrelationPyramid(fmap1, fmap2, c.levels, c.radius, backend=self.correlation, out_dtype=dtype)

    def update_hidden_state_and_coords(
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

    def predict_mask(self, net: Tensor) -> Tensor | None:
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
