"""The scene with known motion: is what it says about itself true?"""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fullfield._check import InputError
from fullfield.testing import sample_textured_scene, scenes

pytestmark = pytest.mark.unit


def bilinear(image, x, y):
    """``image`` ``[C, H, W]`` at (x, y) ``[H, W]``, clamped at the border; written for these tests."""
    height, width = image.shape[-2:]
    x, y = x.clamp(0, width - 1), y.clamp(0, height - 1)
    left, top = x.floor().long().clamp(max=width - 2), y.floor().long().clamp(max=height - 2)
    fx, fy = x - left, y - top
    upper = image[:, top, left] * (1 - fx) + image[:, top, left + 1] * fx
    lower = image[:, top + 1, left] * (1 - fx) + image[:, top + 1, left + 1] * fx
    return upper * (1 - fy) + lower * fy


def photometric(scene, flow=None):
    """Mean absolute difference of frame 1 and frame 2 pulled back, ``[H, W]``."""
    flow = scene.flow if flow is None else flow
    height, width = flow.shape[-2:]
    x = torch.arange(width) + flow[0]
    y = torch.arange(height)[:, None] + flow[1]
    return (bilinear(scene.frame2, x, y) - scene.frame1).abs().mean(0)


def near_edges(flow, reach=2):
    """Pixels within ``reach`` of a jump of the flow or of the frame's border."""
    jump = torch.zeros(flow.shape[-2:])
    jump[:, 1:] += (flow[:, :, 1:] - flow[:, :, :-1]).abs().sum(0) > 0.4
    jump[1:] += (flow[:, 1:] - flow[:, :-1]).abs().sum(0) > 0.4
    jump[0] = jump[-1] = jump[:, 0] = jump[:, -1] = 1
    return torch.nn.functional.max_pool2d(jump[None], 2 * reach + 1, 1, reach)[0] > 0


def assert_truth_explains_the_frames(scene, flow=None):
    """Warping by the truth reproduces frame 1 wherever it can."""
    error = photometric(scene, flow)
    hidden = torch.nn.functional.max_pool2d(scene.occluded[None].float(), 7, 1, 3)[0] > 0
    plain = ~hidden & ~near_edges(scene.flow, 3)
    assert float(plain.float().mean()) > 0.4
    assert float(error[plain].mean()) < 0.0025
    assert float(error[plain].quantile(0.999)) < 0.04
    assert float(error[~scene.occluded].mean()) < 0.005


@pytest.mark.parametrize(
    ("size", "seed", "motion"), [((180, 260), 0, None), ((218, 512), 3, 5.0), ((200, 300), 2, 60.0)]
)
def test_textured_scene_flow_explains_frames(size, seed, motion):
    scene = sample_textured_scene(*size, seed=seed, max_motion=motion)
    assert_truth_explains_the_frames(scene)
    error = photometric(scene)
    visible = ~scene.occluded & ~near_edges(scene.flow)
    assert float(error[scene.occluded].mean()) > 15 * float(error[visible].mean())


def test_photometric_check_fails_for_wrong_flow():
    scene = sample_textured_scene(120, 160, max_motion=6.0)
    for wrong in (scene.flow + 0.25, torch.zeros_like(scene.flow), -scene.flow, scene.flow.flip(0)):
        with pytest.raises(AssertionError):
            assert_truth_explains_the_frames(scene, wrong)


def test_textured_scene_objects_move_with_layer():
    """Vectors against complex arithmetic from the layers' own numbers, object by object."""
    height, width, motion = 150, 210, 12.0
    scene = sample_textured_scene(height, width, seed=4, max_motion=motion)
    layers = scenes._draw_layers(height, width, 4, motion)
    y, x = torch.meshgrid(torch.arange(height).double(), torch.arange(width).double(), indexing="ij")
    top = torch.zeros(height, width, dtype=torch.long)
    for index, layer in enumerate(layers[1:], 1):
        top[(layer.outline(torch.stack([x.flatten(), y.flatten()])) < 0).reshape(height, width)] = index
    rigid = 0
    for index, layer in enumerate(layers):
        mine = top == index
        assert int(mine.sum()) > 100
        point = torch.complex(x[mine], y[mine])
        middle, push, turn = (torch.complex(part[0], part[1]) for part in (layer.middle, layer.translation, layer.turn))
        there = middle + push + (1 + turn) * (point - middle)
        wanted = torch.stack([(there - point).real, (there - point).imag])
        torch.testing.assert_close(scene.flow[:, mine].double(), wanted, rtol=1e-6, atol=1e-5)
        rigid += bool(turn == 0)
        assert 0.7 < layer.size_ratio < 1.5
    assert rigid >= 1  # some only slide, some also turn
    assert rigid < len(layers) - 2
    directions = sorted(math.atan2(float(layer.translation[1]), float(layer.translation[0])) for layer in layers[1:])
    assert directions[-1] - directions[0] > math.pi / 2


def disc(x, y, radius, push, shade):
    place = torch.tensor([x, y], dtype=torch.float64)
    return scenes._Layer(
        lambda places: torch.full((3, places.shape[1]), shade, dtype=torch.float64),
        scenes._build_outline_distance_function("disc", place, radius, 0.0),
        place,
        torch.tensor(push, dtype=torch.float64),
        torch.zeros(2, dtype=torch.float64),
    )


def test_textured_scene_occlusion_equals_loops():
    """Two discs before a background, moved by whole pixels: what is seen is found pixel by pixel."""
    height, width = 40, 50
    floor = disc(0, 0, 1, [1.0, 0.0], 0.1)
    floor = scenes._Layer(floor.color, None, floor.middle, floor.translation, floor.turn)
    layers = [floor, disc(15, 20, 8.3, [9.0, -2.0], 0.5), disc(30, 19, 7.2, [-3.0, 4.0], 0.9)]
    circles = [None, (15, 20, 8.3), (30, 19, 7.2)]
    pushes = [(1, 0), (9, -2), (-3, 4)]

    def on_top(x, y, moved):
        for index in (2, 1):
            cx, cy, radius = circles[index]
            dx, dy = pushes[index] if moved else (0, 0)
            if math.hypot(x - cx - dx, y - cy - dy) < radius:
                return index
        return 0

    flow, occluded = scenes._compute_flow_and_occlusion(layers, height, width)
    for y in range(height):
        for x in range(width):
            layer = on_top(x, y, moved=False)
            u, v = pushes[layer]
            assert flow[:, y, x].tolist() == [u, v]
            inside = 0 <= x + u < width and 0 <= y + v < height
            assert bool(occluded[y, x]) == (not inside or on_top(x + u, y + v, moved=True) != layer)
    assert 50 < int(occluded.sum()) < 400


def test_textured_scene_edges_are_antialiased():
    """A pixel's brightness is the share of the shape in it: the sums give the discs' areas."""
    black = disc(0, 0, 1, [0.0, 0.0], 0.0)
    black = scenes._Layer(black.color, None, black.middle, black.translation, black.turn)
    shape = disc(25.3, 24.6, 15.4, [3.37, -1.21], 0.5)
    for second in (False, True):
        frame = scenes._render_frame([black, shape], 50, 60, is_second_frame=second)
        bright = frame[0] / 0.5
        grid = scenes._list_pixel_centers(60, slice(0, 50))
        relief = (
            scenes._compute_rim_brightness(shape, shape.map_second_frame_to_first(grid) if second else grid)
            .reshape(50, 60)
            .float()
        )
        share = bright / relief
        assert int(((share > 0.05) & (share < 0.95)).sum()) > 60
        area = float(share.sum())
        assert area == pytest.approx(math.pi * 15.4**2, rel=0.002)


@settings(max_examples=12, deadline=None)
@given(st.integers(16, 60), st.integers(16, 60), st.integers(0, 2**31), st.floats(0, 8))
def test_textured_scene_accepts_any_size_and_seed(height, width, seed, motion):
    scene = sample_textured_scene(height, width, seed=seed, max_motion=motion)
    for frame in (scene.frame1, scene.frame2):
        assert frame.shape == (3, height, width)
        assert frame.dtype == torch.float32
        assert float(frame.min()) >= 0
        assert float(frame.max()) <= 1
        assert float(frame.std()) > 0.03
    assert scene.flow.shape == (2, height, width)
    assert scene.flow.dtype == torch.float32
    assert scene.valid.dtype == scene.occluded.dtype == torch.bool
    assert bool(scene.valid.all())
    assert scene.occluded.shape == (height, width)
    longest = float(torch.hypot(*scene.flow.double()).max())
    assert longest == pytest.approx(motion, rel=1e-5, abs=1e-9)


def test_textured_scene_depends_on_seed_alone():
    before = torch.random.get_rng_state()
    one, same, other = (sample_textured_scene(40, 50, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    for name in ("frame1", "frame2", "flow", "valid", "occluded"):
        assert torch.equal(getattr(one, name), getattr(same, name))
    assert not torch.equal(one.frame1, other.frame1)
    assert not torch.equal(one.flow, other.flow)
    with pytest.raises(AttributeError):
        one.flow = other.flow
    still = sample_textured_scene(32, 48, max_motion=0)
    assert not still.occluded.any()
    torch.testing.assert_close(still.frame1, still.frame2, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "arguments",
    [
        {"height": 15},
        {"width": 8.5},
        {"seed": -1},
        {"max_motion": -1.0},
        {"max_motion": 26.0},
        {"max_motion": math.nan},
    ],
)
def test_textured_scene_names_wrong_arguments(arguments):
    with pytest.raises(InputError, match=next(iter(arguments))):
        sample_textured_scene(**{"height": 40, "width": 50, **arguments})
