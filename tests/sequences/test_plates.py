"""FilePlates: what is not known of a frame is filled from its surroundings, and said once."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import OpenImageIO as oiio
import pytest
import torch

from fullfield import InputError, estimate, estimate_sequence
from fullfield.cli.main import main
from fullfield.io import read_flow, read_flow_layers
from fullfield.sequences import follow_frames, open_plates
from refusals import refuses


def write_plate(path: Path, pixels: np.ndarray, origin: tuple[int, int] = (0, 0)) -> None:
    """Write a data window with its corner at ``origin`` in a display window of 32×24."""
    height, width, _ = pixels.shape
    spec = oiio.ImageSpec(width, height, 3, "float")
    spec.x, spec.y = origin
    spec.full_width, spec.full_height = 32, 24
    output = oiio.ImageOutput.create("openexr")
    assert output.open(str(path), spec)
    assert output.write_image(np.ascontiguousarray(pixels, np.float32))
    assert output.close()


def texture(shift: int = 0) -> np.ndarray:
    y, x = np.mgrid[0:24, 0:32]
    x = x - shift
    return np.stack([0.5 + 0.3 * np.sin(x * 0.7 + y * 0.3), 0.5 + 0.2 * np.cos(y * 0.6), 0.4 + 0 * x], -1)


def test_open_plates_fills_outside_of_data_window(tmp_path: Path) -> None:
    write_plate(tmp_path / "p.1.exr", texture())
    write_plate(tmp_path / "p.2.exr", texture()[5:20, 4:25], (4, 5))
    plates = open_plates(str(tmp_path / "p.%d.exr"))
    whole, cropped = plates.read(1), plates.read(2)
    assert whole.valid is None
    assert cropped.valid is not None
    assert int(cropped.valid.sum()) == 15 * 21
    assert torch.equal(cropped.frame[:, 5:20, 4:25], whole.frame[:, 5:20, 4:25])
    outside = cropped.frame[:, ~cropped.valid]
    assert outside.min() >= whole.frame.min()
    assert outside.max() <= whole.frame.max()
    assert (cropped.frame[:, 10, 3] - cropped.frame[:, 9:12, 4].mean(1)).abs().max() < 0.2


def write_dead_plates(folder: Path, count: int, dead: Sequence[int]) -> None:
    for number in range(1, count + 1):
        pixels = texture()
        if number in dead:
            pixels[3, 4], pixels[number, 1] = np.nan, np.inf
        write_plate(folder / f"p.{number}.exr", pixels)


def test_open_plates_counts_frames_with_dead_pixels(tmp_path: Path) -> None:
    write_dead_plates(tmp_path, 4, (2, 3, 4))
    plates = open_plates(str(tmp_path / "p.%d.exr"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert plates.read(1).valid is None
        for number in (4, 3, 2, 3):
            plate = plates.read(number)
            assert plate.valid is not None
            assert int((~plate.valid).sum()) == 2
            assert plate.frame.isfinite().all()
            assert plate.frame.min() > 0.1
    with pytest.warns(UserWarning, match=r"p\.2\.exr: 2 pixels are NaN .*, nor at such pixels of 2 further frames$"):
        plates.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plates.close()


@pytest.mark.filterwarnings("default:.*NaN or infinite")
@pytest.mark.parametrize("devices", ["cpu", "cpu,cpu"])
def test_shot_counts_frames_with_dead_pixels_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], devices: str
) -> None:
    write_dead_plates(tmp_path, 5, (2, 3, 5))
    monkeypatch.chdir(tmp_path)
    arguments = ["shot", "p.%d.exr", "-o", "mv.%d.exr", "--method", "tvl1", "--preset", "fast", "--iterations", "1"]
    assert main([*arguments, "--devices", devices, "--viz", "viz.%d.png", "--viz-kind", "overlay"]) == 0
    err = capfd.readouterr().err
    assert err.count("NaN or infinite") == 1
    assert "p.2.exr: 2 pixels are NaN or infinite" in err
    assert "further frame" in err
    assert "2 further frames" in err
    assert main(["retime", "p.%d.exr", "--flow", "mv.%d.exr", "--factor", "0.5", "-o", "fast.%d.exr"]) == 0
    err = capfd.readouterr().err
    assert err.count("NaN or infinite") == 1
    assert "1 further frame" in err


def test_open_plates_of_list_returns_valid_masks(tmp_path: Path) -> None:
    write_plate(tmp_path / "a.exr", texture()[5:20, 4:25], (4, 5))
    plates = open_plates([tmp_path / "a.exr", torch.rand(3, 24, 32)])
    first, second = plates.read(1), plates.read(2)
    assert first.valid is not None
    assert int(first.valid.sum()) == 15 * 21
    assert first.frame.min() > 0.1
    assert second.valid is None


def test_open_plates_refuses_frame_without_known_pixels(tmp_path: Path) -> None:
    write_plate(tmp_path / "p.1.exr", np.full((24, 32, 3), np.nan))
    with pytest.raises(InputError, match=r"p\.1\.exr: expected a frame with a known pixel, got none"):
        open_plates(str(tmp_path / "p.%d.exr")).read(1)


@pytest.mark.parametrize("frames", [None, 5, b"plate", torch.rand(2, 3, 24, 32)])
def test_sequence_functions_refuse_what_is_no_list(frames: Any) -> None:
    expected = "expected a pattern, a folder, a video file or a list of frames, got "
    refuses(f"^source: {expected}", open_plates, frames)
    refuses(f"^frames: {expected}", next, estimate_sequence(frames))
    refuses(f"^frames: {expected}", next, follow_frames(frames, 1))


def test_sequence_functions_refuse_generator() -> None:
    frames = (torch.rand(3, 24, 32) for _ in range(2))
    message = r"^frames: expected .*, got generator .*; for frames that arrive one by one, see docs/live\.md$"
    refuses(message, next, estimate_sequence(frames))  # type: ignore[arg-type]
    assert len(list(frames)) == 2, "none was taken"


def test_open_plates_refuses_number_for_numbers() -> None:
    message = "^frames: expected a range such as '1001-1100' or a list of numbers, got int 5$"
    refuses(message, open_plates, [torch.rand(3, 24, 32)], 5)


def test_estimate_marks_unknown_pixels_invalid(tmp_path: Path) -> None:
    write_plate(tmp_path / "a.exr", texture()[4:20, 3:30], (3, 4))
    write_plate(tmp_path / "b.exr", texture(1))
    flow = estimate(tmp_path / "a.exr", tmp_path / "b.exr", "tvl1", reliability=True)
    known = torch.zeros(24, 32, dtype=torch.bool)
    known[4:20, 3:30] = True
    assert torch.equal(flow.valid, known)
    assert flow.confidence is not None
    assert flow.occlusion is not None
    assert flow.confidence[~known].max() == 0
    assert flow.occlusion[~known].min() == 1
    assert flow.flow[0, :, 4:26][known[:, 4:26]].mean() == pytest.approx(1, abs=0.2)
    flow.save(tmp_path / "flow.exr")
    parts = read_flow_layers(tmp_path / "flow.exr")
    assert torch.equal(parts["valid"].bool(), known)
    assert torch.equal(parts["forward"], flow.flow)
    flow.save(tmp_path / "flow.flo")
    assert torch.equal(read_flow(tmp_path / "flow.flo").valid, known)
    masked = estimate(tmp_path / "b.exr", tmp_path / "b.exr", "tvl1", mask=str(tmp_path / "a.exr:R"))
    assert torch.equal(masked.valid, known)


@pytest.mark.filterwarnings("default:.*NaN or infinite")
def test_flow_command_marks_unknown_pixels_invalid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    pixels = texture()
    pixels[10, 12] = np.nan
    write_plate(Path("p.1.exr"), pixels)
    write_plate(Path("p.2.exr"), texture(1))
    hole = np.ones((24, 32, 3))
    hole[:, :5] = 0
    write_plate(Path("m.1.exr"), hole)
    write_plate(Path("m.2.exr"), np.ones_like(hole))
    words = ["flow", "p.1.exr", "p.2.exr", "--method", "tvl1", "--preset", "fast", "--confidence", "--mask", "m.%d.exr"]
    assert main([*words, "-o", "flow.exr"]) == 0
    assert "p.1.exr: 1 pixel is NaN or infinite, the first at x = 12, y = 10" in capsys.readouterr().err
    known = torch.from_numpy(hole[..., 0] > 0)
    known[10, 12] = False
    parts = read_flow_layers("flow.exr")
    assert torch.equal(parts["valid"].bool(), known)
    assert parts["confidence.forward"][~known].max() == 0
    assert parts["forward"].isfinite().all()
    assert main([*words[:-3], "-o", "flow.flo"]) == 0
    assert int((~read_flow("flow.flo").valid).sum()) == 1
    capsys.readouterr()
    assert main([*words[:-1], "no.exr", "-o", "other.exr"]) == 2
    assert "no.exr" in capsys.readouterr().err


def test_estimate_ignores_outside_of_data_window(tmp_path: Path) -> None:
    write_plate(tmp_path / "a.exr", texture())
    write_plate(tmp_path / "b.exr", texture(1)[:, 6:26], (6, 0))
    flow = estimate(tmp_path / "a.exr", tmp_path / "b.exr", "tvl1").flow
    inside = flow[:, 2:-2, 8:22]
    assert (inside[0] - 1).abs().mean() < 0.15
    assert flow.abs().max() < 4


@pytest.mark.parametrize("name", ["a.gif", "a.webp", "a.png", "a.tif"])
def test_open_plates_reads_multi_picture_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    from PIL import Image

    monkeypatch.chdir(tmp_path)
    levels = (0, 102, 204)
    pictures = [Image.new("RGB", (12, 8), (level, level, level)) for level in levels]
    more = {"lossless": True} if name.endswith("webp") else {}
    pictures[0].save(name, save_all=True, append_images=pictures[1:], **more)
    plates = open_plates(name)
    assert plates.numbers == [1, 2, 3]
    for number, level in zip(plates.numbers, levels, strict=True):
        frame = plates.read(number).frame
        assert frame.shape == (3, 8, 12)
        assert float(frame.mean()) == pytest.approx(level / 255, abs=0.01)
    assert [plates.has_frame(number) for number in (0, 3, 4)] == [False, True, False]
    assert not plates.is_in_range(4)
    assert open_plates(name, "2-3").numbers == [2, 3]
    pictures[0].save("one.png")
    refuses("one.png: is one frame", open_plates, "one.png")
