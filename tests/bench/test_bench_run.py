"""The runner refuses numbers it cannot stand behind, and writes down where they came from."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.cases.tvl1 import cpu as tvl1
from benchmarks.harness import Candidate, CheckFailed, captured, interleaved
from benchmarks.runner import main
from benchmarks.stored import write_results
from fullfield import InputError, estimate
from fullfield.io import write_flow
from fullfield.ops.tvl1 import PRESETS


def quiet(text: str) -> None:
    del text


def test_candidates_take_turns_and_start_in_turn() -> None:
    order: list[str] = []

    def candidate(name: str) -> Candidate:
        return Candidate(name, lambda: order.append(name), lambda _: None)

    timings = interleaved([candidate("a"), candidate("b"), candidate("c")], 3, quiet)
    assert order == [*"abc", *"abc", *"bca", *"cab"]
    assert [t.name for t in timings] == ["a", "b", "c"]
    assert all(len(t.seconds) == 3 and min(t.seconds) <= t.median <= max(t.seconds) for t in timings)


def test_a_slow_candidate_sits_out() -> None:
    ticks = {"slow": 3.0, "fast": 0.1}
    running: list[str] = []
    made = [
        Candidate(name, lambda name=name: running.append(name), lambda _: None)  # type: ignore[misc]
        for name in ticks
    ]

    def clock(call: Callable[[], Any]) -> float:
        call()
        return ticks[running[-1]]

    slow, fast = interleaved(made, 4, quiet, clock, patience=5.0)
    assert len(slow.seconds) == 2
    assert len(fast.seconds) == 4


def test_no_time_without_a_green_check() -> None:
    calls = 0

    def call() -> int:
        nonlocal calls
        calls += 1
        return 41

    with pytest.raises(CheckFailed, match="wrong: expected 42, got 41; no time is reported"):
        interleaved([Candidate("wrong", call, lambda x: None if x == 42 else f"expected 42, got {x}")], 3, quiet)
    assert calls == 1


def test_a_graph_keeps_the_memory_it_was_captured_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the next capture gives it back to the driver, and a replay writes to where nothing is any more."""
    replays: list[str] = []
    stream = SimpleNamespace(wait_stream=lambda _: None)
    fakes: dict[str, Any] = {
        "Stream": lambda: stream,
        "current_stream": lambda: stream,
        "stream": lambda _: nullcontext(),
        "graph": lambda *_, **__: nullcontext(),
        "CUDAGraph": lambda: SimpleNamespace(replay=lambda: replays.append("replayed")),
        "get_sync_debug_mode": lambda: 0,
        "set_sync_debug_mode": lambda _: None,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)

    def prepared() -> tuple[Any, Any]:
        memory = torch.zeros(3)
        return captured(lambda: memory.sum()), weakref.ref(memory)

    replay, memory = prepared()
    gc.collect()
    assert memory() is not None
    assert float(replay()) == 0
    assert replays == ["replayed"]
    del replay
    gc.collect()
    assert memory() is None


def test_check_of_a_flow_can_fail() -> None:
    pair = tvl1.synthetic_pair(48, 64)
    check = tvl1._check(pair, {}, "x")
    assert check(pair.flow) is None
    assert "end-point error" in str(check(torch.zeros_like(pair.flow)))
    assert "NaN" in str(check(pair.flow * float("nan")))


def test_results_carry_their_environment(tmp_path: Path) -> None:
    write_results(tmp_path / "r.json", {"cases": []})
    stored = json.loads((tmp_path / "r.json").read_text())
    assert stored["cases"] == []
    assert {"cpu", "threads", "versions", "commit", "date"} <= set(stored["environment"])
    assert stored["environment"]["versions"]["torch"] == torch.__version__
    with pytest.raises(InputError, match="expected an existing folder"):
        write_results(tmp_path / "none" / "r.json", {})


def test_bench_verb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    small = tvl1.synthetic_pair(64, 96)
    monkeypatch.setattr(tvl1, "synthetic_pair", lambda: small)
    monkeypatch.setattr(tvl1, "peers", list)

    def command(frames: list[Path], preset: str, output: Path) -> dict[str, Any]:
        """Write the flow as the command does, whose process test_large_frames starts."""
        write_flow(output, estimate(*frames, "tvl1", preset=preset).flow)
        return {}

    monkeypatch.setattr(tvl1, "_flow_command", command)
    out = tmp_path / "r.json"
    assert main(["tvl1", "--repeats", "1", "-o", str(out), "--json", "-q"]) == 0
    printed = json.loads(capsys.readouterr().out)
    stored = json.loads(out.read_text())
    assert printed["cases"] == stored["cases"]
    fixed, own, whole = stored["cases"]
    assert {row["name"] for row in whole["rows"]} == {"fast", "default"}
    assert all(row["median_s"] > 0 for row in whole["rows"])
    assert fixed["rows"][0]["rate"] == pytest.approx(fixed["rows"][0]["work"] / fixed["rows"][0]["median_s"])
    assert {row["name"] for row in own["rows"]} == {f"fullfield {name}" for name in PRESETS}
    assert main(["tvl1", "--repeats", "1"]) == 0
    captured = capsys.readouterr()
    assert "pixel-iterations/s" in captured.out
    assert "not installed here, so not measured" in captured.err


def test_peers_solve_the_scene_too() -> None:
    pytest.importorskip("cv2")
    if "opencv" not in tvl1.peers():
        pytest.skip("this OpenCV has no optflow module")
    pair = tvl1.synthetic_pair(64, 96)
    results = tvl1.own_defaults(pair, 1, quiet)
    assert {"opencv defaults", "scikit-image defaults"} <= {row["name"] for row in results["rows"]}


def test_pair_files_must_fit(tmp_path: Path) -> None:
    from fullfield.io import write_flow, write_image

    scene = tvl1.synthetic_pair(48, 64)
    write_image(tmp_path / "a.png", scene.frame1)
    write_image(tmp_path / "b.png", scene.frame2[:, 1:])
    write_flow(tmp_path / "t.flo", scene.flow)
    write_flow(tmp_path / "none.flo", scene.flow * 0)
    with pytest.raises(InputError, match=r"b\.png: expected 64×48 pixels like .*a\.png, got 64×47"):
        tvl1.load_pair(tmp_path / "a.png", tmp_path / "b.png", tmp_path / "t.flo")
    with pytest.raises(InputError, match=r"none\.flo: expected some motion, got none"):
        tvl1.load_pair(tmp_path / "a.png", tmp_path / "a.png", tmp_path / "none.flo")


def test_large_frames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fullfield.io import write_image

    monkeypatch.setattr(tvl1, "LARGE", (60, 100))
    scene = tvl1.synthetic_pair(48, 64)
    frames = [tmp_path / "a.png", tmp_path / "b.png"]
    for path, frame in zip(frames, (scene.frame1, scene.frame2), strict=True):
        write_image(path, frame)
    case = tvl1.large(*frames, quiet)
    assert case["size"] == [60, 100]
    for row in case["rows"]:
        assert row["seconds"]["total"] >= row["seconds"]["estimate"] > 0
        assert row["peak_memory_bytes"] > 50e6
        assert row["difference"] < row["difference_without_flow"]
    with pytest.raises(CheckFailed, match="exit code 2"):
        tvl1._flow_command([tmp_path / "a.png", tmp_path / "none.png"], "fast", tmp_path / "o.flo")
