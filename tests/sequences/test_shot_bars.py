"""Shots with bars at the edges of their frames."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from sequence_shots import QUICK, CommandLine, assert_same, loaded, moving, quick
from test_unknown_pixels import HEIGHT, WIDTH, picture, write_plate
from torch import Tensor

from fullfield.estimators.bars import Bars
from fullfield.io import read_flow, read_flow_layers, read_frame
from fullfield.sequences import ShotSettings
from fullfield.sequences.estimation import estimate_sequence

BARS = Bars(top=8, bottom=9, left=5)
NOTE = "8 rows at the top, 9 rows at the bottom and 5 columns at the left have one constant colour"


def paint(frame: Tensor, bars: Bars = BARS) -> Tensor:
    """Return the frame [C, H, W] with black bars painted over it."""
    return bars.pad(bars.crop(frame), 0.0)


@pytest.mark.parametrize(
    "settings",
    [
        ShotSettings("forward"),
        ShotSettings("both", occlusion=True, confidence=True),
        ShotSettings("both", confidence=True, refine=True),
        ShotSettings("backward", confidence=True, step=2),
    ],
)
def test_estimate_sequence_matches_picture_between_bars_by_itself(settings: ShotSettings) -> None:
    frames = moving(5)
    framed = list(estimate_sequence([paint(frame) for frame in frames], quick(), settings=settings))
    cropped = list(estimate_sequence([BARS.crop(frame) for frame in frames], quick(), settings=settings))
    valid = paint(torch.ones_like(frames[0][0])) > 0
    for flows, expected in zip(framed, cropped, strict=True):
        for direction in ("forward", "backward"):
            flow, other = getattr(flows, direction), getattr(expected, direction)
            assert (flow is None) is (other is None)
            if flow is None:
                continue
            assert flow.bars == BARS
            assert other.bars is None
            assert torch.equal(flow.valid, valid)
            planes = [(flow.flow, other.flow, 0), (flow.occlusion, other.occlusion, 1)]
            for plane, inside, value in [*planes, (flow.confidence, other.confidence, 0)]:
                assert (plane is None) is (inside is None)
                if plane is not None:
                    assert torch.equal(BARS.crop(plane), inside)
                    assert (plane[..., ~valid] == value).all()


def test_estimate_sequence_takes_bars_from_both_frames_of_a_pair() -> None:
    bars = [BARS, BARS, Bars(top=8), None]
    frames = [frame if bar is None else paint(frame, bar) for frame, bar in zip(moving(4), bars, strict=True)]
    frames.append(frames[-1].clone())
    found = list(estimate_sequence(frames, quick(), direction="both"))
    assert [flows.forward and flows.forward.bars for flows in found] == [BARS, Bars(top=8), None, None, None]
    assert [flows.backward and flows.backward.bars for flows in found] == [None, BARS, Bars(top=8), None, None]
    assert [int((~flows.forward.valid).sum()) for flows in found if flows.forward] == [
        int((paint(torch.ones(1, 40, 56)) == 0).sum()),
        int((paint(torch.ones(1, 40, 56)) == 0).sum()),
        8 * 56,
        0,
    ], "what is unknown in either direction"
    assert {pair for flows in found for pair in flows.duplicates} == {(4, 5)}


@pytest.fixture
def shot(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """Four plates with bars."""
    monkeypatch.chdir(tmp_path)
    for number in range(1, 5):
        pixels = paint(torch.from_numpy(picture(number)).permute(2, 0, 1))
        write_plate(Path(f"p.{number}.exr"), pixels.permute(1, 2, 0).numpy())
    return CommandLine(capsys)


KNOWN = paint(torch.ones(1, HEIGHT, WIDTH))[0] > 0


@pytest.mark.parametrize("options", [(), ("--window", "data"), ("--frames", "2-3")])
def test_shot_marks_and_reports_bars(shot: CommandLine, options: tuple[str, ...]) -> None:
    command = ("shot", "p.%d.exr", "-o", "mv.%d.exr", "--direction", "both", "--confidence", "--json")
    out, err = shot.done(*command, *options, *QUICK)
    frames = options[1] if "--frames" in options else "1-4"
    assert err.count("constant colour") == 1
    assert f"note: frames {frames}: {NOTE}" in err
    assert json.loads(out)["bars"] == [{"frames": frames, **BARS._asdict()}]
    layers = read_flow_layers("mv.2.exr")
    assert torch.equal(layers["valid"] > 0.5, KNOWN)
    for direction in ("forward", "backward"):
        assert (layers[direction][:, ~KNOWN] == 0).all()
        assert (layers[f"confidence.{direction}"][~KNOWN] == 0).all()
        assert torch.equal(read_flow("mv.2.exr", layer=direction).valid, KNOWN)
    out, err = shot.done(*command, *options, *QUICK)
    assert json.loads(out)["bars"] == [], "nothing was estimated"


def test_shot_with_bars_and_bad_plate_writes_other_direction(shot: CommandLine) -> None:
    Path("p.3.exr").write_bytes(b"broken")
    command = ("shot", "p.%d.exr", "-o", "mv.%d.exr", "--direction", "both", "--occlusion", "--refine")
    _, _, err = shot(*command, *QUICK)
    assert f"note: frames 1-2: {NOTE}" in err
    layers = read_flow_layers("mv.2.exr")
    assert (layers["occlusion.forward"] == 1).all()
    assert torch.equal(layers["valid"] > 0.5, KNOWN)
    assert layers["backward"].shape == layers["forward"].shape == (2, HEIGHT, WIDTH)


def test_shot_marks_bars_in_other_formats(shot: CommandLine) -> None:
    shot.done("shot", "p.%d.exr", "-o", "mv.%d.flo", *QUICK)
    assert torch.equal(read_flow("mv.2.flo").valid, KNOWN)


def test_shot_with_known_mask_has_no_bars(shot: CommandLine) -> None:
    write_plate(Path("mask.exr"), KNOWN.float()[..., None].numpy(), names="A")
    _, err = shot.done("shot", "p.%d.exr", "-o", "mv.%d.exr", "--mask", "mask.exr:A", *QUICK)
    assert "constant colour" not in err
    assert torch.equal(read_flow_layers("mv.2.exr")["valid"] > 0.5, KNOWN)


@pytest.mark.parametrize("direction", ["forward", "both"])
def test_shot_continued_with_bars_equals_uninterrupted(shot: CommandLine, direction: str) -> None:
    command = ("shot", "p.%d.exr", "-o", "mv.%d.exr", "--direction", direction, "--half", "--warm-start", *QUICK)
    shot.done(*command)
    whole = loaded("mv")
    for number in (3, 4):
        Path(f"mv.{number}.exr").unlink()
    shot.done(*command)
    assert_same(whole, loaded("mv"))


def test_retime_keeps_bars(shot: CommandLine) -> None:
    shot.done("shot", "p.%d.exr", "-o", "mv.%d.exr", "--direction", "both", *QUICK)
    shot.done("retime", "p.%d.exr", "--flow", "mv.%d.exr", "--factor", "2", "-o", "slow.%d.exr")
    between = read_frame("slow.2.exr", transfer="srgb")
    assert between[:, ~KNOWN].max() < 1e-3
    first, second = (read_frame(f"p.{number}.exr", transfer="srgb") for number in (1, 2))
    assert (between - (first + second) / 2)[:, KNOWN].abs().mean() < 0.1


def test_flow_marks_and_reports_bars(shot: CommandLine) -> None:
    command = ("flow", "p.2.exr", "p.3.exr", "--previous", "p.1.exr", "-o", "flow.exr", "--confidence", "--json")
    out, err = shot.done(*command, *QUICK)
    assert f"note: p.2.exr, p.3.exr: {NOTE}" in err
    assert f"note: p.2.exr, p.1.exr: {NOTE}" in err
    assert json.loads(out)["bars"] == BARS._asdict()
    layers = read_flow_layers("flow.exr")
    assert torch.equal(layers["valid"] > 0.5, KNOWN)
    assert (layers["confidence.forward"][~KNOWN] == 0).all()
    assert (torch.cat([layers["forward"], layers["backward"]])[:, ~KNOWN] == 0).all()
    shot.done("shot", "p.%d.exr", "-o", "mv.%d.exr", "--direction", "both", *QUICK)
    assert torch.equal(read_flow_layers("mv.2.exr")["forward"], layers["forward"])
