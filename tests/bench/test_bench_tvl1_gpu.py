"""The GPU benchmark of TV-L1, with the CPU's solver standing in for the GPU's."""

from __future__ import annotations

import dataclasses
import math
import sys
import types
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks import harness as run
from benchmarks.bench import failed
from benchmarks.cases.tvl1 import report as tvl1_report
from benchmarks.cases.tvl1 import schedules as tvl1_schedules
from benchmarks.cases.tvl1 import solver as tvl1_solver
from benchmarks.cases.tvl1.cpu import synthetic_pair
from benchmarks.cases.tvl1.schedules import State, Version, Work
from fullfield.ops.tvl1 import PRESETS, TVL1Config, TVL1Solver
from fullfield.ops.tvl1.config import GRADIENT_FLOOR
from fullfield.ops.tvl1.reference import iterate

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
                now[:] = iterate(now[0], now[1], data, config)

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
        self.memory = 1000
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


def test_rows_say_what_was_done_and_what_it_took() -> None:
    case = tvl1_schedules.by_size((32, 48), tvl1_schedules.versions(), CPU, 2, quiet)
    assert len(case["rows"]) == 6
    setting = case["setting"]
    assert (setting["scales"], setting["warps"], setting["iterations"]) == (1, 1, 10)
    for row in case["rows"]:
        assert row["status"] == "ok"
        assert row["check"]["max_px"] <= row["check"]["allowed_max_px"]
        pixels = row["size"][0] * row["size"][1]
        assert row["ns_per_pixel"] == pytest.approx(1e9 * row["median_s"] / pixels)
        assert row["gflops"] == pytest.approx(600 * pixels / row["median_s"] / 1e9)
        assert row["gbytes_per_s"] == pytest.approx(600 * pixels / row["median_s"] / 1e9)


def test_a_wrong_schedule_gets_no_time() -> None:
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


def test_tables_say_how_far_apart_the_rounds_were() -> None:
    rows = [
        {
            "name": "x",
            "size": [32, 32],
            "depth": 1,
            "status": "ok",
            "median_s": 2.0,
            "min": 1.9,
            "max": 2.2,
            "repeats": 5,
        }
    ]
    case = {"case": "schedules", "setting": tvl1_schedules.setting().as_dict(), "rows": rows}
    found = tvl1_report.size_table({"cases": [case]})
    assert found is not None
    assert found[0].endswith("graph replay, medians of 5, all of a row within 15 % of it")
    depths = tvl1_report.depth_table({"cases": [{"case": "depths", "rows": rows}]})
    assert depths is not None
    assert "within 15 % of it" in depths[0]


def test_versions_that_do_not_fit_together_are_timed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[int] = []

    def counted(candidates: Any, *more: Any) -> Any:
        held.append(len(candidates))
        return run.interleaved(candidates, *more)

    monkeypatch.setattr(tvl1_schedules, "_at_once", lambda *_: 2)
    monkeypatch.setattr(tvl1_schedules, "interleaved", counted)
    rows = tvl1_schedules.timed((32, 32), tvl1_schedules.versions(), CPU, 1, quiet)
    assert held == [2, 1]
    assert [row["status"] for row in rows] == ["ok"] * 3
    assert all(row["median_s"] > 0 for row in rows)


@pytest.mark.parametrize(("free", "most"), [(10**9, 2), (31 * 2**30, 4), (140 * 2**30, 22)])
def test_how_many_versions_fit(monkeypatch: pytest.MonkeyPatch, free: int, most: int) -> None:
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda _: (free, free))
    monkeypatch.setattr("torch.cuda.memory_reserved", lambda _: 0)
    monkeypatch.setattr("torch.cuda.memory_allocated", lambda _: 0)
    assert tvl1_schedules._at_once((8192, 8192), torch.device("cuda"), 10) == most
    assert tvl1_schedules._at_once((8192, 8192), CPU, 10) == 10


def test_depths_that_a_schedule_lacks_are_told() -> None:
    case = tvl1_schedules.by_depth(32, tvl1_schedules.pipelines((1, 5, 6)), CPU, 1, quiet)
    assert [row["iterations"] for row in case["rows"]] == [2, 10, 12]
    assert [row["status"] for row in case["rows"]] == ["ok", "ok", "not possible"]
    assert "up to 5" in case["rows"][2]["reason"]
    row = case["rows"][1]
    assert row["ms_per_iteration"] == pytest.approx(1e3 * row["median_s"] / 10)


def test_the_floor_of_the_iterations() -> None:
    found = tvl1_schedules.floor(2048 * 2048, 10, "float32", {"bytes_per_s": 4.3e12, "special_per_s": 3.73e12})
    assert found is not None
    assert found["memory_s"] == pytest.approx(58e-6, rel=0.02)
    assert found["special_s"] == pytest.approx(45e-6, rel=0.02)
    assert tvl1_schedules.floor(1, 1, "float32", tvl1_schedules.ceilings(CPU)) is None


class Wall:
    """A meter of a device that always takes 100 W."""

    source = "made up"

    def joules(self) -> float:
        import time

        return 100.0 * time.perf_counter()

    def close(self) -> None:
        self.closed = True


def test_energy_per_pixel() -> None:
    contenders = [stand_in("global"), stand_in("bad", off=1.0)]
    case = tvl1_schedules.energy(32, contenders, CPU, Wall(), "made up", quiet, 0.05)
    good, bad = case["rows"]
    assert good["watts"] == pytest.approx(100, rel=0.05)
    assert good["nj_per_pixel"] == pytest.approx(100 * good["ns_per_pixel"], rel=0.05)
    assert bad["status"] == "check failed"
    assert "watts" not in bad
    assert case["idle_watts"] == pytest.approx(100, rel=0.05)
    none = tvl1_schedules.energy(32, contenders, CPU, None, "no sensor", quiet)
    assert (none["meter"], none["rows"]) == ("no sensor", [])


class Stopping(Wall):
    """A meter that stands still once it is stopped."""

    end = math.inf

    def stop(self, _: str = "") -> None:
        self.end = super().joules()

    def joules(self) -> float:
        return min(super().joules(), self.end)


def test_a_meter_that_stands_still_gives_no_energy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.energy._TICK_SECONDS", 0.02)
    meter = Stopping()
    meter.stop()
    still = tvl1_schedules.energy(32, [stand_in("global")], CPU, meter, "made up", quiet, 0.05)
    assert still["meter"].startswith("not available: made up did not move in 0.")
    assert still["rows"] == []
    assert "Energy: not measured, not available" in next(iter(tvl1_report.tables({"cases": [still]})))[0]
    meter = Stopping()  # stops when the first version is announced, after the idle device was measured
    later = tvl1_schedules.energy(32, [stand_in("global")], CPU, meter, "made up", meter.stop, 0.05)
    (row,) = later["rows"]
    assert row["status"] == "not available"
    assert "watts" not in row
    _, table = next(iter(tvl1_report.tables({"cases": [later]})))
    assert table[1] == ["global float32", *["not available"] * 3]


# ---- whole frames


def test_whole_frames_state_their_work_and_floor() -> None:
    pairs = {"sintel": [synthetic_pair(64, 96)]}
    case = tvl1_solver.whole_frames(tvl1_solver.WHOLE, pairs, CPU, 5, LIMITS, quiet)
    assert [row["precision"] for row in case["rows"]] == ["float32", "float16"]
    for row in case["rows"]:
        assert row["status"] == "ok", row
        assert (row["scales"], row["warps"], row["iterations"]) == (3, 4, 10)
        assert row["min"] <= row["median_s"] <= row["p99_s"] <= row["max"]
        assert row["over_floor"] == pytest.approx(row["median_s"] / row["floor_s"])
        assert row["sequence"]["frames_per_s"] > 0
        assert row["check"]["mean_px"] <= row["check"]["allowed_px"]
        assert row["epe"] == tvl1_solver.errors(pairs, PRESETS["fast"], CPU)
    title, (head, first, *_) = tvl1_report.tables({"cases": [case]})[0]
    assert title.startswith("Whole frames, uint8")
    assert dict(zip(head, first, strict=True))["sintel EPE px"] == f"{case['rows'][0]['epe']['sintel']:.4f}"


def test_a_preset_with_changes_says_so() -> None:
    plan = [tvl1_solver.Whole("fast", (48, 64), {"warps": 2})]
    row = tvl1_solver.whole_frames(plan, {}, CPU, 3, LIMITS, quiet)["rows"][0]
    assert row["name"] == "fast, warps 2, float32, 64×48"
    assert (row["warps"], row["changes"], row["epe"]) == (2, {"warps": 2}, {})


def test_errors_are_means_over_pairs_of_any_size() -> None:
    pairs = [synthetic_pair(64, 96), synthetic_pair(48, 64), synthetic_pair(64, 96)]
    found = tvl1_solver.errors({"a": pairs, "b": pairs[1:2]}, PRESETS["fast"], CPU)
    alone = [tvl1_solver.errors({"x": [pair]}, PRESETS["fast"], CPU)["x"] for pair in pairs]
    assert found["a"] == pytest.approx(sum(alone) / 3)
    assert found["b"] == pytest.approx(alone[1])


def test_floors_are_the_sums_over_levels_and_warps() -> None:
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


def test_a_wrong_solver_gets_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    class Off(StandIn):
        def __call__(self, frame1: Tensor, frame2: Tensor, out: Tensor | None = None) -> Tensor:
            return super().__call__(frame1, frame2, out) + 0.5

    monkeypatch.setattr(tvl1_solver, "make_solver", Off)
    case = tvl1_solver.whole_frames(tvl1_solver.WHOLE, {}, CPU, 5, LIMITS, quiet)
    assert {row["status"] for row in case["rows"]} == {"check failed"}
    assert "from the reference" in case["rows"][0]["reason"]
    assert "median_s" not in case["rows"][0]


# ---- the largest frame


@pytest.mark.parametrize("start", [16, 500, 4000])
def test_the_largest_side_within_a_limit(start: int) -> None:
    tried: list[int] = []

    def measure(side: int) -> dict[str, Any]:
        tried.append(side)
        return {"side": side, "median_s": 1e-4 + 1e-9 * side**2}

    best = tvl1_solver.largest(10e-3, measure, start, 16)
    assert best is not None
    assert best["side"] <= (9.9e-3 / 1e-9) ** 0.5
    assert best["side"] >= 0.97 * (9.9e-3 / 1e-9) ** 0.5
    assert len(tried) == len(set(tried)) <= tvl1_solver._TRIES


def test_sides_that_do_not_fit_are_passed_over() -> None:
    def measure(side: int) -> dict[str, Any]:
        return {"side": side, "reason": "out of memory"} if side > 600 else {"side": side, "median_s": 1e-9 * side**2}

    best = tvl1_solver.largest(1.0, measure, 512, 16)
    assert best is not None
    assert 512 <= best["side"] <= 600
    assert tvl1_solver.largest(1e-12, measure, 512, 16) is None


def test_real_time_on_the_stand_in() -> None:
    case = tvl1_solver.real_time((0.02,), CPU, 3, None, quiet, start=64)
    setting = case["setting"]
    assert (setting["scales"], setting["warps"], setting["iterations"]) == (3, 1, 10)
    for row in case["rows"]:
        assert row["status"] in ("ok", "not possible")
        if row["status"] == "ok":
            assert row["median_s"] <= 0.02
            assert row["side"] % 16 == 0
    assert any(shape[1] == 1 for shape, *_ in StandIn.made)


def test_a_wrong_flow_is_no_slow_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tvl1_solver, "_explains", lambda *_: "off")
    case = tvl1_solver.real_time((10.0,), CPU, 3, None, quiet, start=32)
    assert [row["status"] for row in case["rows"]] == ["check failed"] * 2
    assert "32×32: off" in failed([case])[0]


# ---- quality


def test_errors_against_time() -> None:
    pair = synthetic_pair(64, 96)
    other = dataclasses.replace(synthetic_pair(48, 64), name="other")
    case = tvl1_solver.quality(
        {"middlebury": [pair, other, dataclasses.replace(pair, name="third")]}, CPU, 2, quiet, (5, 10, 20)
    )
    assert len(case["rows"]) == 2 * 2 * 3
    for row in case["rows"]:
        assert row["status"] == "ok"
        assert [scene["scene"] for scene in row["scenes"]] == ["textured scene", "third", "other"]
        assert row["epe"] == pytest.approx(sum(s["epe"] for s in row["scenes"]) / 3)
        assert (row["scales"], row["warps"]) == (3, 1)
        assert row["check"]["mean_px"] <= row["check"]["allowed_px"]
        assert ("seconds_alone" in row) == (row["schedule"] == "auto")
        low, high = row["scenes"][0]["seconds_range"]
        assert low <= row["scenes"][0]["seconds"] <= high
    first, last = case["rows"][0], case["rows"][2]
    assert last["iterations"] == 20
    assert last["epe"] < first["epe"]
    assert {shape[0] for shape, *_ in StandIn.made} == {1, 2}
    assert {schedule for *_, schedule in StandIn.made} == {"auto", "global"}


def curve(precision: str, speed: float, schedule: str = "global") -> list[dict[str, Any]]:
    """Errors that fall as 1/iterations; ``speed`` iterations a second."""
    return [
        {
            "set": "middlebury",
            "schedule": schedule,
            "precision": precision,
            "iterations": n,
            "seconds": n / speed,
            "seconds_alone": n / speed,
            "epe": 10.0 / n,
            "aae": 20.0 / n,
            "scenes": [{"scene": "one", "epe": 10.0 / n, "aae": 20.0 / n}],
            "scales": 3,
            "batch": 2,
            "status": "ok",
            "name": f"{precision} {n}",
        }
        for n in (5, 10, 20, 40)
    ]


def test_equal_time_is_between_the_measured_points() -> None:
    case = {"case": "quality", "rows": curve("float32", 1000.0) + curve("float16", 1500.0)}
    at5, at10, at20 = tvl1_solver.at_equal_time(case, "middlebury", "global", marks=(5, 10, 20))
    assert (at10["seconds"], at10["epe float32"]) == (0.01, 1.0)
    assert at10["iterations float16"] == pytest.approx(15.0)
    assert at10["epe float16"] == pytest.approx(0.75)  # between 1 at 10 iterations and 0.5 at 20
    assert at10["one aae float16"] == pytest.approx(1.5)
    assert at5["iterations float16"] == pytest.approx(7.5)
    assert at20["iterations float16"] == pytest.approx(30.0)
    slow = {"case": "quality", "rows": curve("float32", 1000.0) + curve("float16", 500.0)}
    assert tvl1_solver.at_equal_time(slow, "middlebury", "global", marks=(5,))[0]["epe float16"] is None


def test_what_half_precision_gains() -> None:
    """The solver's own schedule is no part of it: its arithmetic is the same in both precisions."""
    both = curve("float32", 1000.0) + curve("float16", 1500.0)
    case = {"case": "quality", "rows": both + curve("float32", 3e4, "auto") + curve("float16", 4e4, "auto")}
    header, *rows = tvl1_report.finding(case)
    assert len(rows) == 4
    assert {len(row) for row in (header, *rows)} == {8}
    assert rows[3] == [
        "middlebury, 2 at a time, schedule global", "40.000 / 26.667", "40", "40",
        "0.250 / 0.250 px", "+0.0 %", "0.500 / 0.500 °", "+0.0 %",
    ]  # fmt: skip
    assert rows[1] == [
        "middlebury, 2 at a time, schedule global", "10.000", "10", "15.0", "1.000 / 0.750 px", "-25.0 %",
        "2.000 / 1.500 °", "-25.0 %",
    ]  # fmt: skip
    slow = {"case": "quality", "rows": curve("float32", 1000.0) + curve("float16", 500.0)}
    assert tvl1_report.finding(slow)[1][3] == "fewer than measured"
    assert tvl1_report.tables({"cases": [case]})[0][0].startswith("What arithmetic in half precision gains")


def test_published_rows_are_consistent() -> None:
    rows = [{"name": "x", "size": [64, 64], "gflops": 1.0, "gbytes_per_s": 1.0, "operations": 1.0, "median_s": 1.0,
             "ns_per_pixel": 1.0, "bytes_read": 1.0, "bytes_written": 1.0, "precision": "float32"}]  # fmt: skip
    case = {"case": "schedules", "setting": tvl1_schedules.setting().as_dict(), "rows": rows}
    found = tvl1_report.work_table({"cases": [case]})
    assert found is not None
    assert found[1][1][-1] == ""
    limits = {"case": "ceilings", "bytes_per_s": 1e6, "special_per_s": 1e12, "rows": []}
    known = tvl1_report.work_table({"cases": [limits, case]})
    assert known is not None
    assert known[1][1][-1] == f"{1e6 / (60 * 64 * 64):.1f}"
    assert "float32 245.760 ms, special functions 0.000 ms; float16 122.880 ms" in known[0]
    for name, _, moved, intensity, _, ns, _, gbytes, _ in found[1][2:]:
        assert float(moved) / float(ns) / 1.073741824 == pytest.approx(float(gbytes), rel=0.02), name
        if name.startswith("global float32"):
            assert intensity == "0.44"


# ---- peers


def test_opencv_beside_ours() -> None:
    pytest.importorskip("skimage")
    pytest.importorskip("cv2")
    import cv2

    if not hasattr(cv2, "optflow"):
        pytest.skip("this OpenCV has no optflow module")
    case = tvl1_solver.against_opencv(synthetic_pair(96, 128), CPU, 1, quiet)
    rows = {row["name"]: row for row in case["rows"]}
    assert rows.keys() == {"fullfield float32", "fullfield float16", "opencv cpu", "scikit-image cpu"}
    assert rows["opencv cpu"]["ours_faster"] == pytest.approx(
        rows["opencv cpu"]["median_s"] / rows["fullfield float32"]["median_s"]
    )
    assert case["opencv_cuda"] != "measured"
    title, table = tvl1_report.tables({"cases": [case], "environment": {"cores": 3}})[0]
    assert "3 × 1 × 10 (scikit-image: all scales of ½)" in title
    assert "their CPU solvers on 3 cores" in title
    assert [line[0] for line in table[1:]] == list(rows)


def test_opencv_s_gpu_solver_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = synthetic_pair(48, 64)
    asked: list[tuple[Any, ...]] = []

    class Matrix:
        def upload(self, array: Any) -> None:
            self.array = array

        def download(self) -> Any:
            return self.array

    class Kind:
        @staticmethod
        def create(*values: Any) -> Any:
            asked.append(values)
            return Kind()

        def calc(self, first: Matrix, second: Matrix, flow: None) -> Matrix:
            assert flow is None
            assert first.array.shape == second.array.shape == (48, 64)
            out = Matrix()
            out.upload(pair.flow.permute(1, 2, 0).numpy())
            return out

    cv2 = types.ModuleType("cv2")
    parts = {"cuda_OpticalFlowDual_TVL1": Kind, "cuda_GpuMat": Matrix}
    for name, value in parts.items():
        setattr(cv2, name, value)
    cv2.cuda = types.SimpleNamespace(getCudaEnabledDeviceCount=lambda: 1)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cv2", cv2)
    call, told = tvl1_solver.opencv_cuda(pair, PRESETS["paper"].replace(iterations=10))
    assert call is not None
    assert told == "measured"
    assert torch.equal(call(), pair.flow)
    assert asked == [(0.25, 0.15, 0.3, 3, 1, 0.0, 10, 0.5, 0.0, False)]
    cv2.cuda = types.SimpleNamespace(getCudaEnabledDeviceCount=lambda: 0)  # type: ignore[attr-defined]
    assert tvl1_solver.opencv_cuda(pair, PRESETS["paper"]) == (None, "this OpenCV was built without CUDA")
