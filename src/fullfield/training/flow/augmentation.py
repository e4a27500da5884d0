"""Pairs changed at random: their part, scale, colours, and what hides in the second frame; on the batch's device."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fullfield import _check
from fullfield._config import Config
from fullfield.ops.consistency import compute_flow_targets_and_mark_inside
from fullfield.training.flow.batch import FlowBatch, PairCounter, PairSource, prefetch_batches_if_possible

# Square pixels: where the flow of the four pixels around a place varies more, an edge lies between, and the nearest
# one's is taken; and what float32 loses of the squares.
_SMOOTH, _ROUNDING = 0.05, 1e-6
_BOXES = 2
_DRAWN = 22 + 4 * _BOXES  # numbers a pair
_LUMA = (0.299, 0.587, 0.114)


@dataclass(frozen=True)
class Augmentation(Config):
    """Configuration of random augmentation; each pair has random numbers of its own.

    Shares are probabilities. ``size``, when given, is what is cut: at a random place and scale, never from outside the
    pair's frames.
    """

    size: tuple[int, int] | None = None
    """Height and width; None keeps the whole frames, and no scale below 1 is drawn."""
    scale: tuple[float, float] = (1.0, 1.0)
    """Lowest and highest factor of the size, drawn uniformly between their logarithms."""
    stretch: float = 0.0
    """Of the logarithm to base 2 of width over height: at most, of either sign."""
    scaled: float = 0.8
    """Share of pairs whose scale changes."""
    flip: float = 0.0
    """Share of pairs mirrored left to right."""
    flip_vertical: float = 0.0
    colour: float = 0.0
    """Strength of changes of brightness, contrast and saturation (0.4: by up to 40 %), and of hue in proportion."""
    apart: float = 0.2
    """Share of pairs whose second frame gets colours of its own."""
    eraser: float = 0.0
    """Share of pairs with up to two boxes of the mean colour in the second frame. What they hide counts as occluded."""
    box: tuple[float, float] = (0.1, 0.3)
    """A box's side: least and most, in shares of the frame's height."""

    def __post_init__(self) -> None:
        if self.size is not None:
            _check.require(len(self.size) == 2, "size", "height and width", repr(self.size))
            object.__setattr__(self, "size", tuple(self.size))
            for side in self.size:
                _check.check_number(side, "size", integer=True, low=8)
        for name in ("scale", "box"):
            low, high = getattr(self, name)
            object.__setattr__(self, name, (low, high))
            _check.check_number(low, name, above=0.0)
            _check.check_number(high, name, low=low)
        for name in ("scaled", "flip", "flip_vertical", "apart", "eraser", "colour", "stretch"):
            _check.check_number(getattr(self, name), name, low=0.0, high=1.0)

    @classmethod
    def as_in_raft(cls, size: tuple[int, int], **overrides: Any) -> Augmentation:
        """Return the augmentation of RAFT and SEA-RAFT, with some fields replaced."""
        usual = cls(size, (0.8, 1.5), stretch=0.2, flip=0.5, flip_vertical=0.1, colour=0.4, eraser=0.5)
        return usual.replace(**overrides)

    @property
    def is_spatial(self) -> bool:
        """True where pixels move."""
        other = self.scale != (1.0, 1.0) or self.stretch or self.flip or self.flip_vertical
        return self.size is not None or bool(other)


class AugmentedPairs:
    """Source whose pairs are augmented on their device; ``seed`` and a batch's index decide what is drawn."""

    def __init__(self, source: PairSource, augmentation: Augmentation, seed: int = 0) -> None:
        self._source, self._augmentation, self._seed = source, augmentation, seed

    def prefetch(self, first_batch_index: int, stride: int, count_pairs: PairCounter) -> None:
        """Let the source prefetch batches, if it can."""
        prefetch_batches_if_possible(self._source, first_batch_index, stride, count_pairs)

    def batch(self, batch_index: int, pair_count: int) -> FlowBatch:
        """Return ``pair_count`` augmented pairs of the source."""
        return augment(self._source.batch(batch_index, pair_count), self._augmentation, (self._seed, batch_index))


@torch.no_grad()
def augment(batch: FlowBatch, augmentation: Augmentation, seed: tuple[int, int]) -> FlowBatch:
    """Augment the pairs of a batch [B, 3, H, W]; the result depends on the two numbers of ``seed``.

    Flow is scaled and turned with the pixels; it stays sharp at edges. A pixel whose flow leads into an erased
    box, or out of what was cut, becomes occluded.
    """
    count, _, height, width = batch.frame1.shape
    if augmentation.size is not None:
        rows, columns = augmentation.size
        is_inside = rows <= height and columns <= width
        _check.require(is_inside, "size", f"{width}×{height} at most, as the frames", f"{columns}×{rows}")
    with torch.autocast(batch.frame1.device.type, enabled=False):
        generator = torch.Generator().manual_seed((seed[0] * 1_000_003 + seed[1]) % 2**63)
        uniform = torch.rand(count, _DRAWN, generator=generator, dtype=torch.float32)
        draw = list(uniform.to(batch.frame1.device, non_blocking=True).unbind(1))
        if augmentation.is_spatial:
            batch = _crop_scale_and_flip_randomly(batch, augmentation, draw[:8])
        if augmentation.colour > 0:
            batch = _augment_colors(batch, augmentation, list(uniform[:, 8:20].unbind(1)))
        if augmentation.eraser > 0:
            batch = _erase_rectangles_and_mark_occluded(batch, augmentation, draw[21:])
    return batch


def _crop_scale_and_flip_randomly(
    batch: FlowBatch, augmentation: Augmentation, random_numbers: list[Tensor]
) -> FlowBatch:
    count, _, height, width = batch.frame1.shape
    rows, columns = augmentation.size or (height, width)
    low, high = (math.log(bound) for bound in augmentation.scale)
    changed = (random_numbers[0] < augmentation.scaled).float()
    size = changed * (low + (high - low) * random_numbers[1])
    bend = changed * (random_numbers[2] - 0.5) * augmentation.stretch * math.log(2)
    # No scale takes in what lies outside the frames.
    across = torch.exp(size + bend).clamp(min=columns / width)
    down = torch.exp(size - bend).clamp(min=rows / height)
    left = (
        (random_numbers[3] * (width - columns / across + 1)).floor().clamp(min=0)
    )  # whole pixels: where nothing is scaled,
    top = (random_numbers[4] * (height - rows / down + 1)).floor().clamp(min=0)  # nothing is interpolated
    left = torch.minimum(left, width - columns / across)
    top = torch.minimum(top, height - rows / down)
    mirror_x = 1 - 2 * (random_numbers[5] < augmentation.flip).float()
    mirror_y = 1 - 2 * (random_numbers[6] < augmentation.flip_vertical).float()

    def compute_positions(length: int, scale: Tensor, first: Tensor, mirror: Tensor) -> Tensor:
        """Return the positions of the new pixels in the old frames [B, length]."""
        new = torch.arange(length, device=scale.device, dtype=torch.float32) + 0.5
        turned = torch.where(mirror[:, None] > 0, new, length - new)
        return turned / scale[:, None] + first[:, None] - 0.5

    x, y = compute_positions(columns, across, left, mirror_x), compute_positions(rows, down, top, mirror_y)
    grid = torch.stack(
        (
            ((2 * x + 1) / width - 1)[:, None, :].expand(count, rows, columns),
            ((2 * y + 1) / height - 1)[:, :, None].expand(count, rows, columns),
        ),
        -1,
    )

    def sample_field(field: Tensor, mode: str) -> Tensor:
        return functional.grid_sample(field, grid.to(field.dtype), mode, padding_mode="border", align_corners=False)

    frames = sample_field(torch.cat((batch.frame1, batch.frame2), 1), "bilinear")
    valid_pixels = batch.valid[:, None]
    flow = torch.where(valid_pixels, batch.flow, 0.0)
    exact = sample_field(torch.cat((flow, valid_pixels.float(), batch.occluded[:, None].float()), 1), "nearest")
    blended = sample_field(torch.cat((flow, flow.square(), valid_pixels.float()), 1), "bilinear")
    squares = blended[:, 2:4]
    spread = squares - blended[:, :2].square()
    inner = (spread < _SMOOTH + _ROUNDING * squares).all(1, keepdim=True) & (blended[:, 4:] > 1 - 1e-4)
    warped = torch.where(inner, blended[:, :2], exact[:, :2])
    factor = torch.stack((across * mirror_x, down * mirror_y), 1)[:, :, None, None]
    flow, valid = warped * factor, exact[:, 2] > 0.5
    _, _, inside = compute_flow_targets_and_mark_inside(flow)
    return FlowBatch(frames[:, :3], frames[:, 3:], flow, valid, (exact[:, 3] > 0.5) | (valid & ~inside))


def _augment_colors(batch: FlowBatch, augmentation: Augmentation, random_numbers: list[Tensor]) -> FlowBatch:
    own = (random_numbers[10] < augmentation.apart).float()
    second = [torch.lerp(a, b, own) for a, b in zip(random_numbers[:4], random_numbers[5:9], strict=True)]
    frame1, frame2 = (
        _jitter_frame_colors(frame, [2 * number - 1 for number in numbers], augmentation.colour)
        for frame, numbers in ((batch.frame1, random_numbers[:4]), (batch.frame2, second))
    )
    return batch._replace(frame1=frame1, frame2=frame2)


def _jitter_frame_colors(frame: Tensor, random_numbers: list[Tensor], strength: float) -> Tensor:
    """Change brightness, contrast, saturation and hue by numbers in -1 ... 1, on the CPU."""
    device = frame.device
    bright, contrast, saturation = (1 + strength * number for number in random_numbers[:3])
    angle = strength * math.pi * 0.4 * random_numbers[3]
    luma, unit = torch.tensor(_LUMA, dtype=torch.float32), torch.eye(3, dtype=torch.float32)
    grey = luma.expand(3, 3)  # every row gives the luma
    # A turn around the grey axis: hue.
    third = math.sqrt(1 / 3)
    cross = torch.tensor([[0.0, -third, third], [third, 0.0, -third], [-third, third, 0.0]], dtype=torch.float32)
    cos, sin = angle.cos()[:, None, None], angle.sin()[:, None, None]
    turn = cos * unit + sin * cross + (1 - cos) / 3
    saturated = saturation[:, None, None] * unit + (1 - saturation)[:, None, None] * grey
    matrix = (bright * contrast)[:, None, None] * (saturated @ turn)
    # Contrast changes what differs from the frame's mean luma.
    lift = (bright * (1 - contrast))[:, None, None] * grey
    matrix, lift = matrix.to(device, non_blocking=True), lift.to(device, non_blocking=True)
    values = frame.float()
    added = torch.bmm(lift, values.mean((2, 3))[:, :, None])[..., None]
    return (torch.einsum("bij,bjhw->bihw", matrix, values) + added).clamp(0, 1).to(frame.dtype)


def _erase_rectangles_and_mark_occluded(
    batch: FlowBatch, augmentation: Augmentation, random_numbers: list[Tensor]
) -> FlowBatch:
    _, _, height, width = batch.frame1.shape
    device = batch.frame1.device
    y = torch.arange(height, device=device, dtype=torch.float32)[None, :, None]
    x = torch.arange(width, device=device, dtype=torch.float32)[None, None, :]
    low, high = (height * side for side in augmentation.box)
    box_draw = random_numbers[0]  # under half the share: two boxes, under the share: one
    inside = torch.zeros(batch.valid.shape, dtype=torch.bool, device=device)
    hidden = inside
    target_x, target_y, _ = compute_flow_targets_and_mark_inside(batch.flow)
    for index in range(_BOXES):
        center_x, center_y, box_width, box_height = random_numbers[1 + 4 * index : 5 + 4 * index]
        left, top = (center_x * width)[:, None, None], (center_y * height)[:, None, None]
        half_x = (low + (high - low) * box_width)[:, None, None] / 2
        half_y = (low + (high - low) * box_height)[:, None, None] / 2
        used = (box_draw < augmentation.eraser / (1 + index))[:, None, None]
        inside = inside | (used & ((x - left).abs() < half_x) & ((y - top).abs() < half_y))
        hidden = hidden | (used & ((target_x - left).abs() < half_x) & ((target_y - top).abs() < half_y))
    mean = batch.frame2.mean((2, 3), keepdim=True)
    frame2 = torch.where(inside[:, None], mean, batch.frame2)
    return batch._replace(frame2=frame2, occluded=batch.occluded | hidden)
