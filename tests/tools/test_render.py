"""Rendered truth against the analytic motion of rigid objects, and against the pictures."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import OpenImageIO as oiio
import pytest
import torch
from torch import Tensor

from fullfield import InputError
from fullfield.datasets import Rendered, open_dataset
from fullfield.sequences import warp_image
from tools.__main__ import main
from tools.render import Blender, Shot, collect_truth, render_shot
from tools.render.truth import occluded

WIDTH, HEIGHT = 192, 108


@pytest.fixture(scope="module")
def blender() -> Blender:
    """Blender, or the Python of an environment with bpy."""
    named = os.environ.get("FULLFIELD_BLENDER_PYTHON")
    beside = Path(__file__).resolve().parents[2] / ".venv-bpy" / "bin" / "python"
    python = named or (str(beside) if beside.is_file() else None)
    if python is not None:
        return Blender(python=python)
    if shutil.which("blender") is None:
        pytest.skip("no Blender: neither FULLFIELD_BLENDER_PYTHON, nor .venv-bpy, nor blender on the path")
    return Blender()


@pytest.fixture(scope="module")
def shot(blender: Blender, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two frames of our own scene."""
    folder = tmp_path_factory.mktemp("set") / "demo"
    flows = render_shot(Shot(None, 1, 2, WIDTH, 16, seed=3, checks=True), folder, blender)
    assert flows == [folder / "flow" / "flow_0001.flo5"]
    return folder


def channels(path: Path) -> dict[str, Any]:
    source, found = oiio.ImageInput.open(str(path)), {}
    part = 0
    while source.seek_subimage(part, 0):
        spec = source.spec()
        pixels = source.read_image(part, 0, 0, spec.nchannels, "float")
        found.update({name.split(".", 1)[1]: pixels[..., i] for i, name in enumerate(spec.channelnames)})
        part += 1
    return found


def projected(camera: list[list[float]], points: Any, width: int, height: int) -> Any:
    seen = points @ np.array(camera).T
    x, y = seen[:, 0] / seen[:, 3], seen[:, 1] / seen[:, 3]
    return np.stack([(x + 1) / 2 * width - 0.5, (1 - y) / 2 * height - 0.5])


@pytest.mark.long
def test_render_vectors_equal_object_motion(shot: Path) -> None:
    path = shot / "vectors" / "vectors_0001.exr"
    stored, scene = channels(path), json.loads(path.with_suffix(".json").read_text())
    assert (scene["width"], scene["height"]) == (2 * WIDTH, 2 * HEIGHT)
    flow = Rendered(shot.parent)[0].flow
    assert flow is not None
    dense = torch.empty(2, 2 * HEIGHT, 2 * WIDTH)
    for value, (row, column) in enumerate(((0, 0), (0, 1), (1, 0), (1, 1))):
        dense[:, row::2, column::2] = flow[value]
    position = np.stack([stored[f"Position.{axis}"] for axis in "XYZ"], -1).astype(np.float64)
    index = np.rint(next(stored[name] for name in ("Object Index.X", "IndexOB.X") if name in stored)).astype(int)
    checked, longest = 0, 0.0
    for key, now in scene["this"]["objects"].items():
        here = (index == int(key)) & np.isfinite(dense[0].numpy())
        if not here.any():  # a wire between two samples
            continue
        points = np.concatenate([position[here], np.ones((here.sum(), 1))], 1)
        moved = points @ (np.array(scene["next"]["objects"][key]) @ np.linalg.inv(np.array(now))).T
        before = projected(scene["this"]["camera"], points, scene["width"], scene["height"])
        after = projected(scene["next"]["camera"], moved, scene["width"], scene["height"])
        motion = (after - before) / 2  # in pixels of the frame
        error = np.abs(dense.numpy()[:, here] - motion)
        assert error.max() < 0.01, f"object {key}: off by {error.max():.4f} px"
        checked += int(here.sum())
        longest = max(longest, float(np.hypot(*motion).max()))
    assert checked > 0.6 * 4 * HEIGHT * WIDTH
    assert longest * 8192 / WIDTH > 128


def photometric(frame1: Tensor, frame2: Tensor, flow: Tensor, where: Tensor) -> float:
    warped, inside = warp_image(frame2, flow)
    return float((warped - frame1).abs().mean(0)[where & inside].median())


@pytest.mark.long
def test_render_truth_warps_second_frame_onto_first(shot: Path) -> None:
    sample = Rendered(shot.parent)[0]
    assert sample.flow is not None
    assert sample.valid is not None
    assert sample.occluded is not None
    flow = sample.flow.mean(0).nan_to_num()
    seen = sample.valid & ~sample.occluded
    assert 0.5 < float(sample.valid.float().mean()) < 1
    assert 0.002 < float(sample.occluded.float().mean()) < 0.2
    error = photometric(sample.frame1, sample.frame2, flow, seen)
    assert error < 0.012  # of 1: the noise of 16 samples after denoising, and bilinear reading
    for wrong in (torch.zeros_like(flow), -flow, flow.flip(0), flow + 1):
        assert photometric(sample.frame1, sample.frame2, wrong, seen) > 1.5 * error


@pytest.mark.long
def test_render_continues_stopped_run(shot: Path, blender: Blender, tmp_path: Path) -> None:
    copy = tmp_path / "demo"
    shutil.copytree(shot, copy)
    kept = copy / "frames" / "frame_0001.png"
    before = kept.stat().st_mtime_ns
    (copy / "frames" / "frame_0002.png").unlink()
    (copy / "flow" / "flow_0001.flo5").unlink()
    render_shot(Shot(None, 1, 2, WIDTH, 16, seed=3), copy, blender)
    assert kept.stat().st_mtime_ns == before
    assert (copy / "frames" / "frame_0002.png").is_file()
    assert np.array_equal(
        (copy / "flow/flow_0001.flo5").read_bytes()[:8], (shot / "flow/flow_0001.flo5").read_bytes()[:8]
    )
    assert not list(copy.rglob(".part_*"))
    (copy / "frames" / "frame_0002.png").unlink()
    with pytest.raises(InputError, match="seed was 3, is 4"):
        render_shot(Shot(None, 1, 2, WIDTH, 16, seed=4), copy, blender)


@pytest.mark.long
def test_render_removes_motion_blur_from_blend_file(blender: Blender, tmp_path: Path) -> None:
    make = """
import bpy, sys
bpy.ops.wm.read_factory_settings()
scene = bpy.context.scene
scene.render.resolution_x, scene.render.resolution_y = 64, 32
scene.render.use_motion_blur = True
flares = bpy.data.collections.new("flares")
scene.collection.children.link(flares)
wall = bpy.data.meshes.new("wall")
wall.from_pydata([(-50, 0, -50), (50, 0, -50), (50, 0, 50), (-50, 0, 50)], [], [(0, 1, 2, 3)])
flare = bpy.data.objects.new("flare", wall)
flare.location = (0, -4, 0)
flares.objects.link(flare)
tree = bpy.data.objects["Cube"].active_material.node_tree
volume = tree.nodes.new("ShaderNodeVolumePrincipled")
out = next(n for n in tree.nodes if n.bl_idname == "ShaderNodeOutputMaterial")
tree.links.new(volume.outputs[0], out.inputs["Volume"])
cube = bpy.data.objects["Cube"]
for frame, x in ((101, 0.0), (102, 0.5)):
    cube.location = (x, 0, 0)
    cube.keyframe_insert("location", frame=frame)
bpy.ops.wm.save_as_mainfile(filepath=sys.argv[-1])
"""
    blend = tmp_path / "010_0050.blend"
    if blender.python is None:
        pytest.skip("the file is made with bpy")
    subprocess.run([blender.python, "-c", make, str(blend)], check=True, capture_output=True)
    out = tmp_path / "charge" / "010_0050"
    arguments = [
        "render",
        str(blend),
        "-o",
        str(out),
        "--frames",
        "101",
        "102",
        "--width",
        "64",
        "--samples",
        "1",
        "-q",
    ]
    assert main([*arguments, "--python", blender.python]) == 0
    sample = open_dataset("charge-8k", tmp_path / "charge")[0]
    assert sample.name == "010_0050/frame_0101"
    assert sample.flow is not None
    assert sample.valid is not None
    assert sample.frame1.shape == (3, 32, 64)
    moving = sample.valid & (sample.flow.mean(0)[0] > 1)
    assert 50 < int(moving.sum()) < 500  # the cube, and no flare before it
    assert not sample.valid.all()


@pytest.mark.long
def test_fast_render_vectors_warp_its_frames(blender: Blender, tmp_path: Path) -> None:
    def rendered_shot(name: str, speed: float) -> tuple[Path, Tensor]:
        size = {"width": WIDTH, "height": 80, "samples": 4}
        shot = Shot(None, 1, 2, **size, seed=5, thin=6, speed=speed, fast=True, checks=True)
        render_shot(shot, tmp_path / name / "demo", blender)
        sample = Rendered(tmp_path / name)[0]
        assert sample.flow is not None
        assert sample.valid is not None
        assert sample.occluded is not None
        assert sample.frame1.shape == (3, 80, WIDTH)
        assert bool(sample.valid.all())  # clouds in place of the sky
        flow, seen = sample.flow.mean(0), ~sample.occluded
        error = photometric(sample.frame1, sample.frame2, flow, seen)
        for wrong in (-flow, flow.flip(0), flow + 1):
            assert photometric(sample.frame1, sample.frame2, wrong, seen) > 1.5 * error
        return tmp_path / name / "demo", flow

    (folder, slow), (_, fast) = rendered_shot("slow", 0.5), rendered_shot("fast", 2.0)
    assert 3 < float(fast.norm(dim=0).median() / slow.norm(dim=0).median()) < 5
    stored = channels(folder / "vectors" / "vectors_0001.exr")
    linear = np.stack([stored[f"Combined.{c}"] for c in "RGB"]).reshape(3, 80, 2, WIDTH, 2).mean((2, 4))
    frame = torch.from_numpy(linear).clamp(0, 1)
    encoded = torch.where(frame <= 0.0031308, 12.92 * frame, 1.055 * frame.pow(1 / 2.4) - 0.055)
    assert float((Rendered(folder.parent)[0].frame1 - encoded).abs().max()) < 0.6 / 255


def test_occluded_marks_uncovered_side_of_moving_square() -> None:
    height, width = 12, 20
    forward = torch.zeros(2, height, width)
    backward = torch.zeros(2, height, width)
    forward[0, 4:8, 5:9] = 3
    backward[0, 4:8, 8:12] = -3
    everywhere = torch.ones(height, width, dtype=torch.bool)
    lost = occluded(forward, backward, everywhere)
    expected = torch.zeros(height, width, dtype=torch.bool)
    expected[4:8, 9:12] = True  # what the square moves over
    assert torch.equal(lost, expected)
    assert bool(occluded(forward + 30, backward, everywhere).all())
    for axis, step in ((0, -2), (0, 2), (1, -2), (1, 2)):
        pan = torch.zeros(2, height, width)
        pan[axis] = step
        beyond = torch.zeros(height, width, dtype=torch.bool)
        rim = beyond.T if axis == 0 else beyond
        rim[slice(None, 2) if step < 0 else slice(-2, None)] = True
        assert torch.equal(occluded(pan, -pan, everywhere), beyond)
    assert bool(occluded(forward, backward, ~everywhere).all())


def test_render_reports_mistakes_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run_and_get_error(*arguments: str) -> str:
        assert main(["render", *arguments]) == 2
        message = capsys.readouterr().err.strip()
        assert "\n" not in message
        return message

    out = str(tmp_path / "shot")
    assert "no such file" in run_and_get_error(str(tmp_path / "a.blend"), "-o", out)
    (tmp_path / "b.blend").write_bytes(b"")
    assert "--frames: required, since" in run_and_get_error(str(tmp_path / "b.blend"), "-o", out)
    for option in (("--seed", "0"), ("--thin", "2"), ("--speed", "2"), ("--fast",)):
        assert f"{option[0]}: only the scene own takes it" in run_and_get_error(
            str(tmp_path / "b.blend"), "-o", out, *option
        )
    assert "--samples and --fast: expected one" in run_and_get_error("own", "-o", out, "--fast", "--samples", "4")
    assert "expected a first before a last" in run_and_get_error("own", "-o", out, "--frames", "4", "4")
    missing = run_and_get_error("own", "-o", out, "--blender", str(tmp_path / "nothing"))
    assert "cannot be run; install Blender" in missing
    assert not (tmp_path / "shot").exists()
    with pytest.raises(InputError, match="found nothing"):
        collect_truth(tmp_path, 1, 2)
    (tmp_path / "vectors").mkdir()
    for n in (1, 2):
        (tmp_path / "vectors" / f"vectors_{n:04d}.exr").write_bytes(b"no EXR")
    with pytest.raises(InputError, match="expected an OpenEXR file"):
        collect_truth(tmp_path, 1, 2)


def rendered(folder: Path, settings: dict[str, Any]) -> Path:
    """Files of a shot as far as their names go."""
    for kind, name, end in (("frames", "frame", "png"), ("vectors", "vectors", "exr")):
        (folder / kind).mkdir(parents=True)
        for n in (1, 2):
            (folder / kind / f"{name}_{n:04d}.{end}").write_bytes(b"")
    (folder / "render.json").write_text(json.dumps(settings))
    return folder


@pytest.mark.parametrize(
    ("change", "words"),
    [({"speed": 2.0}, r"speed was 1\.0, is 2\.0"), ({"source": "a.blend"}, "source was 'own scene', is 'a.blend'")],
    ids=str,
)
def test_render_refuses_shot_of_other_settings(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    (tmp_path / "a.blend").write_bytes(b"")
    settings = Shot(None, 1, 2, 32, 1).settings()
    folder = rendered(tmp_path / "shot", settings)
    wanted: dict[str, Any] = {"source": None, "first": 1, "last": 2, "width": 32, "samples": 1, **change}
    if wanted["source"] is not None:
        wanted["source"] = tmp_path / wanted["source"]
    with pytest.raises(InputError, match=f"rendered with other settings .*{words}"):
        render_shot(Shot(**wanted), folder, Blender("absent"))
    with pytest.raises(InputError, match="expected an OpenEXR file"):  # these settings: on to the truth
        render_shot(Shot(None, 1, 2, 32, 1), folder, Blender("absent"))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            "echo 'fullfield: frame 1 done'\necho 'NameError: nothing'\n",
            r"ended without .*frame_0001\.png: NameError: not",
        ),
        ("echo 'Error: no space'\nexit 3\n", "Blender: stopped with 3: Error: no space"),
    ],
)
def test_render_reports_blender_failure(tmp_path: Path, lines: str, message: str) -> None:
    script = tmp_path / "blender"
    script.write_text(f"#!/bin/sh\n{lines}")
    script.chmod(0o755)
    with pytest.raises(InputError, match=message):
        render_shot(Shot(None, 1, 2, 32, 1), tmp_path / "shot", Blender(str(script)))
