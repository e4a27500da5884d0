"""Base class of the flow networks: arguments, frames, features and both directions of a pair."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from fullfield import _check
from fullfield.models import framing
from fullfield.models.state import (
    convert_torchvision_keys,
    load_state_into,
    read_state_dict_and_name,
    recognize_network_if_possible,
    rename_shortcut_norms_to_downsample,
)

if TYPE_CHECKING:
    from fullfield.models.shape import NetworkArchitecture


class EncodedFrames(NamedTuple):
    """Features, state and context of one pair, at 1/8 of the padded frames."""

    fmap1: Tensor  # [B, C, h, w]
    fmap2: Tensor
    net: Tensor  # [B, C', h, w], the initial hidden state
    context: Tensor  # [B, C'', h, w]


class ConvolutionBeforeNorm(nn.Conv2d):
    """Convolution that a norm follows.

    With ``skips_bias`` it adds no bias in training mode, where a batch norm would cancel it.
    """

    skips_bias = False

    def forward(self, x: Tensor) -> Tensor:
        """Apply the convolution to [B, C, H, W]."""
        bias = None if self.skips_bias and self.training else self.bias
        convolved: Tensor = self._conv_forward(x, self.weight, bias)
        return convolved


class FlowNetwork(nn.Module):
    """Network with a feature encoder ``fnet`` and a context encoder ``cnet`` whose correlation is looked up.

    Attributes:
        family: name in messages of a shape that was not published.
        norm_prefix: prefix of the norms in checkpoints.
        cpu_format: order of the weights in memory with which estimators run it faster on a CPU.
    """

    family: ClassVar[str]
    norm_prefix: ClassVar[str]
    cpu_format: ClassVar[torch.memory_format] = torch.contiguous_format
    config: NetworkArchitecture
    correlation: str | None
    fnet: Any
    cnet: Any

    def load_checkpoint(self, source: str | os.PathLike[str] | Mapping[str, Tensor]) -> None:
        """Load a file or a state dict: princeton's, ptlflow's, our own, and for RAFT torchvision's.

        Args:
            source: a file (``.pth``, ``.ckpt``, ``.safetensors``) or a state dict.

        Raises:
            InputError: if the file is not of this network; names what it is or which tensors do not fit, and leaves
                the weights as they were.
            OSError: if the file cannot be read.
        """
        state, name = read_state_dict_and_name(source)
        recognised = recognize_network_if_possible(state)
        if recognised is not None and recognised.startswith("torchvision"):
            state = convert_torchvision_keys(state)
        expected = recognize_network_if_possible(self.state_dict()) or self.family
        load_state_into(
            self, rename_shortcut_norms_to_downsample(state, name, self.norm_prefix), name, expected, recognised
        )

    def optimize_for_cpu(self) -> None:
        """Fold batch norms into the convolutions before them and reorder the weights.

        For inference in evaluation mode on a CPU, where it saves time; results differ by rounding. It cannot be undone.
        """
        _check.require(not self.training, "model", "evaluation mode", "training mode")
        for module in self.modules():
            for (name, conv), (behind, norm) in pairwise(list(module.named_children())):
                if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
                    setattr(module, name, fuse_conv_bn_eval(conv, norm))
                    setattr(module, behind, nn.Identity())
        self.to(memory_format=self.cpu_format)  # type: ignore[call-overload]

    def find_cancelled_biases_and_their_norms(self) -> list[tuple[str, str]]:
        """Return the names of convolutions whose biases a batch norm in training mode cancels, and of these norms."""
        names = []
        for prefix, module in self.named_modules():
            start = f"{prefix}." if prefix else ""
            for (name, layer), (behind, norm) in pairwise(module.named_children()):
                if isinstance(layer, ConvolutionBeforeNorm) and isinstance(norm, nn.BatchNorm2d) and norm.training:
                    names.append((start + name, start + behind))
        return names

    @torch.no_grad()
    def fold_biases_into_norms(self, conv_and_norm_names: Sequence[tuple[str, str]]) -> None:
        """Move biases into the means of the norms behind them, and add none in training mode.

        The network's results stay the same, but for rounding. ``conv_and_norm_names`` are the pairs of
        :meth:`find_cancelled_biases_and_their_norms`.
        """
        for name, behind in conv_and_norm_names:
            layer: Any = self.get_submodule(name)
            norm: Any = self.get_submodule(behind)
            if layer.bias is not None:
                norm.running_mean -= layer.bias
                layer.bias.zero_()
            layer.skips_bias = True

    def normalize_and_pad_frame(self, frame: Tensor, padding: framing.Padding) -> Tensor:
        """Return a frame with the values, size and dtype that the encoders take."""
        return padding.pad(framing.scale_frame_to_signed_unit_range(frame, self.fnet.conv1.weight.dtype))

    def encode(self, frame1: Tensor, frame2: Tensor) -> EncodedFrames:
        """Return features, state and context of prepared frames [B, 3, 8h, 8w].

        Both frames go through the feature encoder in one pass, unless they are large.
        """
        return EncodedFrames(*self._encode_features(frame1, frame2), *self._encode_state_and_context(frame1, frame2))

    def _encode_features(self, frame1: Tensor, frame2: Tensor) -> tuple[Tensor, Tensor]:
        return framing.encode_frames(self.fnet, frame1, frame2)

    def _encode_state_and_context(self, frame1: Tensor, frame2: Tensor) -> tuple[Tensor, Tensor]:
        raise NotImplementedError

    def _check_and_resolve_call_arguments(
        self, frame1: Tensor, frame2: Tensor, updates: int | None, initial_flow: Tensor | None, *, min_updates: int
    ) -> tuple[int, framing.Padding, Tensor | None]:
        """Return the number of updates, the padding, and the initial flow in cells."""
        _, height, width = framing.check_frames_and_get_size(frame1, frame2, self.fnet.conv1.weight.device)
        count = self._resolve_update_count(updates)
        _check.check_number(count, "updates", integer=True, low=min_updates)
        padding = framing.choose_padding(height, width, self.config.padding)
        return count, padding, framing.check_and_resample_flow_to_cells_if_any(initial_flow, frame1, padding)

    def _resolve_update_count(self, updates: int | None) -> int:
        return self.config.updates if updates is None else updates

    def get_max_updates(self, updates: int | None) -> int:
        """Return the highest number of updates of a call with ``updates``.

        It is above ``config.updates`` where none are set and the configuration lets them go on; never in training,
        while a graph is traced or recorded, which cannot ask for the flow.
        """
        config = self.config
        if updates is not None or config.max_updates is None or config.updates == 0:
            return self._resolve_update_count(updates)
        on_gpu = self.fnet.conv1.weight.is_cuda
        recorded = on_gpu and torch.cuda.is_current_stream_capturing()
        traced = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
        recorded = recorded or traced or torch.compiler.is_compiling()
        return config.updates if self.training or recorded else config.max_updates

    def _resolve_call_and_encode_both_directions(
        self,
        frame1: Tensor,
        frame2: Tensor,
        updates: int | None,
        initial_flow: Tensor | None,
        initial_backward: Tensor | None,
        *,
        min_updates: int,
    ) -> tuple[int, framing.Padding, list[tuple[EncodedFrames, Tensor | None]]]:
        """Encode a pair in both directions; each frame goes through the feature encoder once.

        Returns:
            The number of updates, the padding, and what is encoded with the initial flow in cells, forward and
            backward.
        """
        count, padding, start = self._check_and_resolve_call_arguments(
            frame1, frame2, updates, initial_flow, min_updates=min_updates
        )
        back = framing.check_and_resample_flow_to_cells_if_any(initial_backward, frame2, padding, "initial_backward")
        one, two = self.normalize_and_pad_frame(frame1, padding), self.normalize_and_pad_frame(frame2, padding)
        fmap1, fmap2 = self._encode_features(one, two)
        forward = EncodedFrames(fmap1, fmap2, *self._encode_state_and_context(one, two))
        backward = EncodedFrames(fmap2, fmap1, *self._encode_state_and_context(two, one))
        return count, padding, [(forward, start), (backward, back)]
