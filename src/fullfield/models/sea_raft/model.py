"""SEA-RAFT: an initial flow regressed from both frames, and a few updates that look up the correlation around it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from fullfield import _check
from fullfield.models import framing
from fullfield.models.network import ConvolutionBeforeNorm, EncodedFrames, FlowNetwork
from fullfield.models.raft.model import MotionEncoder, ResidualBlock, build_two_layer_convolution
from fullfield.models.sea_raft.config import BACKBONES, SEARAFTConfig
from fullfield.models.sea_raft.depthwise import DepthwiseConvolution
from fullfield.nn import CorrelationPyramid
from fullfield.nn.upsampling import convex_upsample


class Encoder(nn.Module):
    """Encoder of the first three stages of a ResNet and a 1×1 convolution."""

    def __init__(self, config: SEARAFTConfig, in_channels: int) -> None:
        super().__init__()
        depths = BACKBONES[config.backbone]
        first, second, third = config.stage_channels
        self.conv1 = ConvolutionBeforeNorm(in_channels, config.stem_channels, 7, 2, padding=3)
        self.bn1 = nn.BatchNorm2d(config.stem_channels)
        self.layer1 = _build_stage(config.stem_channels, first, 1, depths[0])
        self.layer2 = _build_stage(first, second, 2, depths[1])
        self.layer3 = _build_stage(second, third, 2, depths[2])
        self.final_conv = nn.Conv2d(third, 2 * config.channels, 1)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, frames: Tensor) -> Tensor:
        """Encode [B, in_channels, H, W] to [B, 2·channels, H / 8, W / 8]."""
        x = functional.relu(self.bn1(self.conv1(frames)), inplace=True)
        x = self.layer3(self.layer2(self.layer1(x)))
        features: Tensor = self.final_conv(x)
        return features


def _build_stage(inner: int, outer: int, stride: int, depth: int) -> nn.Sequential:
    rest = (_build_block(outer, outer, 1) for _ in range(depth - 1))
    return nn.Sequential(_build_block(inner, outer, stride), *rest)


def _build_block(inner: int, outer: int, stride: int) -> ResidualBlock:
    return ResidualBlock(((inner, outer, 3, stride), (outer, outer, 3, 1)), nn.BatchNorm2d, "bn")


# Outputs of the flow head: flow (2), weights of the two Laplacians (2), logarithms of their scales (2).
HEAD_CHANNELS = 6
# Every cell of the 1/8 grid becomes 8×8 pixels, each a mixture of 3×3 neighbours.
MASK_CHANNELS = 8 * 8 * 9


class MergedLayers(NamedTuple):
    """Linear layers of a :class:`ConvNeXtBlock`: the norm's weights are in the first, the last two are one; float64.

    The block's result is narrow · gelu(wide · normed + wide_bias) + final · x + bias.
    """

    wide: Tensor  # [4 · outer, inner]
    wide_bias: Tensor
    narrow: Tensor  # [outer, 4 · outer]
    final: Tensor  # [outer, inner]
    bias: Tensor


class ConvNeXtBlock(nn.Module):
    """ConvNeXt block: depthwise 7×7, a scaled two-layer perceptron per pixel, a shortcut and a 1×1 convolution."""

    _optimized = False

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.dwconv = nn.Conv2d(inner, inner, 7, padding=3, groups=inner)
        self.norm = nn.LayerNorm(inner, eps=1e-6)
        self.pwconv1 = nn.Linear(inner, 4 * outer)
        self.pwconv2 = nn.Linear(4 * outer, inner)
        self.gamma = nn.Parameter(torch.full((inner,), 1e-6))
        self.final = nn.Conv2d(inner, outer, 1)

    def compute_merged_layers(self) -> MergedLayers:
        """Return the linear layers merged; with inner = 3 · outer they take 30 % fewer multiplications."""
        wide, narrow, final, gain, scale = (
            values.detach().double()
            for values in (self.pwconv1.weight, self.pwconv2.weight, self.final.weight, self.norm.weight, self.gamma)
        )
        layers: tuple[Any, ...] = self.norm, self.pwconv1, self.pwconv2, self.final
        shift, wide_bias, narrow_bias, final_bias = (layer.bias.detach().double() for layer in layers)
        final = final.flatten(1)
        scaled = final * scale
        return MergedLayers(
            wide * gain, wide @ shift + wide_bias, scaled @ narrow, final, scaled @ narrow_bias + final_bias
        )

    def optimize_for_cpu(self) -> None:
        """Use :meth:`compute_merged_layers` layers in evaluation mode, also for weights that are loaded later."""
        module: Any = self
        _store_merged_layers_as_buffers(self, None)
        module.register_load_state_dict_post_hook(_store_merged_layers_as_buffers)
        self._optimized = True

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block to [B, inner, H, W]; the result is [B, outer, H, W]."""
        if self._optimized and not self.training:
            return self._apply_merged_layers(x)
        filtered = _convolve_depthwise(self.dwconv, x) if self.training and x.is_cuda else self.dwconv(x)
        y = self.norm(filtered.permute(0, 2, 3, 1))
        y = self.gamma * self.pwconv2(functional.gelu(self.pwconv1(y)))
        out: Tensor = self.final(x + y.permute(0, 3, 1, 2))
        return out

    def _apply_merged_layers(self, x: Tensor) -> Tensor:
        layers = MergedLayers(*(getattr(self, f"merged_{name}") for name in MergedLayers._fields))
        cells, filtered = x.permute(0, 2, 3, 1), self.dwconv(x).permute(0, 2, 3, 1)
        normed = functional.layer_norm(filtered, self.norm.normalized_shape, eps=self.norm.eps)
        wide = functional.gelu(functional.linear(normed, layers.wide, layers.wide_bias))
        out = functional.linear(cells, layers.final, layers.bias) + functional.linear(wide, layers.narrow)
        return out.permute(0, 3, 1, 2)


def _convolve_depthwise(conv: nn.Conv2d, x: Tensor) -> Tensor:
    """Apply a depthwise convolution in the dtype of ``x``."""
    filtered: Tensor = DepthwiseConvolution.apply(x, conv.weight.to(x.dtype))  # type: ignore[no-untyped-call]
    return filtered if conv.bias is None else filtered + conv.bias.to(x.dtype)[:, None, None]


def _store_merged_layers_as_buffers(block: ConvNeXtBlock, _: object) -> None:
    """Store the block's merged layers as buffers, which no state dict has."""
    for name, layer in block.compute_merged_layers()._asdict().items():
        block.register_buffer(f"merged_{name}", layer.to(block.gamma), persistent=False)


class UpdateBlock(nn.Module):
    """Update of the state from the previous state, the context, the correlation and the flow."""

    def __init__(self, config: SEARAFTConfig) -> None:
        super().__init__()
        width = config.channels
        self.encoder = MotionEncoder(
            config.levels * (2 * config.radius + 1) ** 2, (2 * width, width + width // 2), (width, width // 2), width
        )
        self.refine = nn.ModuleList(ConvNeXtBlock(3 * width, width) for _ in range(config.refinements))

    def forward(self, net: Tensor, context: Tensor, correlation: Tensor, flow: Tensor) -> Tensor:
        """Return the next state."""
        inputs = torch.cat((context, self.encoder(flow.to(correlation.dtype), correlation)), 1)
        for block in self.refine:
            net = block(torch.cat((net, inputs), 1))
        return net


class _UpdateState(NamedTuple):
    net: Tensor
    flow: Tensor  # [B, 2, h, w] float32, in cells
    info: Tensor  # [B, 4, h, w] float32


class SEARAFT(FlowNetwork):
    """SEA-RAFT (S), (M) or (L), by its configuration.

    ::

        model = SEARAFT(SEARAFTConfig.medium()).eval()
        model.load_checkpoint("Tartan-C-T-TSKH-spring540x960-M.pth")
        with torch.inference_mode():
            flow = model(frame1, frame2)         # [B, 3, H, W] twice -> [B, 2, H, W]

    Parameters have the names of the published files. Outputs equal the original's with the same weights up to
    rounding; where the original fails (a level of one cell, frames under 128 pixels) they are finite. In training
    mode the batch norms see one frame of the pair at a time, as in the original. Flow and coordinates are float32 even
    under autocast and after ``half()``.

    Args:
        config: by default :meth:`SEARAFTConfig.medium`.
        correlation: backend of :class:`fullfield.nn.CorrelationPyramid`; None chooses.
    """

    config: SEARAFTConfig
    family = "SEA-RAFT"
    norm_prefix = "bn"
    cpu_format = torch.channels_last  # RAFT's instance norm takes longer in this order

    def __init__(self, config: SEARAFTConfig | None = None, *, correlation: str | None = None) -> None:
        super().__init__()
        self.config = SEARAFTConfig.medium() if config is None else config
        _check.require(isinstance(self.config, SEARAFTConfig), "config", "a SEARAFTConfig", config)
        self.correlation = correlation
        self._compiled_start: Callable[..., Any] | None = None
        self._compiled_update: Callable[..., Any] | None = None
        width = self.config.channels
        self.cnet = Encoder(self.config, 6)
        self.init_conv = nn.Conv2d(2 * width, 2 * width, 3, padding=1)
        self.upsample_weight = build_two_layer_convolution(width, 2 * width, MASK_CHANNELS, 1)
        self.flow_head = build_two_layer_convolution(width, 2 * width, HEAD_CHANNELS, 3)
        self.fnet = Encoder(self.config, 3)
        self.update_block = UpdateBlock(self.config)

    def forward(
        self,
        frame1: Tensor,  # [B, 3, H, W] RGB, uint8 or floating 0 ... 1, display-referred
        frame2: Tensor,  # [B, 3, H, W]
        updates: int | None = None,
        initial_flow: Tensor | None = None,  # [B, 2, h, w], any resolution
    ) -> Tensor:  # [B, 2, H, W] float32, (u, v) in pixels
        """Return the flow after the last update; only this one is up-sampled.

        Args:
            frame1: first frame, of any size; padded evenly to multiples of eight, as the original does.
            frame2: second frame, of the same size.
            updates: number of updates, by default ``config.updates``, and up to ``config.max_updates`` while the flow
                still moves (:func:`fullfield.models.framing.mark_unconverged_pairs`). With 0 the initial flow is
                up-sampled.
            initial_flow: flow to start from instead of the regressed one: a field that covers the frame at any
                resolution, in pixels of its own grid; see :func:`fullfield.models.framing.resample_flow_to_cells`.

        Raises:
            InputError: naming the argument that does not fit.
        """
        padding, states = self._encode_and_get_padding_and_states(frame1, frame2, updates, initial_flow)
        state = _get_last_state(states)
        return padding.crop(self.upsample(state.flow, self.predict_mask(state.net)))

    def flow_with_mixture(
        self, frame1: Tensor, frame2: Tensor, updates: int | None = None, initial_flow: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:  # [B, 2, H, W], [B, 4, H, W], float32
        """Return the flow and the parameters of its error model, a mixture of two Laplacians at every pixel.

        The mixture's channels: logits of the two weights, logarithms of the two scales (in pixels), before they are
        limited. :func:`compute_expected_log_scale` turns them into an uncertainty.
        """
        padding, states = self._encode_and_get_padding_and_states(frame1, frame2, updates, initial_flow)
        return self._upsample_flow_and_mixture(_get_last_state(states), padding)

    def bidirectional_with_mixture(
        self,
        frame1: Tensor,
        frame2: Tensor,
        updates: int | None = None,
        initial_flow: Tensor | None = None,
        initial_backward: Tensor | None = None,
        backward_updates: int | None = None,
    ) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:  # twice [B, 2, H, W], [B, 4, H, W], float32
        """Return :meth:`flow_with_mixture` forward and backward; each frame goes through the feature encoder once.

        Arguments are as for :meth:`forward`; each direction has its own initial flow. ``backward_updates`` is the
        number of updates of the backward flow, by default that of the forward flow.
        """
        starts = initial_flow, initial_backward
        count, padding, directions = self._resolve_call_and_encode_both_directions(
            frame1, frame2, updates, *starts, min_updates=0
        )
        ranges = [(count, self.get_max_updates(updates))] * 2
        if backward_updates is not None:
            ranges[1] = backward_updates, backward_updates
        forward, backward = (
            self._upsample_flow_and_mixture(_get_last_state(self._iterate_states(encoded, start, *numbers)), padding)
            for (encoded, start), numbers in zip(directions, ranges, strict=True)
        )
        return forward, backward

    def predictions(
        self, frame1: Tensor, frame2: Tensor, updates: int | None = None, initial_flow: Tensor | None = None
    ) -> list[Tensor]:  # (1 + updates) × [B, 2, H, W] float32
        """Return the initial flow and the flow after every update, for training; arguments as for :meth:`forward`."""
        return [flow for flow, _ in self.predictions_with_mixture(frame1, frame2, updates, initial_flow)]

    def predictions_with_mixture(
        self, frame1: Tensor, frame2: Tensor, updates: int | None = None, initial_flow: Tensor | None = None
    ) -> list[tuple[Tensor, Tensor]]:
        """Return :meth:`predictions`, each with its mixture as in :meth:`flow_with_mixture`."""
        padding, states = self._encode_and_get_padding_and_states(
            frame1, frame2, self._resolve_update_count(updates), initial_flow
        )
        return [self._upsample_flow_and_mixture(state, padding) for state in states]

    def compute_padding_coarse_fields_and_weights(
        self,
        frame1: Tensor,
        frame2: Tensor,
        updates: int | None = None,
        initial_flow: Tensor | None = None,
        stride: int = 1,
    ) -> tuple[framing.Padding, list[tuple[Tensor, Tensor]]]:
        """Return the frames' padding and :meth:`predictions_with_mixture` before the convex up-sampling.

        Every prediction is the flow in pixels with its mixture [B, 6, h, w] and the weights [B, 9·8·8, h, w].
        ``initial_flow`` starts every ``stride``-th pair, from the first one on; others start from the regressed flow.
        """
        count, padding, _ = self._check_and_resolve_call_arguments(
            frame1, frame2, self._resolve_update_count(updates), None, min_updates=0
        )
        start = framing.check_and_resample_flow_to_cells_if_any(initial_flow, frame1[::stride], padding)
        prepared = self.normalize_and_pad_frame(frame1, padding), self.normalize_and_pad_frame(frame2, padding)
        fmap1, fmap2, net, context, flow, field, mask = (
            self._compiled_start or self._encode_and_get_start_flow_field_mask
        )(*prepared)
        if start is not None:
            flow, field = flow.clone(), field.clone()
            flow[::stride], field[::stride, :2] = start, 8 * start
        predictions = [(field, mask)]
        if count:
            lookup, grid = self.build_pyramid(fmap1, fmap2), framing.create_coordinate_grid_like(net)
        for _ in range(count):
            flow = flow.detach()
            features = lookup(grid + flow)
            net, flow, field, mask = (self._compiled_update or self._update_and_get_state_flow_field_mask)(
                net, context, features, flow
            )
            predictions.append((field, mask))
        return padding, predictions

    def compile_or_restore_stages(self, mode: str | None) -> None:
        """Compile the stages of :meth:`compute_padding_coarse_fields_and_weights`.

        These are what comes before the updates, and one update, which serves any number.

        Args:
            mode: mode of ``torch.compile``; None returns to code that is not compiled.
        """
        self._compiled_start = (
            None if mode is None else torch.compile(self._encode_and_get_start_flow_field_mask, mode=mode)
        )
        self._compiled_update = (
            None if mode is None else torch.compile(self._update_and_get_state_flow_field_mask, mode=mode)
        )

    def _encode_and_get_start_flow_field_mask(self, frame1: Tensor, frame2: Tensor) -> tuple[Tensor, ...]:
        """Return fmap1, fmap2, state, context, the regressed flow in cells, and the field and mask of a prediction.

        The frames are prepared. Compiled code takes and returns tensors alone, as older versions of PyTorch need it.
        """
        fmap1, fmap2 = self._encode_features(frame1, frame2)
        net, context = self._encode_state_and_context(frame1, frame2)
        outputs: Tensor = self.flow_head(net).float()
        # With the strides of later states, so that one compiled update serves all of them.
        net, flow = net.clone(), outputs[:, :2].clone()
        return fmap1, fmap2, net, context, flow, torch.cat((8 * flow, outputs[:, 2:]), 1), self.predict_mask(net)

    def _update_and_get_state_flow_field_mask(
        self, net: Tensor, context: Tensor, correlation: Tensor, flow: Tensor
    ) -> tuple[Tensor, ...]:
        """Return the next state and flow, and the field and mask of their prediction."""
        net = self.update_block(net, context, correlation, flow)
        outputs: Tensor = self.flow_head(net).float()
        flow = flow + outputs[:, :2]
        return net, flow, torch.cat((8 * flow, outputs[:, 2:]), 1), self.predict_mask(net)

    def optimize_for_cpu(self) -> None:
        """Fold batch norms, reorder the weights, and merge linear layers of the updates.

        For inference in evaluation mode on a CPU, where it saves time; results differ by rounding. It cannot be undone.
        """
        super().optimize_for_cpu()
        self.update_block.encoder.by_products = True
        for module in self.modules():
            if isinstance(module, ConvNeXtBlock):
                module.optimize_for_cpu()

    def _encode_features(self, frame1: Tensor, frame2: Tensor) -> tuple[Tensor, Tensor]:
        if self.training:
            return self.fnet(frame1), self.fnet(frame2)
        return super()._encode_features(frame1, frame2)

    def _encode_state_and_context(self, frame1: Tensor, frame2: Tensor) -> tuple[Tensor, Tensor]:
        net, context = self.init_conv(self.cnet(torch.cat((frame1, frame2), 1))).chunk(2, 1)
        return net, context

    def build_pyramid(self, fmap1: Tensor, fmap2: Tensor) -> CorrelationPyramid:
        """Return the pair's correlation lookup."""
        config = self.config
        in_rows = self.training and fmap1.is_cuda and fmap1.is_contiguous(memory_format=torch.channels_last)
        layout = torch.channels_last if in_rows else torch.contiguous_format
        return CorrelationPyramid(
            fmap1,
            fmap2,
            config.levels,
            config.radius,
            backend=self.correlation,
            out_dtype=fmap1.dtype,
            memory_format=layout,
        )

    def regress_initial_flow(self, net: Tensor) -> Tensor:
        """Return the initial flow [B, 2, h, w] float32 in cells, regressed from :meth:`encode`'s state."""
        return self._predict_flow_and_mixture(net)[0]

    def update_hidden_state_and_coords(
        self,
        lookup: Callable[[Tensor], Tensor],
        net: Tensor,  # [B, channels, h, w]
        context: Tensor,  # [B, channels, h, w]
        coords: Tensor,  # [B, 2, h, w] float32: where each cell went, (x, y)
        grid: Tensor,  # [B, 2, h, w] float32: where it was
    ) -> tuple[Tensor, Tensor]:  # net, coords
        """Update once. No gradient flows through the incoming coordinates."""
        state = self._update_state(lookup, net, context, coords - grid, grid)
        return state.net, grid + state.flow

    def predict_mask(self, net: Tensor) -> Tensor:
        """Return the weights [B, 9·8·8, h, w] of the convex up-sampling before their softmax."""
        mask: Tensor = 0.25 * self.upsample_weight(net)
        return mask

    def upsample(self, flow: Tensor, mask: Tensor) -> Tensor:
        """Enlarge a flow [B, 2, h, w] in cells to [B, 2, 8h, 8w] in pixels."""
        return convex_upsample(8 * flow, mask, 8)

    def _predict_flow_and_mixture(self, net: Tensor) -> tuple[Tensor, Tensor]:
        outputs: Tensor = self.flow_head(net).float()
        return outputs[:, :2], outputs[:, 2:]

    def _update_state(
        self, lookup: Callable[[Tensor], Tensor], net: Tensor, context: Tensor, flow: Tensor, grid: Tensor
    ) -> _UpdateState:
        flow = flow.detach()
        net = self.update_block(net, context, lookup(grid + flow), flow)
        delta, info = self._predict_flow_and_mixture(net)
        return _UpdateState(net, flow + delta, info)

    def _upsample_flow_and_mixture(self, state: _UpdateState, padding: framing.Padding) -> tuple[Tensor, Tensor]:
        both = convex_upsample(torch.cat((8 * state.flow, state.info), 1), self.predict_mask(state.net), 8)
        return padding.crop(both[:, :2]), padding.crop(both[:, 2:])

    def _encode_and_get_padding_and_states(
        self, frame1: Tensor, frame2: Tensor, updates: int | None, initial_flow: Tensor | None
    ) -> tuple[framing.Padding, Iterator[_UpdateState]]:
        """Return the padding, and the states: the initial one, and one after every update."""
        count, padding, flow = self._check_and_resolve_call_arguments(
            frame1, frame2, updates, initial_flow, min_updates=0
        )
        encoded = self.encode(
            self.normalize_and_pad_frame(frame1, padding), self.normalize_and_pad_frame(frame2, padding)
        )
        return padding, self._iterate_states(encoded, flow, count, self.get_max_updates(updates))

    def _iterate_states(
        self, encoded: EncodedFrames, flow: Tensor | None, updates: int, max_updates: int
    ) -> Iterator[_UpdateState]:
        """Yield the start and the state after each update; past ``updates`` while a pair's flow moves."""
        fmap1, fmap2, net, context = encoded
        regressed, info = self._predict_flow_and_mixture(net)
        state = _UpdateState(net, regressed if flow is None else flow, info)
        yield state
        if updates == 0:
            return
        lookup = self.build_pyramid(fmap1, fmap2)
        grid = framing.create_coordinate_grid_like(net)
        moving: Tensor | None = None
        for number in range(1, max_updates + 1):
            before, state = state, self._update_state(lookup, state.net, context, state.flow, grid)
            if moving is not None:  # a pair that has settled keeps its state, as it would alone
                is_moving = moving[:, None, None, None]
                state = _UpdateState(
                    *(torch.where(is_moving, new, old) for new, old in zip(state, before, strict=True))
                )
            yield state
            if updates <= number < max_updates:
                moving = framing.mark_unconverged_pairs(before.flow, state.flow)
                if not moving.any():
                    return


def _get_last_state(states: Iterator[_UpdateState]) -> _UpdateState:
    for state in states:
        last = state
    return last


def compute_expected_log_scale(
    mixture: Tensor,  # [B, 4, H, W], from :meth:`SEARAFT.flow_with_mixture`
    config: SEARAFTConfig,
) -> Tensor:  # [B, 1, H, W]
    """Return the uncertainty of a flow: the weighted mean of its two Laplacians' log scales, limited as in training.

    At most 0 means a scale of about one pixel or less.
    """
    _check.check_tensor(mixture, "mixture", ("B", 4, "H", "W"))
    wide_log_scale = mixture[:, 2:3].clamp(0, config.log_scale_max)
    narrow = mixture[:, 3:].clamp(config.log_scale_min, 0)
    return (mixture[:, :2].softmax(1) * torch.cat((wide_log_scale, narrow), 1)).sum(1, keepdim=True)
