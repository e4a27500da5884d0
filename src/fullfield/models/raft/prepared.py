"""RAFT in its fast form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fullfield.models.prepared.shared import (
    PreparedFlowHead,
    PreparedNetwork,
    WeightConverter,
    create_mask_head,
    fold_batch_norm_into_weight_and_bias,
    round_up_channel_count,
    zero_pad_weight,
)
from fullfield.models.raft.model import RAFT
from fullfield.nn import CorrelationPyramid
from fullfield.ops._fused.arguments import TargetSlice


@dataclass
class _GRUInput:
    """Input of one half of the GRU: [B, h, w, C], or [B, w, h, C] for the half along columns."""

    joint: Tensor
    """State and motion."""
    reset: Tensor
    """Motion with the reset state."""
    maps: tuple[Tensor, Tensor]
    """The context's part of the gates and of the candidate."""
    transposed: bool


@dataclass
class RAFTPairState:
    """State of one pair of frames."""

    lookup: CorrelationPyramid
    halves: list[_GRUInput]
    state: Tensor
    """[B, h, w, hidden] without gaps."""
    nan_guard: Tensor
    """Guard of frames and features."""


class _PreparedGRU:
    """Gated recurrent unit along rows, along columns, or both.

    Columns are processed as rows of transposed activations, because cuDNN is slower along columns.
    """

    def __init__(self, converter: WeightConverter, convs: Sequence[nn.Conv2d], hidden: int, context: int) -> None:
        self.passes, self.hidden = converter.passes, hidden
        weights, biases = zip(*(fold_batch_norm_into_weight_and_bias(conv, None) for conv in convs), strict=True)
        gates, candidate = torch.cat(weights[:2]), weights[2]
        self.transposed = gates.shape[3] == 1
        if self.transposed:
            gates, candidate = gates.transpose(2, 3), candidate.transpose(2, 3)
        self.padding = (gates.shape[2] // 2, gates.shape[3] // 2)
        end = hidden + context
        without_context = [torch.cat((w[:, :hidden], w[:, end:]), 1) for w in (gates, candidate)]
        self.gates, self.candidate = (
            converter.convert_conv_weight(
                zero_pad_weight(w, len(w), hidden + round_up_channel_count(w.shape[1] - hidden))
            )
            for w in without_context
        )
        self.context_weights = [
            (converter.convert_conv_weight(w[:, hidden:end]), converter.convert_bias(bias))
            for w, bias in ((gates, torch.cat(biases[:2])), (candidate, biases[2]))
        ]

    def create_input_and_convolve_context(self, context: Tensor, motion_channels: int) -> _GRUInput:
        """Return the input for a context [B, h, w, C] and a number of motion channels."""
        if self.transposed:
            context = context.transpose(1, 2).contiguous()
        gates, candidate = (
            self.passes.convolve(context, weight, bias, padding=self.padding) for weight, bias in self.context_weights
        )
        joint = context.new_zeros((*context.shape[:3], self.hidden + motion_channels))
        return _GRUInput(joint, torch.zeros_like(joint), (gates, candidate), self.transposed)

    def __call__(self, memory: _GRUInput, to: Sequence[TargetSlice]) -> None:
        passes, state = self.passes, memory.joint[..., : self.hidden]
        gates = passes.convolve(memory.joint, self.gates, padding=self.padding)
        passes.write_gru_reset_state(state, gates, memory.maps[0], TargetSlice(memory.reset[..., : self.hidden]))
        candidate = passes.convolve(memory.reset, self.candidate, padding=self.padding)
        passes.write_gru_updated_state(state, gates, memory.maps[0], candidate, memory.maps[1], to)


class PreparedRAFT(PreparedNetwork):
    """RAFT, large or small, in its fast form."""

    def __init__(self, model: RAFT, converter: WeightConverter) -> None:
        super().__init__(model, converter, ((0,), (1,)))
        config, update = model.config, model.update_block
        self.hidden = config.hidden_channels
        gru: Any = update.gru
        ends = ("1", "2") if config.separable_gru else ("",)
        self.halves = [
            _PreparedGRU(
                converter,
                [getattr(gru, f"conv{gate}{end}") for gate in "zrq"],
                config.hidden_channels,
                config.context_channels,
            )
            for end in ends
        ]
        self.flow_head = PreparedFlowHead(converter, update.flow_head.conv1, update.flow_head.conv2)
        self.mask = None if update.mask is None else create_mask_head(converter, update.mask)
        sizes = (config.hidden_channels, config.context_channels, config.flow_channels, config.correlation_channels)
        self.channels = []
        for size in sizes:
            self.channels += [size] if isinstance(size, int) else size
        self.channels += [*self.features.channels, *self.context.channels]

    def encode_pair_and_init_coords(
        self,
        cells: Tensor,
        coords: Tensor,
        grid: Tensor,
        direction: int = 0,
        features: tuple[Tensor, Tensor] | None = None,
    ) -> RAFTPairState:
        """Compute what a pair needs once, and set ``coords`` to the grid; see :meth:`prepare_lookup_and_guard`."""
        hidden = self.hidden
        lookup, guard = self.prepare_lookup_and_guard(cells, direction, features)
        both = self.context(cells, direction)
        state = torch.tanh(both[..., :hidden])
        context = torch.relu(both[..., hidden:]).contiguous()
        halves = [half.create_input_and_convolve_context(context, self.motion.channels) for half in self.halves]
        halves[0].joint[..., :hidden] = state
        coords.copy_(grid)
        return RAFTPairState(lookup, halves, state, guard)

    def update_pair_and_coords_(self, pair: RAFTPairState, coords: Tensor) -> None:
        """Update ``coords`` and the state in place."""
        hidden, memories = self.hidden, pair.halves
        seen = [TargetSlice(tensor[..., hidden:], m.transposed) for m in memories for tensor in (m.joint, m.reset)]
        self.motion(pair.lookup, coords, seen)
        for number, half in enumerate(self.halves):
            after = memories[(number + 1) % len(memories)]
            to = [TargetSlice(after.joint[..., :hidden], after.transposed != half.transposed)]
            if number == len(memories) - 1:
                to.append(TargetSlice(pair.state, half.transposed))
            half(memories[number], to)
        self.flow_head.add_flow_update_(pair.state, coords)
