"""SEA-RAFT in its fast form."""

from __future__ import annotations

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
)
from fullfield.models.sea_raft.model import SEARAFT, MergedLayers
from fullfield.nn import CorrelationPyramid
from fullfield.ops._fused.arguments import TargetSlice


@dataclass
class SEARAFTPairState:
    """State of one pair of frames."""

    lookup: CorrelationPyramid
    joint: Tensor
    """[B, h, w, state, context and motion]."""
    state: Tensor
    """[B, h, w, channels], contiguous."""
    nan_guard: Tensor
    """Guard of frames and features."""


class _PreparedConvNeXtBlock:
    """ConvNeXt block with its last two linear layers merged, and the norm's weights merged into the first one's."""

    def __init__(self, converter: WeightConverter, block: nn.Module) -> None:
        self.passes = converter.passes
        module: Any = block
        weight, bias = fold_batch_norm_into_weight_and_bias(module.dwconv, None)
        self.filters = converter.convert_to_float32(weight.flatten(1).t())
        self.offset = converter.convert_to_float32(bias)
        self.epsilon: float = module.norm.eps
        layers: MergedLayers = module.compute_merged_layers()
        self.expand = converter.convert_linear_weight(layers.wide), converter.convert_bias(layers.wide_bias)
        self.narrow, self.final, self.bias = (
            converter.convert_linear_weight(layers.narrow),
            converter.convert_linear_weight(layers.final),
            converter.convert_bias(layers.bias),
        )

    def __call__(self, x: Tensor, out: Tensor) -> None:
        """Apply the block to [B, h, w, C] and write to ``out`` [B, h, w, C']."""
        rows, to = x.flatten(0, 2), out.flatten(0, 2)
        normed = torch.empty_like(x)
        self.passes.convolve_depthwise_and_normalize(x, self.filters, self.offset, self.epsilon, normed)
        expand = torch.addmm(self.expand[1], normed.flatten(0, 2), self.expand[0])
        self.passes.gelu_(expand.view(*x.shape[:3], -1))
        torch.addmm(self.bias, rows, self.final, out=to)
        to.addmm_(expand, self.narrow)


class PreparedSEARAFT(PreparedNetwork):
    """SEA-RAFT of any configuration in its fast form."""

    def __init__(self, model: SEARAFT, converter: WeightConverter) -> None:
        super().__init__(model, converter, ((0, 1), (1, 0)))
        weight, bias = fold_batch_norm_into_weight_and_bias(model.init_conv, None)
        self.initial = converter.convert_conv_weight(weight), converter.convert_bias(bias)
        update: Any = model.update_block
        self.refine = [_PreparedConvNeXtBlock(converter, block) for block in update.refine]
        flow: Any = model.flow_head
        self.flow_head = PreparedFlowHead(converter, flow[0], flow[2])
        self.mask = create_mask_head(converter, model.upsample_weight)
        self.width = self.state_channels = model.config.channels
        self.channels = [*self.features.channels, *self.context.channels, self.width // 2]

    def encode_pair_and_init_coords(
        self,
        cells: Tensor,
        coords: Tensor,
        grid: Tensor,
        direction: int = 0,
        features: tuple[Tensor, Tensor] | None = None,
    ) -> SEARAFTPairState:
        """Compute what a pair needs once, and set ``coords`` to the regressed flow."""
        width = self.width
        both = self.passes.convolve(self.context(cells, direction), *self.initial, padding=(1, 1))
        joint = both.new_zeros((*both.shape[:3], 2 * width + self.motion.channels))
        joint[..., : 2 * width] = both
        state = both[..., :width].contiguous()
        del both
        lookup, guard = self.prepare_lookup_and_guard(cells, direction, features)
        coords.copy_(grid)
        self.flow_head.add_flow_update_(state, coords)
        return SEARAFTPairState(lookup, joint, state, guard)

    def update_pair_and_coords_(self, pair: SEARAFTPairState, coords: Tensor) -> None:
        """Update ``coords`` and the state in place."""
        width = self.width
        self.motion(pair.lookup, coords, [TargetSlice(pair.joint[..., 2 * width :])])
        for block in self.refine:
            block(pair.joint, pair.state)
            self.passes.write_relu_and_flow_channels(pair.state, None, [TargetSlice(pair.joint[..., :width])])
        self.flow_head.add_flow_update_(pair.state, coords)
