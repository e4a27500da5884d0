"""``fullfield live``: what it reports, writes and refuses."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fullfield import InputError
from fullfield.cli import live
from fullfield.estimators import TVL1Estimator
from fullfield.io import open_video
from fullfield.io.video import VideoWriter
from fullfield.ops.tvl1 import TVL1Solver
from fullfield.ops.tvl1.config import PRESETS
from fullfield.testing import sample_textured_scene

pytest.importorskip("av", reason="PyAV is not installed (pip install 'fullfield[video]')")

QUICK = ("--method", "tvl1", "--preset", "fast", "--iterations", "2", "--warps", "1")


@pytest.fixture
def film(scene: Path) -> str:
    """A texture that moves by 2 px to the left in each of eight frames of 64×48, 10 a second."""
    texture = (sample_textured_scene(48, 90, seed=4).frame1 * 255).to(torch.uint8)
    with VideoWriter(scene / "film.mp4", 64, 48, 10.0) as writer:
        for number in range(8):
            writer.write(texture[:, :, 2 * number : 2 * number + 64], number / 10)
    return "film.mp4"


def test_live_rate_max_computes_every_pair(cli: Any, film: str) -> None:
    ran = cli("live", film, "--rate", "max", "--preset", "fast", "--json", "--viz", "out.mp4", "-q")
    report = ran.json
    assert ran.err == ""
    assert (report["frames"], report["pairs"], report["flows"], report["dropped"]) == (8, 7, 7, 0)
    assert report["rate"] == {"source": 10.0, "requested": "max"}
    assert report["size"] == {"width": 64, "height": 48}
    assert report["latency_s"]["median"] >= report["computing_s"]["median"] > 0
    assert report["latency_s"]["p99"] <= report["latency_s"]["max"]
    assert report["flows_per_second"] > 0
    assert (report["method"], report["preset"], report["device"]) == ("tvl1", "fast", "cpu")
    assert report["parameters"]["warps"] == 4
    assert not report["interrupted"]
    assert report["picture"]["shown"] == 7
    assert report["picture"]["max_motion"] == pytest.approx(2.0, abs=1.0)
    frames = list(open_video("out.mp4"))
    assert len(frames) == 7
    # To the left is cyan on Middlebury's wheel.
    red, green, blue = frames[3].read_rgb()[:, 12:-12, 12:-12].float().mean((1, 2))
    assert min(green, blue) > red + 60


def test_live_rate_limits_flows_per_second(cli: Any, film: str) -> None:
    report = cli("live", film, "--rate", "40", *QUICK, "--json").json
    assert report["rate"]["requested"] == 40.0
    assert report["flows"] + report["dropped"] == report["pairs"] == 7
    assert report["flows_per_second"] < 60, "seven flows within 7/40 s, but for the last one's time"


@pytest.mark.parametrize("old", [b"", b"an old film"])
def test_live_interrupted_before_first_picture_keeps_old_file(
    cli: Any, film: str, scene: Path, monkeypatch: pytest.MonkeyPatch, old: bytes
) -> None:
    if old:
        (scene / "old.mp4").write_bytes(old)

    def show(*_: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(live._PictureOutputs, "draw_to_outputs_and_return_is_open", show)
    report = cli("live", film, "--rate", "max", *QUICK, "--viz", "old.mp4", "--json").json
    assert report["interrupted"]
    assert report["picture"]["path"] is None
    assert (scene / "old.mp4").exists() == bool(old)
    assert not old or (scene / "old.mp4").read_bytes() == old
    assert not [path for path in scene.iterdir() if ".part" in path.name]
    out = cli("live", film, "--rate", "max", *QUICK, "--viz", "old.mp4").out
    assert "old.mp4: not written, there was no flow" in out


@pytest.mark.parametrize("stop", [InputError("film.mp4: broken"), KeyboardInterrupt()])
def test_live_keeps_recording_after_interrupt(
    cli: Any, film: str, scene: Path, monkeypatch: pytest.MonkeyPatch, stop: BaseException
) -> None:
    (scene / "old.mp4").write_bytes(b"an old film")
    real, shown = live._PictureOutputs.draw_to_outputs_and_return_is_open, list[Any]()

    def show(self: Any, done: Any) -> bool:
        if len(shown) == 3:
            raise stop
        shown.append(done)
        return real(self, done)

    monkeypatch.setattr(live._PictureOutputs, "draw_to_outputs_and_return_is_open", show)
    ran = cli("live", film, "--rate", "max", *QUICK, "--viz", "old.mp4", "--max-motion", "5")
    assert ran.code == (2 if isinstance(stop, InputError) else 0)
    assert len(list(open_video("old.mp4"))) == 3


def test_live_warns_about_long_wait_for_frame(cli: Any, scene: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fullfield.estimators.live._LONG_WAIT", 0.4)
    with VideoWriter(scene / "gap.mp4", 64, 48, 10.0) as writer:
        for number in (0, 1, 8):
            writer.write(torch.full((3, 48, 64), 20, dtype=torch.uint8), number / 10)
    ran = cli("live", "gap.mp4", "--flows", "2", *QUICK)
    assert "gap.mp4: by its time stamps frame 3 is due in 0." in ran.err
    assert "--rate max does not wait" in ran.err


def test_live_prints_readable_summary(cli: Any, film: str) -> None:
    ran = cli("live", film, "--rate", "max", *QUICK, "--viz", "v.mkv", "--max-motion", "5")
    assert ran.code == 0
    first, second = ran.out.splitlines()
    assert first.startswith("film.mp4: 64x48 at 10 frames a second, tvl1 (preset fast)")
    assert "7 flows of 7 pairs, 0 dropped" in first
    assert "ms median" in first
    assert "ms p99" in first
    assert second == "v.mkv: 7 pictures, 0 flows without one"


def test_live_reports_missing_frames(cli: Any, scene: Path) -> None:
    with VideoWriter(scene / "gap.mp4", 64, 48, 10.0) as writer:
        for number in (0, 1, 2, 5, 6, 7, 8, 9):
            writer.write(torch.full((3, 48, 64), 20 * number, dtype=torch.uint8), number / 10)
    report = cli("live", "gap.mp4", "--rate", "max", *QUICK, "--json").json
    assert (report["frames"], report["flows"], report["missing"]) == (8, 7, 2), report
    assert ", 2 frames missing, " in cli("live", "gap.mp4", "--rate", "max", *QUICK).out


class Stopping:
    """A source that goes on for ever; Ctrl-C comes while the third flow is shown."""

    width, height, frame_rate, is_live = 32, 24, None, True

    class Frame:
        time = 0.0

        def read_luma(self) -> Tensor:
            return torch.zeros(1, 24, 32, dtype=torch.uint8)

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield self.Frame()

    def close(self) -> None:
        self.closed = True


def test_live_interrupted_camera_prints_report(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Stopping()
    monkeypatch.setattr(importlib.import_module("fullfield.io.video"), "open_video", lambda _: source)
    monkeypatch.setattr(importlib.import_module("fullfield.io"), "open_video", lambda _: source)
    shown: list[Any] = []

    def show(self: Any, done: Any) -> bool:
        del self
        shown.append(done)
        if len(shown) == 3:
            raise KeyboardInterrupt
        return True

    monkeypatch.setattr(live._PictureOutputs, "draw_to_outputs_and_return_is_open", show)
    report = cli("live", "camera:0", *QUICK, "--json").json
    assert report["interrupted"]
    assert report["flows"] >= 3
    assert source.closed


def test_live_uploads_each_frame_once_on_gpu(cli: Any, film: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    class Persistent:
        """On the CPU, from a cold start always."""

        def __init__(self, shape: tuple[int, ...], config: Any, *, device: torch.device) -> None:
            assert (shape, device) == ((1, 1, 48, 64), torch.device("cpu"))
            self._solve = TVL1Solver(48, 64, config)

        def __call__(self, first: Tensor, second: Tensor) -> Tensor:
            assert first.dtype == second.dtype == torch.uint8
            calls.append("pair")
            self._before = second
            return self._solve(first.float() / 255, second.float() / 255)

        def step(self, frame: Tensor) -> Tensor:
            calls.append("step")
            before, self._before = self._before, frame
            return self._solve(before.float() / 255, frame.float() / 255)

    monkeypatch.setattr("fullfield.estimators.tvl1.explain_backends", lambda *_, **__: [("cuda", None)])
    monkeypatch.setattr(importlib.import_module("fullfield.ops.tvl1"), "PersistentSolver", Persistent, raising=False)
    report = cli("live", film, "--rate", "max", *QUICK, "--json").json
    assert report["backend"] == "cuda"
    assert calls == ["pair", "pair", *["step"] * 6], "one to warm up, one pair, then frame after frame"


def test_live_uses_persistent_solver_for_tvl1_on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def runs(backend: str | None = None, **changes: Any) -> bool:
        estimator = TVL1Estimator(PRESETS["fast"].replace(**changes), backend=backend)
        return estimator.create_video_solver_if_supported((48, 64), torch.device("cpu")) is not None

    assert not runs()
    reasons: dict[str, str | None] = {"cuda": None, "cpu": None}
    monkeypatch.setattr("fullfield.estimators.tvl1.explain_backends", lambda *_, **__: reasons.items())
    solver = lambda *_, **__: object()  # noqa: E731
    monkeypatch.setattr(importlib.import_module("fullfield.ops.tvl1"), "PersistentSolver", solver, raising=False)
    assert runs()
    assert runs("cuda")
    assert not runs("reference")
    reasons["cuda"] = "NVRTC is not installed"
    assert not runs(), "the solver then says so, and takes another backend"


def test_live_does_not_close_hanging_source_under_reader(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Hanging(Stopping):
        closed = False
        go_on = threading.Event()

        def __iter__(self) -> Iterator[Any]:
            for _ in range(4):
                yield self.Frame()
            self.go_on.wait(30)

    source = Hanging()
    monkeypatch.setattr(importlib.import_module("fullfield.io"), "open_video", lambda _: source)
    monkeypatch.setattr(live, "_PATIENCE", 0.1)
    report = cli("live", "camera:0", *QUICK, "--json", "--flows", "1").json
    assert report["flows"] == 1
    assert not source.closed
    source.go_on.set()


def test_live_status_line_fits_terminal(cli: Any, film: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_STATUS_SECONDS", {True: 0.0, False: 0.0})
    written = cli("live", film, "--rate", "max", *QUICK).err
    assert "fullfield: live: " in written
    assert "dropped" in written
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    ran = cli("live", film, "--rate", "max", *QUICK)
    drawn = [line for line in ran.err.replace("\n", "\r").split("\r") if line]
    assert drawn[0].startswith("fullfield: live: ")
    assert {len(line) for line in drawn} == {39}


def test_live_reports_solver_error_in_one_line(refused: Callable[..., str], film: str) -> None:
    assert "cuda" in refused("live", film, *QUICK, "--backend", "cuda", "--device", "cpu")


def test_live_preview_without_display_is_refused(
    refused: Callable[..., str], film: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("cv2")
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    assert "--preview: " in refused("live", film, "--preview", *QUICK)


def test_live_without_pyav_names_package_to_install(
    refused: Callable[..., str], film: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.import_module

    def absent(name: str, package: str | None = None) -> Any:
        if name == "av":
            raise ModuleNotFoundError("No module named 'av'", name="av")
        return real(name, package)

    monkeypatch.setattr(importlib, "import_module", absent)
    assert "pip install av" in refused("live", film, *QUICK)
