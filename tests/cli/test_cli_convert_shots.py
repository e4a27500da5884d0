"""convert: patterns, sizes, and vectors of renderers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import OpenImageIO as oiio
import pytest
import torch

from fullfield import InputError
from fullfield.cli.main import main
from fullfield.io import read_flow, read_flow_layers, resize_flow, write_flow, write_flow_layers

PredictionRun = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> PredictionRun:
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> tuple[int, str, str]:
        code = main(["convert", *words])
        return (code, *capsys.readouterr())

    return call


def ramp(height: int = 12, width: int = 16) -> torch.Tensor:
    x = torch.arange(width, dtype=torch.float32).expand(height, width)
    return torch.stack([x, -torch.arange(height, dtype=torch.float32)[:, None].expand(height, width)])


def test_convert_pattern_writes_every_file(run: PredictionRun) -> None:
    for number in (3, 5, 6):
        write_flow(f"a.{number:04d}.flo", ramp() + number)
    code, out, _ = run("a.%04d.flo", "b.%03d.exr", "--frames", "5-6", "--json")
    assert code == 0
    assert json.loads(out)["files"] == 2
    assert sorted(path.name for path in Path().glob("b.*")) == ["b.005.exr", "b.006.exr"]
    assert torch.equal(read_flow("b.006.exr").flow, ramp() + 6)
    code, out, _ = run("a.####.flo", "c.####.flo5")
    assert (code, out) == (0, "c.####.flo5: 3 files, 0 unknown vectors\n")


def test_convert_pattern_refuses_mistakes(run: PredictionRun) -> None:
    write_flow("a.0001.flo", ramp())
    for words, message in (
        (("a.%04d.flo", "b.exr"), "expected a pattern"),
        (("a.%04d.flo", "a.%04d.flo"), "is also read; choose another name"),
        (("a.0001.flo", "b.exr", "--frames", "1"), "--frames: selects frames of a shot"),
        (("a.%04d.flo", "b.%04d.exr", "--frames", "7"), "7"),
        (("a.0001.flo", "b.exr", "--scale", "0"), "--scale"),
        (("a.0001.flo", "b.exr", "--scale", "1e9"), "--scale: expected a number > 0, at most 64, got '1e9'"),
        (("a.0001.flo", "b.exr", "a.0001.flo"), "unrecognized arguments: a.0001.flo; quote a glob, as in"),
        (("a.0001.flo", "b.exr", "--channels", "x,y"), "only OpenEXR files have a channels"),
        (("a.0001.flo", "b.exr", "--encoding", "kitti"), "only PNG files have an encoding"),
    ):
        code, _, err = run(*words)
        assert code == 2, words
        assert message in err, err
        assert "Traceback" not in err


@pytest.mark.parametrize("scale", ["2", "1/2", "0.5", "3", "1.5"])
def test_convert_scale_changes_size_and_vectors(run: PredictionRun, scale: str) -> None:
    factor = eval(scale)
    write_flow_layers("a.exr", {"forward": ramp(), "backward": -ramp()})
    assert run("a.exr", "b.exr", "--scale", scale)[0] == 0
    parts = read_flow_layers("b.exr")
    height, width = round(12 * factor), round(16 * factor)
    x = (torch.arange(width) + 0.5) * 16 / width - 0.5  # where a new pixel's centre lies among the old ones
    expected = x * width / 16
    assert parts["forward"].shape == (2, height, width)
    inner = slice(round(factor), -max(1, round(factor)))
    assert (parts["forward"][0] - expected)[:, inner].abs().max() < 1e-4
    assert torch.allclose(parts["backward"], -parts["forward"])


def test_resize_flow_averages_known_vectors_only() -> None:
    flow = torch.full((2, 4, 8), 2.0)
    flow[:, 0, 0] = float("nan")
    valid = torch.ones(4, 8, dtype=torch.bool)
    valid[:, 4:] = False
    small = resize_flow(flow, (2, 4), valid)
    assert small.valid.tolist() == [[True, True, False, False]] * 2
    assert torch.equal(small.flow[:, small.valid], torch.ones(2, 4))
    assert not small.flow[:, ~small.valid].any()
    with pytest.raises(InputError, match="size: expected a height and a width"):
        resize_flow(flow, 3)  # type: ignore[arg-type]


def test_convert_channels_reads_renderer_vectors(run: PredictionRun) -> None:
    spec = oiio.ImageSpec(8, 6, 4, "float")
    spec.channelnames = ("ViewLayer.Vector.X", "ViewLayer.Vector.Y", "ViewLayer.Vector.Z", "ViewLayer.Vector.W")
    output = oiio.ImageOutput.create("openexr")
    assert output.open("blender.exr", spec)
    assert output.write_image(np.tile(np.array([4, -3, 2, -1], np.float32), (6, 8, 1)))
    assert output.close()
    assert run("blender.exr", "a.exr")[0] == 0
    parts = read_flow_layers("a.exr")
    assert parts["forward"][:, 0, 0].tolist() == [2, 1]
    assert parts["backward"][:, 0, 0].tolist() == [-4, -3]
    names = [f"ViewLayer.Vector.{axis}" for axis in "XYZW"]
    words = ("--channels", ",".join(names), "--y-axis", "down", "--vector-scale", "10,-1")
    assert run("blender.exr", "b.exr", *words)[0] == 0
    parts = read_flow_layers("b.exr")
    assert parts["forward"][:, 0, 0].tolist() == [40, 3]
    assert parts["backward"][:, 0, 0].tolist() == [20, 1]
    assert run("blender.exr", "c.flo", "--layer", "backward")[0] == 0
    assert read_flow("c.flo").flow[:, 0, 0].tolist() == [-4, -3]
    code, _, err = run("blender.exr", "d.exr", "--channels", f"{names[0]},{names[1]},absent")
    assert code == 2
    assert "--channels: expected two or four different names" in err
    code, _, err = run("blender.exr", "d.exr", "--channels", "a,b,c")
    assert code == 2
    assert "channels" in err
