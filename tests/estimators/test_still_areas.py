"""Areas in which both frames agree bit for bit have no motion."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fullfield import estimate
from fullfield.estimators import NetworkEstimator
from fullfield.estimators._still import find_still_areas
from fullfield.testing import sample_textured_scene

SCENE = sample_textured_scene(136, 200, seed=3)
FRAMES = SCENE.frame1, SCENE.frame2
METHODS = ("fullfield-s", "auto")


def paste(picture: Tensor, top: int, left: int) -> tuple[Tensor, Tensor]:
    """Return the scene's frames with the same picture in both."""
    frames = [frame.clone() for frame in FRAMES]
    for frame in frames:
        frame[:, top : top + picture.shape[-2], left : left + picture.shape[-1]] = picture
    return frames[0], frames[1]


def noise(height: int, width: int) -> Tensor:
    return torch.rand(3, height, width, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("frame", [torch.zeros(3, 45, 61), torch.ones(3, 45, 61), SCENE.frame1[:, :45, :61]])
def test_estimate_identical_frames_returns_zero_flow(method: str, frame: Tensor) -> None:
    flow = estimate(frame, frame.clone(), method, reliability=True)
    assert not flow.flow.any()
    assert flow.confidence is not None
    is_flat = frame.amin() == frame.amax()
    assert bool((flow.confidence <= 0.2).all()) == bool(is_flat)
    assert float(flow.confidence.mean()) > 0.8 or is_flat


@pytest.mark.parametrize("method", METHODS)
def test_estimate_still_slate_has_zero_flow(method: str) -> None:
    before = estimate(*FRAMES, method).flow
    after = estimate(*paste(noise(56, 96), 40, 48), method).flow
    assert not after[:, 64:80, 72:128].any()
    assert (after - before)[:, :, :16].norm(dim=0).mean() < 0.5, "far from the slate the picture moves as before"


def test_estimate_flat_areas_take_surrounding_motion() -> None:
    """A caption on black, with a moving picture at the right: the network alone finds motion in the black."""
    frames = paste(torch.zeros(3, 136, 160), 0, 0)
    for frame in frames:
        frame[:, 56:80, 16:48] = noise(24, 32)
    flow = estimate(*frames, "fullfield-s", reliability=True)
    speed, border = flow.flow.norm(dim=0), flow.flow.norm(dim=0)[:, 72:96]
    assert speed[:, :64].max() <= border.max()
    assert not speed[64:72, 24:40].any()
    assert flow.confidence is not None
    assert flow.confidence[96:, :64].max() <= 0.2
    assert flow.confidence[:, 168:].mean() > 0.5


def test_find_still_areas_ignores_straight_edges() -> None:
    frame = torch.zeros(1, 1, 64, 96)
    frame[..., 48:] = 1.0
    other = frame.clone()
    other[..., :8, :8] = 0.5
    still = find_still_areas(frame, other)
    assert still is not None
    assert not still.still.any()
    assert still.flat[0, 0, 40, 8]
    assert not still.flat[0, 0, 40, 48]


def test_find_still_areas_marks_only_equal_areas() -> None:
    assert find_still_areas(*(frame[None] for frame in FRAMES)) is None
    first, second = (frame[None] for frame in paste(noise(40, 40), 48, 80))
    still = find_still_areas(first, second)
    assert still is not None
    assert still.still[0, 0, 60:76, 92:108].all()
    outside = still.still.clone()
    outside[..., 48:88, 80:120] = False
    assert not outside.any()


def test_network_estimator_treats_still_pairs_separately() -> None:
    estimator = NetworkEstimator("fullfield-s")
    first = torch.stack((FRAMES[0], FRAMES[0]))[..., :48, :64]
    second = torch.stack((FRAMES[0], FRAMES[1]))[..., :48, :64]
    flows = estimator(first, second)
    assert not flows[0].any()
    assert flows[1].abs().mean() > 0.1
    both = estimator.bidirectional(first, second)
    assert both is not None
    assert not both.backward[0].any()
    assert both.backward[1].abs().mean() > 0.1
