"""RAFT's update: correlation features and the flow so far to a new hidden state and a step of the flow."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fullfield.models.raft.config import RAFTConfig


class MotionEncoder(nn.Module):
    """Correlation features and flow to motion features, the last two of which are the flow itself."""

    def __init__(self, config: RAFTConfig) -> None:
        super().__init__()
        looked_up = config.levels * (2 * config.radius + 1) ** 2
        correlation, flow = config.correlation_channels, config.flow_channels
        self.convc1 = nn.Conv2d(looked_up, correlation[0], 1)
        self.convc2 = nn.Conv2d(*correlation, 3, padding=1) if len(correlation) == 2 else None
        self.convf1 = nn.Conv2d(2, flow[0], 7, padding=3)
        self.convf2 = nn.Conv2d(flow[0], flow[1], 3, padding=1)
        self.conv = nn.Conv2d(correlation[-1] + flow[-1], config.motion_channels - 2, 3, padding=1)

    def forward(self, flow: Tensor, features: Tensor) -> Tensor:
        """[B, 2, h, w] and [B, levels·(2·radius+1)², h, w] -> [B, motion_channels, h, w]."""
        from_correlation = torch.relu_(self.convc1(features))
        if self.convc2 is not None:
            from_correlation = torch.relu_(self.convc2(from_correlation))
        from_flow = torch.relu_(self.convf2(torch.relu_(self.convf1(flow))))
        both = torch.relu_(self.conv(torch.cat((from_correlation, from_flow), 1)))
        return torch.cat((both, flow), 1)


def _gated(net: Tensor, x: Tensor, convz: nn.Module, convr: nn.Module, convq: nn.Module) -> Tensor:
    """One step of a gated recurrent unit with convolutions for its products."""
    joint = torch.cat((net, x), 1)
    update = torch.sigmoid(convz(joint))
    reset = torch.sigmoid(convr(joint))
    candidate = torch.tanh(convq(torch.cat((reset * net, x), 1)))
    return (1 - update) * net + update * candidate


class SquareGRU(nn.Module):
    """A gated recurrent unit with 3×3 convolutions."""

    def __init__(self, hidden: int, inputs: int) -> None:
        super().__init__()
        self.convz, self.convr, self.convq = (nn.Conv2d(hidden + inputs, hidden, 3, padding=1) for _ in range(3))

    def forward(self, net: Tensor, x: Tensor) -> Tensor:
        """The next hidden state."""
        return _gated(net, x, self.convz, self.convr, self.convq)


class SeparableGRU(nn.Module):
    """Two gated recurrent units in turn: along rows, then along columns."""

    def __init__(self, hidden: int, inputs: int) -> None:
        super().__init__()

        def along(kernel: tuple[int, int]) -> nn.Conv2d:
            return nn.Conv2d(hidden + inputs, hidden, kernel, padding=(kernel[0] // 2, kernel[1] // 2))

        self.convz1, self.convr1, self.convq1 = (along((1, 5)) for _ in range(3))
        self.convz2, self.convr2, self.convq2 = (along((5, 1)) for _ in range(3))

    def forward(self, net: Tensor, x: Tensor) -> Tensor:
        """The next hidden state."""
        net = _gated(net, x, self.convz1, self.convr1, self.convq1)
        return _gated(net, x, self.convz2, self.convr2, self.convq2)


class FlowHead(nn.Module):
    """Hidden state to a step of the flow."""

    def __init__(self, hidden: int, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(hidden, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, 2, 3, padding=1)

    def forward(self, net: Tensor) -> Tensor:
        """[B, hidden, h, w] -> [B, 2, h, w]."""
        step: Tensor = self.conv2(torch.relu_(self.conv1(net)))
        return step


class UpdateBlock(nn.Module):
    """Everything that runs once per update, and the head that predicts how to up-sample."""

    def __init__(self, config: RAFTConfig) -> None:
        super().__init__()
        hidden = config.hidden_channels
        gru = SeparableGRU if config.separable_gru else SquareGRU
        self.encoder = MotionEncoder(config)
        self.gru = gru(hidden, config.context_channels + config.motion_channels)
        self.flow_head = FlowHead(hidden, config.head_channels)
        self.mask: nn.Sequential | None = None
        if config.learned_upsampling:
            head = nn.Conv2d(hidden, config.head_channels, 3, padding=1)
            self.mask = nn.Sequential(head, nn.ReLU(inplace=True), nn.Conv2d(config.head_channels, 9 * 8 * 8, 1))

    def forward(self, net: Tensor, context: Tensor, features: Tensor, flow: Tensor) -> tuple[Tensor, Tensor]:
        """The next hidden state and the step of the flow."""
        net = self.gru(net, torch.cat((context, self.encoder(flow, features)), 1))
        return net, self.flow_head(net)
