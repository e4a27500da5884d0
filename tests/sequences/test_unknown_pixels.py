"""Shots whose frames are not known everywhere: data windows, masks and dead pixels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import OpenImageIO as oiio
import pytest
import torch
from sequence_shots import QUICK, CommandLine, loaded

from fullfield.io import read_flow, read_flow_layers
from fullfield.sequences import ShotSettings, open_plates
from fullfield.sequences.estimation import estimate_sequence

HEIGHT, WIDTH, STEP = 48, 64, 2


def picture(number: int) -> np.ndarray:
    """A texture that moves to the right by STEP pixels a frame."""
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    x = x - STEP * number
    waves = 0.5 + 0.2 * np.sin(0.7 * x + 0.4 * y) + 0.15 * np.sin(0.31 * x - 0.5 * y) + 0.1 * np.cos(0.9 * y)
    return np.repeat(waves[..., None], 3, 2).astype(np.float32)


def write_plate(path: Path, pixels: np.ndarray, origin: tuple[int, int] = (0, 0), names: str = "RGB") -> None:
    height, width, count = pixels.shape
    spec = oiio.ImageSpec(width, height, count, "float")
    spec.channelnames = tuple(names)
    spec.x, spec.y = origin
    spec.full_width, spec.full_height = WIDTH, HEIGHT
    output = oiio.ImageOutput.create("openexr")
    assert output.open(str(path), spec)
    assert output.write_image(np.ascontiguousarray(pixels, np.float32))
    assert output.close()


@pytest.fixture
def flow(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """A shot of four plates, the third of which has a smaller data window."""
    monkeypatch.chdir(tmp_path)
    for number in range(1, 5):
        pixels, origin = picture(number), (0, 0)
        if number == 3:
            pixels, origin = pixels[6:40, 10:50], (10, 6)
        write_plate(Path(f"p.{number}.exr"), pixels, origin)
    return CommandLine(capsys, ("shot",), QUICK)


KNOWN = torch.zeros(HEIGHT, WIDTH, dtype=torch.bool)
KNOWN[6:40, 10:50] = True


def test_shot_ignores_outside_of_data_window(flow: CommandLine) -> None:
    flow.done("p.%d.exr", "-o", "mv.%d.exr", "--direction", "both", "--occlusion", "--confidence")
    for number in (1, 2, 3):
        parts = read_flow_layers(f"mv.{number}.exr")
        vectors = parts["forward"]
        assert vectors.abs().max() < 6, "black is not matched as picture"
        inside = KNOWN[:, 4:-4] if number in (2, 3) else torch.ones(HEIGHT, WIDTH - 8, dtype=torch.bool)
        error = (vectors - torch.tensor([float(STEP), 0.0])[:, None, None]).norm(dim=0)[:, 4:-4][inside]
        assert error.mean() < 0.4, number
        assert ("valid" in parts) is (number == 3)
    third = read_flow_layers("mv.3.exr")
    assert torch.equal(third["valid"].bool(), KNOWN)
    for direction in ("forward", "backward"):
        assert third[direction].isfinite().all()
        assert third[f"confidence.{direction}"][~KNOWN].abs().max() == 0
        assert third[f"occlusion.{direction}"][~KNOWN].min() == 1
        assert torch.equal(read_flow("mv.3.exr", layer=direction).valid, KNOWN)
    second = read_flow_layers("mv.2.exr")
    assert second["confidence.forward"][3:5, 15:45].max() == 0, "vectors that lead to where nothing is known"
    assert second["confidence.forward"][20:30, 20:40].mean() > 0.2


def test_shot_marks_unknown_pixels_in_other_formats(flow: CommandLine) -> None:
    flow.done("p.%d.exr", "-o", "mv.%d.flo", "--frames", "2-3")
    assert read_flow("mv.2.flo").valid.all()
    assert torch.equal(read_flow("mv.3.flo").valid, KNOWN)


def test_shot_window_data_fills_unknown_pixels(flow: CommandLine) -> None:
    flow.done("p.%d.exr", "-o", "mv.%d.exr", "--window", "data", "--direction", "both", "--confidence")
    for number in (2, 3, 4):
        parts = read_flow_layers(f"mv.{number}.exr")
        assert parts["forward"].abs().max() < 6
        assert ("valid" in parts) is (number == 3)
    assert torch.equal(read_flow_layers("mv.3.exr")["valid"].bool(), KNOWN)


@pytest.mark.parametrize("warm", [(), ("--warm-start",)])
def test_shot_continued_equals_uninterrupted(flow: CommandLine, warm: tuple[str, ...]) -> None:
    options = ("--direction", "both", "--occlusion", "--half", *warm)
    flow.done("p.%d.exr", "-o", "mv.%d.exr", *options)
    whole = loaded("mv")
    for number in (3, 4):
        Path(f"mv.{number}.exr").unlink()
    flow.done("p.%d.exr", "-o", "mv.%d.exr", *options)
    again = loaded("mv")
    assert whole.keys() == again.keys()
    for name, parts in whole.items():
        for part, values in parts.items():
            assert torch.equal(values, again[name][part]), (name, part)


@pytest.mark.parametrize("mask", ["A", "m.%d.png", "m.1.png", "m.%d.exr:A"])
def test_shot_reads_masks(flow: CommandLine, mask: str) -> None:
    from PIL import Image

    hole = np.ones((HEIGHT, WIDTH, 1), np.float32)
    hole[10:20, 30:40] = 0
    for number in range(1, 5):
        pixels = picture(number)
        pixels[10:20, 30:40] = 9.0  # a hole in the matte, and nonsense in the picture
        write_plate(Path(f"p.{number}.exr"), np.concatenate([pixels, hole], 2), names="RGBA")
        write_plate(Path(f"m.{number}.exr"), hole, names="A")
        Image.fromarray((hole[..., 0] * 255).astype(np.uint8)).save(f"m.{number}.png")
    flow.done("p.%d.exr", "-o", "mv.%d.exr", "--mask", mask, "--confidence")
    known = torch.from_numpy(hole[..., 0] > 0)
    for number in (1, 2, 3):
        parts = read_flow_layers(f"mv.{number}.exr")
        assert torch.equal(parts["valid"].bool(), known)
        assert parts["forward"].abs().max() < 6
        assert parts["confidence.forward"][~known].max() == 0
    if mask == "A":
        return
    out, _ = flow.done("p.%d.exr", "-o", "mv.%d.exr", "--mask", mask, "--confidence")
    assert "0 frames written" in out, out
    hole[:] = 1
    Image.fromarray((hole[..., 0] * 255).astype(np.uint8)).save("m.1.png")
    write_plate(Path("m.1.exr"), hole, names="A")
    out, err = flow.done("p.%d.exr", "-o", "mv.%d.exr", "--mask", mask, "--confidence")
    assert "inputs changed" in err
    assert ("1 frame written" in out or "2 frames written" in out) if "%" in mask else "4 frames written" in out
    if "%" in mask:
        Path(mask.partition(":")[0].replace("%d", "2")).unlink()
        code, _, err = flow("p.%d.exr", "-o", "new.%d.exr", "--mask", mask)
        assert code == 2
        assert f"mask: {mask.partition(':')[0].replace('%d', '2')}: no such file" in err


@pytest.mark.filterwarnings("ignore:.*NaN or infinite")
def test_estimate_sequence_marks_dead_pixels_invalid(flow: CommandLine) -> None:  # noqa: ARG001 - makes the shot
    pixels = picture(2)
    pixels[5, 7] = np.nan
    write_plate(Path("p.2.exr"), pixels)
    plates = open_plates("p.%d.exr", "1-2")
    flows = list(estimate_sequence(plates, "tvl1", preset="fast", settings=ShotSettings(confidence=True)))
    assert not flows[0].problems
    assert flows[0].forward is not None
    assert flows[0].forward.valid.all()
    second = flows[1].forward
    assert second is not None
    assert (~second.valid).nonzero().tolist() == [[5, 7]]
    assert second.flow.isfinite().all()
    assert flows[1].confidence["forward"][5, 7] == 0
