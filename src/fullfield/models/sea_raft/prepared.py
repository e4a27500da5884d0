"""SEA-RAFT in its fast form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fullfield.models.prepared.shared import FlowHead, Form, PreparedPairs, folded, mask_head
from fullfield.models.sea_raft.model import SEARAFT, MergedLayers
from fullfield.nn import CorrelationPyramid
from fullfield.ops._fused.arguments import Target


@dataclass
class SEARAFTPair:
    """State of one pair of frames."""

    lookup: CorrelationPyramid
    joint: Tensor
    """[B, h, w, state, context and motion]."""
    state: Tensor
    """[B, h, w, channels], contiguous."""
    nan_guard: Tensor
    """Guard of frames and features."""


class _Refinement:
    """ConvNeXt block with its last two linear layers merged, and the norm's weights merged into the first one's."""

    def __init__(self, form: Form, block: nn.Module) -> None:
        self.passes = form.passes
        module: Any = block
        weight, bias = folded(module.dwconv, None)
        self.filters, self.offset = form.exact(weight.flatten(1).t()), form.exact(bias)
        self.epsilon: float = module.norm.eps
        layers: MergedLayers = module.merged()
        self.wide = form.rows(layers.wide), form.small(layers.wide_bias)
        self.narrow, self.final, self.bias = form.rows(layers.narrow), form.rows(layers.final), form.small(layers.bias)

    def __call__(self, x: Tensor, out: Tensor) -> None:
        """Apply the block to [B, h, w, C] and write to ``out`` [B, h, w, C']."""
        rows, to = x.flatten(0, 2), out.flatten(0, 2)
        normed = torch.empty_like(x)
        self.passes.depthwise_norm(x, self.filters, self.offset, self.epsilon, normed)
        wide = torch.addmm(self.wide[1], normed.flatten(0, 2), self.wide[0])
        self.passes.gelu_(wide.view(*x.shape[:3], -1))
        torch.addmm(self.bias, rows, self.final, out=to)
        to.addmm_(wide, self.narrow)


class PreparedSEARAFT(PreparedPairs):
    """SEA-RAFT of any configuration in its fast form."""

    def __init__(self, model: SEARAFT, form: Form) -> None:
        super().__init__(model, form, ((0, 1), (1, 0)))
        weight, bias = folded(model.init_conv, None)
        self.initial = form.filters(weight), form.small(bias)
        update: Any = model.update_block
        self.refine = [_Refinement(form, block) for block in update.refine]
        flow: Any = model.flow_head
        self.flow_head = FlowHead(form, flow[0], flow[2])
        self.mask = mask_head(form, model.upsample_weight)
        self.width = self.state_channels = model.config.channels
        self.channels = [*self.features.channels, *self.context.channels, self.width // 2]

    def encode(
        self,
        cells: Tensor,
        coords: Tensor,
        grid: Tensor,
        direction: int = 0,
        features: tuple[Tensor, Tensor] | None = None,
    ) -> SEARAFTPair:
        """Compute what is needed once per pair, and set ``coords`` to the regressed flow; see :meth:`matched`."""
        width = self.width
        both = self.passes.convolve(self.context(cells, direction), *self.initial, padding=(1, 1))
        joint = both.new_zeros((*both.shape[:3], 2 * width + self.motion.channels))
        joint[..., : 2 * width] = both
        state = both[..., :width].contiguous()
        del both
        lookup, guard = self.matched(cells, direction, features)
        coords.copy_(grid)
        self.flow_head.step_(state, coords)
        return SEARAFTPair(lookup, joint, state, guard)

    def step(self, pair: SEARAFTPair, coords: Tensor) -> None:
        """Update ``coords`` and the state in place."""
        width = self.width
        self.motion(pair.lookup, coords, [Target(pair.joint[..., 2 * width :])])
        for block in self.refine:
            block(pair.joint, pair.state)
            self.passes.pack(pair.state, None, [Target(pair.joint[..., :width])])
        self.flow_head.step_(pair.state, coords)
