"""Layers of RAFT: the encoder, from a frame to features at 1/8, and the flow update."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from fullfield.models.raft.config import RAFTConfig


def norms(kind: str) -> Callable[[int], nn.Module]:
    """Return the constructor of a norm, which takes the number of channels."""
    return {"instance": nn.InstanceNorm2d, "batch": nn.BatchNorm2d, "none": nn.Identity}[kind]


class ResidualBlock(nn.Module):
    """Residual block whose shortcut is a 1×1 convolution with a norm if the shape changes.

    Parameters are named ``conv1``, ``norm1`` and so on, those of the shortcut ``downsample.0`` and ``.1``.

    Args:
        convs: inputs, outputs, side of the kernel and stride of each convolution.
        norm: constructor of a norm, which takes the number of channels.
        called: prefix of the norms in the published files.
    """

    def __init__(
        self, convs: Sequence[tuple[int, int, int, int]], norm: Callable[[int], nn.Module], called: str = "norm"
    ) -> None:
        super().__init__()
        self._names = [(f"conv{number}", f"{called}{number}") for number in range(1, len(convs) + 1)]
        for (conv, behind), (inputs, outputs, side, stride) in zip(self._names, convs, strict=True):
            self.add_module(conv, nn.Conv2d(inputs, outputs, side, stride, padding=side // 2))
            self.add_module(behind, norm(outputs))
        inputs, outputs, stride = convs[0][0], convs[-1][1], math.prod(stride for *_, stride in convs)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride), norm(outputs))

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

        def block(inputs: int, outputs: int, stride: int) -> ResidualBlock:
            inner = outputs // 4
            shallow = ((inputs, outputs, 3, stride), (outputs, outputs, 3, 1))
            bottleneck = ((inputs, inner, 1, 1), (inner, inner, 3, stride), (inner, outputs, 1, 1))
            return ResidualBlock(bottleneck if config.bottleneck else shallow, norms(norm))

        self.conv1 = nn.Conv2d(3, half, 7, 2, padding=3)
        self.norm1 = norms(norm)(half)
        self.layer1 = nn.Sequential(block(half, half, 1), block(half, half, 1))
        self.layer2 = nn.Sequential(block(half, quarter, 2), block(quarter, quarter, 1))
        self.layer3 = nn.Sequential(block(quarter, eighth, 2), block(eighth, eighth, 1))
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

    def __init__(self, looked_up: int, correlation: Sequence[int], flow: Sequence[int], motion: int) -> None:
        super().__init__()
        self.convc1 = nn.Conv2d(looked_up, correlation[0], 1)
        self.convc2 = nn.Conv2d(correlation[0], correlation[1], 3, padding=1) if len(correlation) == 2 else None
        self.convf1 = nn.Conv2d(2, flow[0], 7, padding=3)
        self.convf2 = nn.Conv2d(flow[0], flow[1], 3, padding=1)
        self.conv = nn.Conv2d(correlation[-1] + flow[-1], motion - 2, 3, padding=1)

    def forward(self, flow: Tensor, features: Tensor) -> Tensor:
        """Encode flow [B, 2, h, w] and features [B, looked_up, h, w], of one dtype, to [B, motion, h, w]."""
        from_correlation = torch.relu_(self.convc1(features))
        if self.convc2 is not None:
            from_correlation = torch.relu_(self.convc2(from_correlation))
        from_flow = torch.relu_(self.convf2(torch.relu_(self.convf1(flow))))
        both = torch.relu_(self.conv(torch.cat((from_correlation, from_flow), 1)))
        return torch.cat((both, flow), 1)


def _gated(net: Tensor, x: Tensor, convz: nn.Module, convr: nn.Module, convq: nn.Module) -> Tensor:
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
        return _gated(net, x, self.convz, self.convr, self.convq)


class SeparableGRU(nn.Module):
    """Two gated recurrent units, one along rows and then one along columns."""

    def __init__(self, hidden: int, inputs: int) -> None:
        super().__init__()

        def along(kernel: tuple[int, int]) -> nn.Conv2d:
            return nn.Conv2d(hidden + inputs, hidden, kernel, padding=(kernel[0] // 2, kernel[1] // 2))

        self.convz1, self.convr1, self.convq1 = (along((1, 5)) for _ in range(3))
        self.convz2, self.convr2, self.convq2 = (along((5, 1)) for _ in range(3))

    def forward(self, net: Tensor, x: Tensor) -> Tensor:
        """Return the next hidden state."""
        net = _gated(net, x, self.convz1, self.convr1, self.convq1)
        return _gated(net, x, self.convz2, self.convr2, self.convq2)


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


def two_convolutions(inputs: int, inner: int, outputs: int, last_kernel: int) -> nn.Sequential:
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
        self.mask = two_convolutions(hidden, config.head_channels, 9 * 8 * 8, 1) if learned else None

    def forward(self, net: Tensor, context: Tensor, features: Tensor, flow: Tensor) -> tuple[Tensor, Tensor]:
        """Return the next hidden state and the step of the flow."""
        net = self.gru(net, torch.cat((context, self.encoder(flow, features)), 1))
        return net, self.flow_head(net)
