"""The GPU benchmark of TV-L1, with the CPU's solver standing in for the GPU's."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks.bench import failed
from benchmarks.cases.tvl1 import gpu as tvl1_gpu
from benchmarks.cases.tvl1 import report as tvl1_report
from benchmarks.cases.tvl1 import schedules as tvl1_schedules
from benchmarks.cases.tvl1 import solver as tvl1_solver
from benchmarks.cases.tvl1.cpu import synthetic_pair
from benchmarks.cases.tvl1.schedules import State, Version, Work
from benchmarks.runner import main
from fullfield.io import write_flow, write_image
from fullfield.ops.tvl1 import TVL1Config, TVL1Solver
from fullfield.ops.tvl1.config import GRADIENT_FLOOR, PRESETS
from fullfield.ops.tvl1.reference import update_flow_and_dual

CPU = torch.device("cpu")
LIMITS = {"case": "ceilings", "bytes_per_s": 4e12, "special_per_s": 4e12, "rows": []}


def quiet(text: str) -> None:
    del text


def stand_in(name: str, precision: str = "float32", depth: int | None = None, off: float = 0.0) -> Version:
    """The reference's iterations on the CPU; ``off``: px that are added to the flow."""

    def begin(state: State, iterations: int, config: TVL1Config) -> Work:
        if depth is not None and depth > 5:
            raise ValueError(f"{name}: expected a depth up to 5, got {depth}")
        squared = (state.gradient**2).sum(0)
        inverse = torch.where(squared > GRADIENT_FLOOR, 1 / squared.clamp_min(GRADIENT_FLOOR), 0)
        data = (state.gradient[0], state.gradient[1], state.residual, inverse)
        now = [state.flow.clone(), state.dual.clone()]

        def run() -> None:
            for _ in range(iterations):
                now[:] = update_flow_and_dual(now[0], now[1], data, config)

        return Work(run, lambda: now[0] + off, 60.0 * iterations, 36.0 * iterations, 24.0 * iterations)

    return Version(f"{name} {precision}", precision, begin, name, depth)


class StandIn:
    """A persistent solver on the CPU."""

    made: list[tuple[tuple[int, ...], str, str]]

    def __init__(
        self, shape: tuple[int, ...], config: TVL1Config, device: torch.device, schedule: str = "auto"
    ) -> None:
        assert device == CPU
        StandIn.made.append((shape, config.precision, schedule))
        self.memory_bytes = 1000
        self._before: Tensor | None = None
        self._solver = TVL1Solver(shape[2], shape[3], config.replace(precision="float32"))

    def __call__(self, frame1: Tensor, frame2: Tensor, out: Tensor | None = None) -> Tensor:
        assert frame1.dtype == frame2.dtype == torch.uint8
        flow = self._solver(frame1.float() / 255, frame2.float() / 255)
        self._before = frame2
        return flow if out is None else out.copy_(flow)

    def step(self, frame: Tensor, out: Tensor | None = None) -> Tensor | None:
        assert self._before is not None
        return self(self._before, frame, out)


@pytest.fixture(autouse=True)
def _stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    StandIn.made = []
    monkeypatch.setattr(tvl1_solver, "make_solver", StandIn)
    both = [stand_in("global"), stand_in("global", "float16"), stand_in("register_pipeline")]
    monkeypatch.setattr(tvl1_schedules, "versions", lambda: both)
    deep = [stand_in("shared_pipeline", "float32", depth) for depth in (1, 5, 6)]
    monkeypatch.setattr(tvl1_schedules, "pipelines", lambda depths: [one for one in deep if one.depth in depths])
    monkeypatch.setattr(tvl1_solver, "WHOLE", (tvl1_solver.Whole("fast", (96, 128)),))
    monkeypatch.setattr(tvl1_solver, "BATCH", 2)
    monkeypatch.setattr(tvl1_solver, "LIMITS", (0.02, 0.05))
    monkeypatch.setattr(tvl1_report, "LIMITS", (0.02, 0.05))
    monkeypatch.setattr(tvl1_solver, "_TILE", 64)
    monkeypatch.setattr(tvl1_solver, "_CHECKED", (48, 64))


# ---- schedules


def test_tvl1_gives_no_time_to_wrong_schedule() -> None:
    rows = tvl1_schedules.timed((32, 32), [stand_in("good"), stand_in("bad", off=3e-4)], CPU, 1, quiet)
    assert [row["status"] for row in rows] == ["ok", "check failed"]
    assert "median_s" not in rows[1]
    assert "allowed 0.0001" in rows[1]["reason"]
    wrong = tvl1_schedules.timed((32, 32), [stand_in("nan", off=float("nan"))], CPU, 1, quiet)
    assert "NaN" in wrong[0]["reason"]
    assert failed([{"case": "schedules", "rows": rows + wrong}]) == [
        f"schedules: bad float32: {rows[1]['reason']}",
        f"schedules: nan float32: {wrong[0]['reason']}",
    ]


# ---- whole frames


def test_floors_equal_sum_over_levels_and_warps() -> None:
    config = PRESETS["fast"].replace(scales=2)
    found = tvl1_solver.floors((100, 200), config, {"bytes_per_s": 1e9, "special_per_s": 1e15})
    assert found is not None
    pixels = 100 * 200 + 50 * 100
    assert found["floor_s"] == pytest.approx(4 * 26 * 4 * pixels / 1e9)
    assert found["fused_floor_s"] == pytest.approx(4 * 14 * 4 * pixels / 1e9)
    half = tvl1_solver.floors((100, 200), config.replace(precision="float16"), {"bytes_per_s": 1e9})
    assert half is not None
    assert half["floor_s"] == pytest.approx(4 * (18 * 2 + 8 * 4) * pixels / 1e9)
    unfiltered = tvl1_solver.floors((100, 200), config.replace(median=0), {"bytes_per_s": 1e9})
    assert unfiltered is not None
    assert unfiltered["floor_s"] == pytest.approx(4 * 22 * 4 * pixels / 1e9)
    slow = tvl1_solver.floors((100, 200), config, {"bytes_per_s": 1e15, "special_per_s": 1e9})
    assert slow is not None
    assert slow["floor_s"] == pytest.approx(4 * 4 * 10 * pixels / 1e9)
    assert tvl1_solver.floors((100, 200), config, {}) is None


def test_tvl1_gives_no_time_to_wrong_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    class Off(StandIn):
        def __call__(self, frame1: Tensor, frame2: Tensor, out: Tensor | None = None) -> Tensor:
            return super().__call__(frame1, frame2, out) + 0.5

    monkeypatch.setattr(tvl1_solver, "make_solver", Off)
    case = tvl1_solver.whole_frames(tvl1_solver.WHOLE, {}, CPU, 5, LIMITS, quiet)
    assert {row["status"] for row in case["rows"]} == {"check failed"}
    assert "from the reference" in case["rows"][0]["reason"]
    assert "median_s" not in case["rows"][0]


# ---- the command


@pytest.fixture
def middlebury(tmp_path: Path) -> Path:
    scene = synthetic_pair(64, 96)
    folder = tmp_path / "Made"
    folder.mkdir()
    write_image(folder / "frame10.png", scene.frame1)
    write_image(folder / "frame11.png", scene.frame2)
    write_flow(folder / "flow10.flo", scene.flow)
    return folder


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """The verb, whose GPU is the CPU."""
    monkeypatch.setattr("benchmarks.harness.timing_device", lambda _: CPU)
    monkeypatch.setattr(tvl1_gpu, "open_meter", lambda _: (None, "no sensor"))
    monkeypatch.setattr(tvl1_solver, "peers", list)
    monkeypatch.setattr(tvl1_solver, "real_time", lambda *_: {"case": "real time", "setting": {}, "rows": []})
    return lambda *argv: main(["tvl1", "--device", "cuda", *map(str, argv)])


@pytest.mark.parametrize("plots", [False, pytest.param(True, marks=pytest.mark.long)])
def test_tvl1_command_on_gpu_writes_results_and_tables(
    on_cpu: Callable[..., int], middlebury: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], plots: bool
) -> None:
    pytest.importorskip("matplotlib")
    drawn = ["--plots", tmp_path] if plots else []
    parts = ("frames", "schedules", "quality", "depths", "energy", "peers")
    output, tables = tmp_path / "r.json", tmp_path / "t.md"
    code = on_cpu(
        "--presets", middlebury, "--sides", 32, "--parts", *parts, "--repeats", 1, "--steps", 5, 10,
        "--depths", 1, 5, 6, "-o", output, *drawn, "--tables", tables, "--json", "-q",
    )  # fmt: skip
    captured = capsys.readouterr()
    assert (code, captured.err) == (0, "")
    printed, stored = json.loads(captured.out), json.loads(output.read_text())
    assert printed["cases"] == stored["cases"]
    names = ["ceilings", "whole frames", "schedules", "quality", "depths", "energy", "peers"]
    assert [case["case"] for case in stored["cases"]] == names
    assert {"commit", "date", "versions"} <= stored["environment"].keys()
    for name in ("figure8_sizes.png", "figure11_depth.png", "figure13_quality.png") if plots else ():
        assert (tmp_path / name).stat().st_size > 5000
    page = tables.read_text("utf-8")
    assert "1 × 1 × 10" in page
    assert "shared_pipeline float16, published" in page
    assert "Energy: not measured, no sensor" in page
    assert "Jetson AGX Xavier" in page
