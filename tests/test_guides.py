"""The pages for each kind of user: their commands and their Python run."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fullfield
from fullfield.cli.main import main
from fullfield.testing import sample_room_scan, sample_textured_scene
from known_scenes import known_scene

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
QUICK = ["--method", "tvl1", "--preset", "fast", "--iterations", "4", "--warps", "2"]
ELSEWHERE = ("train", "demo")  # run by their own tests
SLOWER = (
    *("live camera:", "live rtsp:", "--method sea-raft", "score flow.flo examples"),  # need a device or weights
    *("runs/descriptor", "blender.", "render.", "half."),  # need a training, or files of other programs
)


def blocks(page: str, language: str = "") -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```", (DOCS / page).read_text("utf-8"), re.DOTALL | re.MULTILINE)
    return [block for name, block in found if name == language]


@pytest.fixture
def page_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with the files of the pages: frames, plates, a paint-over, a video, scans."""
    from fullfield.io import VideoWriter, write_image, write_point_cloud

    monkeypatch.chdir(tmp_path)
    (tmp_path / "fullfield-demo").mkdir()
    monkeypatch.syspath_prepend(ROOT / "tests" / "integrations")  # for somebody else's network
    scenes = [known_scene(48, 64, 1, motion) for motion in (2.0, 4.0)]
    frames = [scenes[0].frame2, scenes[1].frame1, scenes[1].frame2]
    for number, frame in enumerate(frames):
        write_image(f"plate.{1001 + number}.exr", frame)
        write_image(f"matte.{1001 + number}.png", (frame[:1] > 0.1).float())
        write_image(f"frame_{1 + number:04d}.png", frame)
    for number, frame in enumerate(frames[:2], 1):
        write_image(f"fullfield-demo/frame{number}.png", frame)
    write_image("paint.1001.exr", frames[0])
    writer = VideoWriter("clip.mp4", 64, 48, 25)
    for number in range(4):
        writer.write((255 * frames[number % 3]).to(torch.uint8), number / 25)
    writer.close()
    angle = np.deg2rad(40.0)
    turn = np.array([[np.cos(angle), -np.sin(angle), 0], [np.sin(angle), np.cos(angle), 0], [0, 0, 1]])
    write_point_cloud("scan_01.ply", sample_room_scan(5))
    write_point_cloud("scan_02.ply", sample_room_scan(5, scan_seed=1) @ turn + 1.0)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    return tmp_path


def commands(page: str) -> Iterator[list[str]]:
    for block in blocks(page):
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith("fullfield ") and not any(word in line for word in SLOWER):
                yield shlex.split(line)[1:]


@pytest.mark.parametrize(
    "page", ["start.md", "compositors.md", "researchers.md", "services.md", "point-clouds.md", "live.md"]
)
def test_guides_commands_run(page: str, page_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = [words for words in commands(page) if words[0] not in ELSEWHERE]
    assert found
    for words in found:
        quick = QUICK if words[0] in ("flow", "shot") or words[:2] == ["live", "clip.mp4"] else []
        quick = QUICK[2:] if words[:2] == ["evaluate", "tvl1"] else quick
        words = [word for i, word in enumerate(words) if not (quick and "--preset" in words[max(i - 1, 0) : i + 1])]
        assert main([*words, *quick]) == 0, (words, capsys.readouterr().err)
        capsys.readouterr()
        for option in ("-o", "--viz", "--st-map"):
            if option in words and "%" not in (name := words[words.index(option) + 1]):
                assert (page_folder / name).stat().st_size > 0, words


def test_follow_page_runs_from_plates_to_tracks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    points, python = blocks("follow.md", "python")
    run(blocks("compositors.md", "python")[0].replace("120, 160, 24", "48, 64, 24"), {})
    run(points.replace("70,50", "30,20").replace("20.5,90", "20.5,40"), {})
    for words in commands("follow.md"):
        assert main([*words, *(QUICK if words[0] == "follow" else [])]) == 0, words
    assert len(Path("tracks.csv").read_text().splitlines()) == 1 + 2 * 3
    assert len(list(tmp_path.glob("paint_on.*.exr"))) == 3
    run(python, {})


def build_variables(folder: Path) -> dict[str, Any]:
    """Return the variables that the blocks of Python use."""
    from foreign_network import Network

    maps = torch.rand(2, 1, 8, 16, 24)
    coords = torch.stack(torch.meshgrid(torch.arange(24.0), torch.arange(16.0), indexing="xy"))[None]
    frames = torch.rand(2, 1, 3, 64, 80)
    return {
        "model": Network(),
        "fmap1": maps[0],
        "fmap2": maps[1],
        "coords": coords,
        "flow": torch.zeros(1, 2, 16, 24),
        "points": torch.rand(50, 3),
        "offsets": torch.tensor([0, 20, 50]),
        "features": torch.rand(50, 16),
        "checkout": str(ROOT),
        "frame1": frames[0],
        "frame2": frames[1],
        "here": folder,
    }


def run(block: str, given: dict[str, Any]) -> dict[str, Any]:
    given.setdefault("__name__", "__main__")
    exec(compile(block, "page", "exec"), given)
    return given


@pytest.mark.parametrize("page", ["start.md", "compositors.md", "services.md", "point-clouds.md", "live.md"])
def test_guides_python_runs(page: str, page_folder: Path) -> None:
    assert blocks(page, "python")
    threads = torch.get_num_threads()
    try:
        for block in blocks(page, "python"):
            run(block, build_variables(page_folder))
    finally:
        torch.set_num_threads(threads)


def test_researchers_page_python_runs(page_folder: Path) -> None:
    patch, _, lookup = blocks("researchers.md", "python")
    assert run(patch, build_variables(page_folder))["handle"].replaced
    assert run(lookup, build_variables(page_folder))["features"].shape == (1, 324, 16, 24)


def test_researchers_page_patches_ptlflow(page_folder: Path, ptlflow: Any) -> None:
    from fullfield.integrations.handle import is_patched

    block = blocks("researchers.md", "python")[1]
    torch.manual_seed(0)
    given = {**build_variables(page_folder), "fullfield": fullfield}
    given.update(frame1=torch.rand(1, 3, 128, 160), frame2=torch.rand(1, 3, 128, 160))
    found = run(block, given)
    assert is_patched(found["model"])
    assert found["ptlflow"] is ptlflow
    assert found["flow"].shape == (1, 2, 128, 160)


def test_migrating_page_runs(page_folder: Path) -> None:
    from fullfield.integrations.handle import is_patched
    from fullfield.nn import CorrelationPyramid

    patch, raft, local, voxels, cv2, ours, drop_in = blocks("migrating.md", "python")
    assert is_patched(run(patch, build_variables(page_folder))["model"])
    given = run(raft, build_variables(page_folder))
    same = CorrelationPyramid(given["fmap1"], given["fmap2"], levels=4, radius=4)(given["coords"])
    assert torch.allclose(given["features"], same)
    given = run(local, build_variables(page_folder))
    window = CorrelationPyramid(given["fmap1"], given["fmap2"], levels=1, radius=4)(given["coords"])
    assert torch.allclose(given["features"], window.view(1, 9, 9, 16, 24).transpose(1, 2).reshape(1, 81, 16, 24))
    given = run(voxels, build_variables(page_folder))
    assert given["features"].shape == (50, 32)
    weight = given["conv"].weight.detach().view(3, 3, 3, 16, 32).permute(4, 0, 1, 2, 3)  # spconv's order
    assert torch.equal(weight.permute(1, 2, 3, 4, 0).reshape(27, 16, 32), given["conv"].weight.detach())
    assert "weight.permute(1, 2, 3, 4, 0).reshape(27, 16, 32)" in (DOCS / "migrating.md").read_text("utf-8")

    scene = sample_textured_scene(48, 64, seed=1, max_motion=2.0)
    grey = [(255 * frame.mean(0)).to(torch.uint8).numpy() for frame in (scene.frame1, scene.frame2)]
    given = run(ours, {**build_variables(page_folder), "frame1": scene.frame1, "frame2": scene.frame2})
    assert given["ours"].shape == (48, 64, 2)
    calc = run(drop_in, {"grey1": grey[0], "grey2": grey[1]})["ours"]
    assert np.abs(np.median(calc - given["ours"], (0, 1))).max() < 0.2
    pytest.importorskip("cv2")
    theirs = run(cv2, {"grey1": grey[0], "grey2": grey[1]})["theirs"]
    assert np.abs(np.median(theirs - given["ours"], (0, 1))).max() < 0.2  # the same axes, units and order


def read_strings_without_docstrings(path: Path) -> str:
    nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    strings = [node for node in nodes if isinstance(node, ast.Constant) and id(node) not in docstrings]
    return "\n".join(str(node.value) for node in strings)


def test_troubleshooting_page_quotes_existing_messages() -> None:
    page = (DOCS / "troubleshooting.md").read_text("utf-8")
    source = "\n".join(read_strings_without_docstrings(path) for path in (ROOT / "src").rglob("*.py"))
    sections = re.findall(r"^## From .*?(?=^## |\Z)", page, re.DOTALL | re.MULTILINE)
    assert len(sections) == 3
    messages = [quoted for section in sections for quoted in re.findall(r"^- `([^`]+)`", section, re.MULTILINE)]
    assert len(messages) > 10
    assert [message for message in messages if message not in source] == []


def test_support_page_names_every_backend() -> None:
    page = (DOCS / "support.md").read_text("utf-8")
    for operator in ("correlation", "spatial_correlation", "matching", "tvl1", "neighbors", "point_conv"):
        backends = [name for name, _ in importlib.import_module(f"fullfield.ops.{operator}").explain_backends()]
        line = next(line for line in page.splitlines() if f"/ops/{operator}/" in line)
        assert re.findall(r"`(\w+)`", line.split("|")[2]) == backends
