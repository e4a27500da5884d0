"""Bars at the edges of frames: what counts as one, and that the picture between them is matched by itself."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from fullfield import InputError, estimate, estimate_batch
from fullfield.estimators.bars import Bars, find_common_bars, measure_constant_lines_per_side
from fullfield.io import write_image
from fullfield.ops.tvl1 import TVL1Config
from fullfield.testing import sample_textured_scene

SCENE = sample_textured_scene(96, 128, seed=3)
FRAMES = SCENE.frame1, SCENE.frame2
QUICK = TVL1Config.from_preset("fast").replace(warps=1, iterations=2)
LETTERBOX = Bars(top=20, bottom=20)


def paint(frame: Tensor, bars: Bars, color: float | tuple[float, ...] = 0.0) -> Tensor:
    """Return the frame with bars painted over it."""
    values = torch.as_tensor(color, dtype=torch.float32).expand(len(frame))[:, None, None]
    inside = torch.zeros(frame.shape[1:], dtype=torch.bool)
    inside[bars.top : frame.shape[1] - bars.bottom, bars.left : frame.shape[2] - bars.right] = True
    return torch.where(inside, frame, values)


def find(*frames: Tensor) -> Bars | None:
    return find_common_bars(frames[0].shape[1:], [measure_constant_lines_per_side(frame) for frame in frames])


def add_noise(frame: Tensor) -> Tensor:
    """Return the frame with two codes of 255 of noise, up and down."""
    codes = torch.randint(-2, 3, frame.shape, generator=torch.Generator().manual_seed(1))
    return (frame + codes / 255).clamp(0, 1)


def compress(frame: Tensor) -> Tensor:
    """Return the frame as a JPEG file holds it."""
    stream = io.BytesIO()
    Image.fromarray((frame * 255).round().byte().permute(1, 2, 0).numpy()).save(stream, "JPEG", quality=85)
    return torch.from_numpy(np.asarray(Image.open(stream)).copy()).permute(2, 0, 1) / 255


def resample(frame: Tensor) -> Tensor:
    """Return the frame as it comes from a smaller one."""
    small = torch.nn.functional.interpolate(frame[None], scale_factor=0.75, mode="area")
    return torch.nn.functional.interpolate(small, frame.shape[1:], mode="bilinear")[0]


@pytest.mark.unit
@pytest.mark.parametrize(
    "bars",
    [LETTERBOX, Bars(left=13, right=13), Bars(10, 12, 9, 8), Bars(top=7), Bars(right=5), Bars(30, 3), Bars(left=1)],
    ids=str,
)
@pytest.mark.parametrize("color", [0.0, 16 / 255, 0.5, 1.0, (0.0, 0.8, 0.1)])
def test_find_bars_returns_painted_bars(bars: Bars, color: float | tuple[float, ...]) -> None:
    assert find(*(paint(frame, bars, color) for frame in FRAMES)) == bars
    assert find(*(add_noise(paint(frame, bars, color)) for frame in FRAMES)) == bars
    assert find(FRAMES[0], paint(FRAMES[1], bars, color)) is None, "in one frame alone"
    assert find(*FRAMES) is None


@pytest.mark.unit
@pytest.mark.parametrize("change", [compress, resample])
def test_find_bars_covers_blurred_edges(change: Callable[[Tensor], Tensor]) -> None:
    bars = find(*(change(paint(frame, Bars(21, 18))) for frame in FRAMES))
    assert bars is not None
    assert 21 <= bars.top <= 24
    assert 18 <= bars.bottom <= 21


@pytest.mark.unit
def test_find_bars_accepts_grey_with_color_and_values_above_one() -> None:
    first, second = (paint(frame, LETTERBOX) for frame in FRAMES)
    assert find(first[:1], second) == LETTERBOX
    assert find(40 * first, 40 * second) == LETTERBOX


@pytest.mark.unit
def test_find_bars_needs_edge_in_one_frame_only() -> None:
    first, second = (paint(frame, LETTERBOX) for frame in FRAMES)
    second = draw_roofs(second, 34)  # the picture is black at the bar
    assert find(first, second) == find(second, first) == LETTERBOX
    assert find(draw_roofs(first, 38), second) == Bars(bottom=20), "nothing tells the picture from the bar"


def draw_roofs(frame: Tensor, height: int = 30) -> Tensor:
    """A black sky over roofs of about that height."""
    heights = height + (12 * torch.sin(torch.arange(frame.shape[2]) / 9)).round()
    return torch.where(torch.arange(frame.shape[1])[:, None] < heights, 0.0, frame)


def draw_ramp(frame: Tensor, power: float) -> Tensor:
    ramp = (torch.arange(frame.shape[1]) / frame.shape[1]) ** power
    return ramp[None, :, None].expand_as(frame).clone()


def draw_title(frame: Tensor) -> Tensor:
    """White words on black."""
    result = torch.zeros_like(frame)
    result[:, 40:50, 20:110:4] = 1
    result[:, 60:70, 40:90] = 1
    return result


def draw_square(frame: Tensor, position: int) -> Tensor:
    """A picture that moves over black."""
    result = torch.zeros_like(frame)
    result[:, 10:86, position : position + 90] = frame[:, 10:86, :90]
    return result


@pytest.mark.unit
@pytest.mark.parametrize(
    "frames",
    [
        (torch.zeros(3, 96, 128), torch.zeros(3, 96, 128)),
        (torch.zeros(3, 96, 128), paint(FRAMES[1], LETTERBOX)),
        (draw_roofs(FRAMES[0]), draw_roofs(FRAMES[1], 33)),
        (draw_roofs(FRAMES[0]), draw_roofs(FRAMES[0])),
        (draw_title(FRAMES[0]), draw_title(FRAMES[1])),
        *[(draw_ramp(FRAMES[0], power),) * 2 for power in (0.5, 1.0, 2.0, 3.0)],
        (paint(FRAMES[0], Bars(top=20), 0.0), paint(FRAMES[1], Bars(top=20), 0.1)),
        (paint(FRAMES[0], Bars(top=20)), paint(FRAMES[1], Bars(top=26))),
        (paint(FRAMES[0], Bars(top=84)), paint(FRAMES[1], Bars(top=84))),
        tuple(torch.cat([frame[:, :1], paint(frame, Bars(top=20))[:, 1:]], 1) for frame in FRAMES),
    ],
    ids=[
        "black",
        "fade",
        "roofs",
        "still-roofs",
        "title",
        "ramp-0.5",
        "ramp-1",
        "ramp-2",
        "ramp-3",
        "color-changes",
        "edge-moves",
        "no-picture",
        "behind-a-line",
    ],
)
def test_find_bars_returns_none_without_bars(frames: tuple[Tensor, Tensor]) -> None:
    assert find(*frames) is None


@pytest.mark.unit
def test_find_bars_ignores_moving_edges() -> None:
    assert find(draw_square(FRAMES[0], 10), draw_square(FRAMES[1], 20)) == Bars(10, 10), "left and right edges move"


@pytest.mark.unit
def test_find_bars_leaves_bar_with_text() -> None:
    frames = [paint(frame, LETTERBOX) for frame in FRAMES]
    for frame in frames:
        frame[:, 82:90, 10:40] = torch.rand(8, 30, generator=torch.Generator().manual_seed(0))
    assert find(*frames) == Bars(top=20)


@pytest.mark.unit
def test_bars_as_text_name_sides_that_have_bars() -> None:
    assert str(LETTERBOX) == "20 rows at the top and 20 rows at the bottom"
    assert str(Bars(1, 0, 2, 3)) == "1 row at the top, 2 columns at the left and 3 columns at the right"


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    """Two frames with bars at three sides, the picture between them, and two frames without bars."""
    bars = Bars(20, 14, right=9)
    names = [tmp_path / name for name in ("a.png", "b.png", "c.png", "d.png", "e.png", "f.png")]
    pictures = [paint(frame, bars) for frame in FRAMES]
    for name, frame in zip(names, [*pictures, *map(bars.crop, FRAMES), *FRAMES], strict=True):
        write_image(name, frame)
    return names


def test_estimate_matches_picture_between_bars_by_itself(paths: list[Path]) -> None:
    flow = estimate(*paths[:2], "tvl1", config=QUICK, reliability=True)
    picture = estimate(*paths[2:4], "tvl1", config=QUICK, reliability=True)
    assert flow.bars == (20, 14, 0, 9)
    assert picture.bars is None
    inside = (slice(20, 82), slice(0, 119))
    outside = torch.ones(96, 128, dtype=torch.bool)
    outside[inside] = False
    assert torch.equal(flow.valid, ~outside)
    for plane, expected, value in (
        (flow.flow, picture.flow, 0),
        (flow.occlusion, picture.occlusion, 1),
        (flow.confidence, picture.confidence, 0),
    ):
        assert plane is not None
        assert expected is not None
        assert torch.equal(plane[..., inside[0], inside[1]], expected)
        assert (plane[..., outside] == value).all()
    flow.save(paths[0].with_name("flow.flo"))
    assert torch.equal(flow.load(paths[0].with_name("flow.flo")).valid, ~outside)


def test_estimate_starts_from_initial_flow_between_bars(paths: list[Path]) -> None:
    start = torch.randn(2, 96, 128)
    flow = estimate(*paths[:2], "tvl1", config=QUICK, initial_flow=start)
    picture = estimate(*paths[2:4], "tvl1", config=QUICK, initial_flow=start[:, 20:82, :119])
    assert torch.equal(flow.flow[:, 20:82, :119], picture.flow)


def test_estimate_batch_leaves_out_bars_of_all_pairs(paths: list[Path]) -> None:
    same = estimate_batch([paths[0], paths[1]], [paths[1], paths[0]], "tvl1", config=QUICK)
    assert [flow.bars for flow in same] == [(20, 14, 0, 9)] * 2
    mixed = estimate_batch([paths[0], paths[4]], [paths[1], paths[5]], "tvl1", config=QUICK)
    assert [flow.bars for flow in mixed] == [None, None]
    assert all(flow.valid.all() for flow in mixed)


@pytest.mark.parametrize("kind", ["tensor", "batch", "float16", "uint8", "uint16", "pil", "bgr"])
def test_estimate_finds_bars_of_arrays_as_of_files(paths: list[Path], kind: str) -> None:
    expected = estimate(*paths[:2], "tvl1", config=QUICK)
    codes = [np.asarray(Image.open(path)) for path in paths[:2]]
    planes = [torch.from_numpy(np.moveaxis(code, 2, 0) / np.float32(255)) for code in codes]
    if kind == "batch":
        flow = estimate_batch(planes[0][None], planes[1][None], "tvl1", config=QUICK)[0]
    elif kind == "bgr":
        flow = estimate(*(code[..., ::-1] for code in codes), "tvl1", config=QUICK, color_order="bgr")
    else:
        convert = {
            "tensor": lambda number: planes[number],
            "float16": lambda number: (codes[number] / 255).astype(np.float16),
            "uint8": lambda number: codes[number],
            "uint16": lambda number: codes[number] * np.uint16(257),
            "pil": lambda number: Image.open(paths[number]),
        }[kind]
        flow = estimate(convert(0), convert(1), "tvl1", config=QUICK)
    assert flow.bars == expected.bars == (20, 14, 0, 9)
    assert torch.equal(flow.valid, expected.valid)
    torch.testing.assert_close(flow.flow, expected.flow, atol=0.05 if kind == "float16" else 1e-4, rtol=0)


@pytest.mark.unit
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
def test_find_bars_reads_types_that_numpy_lacks(dtype: torch.dtype) -> None:
    assert find(*(paint(frame, LETTERBOX).to(dtype) for frame in FRAMES)) == LETTERBOX


@pytest.mark.unit
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [np.inf, np.nan, 1e300])
@pytest.mark.parametrize("rows", [slice(None), slice(20), slice(20, None)], ids=str)
def test_estimate_refuses_values_that_are_not_finite(value: float, rows: slice) -> None:
    frame = FRAMES[0].double().permute(1, 2, 0).numpy().copy()
    frame[rows] = value
    with pytest.raises(InputError, match="frame1: expected finite values"):
        estimate(frame, frame, "tvl1", config=QUICK)
