"""Augmentation: the flow stays true for the frames that come out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fullfield.training.flow import Augmentation, augment
from fullfield.training.flow.batch import FlowBatch
from refusals import refuses

HEIGHT, WIDTH = 64, 80
KEPT = Augmentation(scaled=1.0)


def smooth(seed: int = 0, count: int = 4) -> FlowBatch:
    """Frames whose second one shows the first one moved by a smooth flow, exactly up to interpolation."""
    generator = torch.Generator().manual_seed(seed)

    def field(channels: int, cells: int) -> Tensor:
        coarse = torch.rand(count, channels, cells, cells, generator=generator)
        return functional.interpolate(coarse, (HEIGHT, WIDTH), mode="bicubic", align_corners=True)

    flow = 6 * field(2, 3) - 3
    frame2 = field(3, 12).clamp(0, 1)
    return FlowBatch(warped(frame2, flow), frame2, flow, torch.ones(count, HEIGHT, WIDTH) > 0, hidden(flow))


def places(flow: Tensor) -> Tensor:
    height, width = flow.shape[-2:]
    x = torch.arange(width) + flow[:, 0]
    y = torch.arange(height)[:, None] + flow[:, 1]
    return torch.stack((x, y), -1)


def hidden(flow: Tensor) -> Tensor:
    """Where a flow leads out of the frame."""
    there = places(flow)
    return (there < 0).any(-1) | (there[..., 0] > flow.shape[-1] - 1) | (there[..., 1] > flow.shape[-2] - 1)


def warped(frame2: Tensor, flow: Tensor) -> Tensor:
    size = torch.tensor([flow.shape[-1], flow.shape[-2]])
    return functional.grid_sample(frame2, (2 * places(flow) + 1) / size - 1, padding_mode="border", align_corners=False)


def mismatch(batch: FlowBatch) -> Tensor:
    """How far the second frame, read where the flow leads, is from the first, per pixel that stays in sight."""
    outside = hidden(batch.flow) | batch.occluded | ~batch.valid
    return (warped(batch.frame2, batch.flow) - batch.frame1).abs().amax(1)[~outside]


@pytest.mark.parametrize(
    "change",
    [
        {"flip": 1.0},
        {"flip_vertical": 1.0},
        {"scale": (1.2, 1.7)},
        {"stretch": 0.5},
        {"size": (40, 56)},
        {"size": (40, 56), "scale": (0.5, 2.0), "stretch": 0.3, "flip": 0.5, "flip_vertical": 0.5},
    ],
    ids=lambda change: "-".join(change),
)
def test_augment_keeps_correspondences(change: dict[str, Any]) -> None:
    batch = smooth()
    before = mismatch(batch)
    after = augment(batch, Augmentation(**{"scaled": 1.0, **change}), (1, 2))
    height, width = change.get("size", (HEIGHT, WIDTH))
    assert after.frame1.shape == (4, 3, height, width)
    assert after.valid.all()
    errors = mismatch(after)
    assert len(errors) > 0.5 * 4 * height * width
    assert before.mean() < 1e-5
    assert errors.mean() < 0.006
    wrong = after._replace(flow=after.flow.flip(1))
    assert mismatch(wrong).mean() > 0.02  # the measure can fail


def test_augment_flip_is_exact_and_keeps_grey() -> None:
    batch = smooth(1)
    after = augment(batch, Augmentation(flip=1.0), (0, 0))
    assert torch.allclose(after.frame1, batch.frame1.flip(3), atol=1e-5)
    assert torch.allclose(after.flow, batch.flow.flip(3) * torch.tensor([-1.0, 1.0])[:, None, None], atol=1e-4)
    assert torch.equal(after.occluded, batch.occluded.flip(2))
    none = augment(batch, Augmentation(), (0, 0))
    assert all(torch.equal(one, two) for one, two in zip(none, batch, strict=True))
    batch = smooth(5)
    grey = batch.frame1[:, :1].expand(-1, 3, -1, -1)
    after = augment(batch._replace(frame1=grey, frame2=grey), Augmentation(colour=0.8), (0, 3))
    assert torch.allclose(after.frame1, after.frame1.mean(1, keepdim=True).expand(-1, 3, -1, -1), atol=1e-5)


def test_augment_crops_differ_between_pairs() -> None:
    batch = smooth(2)
    after = augment(batch, Augmentation(size=(32, 40)), (0, 5))
    found = []
    for pair in range(4):
        windows = batch.frame1[pair].unfold(1, 32, 1).unfold(2, 40, 1)  # [3, rows, columns, 32, 40]
        apart = (windows - after.frame1[pair][:, None, None]).abs().amax((0, 3, 4))
        assert float(apart.min()) < 1e-4
        found.append(int(apart.argmin()))
    assert len(set(found)) == 4


def test_augment_keeps_flow_edges_sharp() -> None:
    batch = smooth(3)
    flow = torch.zeros_like(batch.flow)
    flow[:, 0, :, 40:] = 20.0
    valid = torch.rand(4, HEIGHT, WIDTH, generator=torch.Generator().manual_seed(0)) < 0.5
    flow = torch.where(valid[:, None], flow, float("nan"))
    after = augment(batch._replace(flow=flow, valid=valid), Augmentation(scaled=1.0, scale=(1.3, 1.3)), (0, 1))
    assert after.flow.isfinite().all()
    assert 0.4 < float(after.valid.float().mean()) < 0.6
    known = after.flow[:, 0][after.valid]
    assert ((known.abs() < 0.05) | ((known - 26).abs() < 0.05)).all()
    assert known.max() > 20


def test_augment_colour_changes_frames_jointly_or_apart() -> None:
    batch = smooth(4, 64)
    both = augment(batch, Augmentation(colour=0.4, apart=0.0), (0, 0))
    assert ((both.frame1 - batch.frame1).abs().mean((1, 2, 3)) > 0.005).float().mean() > 0.9
    assert both.frame1.min() >= 0
    assert both.frame1.max() <= 1
    # Brightness and contrast about each frame's own mean; nearly the same change where the frames are nearly the same.
    assert mismatch(both).mean() < 0.02
    apart = augment(batch, Augmentation(colour=0.4, apart=1.0), (0, 0))
    assert torch.equal(apart.frame1, augment(batch, Augmentation(colour=0.4, apart=0.0), (0, 0)).frame1)
    assert mismatch(apart).mean() > 0.05
    assert all(torch.equal(getattr(apart, name), getattr(batch, name)) for name in ("flow", "valid", "occluded"))


def test_augment_eraser_marks_pixels_as_occluded() -> None:
    batch = smooth(6, 32)
    after = augment(batch, Augmentation(eraser=0.5), (0, 4))
    changed = (after.frame2 != batch.frame2).any(1)
    share = changed.flatten(1).any(1).float().mean()
    assert 0.25 < share < 0.75
    assert torch.equal(after.frame1, batch.frame1)
    for pair in changed.flatten(1).any(1).nonzero()[:, 0].tolist():
        there = places(batch.flow)[pair].round().long()
        inside = (there >= 0).all(-1) & (there[..., 0] < WIDTH) & (there[..., 1] < HEIGHT)
        x, y = there[..., 0].clamp(0, WIDTH - 1), there[..., 1].clamp(0, HEIGHT - 1)
        into = changed[pair][y, x] & inside
        marked = after.occluded[pair] & ~batch.occluded[pair]
        assert (into & ~after.occluded[pair]).sum() <= 0.15 * into.sum() + 12  # along the border, by rounding
        assert (marked & ~into & inside).sum() <= 0.15 * marked.sum() + 12
    untouched = ~changed.flatten(1).any(1)
    assert torch.equal(after.occluded[untouched], batch.occluded[untouched])


@pytest.mark.parametrize("change", [{"size": (48, 48)}, {"scale": (1.5, 1.5)}, {"size": (40, 64), "flip": 1.0}])
def test_augment_marks_pixels_leaving_window_as_occluded(change: dict[str, Any]) -> None:
    after = augment(smooth(8), KEPT.replace(**change), (0, 5))
    leaving = hidden(after.flow)
    assert leaving.any()
    assert after.occluded[leaving & after.valid].all()


def test_augment_depends_on_seed_alone() -> None:
    batch = smooth(7)
    usual = Augmentation.as_in_raft((48, 48))
    first, again, other = (augment(batch, usual, seed) for seed in ((1, 1), (1, 1), (2, 1)))
    assert all(torch.equal(one, two) for one, two in zip(first, again, strict=True))
    assert not torch.equal(first.frame1, other.frame1)


def test_augmentation_refuses_bad_values() -> None:
    for values, message in (
        ({"size": (4, 4)}, "size: expected an integer >= 8"),
        ({"scale": (2.0, 1.0)}, "scale: expected a number >= 2"),
        ({"flip": 2.0}, "flip: expected a number"),
        ({"colour": -1.0}, "colour: expected a number"),
        ({"box": (0.0, 1.0)}, "box: expected a number > 0"),
    ):
        refuses(message, Augmentation, **values)
    refuses("size: expected 80×64 at most", augment, smooth(), Augmentation(size=(65, 80)), (0, 0))
