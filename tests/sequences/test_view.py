"""The page of a shot, in a browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sequence_shots import HEIGHT, QUICK, WIDTH, moving

from fullfield.cli.main import main
from fullfield.io import write_flow_layers, write_image
from fullfield.viz.page import ViewFrame, build_html_page

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
NODE = shutil.which("node")
browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here (apt-get install chromium)")


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    """Three frames whose vectors are known: (3, -2) forward, occluded on the right."""
    monkeypatch.chdir(tmp_path)
    for number, frame in enumerate(moving(3, step=3), 1):
        write_image(f"p.{number:04d}.png", frame)
        flow = torch.tensor([3.0, -2.0]).view(2, 1, 1).expand(2, HEIGHT, WIDTH).clone()
        flow[:, :4, :4] = float("nan")
        hidden = torch.zeros(HEIGHT, WIDTH)
        hidden[:, -10:] = 1
        parts = {"forward": flow, "backward": -flow, "occlusion.forward": hidden, "confidence.forward": 1 - hidden}
        write_flow_layers(f"mv.{number:04d}.exr", parts)
    assert main(["view", "mv.%04d.exr", "--plates", "p.%04d.png", "-o", "shot.html", "--max-motion", "4"]) == 0
    assert "shot.html: 3 frames" in capsys.readouterr().out
    return tmp_path / "shot.html"


def chromium(page: Path, *options: str, hash: str = "", size: str = "900,900") -> str:
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
               f"--user-data-dir={page.parent / 'profile'}", "--virtual-time-budget=8000", f"--window-size={size}",
               *options, f"file://{page}#{hash}"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout


def test_view_page_loads_nothing_external(page: Path) -> None:
    text = page.read_text("utf-8")
    assert not re.findall(r"(?:src|href)\s*=\s*[\"'](?!data:)", text)
    assert not re.findall(r"https?://", text)
    assert "default-src 'none'" in text
    assert [frame["number"] for frame in shown(page)["frames"]] == [1, 2, 3]
    text = page.read_text("utf-8")
    policy = re.findall(r'Content-Security-Policy" content="(.*?)"', text)[0]
    assert "unsafe" not in policy
    assert len(re.findall(r"'sha256-[A-Za-z0-9+/]{43}='", policy)) == 2
    assert not re.search(r"\son\w+=|\sstyle=", text), "inline handlers and styles would be blocked"


HOSTILE = (
    "{{DATA}}<img src=x onerror=document.body.dataset.ran=1>",
    "{{SCRIPT_HASH}}<script>document.body.dataset.ran=1</script>",
    "<!--<script>",
    "</script><script>document.body.dataset.ran=1</script>",
    '</title>"><svg onload=document.body.dataset.ran=1>&amp;',
    "\udcff\u2028 not UTF-8",
)


@pytest.mark.parametrize("title", HOSTILE)
def test_view_page_escapes_hostile_name(title: str, tmp_path: Path) -> None:
    flow = torch.tensor([3.0, -2.0]).view(2, 1, 1).expand(2, 32, 32).clone()
    text = build_html_page(title, [ViewFrame(1, None, {"forward": flow})], max_motion=4.0)
    (tmp_path / "hostile.html").write_text(text, "utf-8")
    data = re.findall(r'<script id="data" type="application/json">(.*?)</script>', text, re.DOTALL)[0]
    assert "<" not in data
    assert json.loads(data)["title"] == title
    assert len(re.findall(r"<script", text)) == 2
    assert "<img" not in text
    if CHROMIUM is not None:
        dom = chromium(tmp_path / "hostile.html", "--dump-dom", hash="layer=flow")
        assert 'data-drawn="1 flow forward"' in dom
        assert "data-ran" not in dom


@browser
def test_view_page_blocks_injected_script(page: Path) -> None:
    injected = page.read_text("utf-8").replace("</h1>", "</h1><img src=x onerror=document.body.dataset.ran=1>")
    page.write_text(injected, "utf-8")
    dom = chromium(page, "--dump-dom", hash="layer=flow")
    assert 'data-drawn="1 flow forward"' in dom
    assert "data-ran" not in dom


@browser
@pytest.mark.parametrize(
    ("hash", "words"),
    [
        ("layer=flow&x=0.5&y=0.5", "forward (3.00, -2.00) px, 3.61 px long, occlusion 0.00, confidence 1.00"),
        ("layer=over&frame=2&x=0.99&y=0.5&arrows=1", "occlusion 1.00, confidence 0.00"),
        ("layer=wipe&direction=backward&frame=3&x=0.5&y=0.5", "backward (-3.00, 2.00) px"),
        ("layer=occlusion&x=0.01&y=0.01", "x 0, y 0: unknown"),
    ],
)
def test_view_page_draws_and_shows_vector(page: Path, hash: str, words: str) -> None:
    dom = chromium(page, "--dump-dom", hash=hash)
    hash_values = dict(part.split("=") for part in hash.split("&"))
    drawn = f"{hash_values.get('frame', '1')} {hash_values['layer']} {hash_values.get('direction', 'forward')}"
    assert f'data-drawn="{drawn}"' in dom
    readout = re.findall(r'<div id="readout">(.*?)</div>', dom)[0]
    assert words in readout
    assert '<div id="none"></div>' in dom


@browser
def test_view_page_shows_flow_and_frame(page: Path) -> None:
    from PIL import Image

    pictures = {}
    for layer in ("flow", "frame", "wipe"):
        shot = page.parent / f"{layer}.png"
        chromium(page, f"--screenshot={shot}", hash=f"layer={layer}&frame=2", size="932,900")
        pictures[layer] = np.asarray(Image.open(shot).convert("RGB")).astype(float)
    from fullfield.viz import flow_to_image

    expected = flow_to_image(torch.tensor([3.0, -2.0]).view(2, 1, 1).expand(2, 1, 1).clone(), max_motion=4.0)
    inside = pictures["flow"][250:500, 300:600]
    assert np.abs(inside - expected[:, 0, 0].numpy()).max() <= 3
    assert np.abs(pictures["frame"][250:500, 300:600] - inside).mean() > 10
    left, right = (
        np.abs(pictures["wipe"] - pictures["frame"])[250:500, at] for at in (slice(60, 400), slice(520, 800))
    )
    assert left.mean() < 0.01
    assert right.mean() > 0.01, "the right side is another picture"


def test_view_finds_plates_by_notes(
    shot: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    call: Callable[..., int] = lambda *words: main([*words])  # noqa: E731
    assert call("shot", "plate.%04d.png", "--frames", "11-12", "-o", "mv.%04d.exr", *QUICK) == 0
    monkeypatch.chdir(shot.parent)
    assert call("view", f"{shot}/mv.%04d.exr") == 0
    text = (shot / "mv.html").read_text("utf-8")
    assert text.count("data:image/jpeg") == 2
    for path in shot.glob("plate.*"):
        path.unlink()
    capsys.readouterr()
    assert call("view", f"{shot}/mv.%04d.exr", "--json") == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["frames"] == "11-12"
    assert "the page has no plates" in err
    assert call("view", f"{shot}/none.%04d.exr") == 2
    (shot / "mv.0011.exr").write_bytes(b"")
    assert call("view", f"{shot}/mv.%04d.exr", "-q") == 2


def shown(page: Path) -> dict[str, Any]:
    """Data of a page."""
    found = re.findall(r'<script id="data" type="application/json">(.*?)</script>', page.read_text("utf-8"), re.DOTALL)
    data: dict[str, Any] = json.loads(found[0])
    return data


@pytest.mark.skipif(NODE is None, reason="no Node.js here")
def test_view_wipe_shows_target_frame(shot: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shot)
    for step in (1, 2):
        assert main(["shot", "plate.%04d.png", "-o", f"mv{step}.%04d.exr", "--step", str(step), *QUICK]) == 0
        for frames in ("11-14", "11-14x2"):
            assert main(["view", f"mv{step}.%04d.exr", "--frames", frames, "-o", "v.html"]) == 0
            page = shown(Path("v.html"))
            function = re.findall(r"function neighbour.*?\n}", Path("v.html").read_text("utf-8"), re.DOTALL)[0]
            script = (
                f"const shot = {json.dumps({**page, 'frames': [{'number': f['number']} for f in page['frames']]})};"
            )
            script += f"let at = 0; {function} console.log(shot.frames.map((_, i) => (at = i, neighbour('forward'))))"
            found = subprocess.run([str(NODE), "-e", script], capture_output=True, text=True, check=True).stdout
            numbers = [frame["number"] for frame in page["frames"]]
            wanted = [numbers.index(n + step) if n + step in numbers else -1 for n in numbers]
            assert json.loads(found) == wanted


def test_view_skips_plates_of_other_proportions(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_image("p.0002.png", torch.rand(3, HEIGHT + 9, WIDTH))
    assert main(["view", "mv.%04d.exr", "--plates", "p.%04d.png", "-o", "shot.html"]) == 2
    size = f"{WIDTH}x{HEIGHT}"
    assert f"p.0002.png: is {WIDTH}x{HEIGHT + 9}, but the flow mv.0002.exr is {size}" in capsys.readouterr().err
    assert ["frame" in frame for frame in shown(page)["frames"]] == [True, False, True]


def test_view_enlarges_half_size_plates(page: Path) -> None:
    for number, frame in enumerate(moving(3), 1):
        write_image(f"p.{number:04d}.png", frame[:, ::2, ::2].contiguous())
    assert main(["view", "mv.%04d.exr", "--plates", "p.%04d.png", "-o", "shot.html"]) == 0
    assert all(frame["size"] == frame["shown"] == [WIDTH, HEIGHT] for frame in shown(page)["frames"])
