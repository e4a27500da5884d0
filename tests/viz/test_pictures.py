"""Pictures against definitions written once more with loops, and against what a person would see in them."""

from __future__ import annotations

import colorsys
import math
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fullfield import viz
from fullfield._check import InputError
from fullfield.viz._pixels import BACKGROUND
from fullfield.viz.errors import create_error_colors, draw_error_legend
from fullfield.viz.wheel import create_color_wheel


def random_flow(seed, height=23, width=31, size=10.0):
    return torch.randn(2, height, width, generator=torch.Generator().manual_seed(seed)) * size


def random_frame(seed, height=23, width=31, channels=3):
    return torch.rand(channels, height, width, generator=torch.Generator().manual_seed(seed))


def assert_close_pictures(got, wanted, levels=1):
    """Same type and shape, and no channel of a pixel further apart than ``levels``."""
    assert got.dtype == torch.uint8
    assert tuple(got.shape) == tuple(wanted.shape)
    apart = (got.to(torch.int64) - torch.as_tensor(wanted).to(torch.int64)).abs()
    assert int(apart.max()) <= levels, f"{int((apart > levels).sum())} values differ by up to {int(apart.max())}"


# --- Middlebury's colours


def wheel_by_hand():
    """Red, yellow, green, cyan, blue, magenta, red; the steps in between as the benchmark counts them."""
    corners = [(255, 0, 0), (255, 255, 0), (0, 255, 0), (0, 255, 255), (0, 0, 255), (255, 0, 255), (255, 0, 0)]
    colors = []
    for arc, count in enumerate((15, 6, 4, 11, 13, 6)):
        for step in range(count):
            color = []
            for start, end in zip(corners[arc], corners[arc + 1], strict=True):
                ramp = math.floor(255 * step / count)
                color.append(start if start == end else (ramp if end else 255 - ramp))
            colors.append(color)
    return colors


def color_by_hand(u, v, scale):
    """Colour of one vector, in float64."""
    wheel = [[part / 255 for part in color] for color in wheel_by_hand()]
    radius = math.hypot(u, v) / scale if scale else 0.0
    place = (math.atan2(-v, -u) / math.pi + 1) / 2 * 54
    below = int(place)
    result = []
    for channel in range(3):
        low, high = wheel[below][channel], wheel[(below + 1) % 55][channel]
        color = low + (high - low) * (place - below)
        color = 1 - radius * (1 - color) if radius <= 1 else 0.75 * color
        result.append(int(255 * color))
    return result


@pytest.mark.unit
def test_create_color_wheel_equals_middlebury():
    wheel = create_color_wheel()
    assert wheel.dtype == torch.uint8
    assert wheel.tolist() == wheel_by_hand()
    assert [wheel[i].tolist() for i in (0, 15, 21, 25, 36, 49)] == [
        [255, 0, 0],
        [255, 255, 0],
        [0, 255, 0],
        [0, 255, 255],
        [0, 0, 255],
        [255, 0, 255],
    ]


@pytest.mark.unit
@pytest.mark.parametrize("max_motion", [None, 7.0, 100.0])
def test_flow_to_image_equals_loops(max_motion):
    flow = random_flow(1)
    scale = max_motion or float(torch.hypot(*flow).max())
    wanted = [[color_by_hand(float(u), float(v), scale) for u, v in row] for row in flow.permute(1, 2, 0)]
    assert_close_pictures(viz.flow_to_image(flow, max_motion=max_motion), torch.tensor(wanted).permute(2, 0, 1))


@pytest.mark.unit
def test_flow_to_image_shows_direction_and_length():
    flow = torch.tensor([[1.0, 0.0, -1.0, 0.0, 0.0, 0.5, 3.0], [0.0, 1.0, 0.0, -1.0, 0.0, 0.0, 0.0]]).reshape(2, 1, 7)
    right, down, left, up, still, slow, fast = viz.flow_to_image(flow, max_motion=1.0)[:, 0].T.tolist()
    hues = [colorsys.rgb_to_hsv(*color)[0] * 360 for color in (right, down, left, up)]
    assert hues == pytest.approx([0, 50, 180, 260], abs=15)  # red, amber, cyan, blue-violet
    assert still == [255, 255, 255]
    assert slow == [255, 127, 127]
    assert fast == [191, 0, 0]


@pytest.mark.unit
def test_flow_to_image_unknown_vectors_are_black():
    flow = random_flow(2)
    known = viz.measure_max_motion(flow)
    flow[0, 0, 0], flow[1, 0, 1], flow[0, 0, 2], flow[1, 0, 3] = math.nan, math.inf, 1.666666752e9, -math.inf
    valid = torch.ones(23, 31, dtype=torch.bool)
    valid[5] = False
    flow[:, 5] = 1e6
    picture = viz.flow_to_image(flow, valid)
    assert not picture[:, 0, :4].any()
    assert not picture[:, 5].any()
    assert bool(picture.any(0)[6:].all())
    assert viz.measure_max_motion(flow, valid) <= known
    assert viz.measure_max_motion(flow) > 1e6
    assert viz.measure_max_motion(torch.full((2, 4, 5), math.nan)) == 0.0
    assert not viz.flow_to_image(torch.full((2, 4, 5), math.nan)).any()
    assert bool((viz.flow_to_image(torch.zeros(2, 4, 5)) == 255).all())


@pytest.mark.unit
@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.floats(1e-3, 1e4))
def test_flow_to_image_scales_by_max_motion(seed, size):
    """The picture does not change with the unit, nor when the scale it chose is given back to it."""
    flow = random_flow(seed, 9, 11, size)
    scale = viz.measure_max_motion(flow)
    assert scale == pytest.approx(float(flow.double().square().sum(0).sqrt().max()), rel=1e-6)
    picture = viz.flow_to_image(flow)
    assert_close_pictures(viz.flow_to_image(flow, max_motion=scale), picture, 0)
    assert_close_pictures(viz.flow_to_image(flow * 4, max_motion=scale * 4), picture, 1)
    longest = int(torch.hypot(*flow).argmax())
    assert int(picture.flatten(1)[:, longest].amax()) >= 254  # a pure colour, not a darkened one
    assert int(picture.flatten(1)[:, longest].amin()) <= 1


@pytest.mark.unit
def test_viz_functions_are_independent_of_blocks(monkeypatch):
    flow, frame = random_flow(3, 40, 30), random_frame(3, 40, 30)
    flow[:, 7, 8] = math.nan

    def everything():
        error = viz.draw_error_map(flow, flow + random_flow(4, 40, 30, 1.0))
        return [viz.flow_to_image(flow), viz.draw_overlay(flow, frame, arrow_step=9), error]

    whole = everything()
    monkeypatch.setattr("fullfield.viz._pixels._BLOCK_PIXELS", 70)
    for cut, one in zip(everything(), whole, strict=True):
        assert torch.equal(cut, one)


@pytest.mark.unit
def test_flow_to_image_accepts_half_precision():
    flow = random_flow(5).half()
    assert_close_pictures(viz.flow_to_image(flow), viz.flow_to_image(flow.float()), 0)


@pytest.mark.unit
def test_wheel_legend_has_size_and_label():
    plain, named = viz.draw_wheel_legend(100), viz.draw_wheel_legend(100, 12.5)
    assert plain.shape == (3, 100, 100)
    assert named.shape[1] == 100
    assert named.shape[2] > 150
    assert torch.equal(plain, named[:, :, :100])
    right, left, corner = plain[:, 46, 95], plain[:, 46, 4], plain[:, 0, 0]
    assert right[0] > 240
    assert right[1:].max() < 100
    assert left[0] < 100
    assert left[1:].min() > 180
    assert tuple(corner.tolist()) == BACKGROUND
    assert plain[:, 49:51, 49:51].float().mean() > 200  # white in the middle, under the cross
    text = named[:, :, 100:].float().mean(0)
    assert text.max() > 200
    assert not torch.equal(named, viz.draw_wheel_legend(100, 13.5)[:, :, : named.shape[2]])
    for size in (16, 64.0):
        with pytest.raises(InputError, match="size"):
            viz.draw_wheel_legend(size)


# --- Errors


@pytest.mark.unit
@pytest.mark.parametrize("max_error", [None, 2.5])
def test_error_map_equals_loops(max_error):
    truth = random_flow(6)
    pred = truth + random_flow(7, size=1.0) * 10 ** torch.empty(23, 31).uniform_(
        -3, 2, generator=torch.Generator().manual_seed(1)
    )
    pred[:, 0, 0] = truth[:, 0, 0]
    table, top = create_error_colors().tolist(), max_error or 16.0
    picture = viz.draw_error_map(pred, truth, max_error=max_error)
    off = 0
    for y in range(23):
        for x in range(31):
            error = math.hypot(*(pred - truth)[:, y, x].tolist())
            level = (math.log2(error / (top / 256)) / 8) if error else 0.0
            index = round(255 * min(1.0, max(0.0, level)))
            color = picture[:, y, x].tolist()
            near = [table[i] for i in range(max(0, index - 1), min(255, index + 1) + 1)]
            assert color in near
            off += color != table[index]
    assert off < 5
    assert picture[:, 0, 0].tolist() == table[0]


@pytest.mark.unit
def test_error_map_marks_unknown_invalid_and_missing():
    truth = random_flow(8)
    pred, valid = truth + 1.0, torch.ones(23, 31, dtype=torch.bool)
    truth[0, 0, 0], truth[1, 0, 1], valid[0, 2], pred[0, 0, 3] = math.nan, 1.666e9, False, math.nan
    picture = viz.draw_error_map(pred, truth, valid)
    assert picture[:, 0, :3].T.tolist() == [[96, 96, 96]] * 3
    colors = create_error_colors()
    assert picture[:, 0, 3].tolist() == colors[-1].tolist()
    assert (colors.int() - 96).abs().amax(1).min() > 25  # grey is no error's colour


@pytest.mark.unit
def test_error_map_uses_nearest_of_four_values():
    truth = torch.stack([random_flow(9) + shift for shift in (5.0, 0.3, -4.0, 9.0)])
    pred = truth[1] - 0.2
    assert_close_pictures(viz.draw_error_map(pred, truth), viz.draw_error_map(pred, truth[1]), 0)
    truth[3, 0, 2, 2] = math.nan
    assert viz.draw_error_map(pred, truth)[:, 2, 2].tolist() == [96, 96, 96]


@pytest.mark.unit
def test_create_error_colors_lightness_rises_evenly():
    """Lightness (CIE L*) grows from dark to bright in even steps, so that order can be seen without hue."""
    srgb = create_error_colors().double() / 255
    linear = torch.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    luminance = linear @ torch.tensor([0.2126, 0.7152, 0.0722], dtype=torch.float64)
    lightness = torch.where(luminance > 0.008856, 116 * luminance ** (1 / 3) - 16, 903.3 * luminance)
    smooth = lightness[::15].diff()
    assert float(smooth.min()) > 2.0
    assert float(smooth.max()) < 9.0
    assert float(lightness[0]) < 10
    assert float(lightness[-1]) > 90


@pytest.mark.unit
def test_draw_error_legend_shows_color_scale():
    legend = draw_error_legend(256)
    assert legend.shape == (3, 32, 256)
    bar = legend[:, 4]
    colors = create_error_colors()
    assert bar[:, 16].tolist() == colors[0].tolist()
    assert bar[:, -17].tolist() == colors[-1].tolist()
    assert legend[:, 20:].float().mean(0).max() > 180  # numbers below
    assert not torch.equal(legend, draw_error_legend(256, max_error=4.0))
    for arguments in ({"width": 64}, {"max_error": 0.0}, {"max_error": math.nan}):
        with pytest.raises(InputError, match=next(iter(arguments))):
            draw_error_legend(**arguments)


# --- Frames


@pytest.mark.unit
def test_frame_to_image_rounds_and_clamps():
    frame = torch.tensor([0.0, 0.2, 0.5, 1.0, 7.0, -1.0, math.nan, 0.499 / 255, 0.501 / 255]).reshape(1, 1, 9)
    picture = viz.frame_to_image(frame)
    assert picture.tolist() == [[[0, 51, 128, 255, 255, 0, 0, 0, 1]]] * 3
    colored = random_frame(0)
    assert_close_pictures(viz.frame_to_image(colored), (colored * 255).round(), 0)


@pytest.mark.unit
def test_overlay_shows_frame_and_motion():
    frame, flow = random_frame(3, 40, 60) * 0.8, torch.zeros(2, 40, 60)
    flow[0, :, 30:] = 5.0
    grey = (viz.frame_to_image(frame) * torch.tensor([0.2126, 0.7152, 0.0722]).reshape(3, 1, 1)).sum(0)
    picture = viz.draw_overlay(flow, frame)
    assert_close_pictures(picture[:, :, :30], grey[:, :30].round().expand(3, -1, -1))  # nothing moves here
    moving = picture[:, :, 30:].float().mean((1, 2))
    assert moving[0] > moving[1] + 60  # red: to the right
    assert_close_pictures(viz.draw_overlay(flow, frame, opacity=0.0), grey.round().expand(3, -1, -1))
    flow[:, 3, 40] = math.nan
    valid = torch.ones(40, 60, dtype=torch.bool)
    valid[4, 40] = False
    picture = viz.draw_overlay(flow, frame[:1].expand(1, -1, -1), valid=valid)
    for y in (3, 4):
        assert_close_pictures(picture[:, y, 40], viz.frame_to_image(frame[:1])[:, y, 40])
    stronger = viz.draw_overlay(flow, frame, max_motion=5.0)
    weaker = viz.draw_overlay(flow, frame, max_motion=50.0)
    assert stronger[1, :, 30:].float().mean() < weaker[1, :, 30:].float().mean()


def arrow_pixels(angle, *, length=1.0, step=40):
    """What one arrow changes in a grey frame, as offsets (x, y) from the middle of its cell."""
    flow = torch.zeros(2, 3 * step, 3 * step)
    middle = step + step // 2
    flow[0, middle, middle], flow[1, middle, middle] = length * math.cos(angle), length * math.sin(angle)
    frame = torch.full((1, 3 * step, 3 * step), 0.5)
    drawn = viz.draw_overlay(flow, frame, arrow_step=step, max_motion=1.0, opacity=0.0)
    y, x = (drawn[0] > 200).nonzero().T - middle
    return x.double(), y.double(), drawn


@pytest.mark.unit
@pytest.mark.parametrize("degrees", [0, 37, 90, 180, 250, 300])
def test_overlay_arrows_follow_flow_direction(degrees):
    angle = math.radians(degrees)
    x, y, drawn = arrow_pixels(angle)
    along, across = x * math.cos(angle) + y * math.sin(angle), y * math.cos(angle) - x * math.sin(angle)
    assert float(along.max()) == pytest.approx(18.4, abs=2.0)
    assert float(along.min()) == pytest.approx(-18.4, abs=2.0)
    assert float(across[along < 0].abs().max()) <= 2.0  # a thin shaft behind
    assert float(across[along > 0].abs().max()) >= 4.0  # barbs in front
    assert float(along[across.abs() > 3].mean()) > 5.0
    outside = torch.ones(120, 120, dtype=torch.bool)
    outside[40:80, 40:80] = False
    assert bool((drawn[:, outside] == 128).all())  # it stays in its cell


@pytest.mark.unit
def test_overlay_arrows_are_proportional_to_known_flow():
    long, half = (arrow_pixels(0.0, length=length)[0] for length in (1.0, 0.5))
    assert float(half.max()) == pytest.approx(float(long.max()) / 2, abs=1.5)
    frame = torch.full((1, 50, 70), 0.5)
    still = viz.draw_overlay(torch.zeros(2, 50, 70), frame, arrow_step=10)
    assert bool((still == 128).all())
    flow = torch.full((2, 50, 70), math.nan)
    assert bool((viz.draw_overlay(flow, frame, arrow_step=10) == 128).all())
    assert viz.draw_overlay(torch.ones(2, 5, 4), torch.zeros(1, 5, 4), arrow_step=12).shape == (
        3,
        5,
        4,
    )  # no cell's middle


# --- Sheets


def find(sheet, picture):
    """Place (x, y) of ``picture`` in ``sheet``, or None."""
    height, width = picture.shape[-2:]
    for y in range(sheet.shape[1] - height + 1):
        for x in range(sheet.shape[2] - width + 1):
            if torch.equal(sheet[:, y : y + height, x : x + width], picture):
                return x, y
    return None


@pytest.mark.unit
def test_sheet_places_pictures_side_by_side():
    sizes = [(40, 60), (30, 60), (20, 31), (25, 60)]
    pictures = [viz.frame_to_image(random_frame(i, *size)) for i, size in enumerate(sizes)]
    sheet = viz.draw_sheet([(f"picture {i}", picture) for i, picture in enumerate(pictures)])
    places = [find(sheet, picture) for picture in pictures]
    assert None not in places
    (x0, y0), (x1, y1), (x2, y2), (x3, y3) = places
    assert y0 == y1 < y2 == y3
    assert x0 == x3 - (x1 - x0) < x1 == x3
    assert x2 == x0 + (60 - 31) // 2
    assert y0 >= 14  # names stand above
    title = sheet[:, :y0, x0 : x0 + 60].float().mean(0)
    assert title.max() > 200
    assert tuple(sheet[:, -1, -1].tolist()) == BACKGROUND
    one_row = viz.draw_sheet([("a", pictures[0]), ("b", pictures[1]), ("c", pictures[2])], columns=3)
    assert [find(one_row, picture)[1] for picture in pictures[:3]] == [y0] * 3
    assert viz.draw_sheet([("alone", pictures[0])], columns=5).shape[2] < 80


@pytest.mark.unit
def test_sheet_shrinks_but_never_enlarges():
    wide = viz.frame_to_image(random_frame(0, 100, 900))
    small = viz.frame_to_image(random_frame(1, 20, 30))
    sheet = viz.draw_sheet([("wide", wide), ("small", small), ("wide again", wide)], columns=2, max_width=500)
    assert sheet.shape[2] <= 500
    assert find(sheet, small) is not None
    uniform = viz.draw_sheet([("x", torch.full((3, 80, 640), 200, dtype=torch.uint8))], max_width=100)
    assert uniform.shape[2] <= 100
    assert (uniform == 200).all(0).sum() >= 11 * 90


@pytest.mark.unit
def test_sheet_shortens_long_names():
    picture = viz.flow_to_image(random_flow(0, 100, 200))
    key = torch.zeros(3, 10, 40, dtype=torch.uint8)
    key[0] = 250
    with_key = viz.draw_sheet([("flow", picture, key), ("other", picture)])
    place = find(with_key, key)
    assert place is not None
    assert place[0] + 40 == find(with_key, picture)[0] + 200  # at the right, above the picture
    assert place[1] + 10 <= find(with_key, picture)[1]
    long = viz.draw_sheet(
        [("a name that is much too long to stand above so small a picture " * 3, picture), ("b", picture)]
    )
    assert long.shape == viz.draw_sheet([("a", picture), ("b", picture)]).shape
    x, y = find(long, picture)
    gap = long[:, :y, x + 200 : find(long[:, :, x + 1 :], picture)[0] + x + 1]
    assert (gap == torch.tensor(BACKGROUND).reshape(3, 1, 1)).all()  # the name does not run into its neighbour


# --- Refusals, memory

FLOW, FRAME, PICTURE = torch.zeros(2, 8, 9), torch.zeros(3, 8, 9), torch.zeros(3, 8, 9, dtype=torch.uint8)


@pytest.mark.unit
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: viz.flow_to_image(torch.zeros(3, 8, 9)), r"flow: expected shape \[2, H, W\]"),
        (lambda: viz.flow_to_image(np.zeros((2, 8, 9))), "flow: expected a tensor"),
        (lambda: viz.flow_to_image(FLOW.to("meta")), "flow: expected device cpu"),
        (lambda: viz.flow_to_image(FLOW, torch.ones(8, 9)), "valid: expected dtype bool"),
        (lambda: viz.flow_to_image(FLOW, max_motion=0.0), "max_motion: expected a number > 0"),
        (lambda: viz.flow_to_image(FLOW, max_motion=math.nan), "max_motion"),
        (lambda: viz.draw_overlay(FLOW, torch.zeros(3, 8, 8)), "frame: expected the size of flow"),
        (lambda: viz.draw_overlay(FLOW, torch.zeros(2, 8, 9)), "frame: expected 1 or 3 channels"),
        (lambda: viz.draw_overlay(FLOW, FRAME, opacity=1.5), "opacity"),
        (lambda: viz.draw_overlay(FLOW, FRAME, arrow_step=3), "arrow_step"),
        (lambda: viz.draw_error_map(FLOW, torch.zeros(2, 8, 8)), "truth: expected shape"),
        (lambda: viz.draw_error_map(FLOW, FLOW, max_error=-1.0), "max_error"),
        (lambda: viz.frame_to_image(PICTURE), "frame: expected dtype"),
        (lambda: viz.draw_sheet([]), "panels: expected at least one"),
        (lambda: viz.draw_sheet([("a", FRAME)]), r"panels\[0\]: expected dtype uint8"),
        (lambda: viz.draw_sheet([("a", PICTURE), (PICTURE, "b")]), r"panels\[1\]: expected \(name, picture\)"),
        (lambda: viz.draw_sheet([("a", PICTURE[:, :0])]), r"panels\[0\]: expected at least one pixel"),
        (lambda: viz.draw_sheet([("a", PICTURE)], columns=0), "columns"),
    ],
)
def test_viz_names_wrong_input(call, message):
    with pytest.raises(InputError, match=f"^{message}"):
        call()


MEMORY = """
import torch
torch.set_num_threads(1)
from fullfield import viz
from peak_memory import PeakMemory
small = torch.ones(2, 80, 4096)
viz.flow_to_image(small)
viz.draw_overlay(small, torch.ones(1, 80, 4096), arrow_step=32)
flow = torch.full((2, 1716, 4096), 1.5)
with PeakMemory() as memory:
    viz.flow_to_image(flow)
    viz.draw_error_map(flow, flow)
print(memory.growth_mib * 2**20 / (3 * 1716 * 4096))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="no /proc here")
def test_flow_to_image_peak_memory_is_one_picture(run_measured_script):
    """A quarter of an 8192x3432 frame, in a process of its own; the unit is the finished picture."""
    assert 1 <= float(run_measured_script(MEMORY)) <= 2.5
