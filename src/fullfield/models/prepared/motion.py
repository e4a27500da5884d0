"""What RAFT's and SEA-RAFT's updates share: motion features, and the heads on the state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fullfield.models.prepared.weights import Form, folded, lanes, lengthened, padded, taps
from fullfield.ops.fused.protocol import Passes, Target

_SIDE = 7  # of the windows of the flow


def rectified_products(bias: Tensor, x: Tensor, weight: Tensor, out: Tensor) -> Tensor:
    """relu(x weight + bias) of rows."""
    found: Tensor = torch.ops.aten._addmm_activation.out(bias, x, weight, out=out)
    return found


def nan_guard(*activations: Tensor) -> Tensor:
    """[B, 1, 1, 1] float32: 0, or NaN for an item that is not finite somewhere in [B, ...].

    Added to the flow: the rectifiers of cuDNN and cuBLAS may make 0 of NaN, after which an overflow looks like a flow.
    """
    sums = [values.sum(tuple(range(1, values.ndim)), dtype=torch.float32) for values in activations]  # in any layout
    return 0 * torch.stack(sums).sum(0)[:, None, None, None]


class PreparedMotion:
    """Correlation and flow to motion features, the last two of which are the flow."""

    def __init__(self, form: Form, passes: Passes, encoder: nn.Module) -> None:
        self.passes = passes
        module: Any = encoder
        weight, bias = folded(module.convc1, None)
        self.first = form.rows(weight.flatten(1)), form.small(bias)
        self.second = None
        if module.convc2 is not None:
            weight, bias = folded(module.convc2, None)
            self.second = form.filters(weight), form.exact(bias)
        weight, bias = folded(module.convf1, None)
        windows = weight.permute(0, 2, 3, 1).flatten(1)
        self.windows = lanes(windows.shape[1])
        self.flow_first = form.rows(padded(windows, len(windows), self.windows)), form.small(bias)
        weight, bias = folded(module.convf2, None)
        self.flow_second = form.filters(weight), form.exact(bias)
        weight, bias = folded(module.conv, None)
        self.flow_channel = len(weight)
        self.channels = lanes(len(weight) + 2)
        self.joint = form.filters(padded(weight, self.channels)), form.exact(lengthened(bias, self.channels))

    def __call__(self, lookup: Callable[[Tensor], Tensor], coords: Tensor, to: Sequence[Target]) -> None:
        """Motion features at ``coords`` [B, 2, h, w]."""
        passes, (batch, _, height, width) = self.passes, coords.shape
        dtype = self.first[0].dtype

        def new(channels: int) -> Tensor:
            return torch.empty((batch, height, width, channels), dtype=dtype, device=coords.device)

        looked_up = lookup(coords)
        weight, bias = self.first
        seen = new(weight.shape[1])
        for item in range(batch):
            rectified_products(bias, looked_up[item].flatten(1).t(), weight, seen[item].flatten(0, 1))
        del looked_up
        offset = None
        if self.second is not None:
            weight, offset = self.second
            seen = passes.convolve(seen, weight, padding=(1, 1))
        weight, bias = self.flow_first
        windows = new(self.windows)
        passes.flow_patches(coords, _SIDE, windows)
        flow_features = new(weight.shape[1])
        rectified_products(bias, windows.flatten(0, 2), weight, flow_features.flatten(0, 2))
        weight, shift = self.flow_second
        flow_features = passes.convolve(flow_features, weight, padding=(1, 1))
        joint = new(seen.shape[3] + flow_features.shape[3])
        passes.pack(seen, offset, [Target(joint[..., : seen.shape[3]])])
        passes.pack(flow_features, shift, [Target(joint[..., seen.shape[3] :])])
        del seen, flow_features, windows
        weight, shift = self.joint
        passes.pack(passes.convolve(joint, weight, padding=(1, 1)), shift, to, (coords, self.flow_channel))


class PreparedHead:
    """A 3×3 convolution, a rectifier, and a second convolution as products of single pixels.

    Args:
        first: 3×3.
        last: [C', C] of a 1×1 convolution, or of :func:`fullfield.models.prepared.weights.taps`.
        bias: of the second convolution.
    """

    def __init__(self, form: Form, passes: Passes, first: nn.Conv2d, last: Tensor, bias: Tensor | None) -> None:
        self.passes = passes
        weight, offset = folded(first, None)
        self.first = form.filters(weight), form.small(offset)
        self.weight = form.rows(last)
        self.bias = form.small(lengthened(bias, len(last)) if bias is not None else last.new_zeros(len(last)))

    def hidden(self, state: Tensor) -> Tensor:
        """[B, h, w, C] after the rectifier."""
        return self.passes.convolve(state, *self.first, relu=True, padding=(1, 1))

    def products(self, hidden: Tensor) -> Tensor:
        """[..., C] -> [..., C']."""
        return torch.addmm(self.bias, hidden.flatten(0, -2), self.weight).view(*hidden.shape[:-1], -1)


class FlowHead:
    """The step of the flow."""

    def __init__(self, form: Form, passes: Passes, first: nn.Conv2d, last: nn.Conv2d) -> None:
        weight, bias = folded(last, None)
        self.passes = passes
        self.head = PreparedHead(form, passes, first, taps(weight[:2]), None)
        self.bias = form.exact(bias[:2])

    def step_(self, state: Tensor, coords: Tensor) -> None:
        """Add the step that ``state`` [B, h, w, C] asks for to ``coords``."""
        self.passes.flow_step_(coords, self.head.products(self.head.hidden(state)), self.bias)


def mask_head(form: Form, passes: Passes, head: nn.Module) -> PreparedHead:
    """The weights of the convex up-sampling before their softmax."""
    module: Any = head
    weight, bias = folded(module[2], None)
    return PreparedHead(form, passes, module[0], 0.25 * weight.flatten(1), 0.25 * bias)
