"""Parts of prepared networks: parameters, encoders on cells of 2×2 pixels, motion features, and heads on the state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fullfield.models.network import FlowNetwork
from fullfield.nn import CorrelationPyramid
from fullfield.ops._fused.arguments import CELL_CHANNELS, ScaleAndShift, TargetSlice

LANE = 8
"""Channels are padded to multiples of this: 16 bytes of half precision."""
_CELL = 12  # values of one frame in a cell of 2×2 pixels


def round_up_channel_count(channels: int) -> int:
    """Return ``channels`` padded to a multiple of :data:`LANE`."""
    return -(-channels // LANE) * LANE


@dataclass(frozen=True)
class WeightConverter:
    """Device, dtype and backend of a prepared network."""

    device: torch.device
    dtype: torch.dtype
    passes: Any
    """Module ``reference`` or ``cuda`` of :mod:`fullfield.ops._fused`."""
    weights: list[Tensor] = field(default_factory=list, repr=False, compare=False)
    """Every parameter converted so far."""

    def convert_conv_weight(self, weight: Tensor) -> Tensor:
        """Convert weights of a convolution [C', C, kh, kw] to channels-last."""
        return self._record_weight(weight.to(self.device, self.dtype).contiguous(memory_format=torch.channels_last))

    def convert_linear_weight(self, weight: Tensor) -> Tensor:
        """Convert weights [C', C] of a product with rows of channels to [C, C'], contiguous."""
        return self._record_weight(weight.t().to(self.device, self.dtype).contiguous())

    def convert_bias(self, values: Tensor) -> Tensor:
        """Convert a bias of a convolution or product."""
        return self._record_weight(values.to(self.device, self.dtype).contiguous())

    def convert_to_float32(self, values: Tensor) -> Tensor:
        """Convert values that the passes read in float32."""
        return self._record_weight(values.to(self.device, torch.float32).contiguous())

    def _record_weight(self, values: Tensor) -> Tensor:
        self.weights.append(values)
        return values


def fold_batch_norm_into_weight_and_bias(conv: nn.Conv2d, norm: nn.Module | None) -> tuple[Tensor, Tensor]:
    """Return weight and bias (float64) of a convolution with the batch norm in eval mode after it, if any."""
    weight = conv.weight.detach().double()
    bias = weight.new_zeros(weight.shape[0]) if conv.bias is None else conv.bias.detach().double()
    if norm is None or isinstance(norm, nn.Identity):
        return weight, bias
    if not isinstance(norm, nn.BatchNorm2d) or norm.running_mean is None or norm.running_var is None:
        raise TypeError(f"expected a batch norm with statistics, got {type(norm).__name__}")
    scale = (norm.running_var.double() + norm.eps).rsqrt()
    shift = -norm.running_mean.double() * scale
    if norm.affine:
        gain = norm.weight.detach().double()
        scale, shift = scale * gain, shift * gain + norm.bias.detach().double()
    return weight * scale[:, None, None, None], bias * scale + shift


def convert_stem_weight_to_cells(weight: Tensor, frame_indices: tuple[int, ...]) -> Tensor:
    """Convert a 7×7 convolution of stride 2 on frames to a 4×4 convolution on cells of 2×2 pixels.

    ``weight`` is [C', 3 · len(frames), 7, 7]; ``frame_indices`` names the frame of a cell that each group of three
    channels reads. The result is [C', 32, 4, 4], zero for what is not read.
    """
    out = weight.new_zeros(weight.shape[0], CELL_CHANNELS, 4, 4)
    for group, frame in enumerate(frame_indices):
        for row in range(7):
            for column in range(7):
                # Tap 3 is the pixel 2y, the first of cell y, which is tap 2 of the cells.
                cell_row, y = divmod(row - 3, 2)
                cell_column, x = divmod(column - 3, 2)
                first = _CELL * frame + 6 * y + 3 * x
                out[:, first : first + 3, cell_row + 2, cell_column + 2] = weight[
                    :, 3 * group : 3 * group + 3, row, column
                ]
    return out


def zero_pad_weight(weight: Tensor, output_count: int, input_count: int | None = None) -> Tensor:
    """Pad [C', C, ...] with zero filters up to ``output_count`` and zero channels up to ``input_count``."""
    channels = 0 if input_count is None else input_count - weight.shape[1]
    return functional.pad(weight, [0, 0] * (weight.ndim - 2) + [0, channels, 0, output_count - len(weight)])


def convert_3x3_weight_to_taps(weight: Tensor) -> Tensor:
    """Convert a 3×3 convolution [2, C, 3, 3] to products of single pixels [24, C].

    Rows are ordered by kernel row, kernel column and output, slow to fast, and end with zeros.
    """
    flat = weight.permute(2, 3, 0, 1).reshape(18, weight.shape[1])
    return zero_pad_weight(flat, round_up_channel_count(18))


_SIDE = 7  # of the windows of the flow


@dataclass(frozen=True)
class _PreparedConvolution:
    """Convolution with the norm after it, which is folded in or, with ``epsilon``, an instance norm."""

    weight: Tensor
    bias: Tensor
    shift: Tensor
    """Bias in float32."""
    stride: int
    padding: tuple[int, int]
    epsilon: float | None
    passes: Any

    def convolve(self, x: Tensor) -> tuple[Tensor, ScaleAndShift]:
        """Return the result without bias, and its norm."""
        y = self.passes.convolve(x, self.weight, stride=self.stride, padding=self.padding)
        return y, ScaleAndShift(
            None, self.shift
        ) if self.epsilon is None else self.passes.compute_instance_norm_scale_and_shift(y, self.epsilon)

    def convolve_normalize_relu(self, x: Tensor) -> Any:
        """Return the normed result, rectified."""
        if self.epsilon is None:
            options = {"stride": self.stride, "padding": self.padding}
            return self.passes.convolve(x, self.weight, self.bias, relu=True, **options)
        return self.passes.normalize_relu_add_relu_(*self.convolve(x))


def _prepare_convolution(converter: WeightConverter, conv: nn.Conv2d, norm: nn.Module | None) -> _PreparedConvolution:
    epsilon = None
    if isinstance(norm, nn.InstanceNorm2d):
        # A bias would be part of the mean that the norm subtracts.
        epsilon, norm = norm.eps, None
    weight, bias = fold_batch_norm_into_weight_and_bias(conv, norm)
    stride, padding = conv.stride[0], (int(conv.padding[0]), int(conv.padding[1]))
    return _PreparedConvolution(
        converter.convert_conv_weight(weight),
        converter.convert_bias(bias),
        converter.convert_to_float32(bias),
        stride,
        padding,
        epsilon,
        converter.passes,
    )


def _list_norms(block: nn.Module) -> list[nn.Module]:
    names = ("norm1", "norm2", "norm3") if hasattr(block, "norm1") else ("bn1", "bn2", "bn3")
    return [getattr(block, name) for name in names if hasattr(block, name)]


class _PreparedResidualBlock:
    """Residual block of either network: convolutions and a shortcut."""

    def __init__(self, converter: WeightConverter, block: nn.Module) -> None:
        convs = [getattr(block, name) for name in ("conv1", "conv2", "conv3") if hasattr(block, name)]
        self.convs = [
            _prepare_convolution(converter, conv, norm) for conv, norm in zip(convs, _list_norms(block), strict=True)
        ]
        shortcut: Any = block.downsample
        plain = shortcut is None or isinstance(shortcut, nn.Identity)
        self.shortcut = None if plain else _prepare_convolution(converter, shortcut[0], shortcut[1])
        self.passes = converter.passes

    def __call__(self, x: Tensor) -> Any:
        y = self.convs[0].convolve_normalize_relu(x)
        for conv in self.convs[1:-1]:
            # Not with cuDNN's rectifier, which may turn the NaN of an overflow into 0.
            y = self.passes.normalize_relu_add_relu_(*conv.convolve(y))
        y, norm = self.convs[-1].convolve(y)
        return self.passes.normalize_relu_add_relu_(
            y, norm, *((x,) if self.shortcut is None else self.shortcut.convolve(x))
        )


class PreparedEncoder:
    """Encoder of either network, with one variant per choice of input frames.

    Args:
        converter: converter of the parameters.
        encoder: RAFT's or SEA-RAFT's encoder.
        reads: for each variant the frames of a cell that it reads: ``((0,), (1,))`` for the features of either.
    """

    def __init__(self, converter: WeightConverter, encoder: nn.Module, reads: tuple[tuple[int, ...], ...]) -> None:
        module: Any = encoder
        norm = _list_norms(module)[0]
        first = _prepare_convolution(converter, module.conv1, norm)
        weight, _ = fold_batch_norm_into_weight_and_bias(module.conv1, None if first.epsilon is not None else norm)
        self.stems = [
            replace(
                first,
                weight=converter.convert_conv_weight(convert_stem_weight_to_cells(weight, frames)),
                stride=1,
                padding=(0, 0),
            )
            for frames in reads
        ]
        layers = (module.layer1, module.layer2, module.layer3)
        self.blocks = [_PreparedResidualBlock(converter, block) for layer in layers for block in layer]
        last = module.conv2 if hasattr(module, "conv2") else module.final_conv
        weight, bias = fold_batch_norm_into_weight_and_bias(last, None)
        self.weight, self.bias = converter.convert_linear_weight(weight.flatten(1)), converter.convert_bias(bias)
        convs = [conv for block in self.blocks for conv in block.convs]
        self.channels = [*(c.weight.shape[0] for c in convs), *self.weight.shape]

    def __call__(self, cells: Tensor, variant: int) -> Tensor:
        """Encode cells [B, H/2 + 3, W/2 + 3, 32] to features [B, H/8, W/8, C]."""
        x = self.stems[variant].convolve_normalize_relu(cells)
        for block in self.blocks:
            x = block(x)
        return torch.addmm(self.bias, x.flatten(0, 2), self.weight).view(*x.shape[:3], -1)


def multiply_relu(bias: Tensor, x: Tensor, weight: Tensor, out: Tensor) -> Tensor:
    """Compute relu(x weight + bias) for rows."""
    result: Tensor = torch.ops.aten._addmm_activation.out(bias, x, weight, out=out)
    return result


def compute_nan_guard(*activations: Tensor) -> Tensor:
    """Return [B, 1, 1, 1] float32: 0, or NaN for an item of [B, ...] that is not finite everywhere.

    It is added to the flow, because the rectifiers of cuDNN and cuBLAS may turn NaN into 0 and so hide an overflow.
    """
    sums = [values.sum(tuple(range(1, values.ndim)), dtype=torch.float32) for values in activations]  # in any layout
    return 0 * torch.stack(sums).sum(0)[:, None, None, None]


class PreparedMotionEncoder:
    """Encoder of correlation and flow to motion features, the last two of which are the flow."""

    def __init__(self, converter: WeightConverter, encoder: nn.Module) -> None:
        self.passes = converter.passes
        module: Any = encoder
        weight, bias = fold_batch_norm_into_weight_and_bias(module.convc1, None)
        self.first = converter.convert_linear_weight(weight.flatten(1)), converter.convert_bias(bias)
        self.second = None
        if module.convc2 is not None:
            weight, bias = fold_batch_norm_into_weight_and_bias(module.convc2, None)
            self.second = converter.convert_conv_weight(weight), converter.convert_to_float32(bias)
        weight, bias = fold_batch_norm_into_weight_and_bias(module.convf1, None)
        windows = weight.permute(0, 2, 3, 1).flatten(1)
        self.windows = round_up_channel_count(windows.shape[1])
        rows = converter.convert_linear_weight(zero_pad_weight(windows, len(windows), self.windows))
        self.flow_first = rows, converter.convert_bias(bias)
        weight, bias = fold_batch_norm_into_weight_and_bias(module.convf2, None)
        self.flow_second = converter.convert_conv_weight(weight), converter.convert_to_float32(bias)
        weight, bias = fold_batch_norm_into_weight_and_bias(module.conv, None)
        self.flow_channel = len(weight)
        self.channels = round_up_channel_count(len(weight) + 2)
        self.joint = (
            converter.convert_conv_weight(zero_pad_weight(weight, self.channels)),
            converter.convert_to_float32(functional.pad(bias, (0, self.channels - len(bias)))),
        )

    def __call__(self, lookup: Callable[[Tensor], Tensor], coords: Tensor, to: Sequence[TargetSlice]) -> None:
        """Write the motion features at ``coords`` [B, 2, h, w] to the targets."""
        passes, (batch, _, height, width) = self.passes, coords.shape
        dtype = self.first[0].dtype

        def allocate_map(channels: int) -> Tensor:
            return torch.empty((batch, height, width, channels), dtype=dtype, device=coords.device)

        looked_up = lookup(coords)
        weight, bias = self.first
        from_correlation = allocate_map(weight.shape[1])
        for item in range(batch):
            multiply_relu(bias, looked_up[item].flatten(1).t(), weight, from_correlation[item].flatten(0, 1))
        del looked_up
        offset = None
        if self.second is not None:
            weight, offset = self.second
            from_correlation = passes.convolve(from_correlation, weight, padding=(1, 1))
        weight, bias = self.flow_first
        windows = allocate_map(self.windows)
        passes.write_flow_windows_from_coords(coords, _SIDE, windows)
        from_flow = allocate_map(weight.shape[1])
        multiply_relu(bias, windows.flatten(0, 2), weight, from_flow.flatten(0, 2))
        weight, shift = self.flow_second
        from_flow = passes.convolve(from_flow, weight, padding=(1, 1))
        joint = allocate_map(from_correlation.shape[3] + from_flow.shape[3])
        passes.write_relu_and_flow_channels(
            from_correlation, offset, [TargetSlice(joint[..., : from_correlation.shape[3]])]
        )
        passes.write_relu_and_flow_channels(from_flow, shift, [TargetSlice(joint[..., from_correlation.shape[3] :])])
        del from_correlation, from_flow, windows
        weight, shift = self.joint
        passes.write_relu_and_flow_channels(
            passes.convolve(joint, weight, padding=(1, 1)), shift, to, (coords, self.flow_channel)
        )


class PreparedHead:
    """Head of a 3×3 convolution, a rectifier, and a second convolution as products of single pixels.

    Args:
        converter: converter of the parameters.
        first: 3×3 convolution.
        last: weights [C', C] of a 1×1 convolution, or from
            :func:`fullfield.models.prepared.shared.convert_3x3_weight_to_taps`.
        bias: bias of the second convolution.
    """

    def __init__(self, converter: WeightConverter, first: nn.Conv2d, last: Tensor, bias: Tensor | None) -> None:
        self.passes = converter.passes
        weight, offset = fold_batch_norm_into_weight_and_bias(first, None)
        self.first = converter.convert_conv_weight(weight), converter.convert_bias(offset)
        self.weight = converter.convert_linear_weight(last)
        self.bias = converter.convert_bias(last.new_zeros(len(last)) if bias is None else bias)

    def compute_hidden(self, state: Tensor) -> Tensor:
        """Return the activations [B, h, w, C] after the rectifier."""
        hidden: Tensor = self.passes.convolve(state, *self.first, relu=True, padding=(1, 1))
        return hidden

    def project_hidden(self, hidden: Tensor) -> Tensor:
        """Multiply [..., C] with the second convolution's weights to [..., C']."""
        return torch.addmm(self.bias, hidden.flatten(0, -2), self.weight).view(*hidden.shape[:-1], -1)


class PreparedFlowHead:
    """Head of the flow's step; channels of ``last`` after the first two describe the flow's error."""

    def __init__(self, converter: WeightConverter, first: nn.Conv2d, last: nn.Conv2d) -> None:
        weight, bias = fold_batch_norm_into_weight_and_bias(last, None)
        self.passes = converter.passes
        self.head = PreparedHead(converter, first, convert_3x3_weight_to_taps(weight[:2]), None)
        self.bias = converter.convert_to_float32(bias[:2])
        self.others = [
            (
                converter.convert_linear_weight(convert_3x3_weight_to_taps(weight[n : n + 2])),
                converter.convert_to_float32(bias[n : n + 2]),
            )
            for n in range(2, len(weight), 2)
        ]

    def add_flow_update_(self, state: Tensor, coords: Tensor) -> None:
        """Add the step predicted from ``state`` [B, h, w, C] to ``coords``."""
        self.passes.add_3x3_taps_to_coords_(
            coords, self.head.project_hidden(self.head.compute_hidden(state)), self.bias
        )

    def predict_mixture(self, state: Tensor) -> Tensor:
        """Return the channels after the first two, [B, C', h, w] float32."""
        hidden = self.head.compute_hidden(state)
        batch, height, width, _ = hidden.shape
        pairs = [hidden.new_zeros((batch, 2, height, width), dtype=torch.float32) for _ in self.others]
        for two, (weight, bias) in zip(pairs, self.others, strict=True):
            products = hidden.flatten(0, 2) @ weight
            self.passes.add_3x3_taps_to_coords_(two, products.view(batch, height, width, -1), bias)
        return torch.cat(pairs, 1)


def create_mask_head(converter: WeightConverter, head: nn.Module) -> PreparedHead:
    """Return the head that predicts the weights of the convex up-sampling, before their softmax."""
    module: Any = head
    weight, bias = fold_batch_norm_into_weight_and_bias(module[2], None)
    return PreparedHead(converter, module[0], 0.25 * weight.flatten(1), 0.25 * bias)


class PreparedNetwork:
    """Base of prepared networks: encoders, correlation lookup and motion features.

    A network adds ``flow_head``, ``mask``, ``channels``, :meth:`encode_pair_and_init_coords` and
    :meth:`update_pair_and_coords_`.

    Args:
        model: the network whose weights are copied.
        converter: converter of the parameters.
        reads: frames that the context encoder reads in the forward and in the backward direction.
    """

    flow_head: PreparedFlowHead
    mask: PreparedHead | None
    channels: list[int]
    """Channel counts that the kernels need in multiples of eight."""
    state_channels: int | None = None
    """Channels of the state, if the kernels need a multiple of 64."""

    def __init__(
        self,
        model: FlowNetwork,
        converter: WeightConverter,
        reads: tuple[tuple[int, ...], tuple[int, ...]],
    ) -> None:
        self.passes, self.converter, self.backend = converter.passes, converter, model.correlation
        self.features = PreparedEncoder(converter, model.fnet, ((0,), (1,)))
        self.context = PreparedEncoder(converter, model.cnet, reads)
        update: Any = model.update_block
        self.motion = PreparedMotionEncoder(converter, update.encoder)
        self.levels, self.radius = model.config.levels, model.config.radius

    def encode_features(self, cells: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features [B, C, h, w] of both frames."""
        first, second = (self.features(cells, variant).permute(0, 3, 1, 2) for variant in (0, 1))
        return first, second

    def prepare_lookup_and_guard(
        self, cells: Tensor, direction: int, features: tuple[Tensor, Tensor] | None
    ) -> tuple[CorrelationPyramid, Tensor]:  # the lookup; [B, 1, 1, 1], the guard of frames and features
        """Return the correlation lookup of a direction: 0 is forward, 1 backward.

        Args:
            cells: both frames in cells of 2×2 pixels.
            direction: 0 or 1.
            features: result of :meth:`encode_features`; None computes it.
        """
        first, second = (self.encode_features(cells) if features is None else features)[:: 1 - 2 * direction]
        lookup = CorrelationPyramid(
            first, second, self.levels, self.radius, backend=self.backend, out_dtype=self.converter.dtype
        )
        return lookup, compute_nan_guard(cells, first, second)

    def encode_pair_and_init_coords(
        self,
        cells: Tensor,
        coords: Tensor,
        grid: Tensor,
        direction: int = 0,
        features: tuple[Tensor, Tensor] | None = None,
    ) -> Any:
        """Compute what a pair needs once, and set ``coords`` to the initial flow.

        Arguments as for :meth:`prepare_lookup_and_guard`.
        """
        raise NotImplementedError

    def update_pair_and_coords_(self, pair: Any, coords: Tensor) -> None:
        """Update ``coords`` and the state of ``pair``, the result of :meth:`encode_pair_and_init_coords`, in place."""
        raise NotImplementedError
