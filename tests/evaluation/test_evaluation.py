"""Predictions of a data set, stored, resumed, shared out and scored."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from evaluation_sets import Counting, H, Prepared, W, by_hand, sequence
from torch import Tensor

from fullfield import InputError
from fullfield.datasets import FlowDataset, Pairs, Sintel, open_dataset
from fullfield.estimators import TVL1Estimator
from fullfield.estimators.cascaded import ReducedSizeEstimator, parse_scale
from fullfield.evaluation import EvaluationSettings, evaluate, predict, score, write_submission
from fullfield.evaluation import run as runs
from fullfield.evaluation.predict import build_run_config
from fullfield.evaluation.run import PredictionRun, _describe_constant
from fullfield.evaluation.sharing import ProcessRank, read_torchrun_process_rank
from fullfield.io import read_flow, write_flow, write_image
from refusals import refuses


def test_evaluate_equals_plain_loop_and_estimates_once(pairs: FlowDataset, tmp_path: Path) -> None:
    result = evaluate(Counting(), pairs, tmp_path / "run")
    assert result["scores"] == by_hand(pairs)
    assert result["scores"]["images"] == 5
    assert result["scores"]["epe_unmatched"] > 0
    assert result["runtime"]["min_s"] <= result["runtime"]["median_s"] <= result["runtime"]["max_s"]
    assert result["this_call"]["estimated"] == 5
    assert 0 < result["this_call"]["utilisation"] <= 1
    assert result["backends"] == ["plain"]
    assert result["threads"] == [torch.get_num_threads()]
    stored = json.loads((tmp_path / "run" / "result.json").read_text())
    assert stored["scores"]["epe"] == result["scores"]["epe"]
    assert stored["config"]["parameters"] == {"gain": 10.0, "warm_start": False}
    first = evaluate(Counting(), pairs, tmp_path / "run")
    again = Counting()
    second = evaluate(again, pairs, tmp_path / "run")
    assert again.calls == 0
    assert second["scores"] == first["scores"]
    assert second["runtime"] == first["runtime"]
    evaluate(Counting(), pairs, tmp_path / "run")
    result = score(pairs, PredictionRun.load(tmp_path / "run"), averaging="per_image")
    assert result["scores"] == by_hand(pairs, "per_image")
    assert result["scores"]["epe"] != by_hand(pairs)["epe"]


@pytest.mark.unit
def test_evaluate_resumes_stopped_run(pairs: FlowDataset, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        evaluate(Counting(fail_at=3), pairs, tmp_path / "run")  # one call warms up
    held = sorted(path.name for path in (tmp_path / "run" / "predictions").rglob("*.flo"))
    assert len(held) == 2
    rest = Counting()
    result = evaluate(rest, pairs, tmp_path / "run")
    assert rest.calls == 3 + 1
    assert result["scores"] == by_hand(pairs)


@pytest.mark.parametrize("harm", ["cut", "no facts", "temporary"])
def test_evaluate_repeats_incomplete_prediction(pairs: FlowDataset, tmp_path: Path, harm: str) -> None:
    evaluate(Counting(), pairs, tmp_path / "run")
    path = PredictionRun.load(tmp_path / "run").get_prediction_path("a/f_01")
    if harm == "cut":
        path.write_bytes(path.read_bytes()[:-100])
    elif harm == "no facts":
        path.with_suffix(".json").unlink()
    else:
        path.rename(path.with_name(".f_01.0a0b0c0d.part.flo"))
    refuses(r"a/f_01|4 of 5", score, pairs, PredictionRun.load(tmp_path / "run"), averaging="per_image")
    again = Counting()
    assert evaluate(again, pairs, tmp_path / "run")["scores"] == by_hand(pairs)
    assert again.calls == 1 + 1


def test_evaluate_reports_runtime_and_peak_of_stored_pairs(pairs: FlowDataset, tmp_path: Path) -> None:
    evaluate(Counting(), pairs, tmp_path / "run")
    run = PredictionRun.load(tmp_path / "run")
    for record, seconds, peak in zip(pairs.records, (1, 2, 3, 4, 100), (5, 9, 7, None, 6), strict=True):
        path = run.get_prediction_path(record.name).with_suffix(".json")
        path.write_text(json.dumps({**json.loads(path.read_text()), "seconds": seconds, "peak_bytes": peak}))
    result = score(pairs, run)
    assert result["peak_bytes"] == 9
    runtime = result["runtime"]
    assert [runtime[f"{name}_s"] for name in ("mean", "median", "min", "max")] == [22, 3, 1, 100]
    assert runtime["std_s"] == pytest.approx(39.0128, abs=1e-4)


def test_score_refuses_unknown_vectors(pairs: FlowDataset, tmp_path: Path) -> None:
    evaluate(Counting(), pairs, tmp_path / "run")
    run = PredictionRun.load(tmp_path / "run")
    flow, _ = run.read_prediction("a/f_01")
    write_flow(run.get_prediction_path("a/f_01"), flow, (torch.arange(W) > 3).expand(H, W))
    shutil.rmtree(run.folder / "scores")
    refuses(r"a/f_01\.flo: has no vector at \d+ pixels that are scored", score, pairs, run)


@pytest.mark.parametrize("change", ["mask", "vectors"])
def test_score_repeats_for_changed_truth(pairs: FlowDataset, tmp_path: Path, change: str) -> None:
    before = evaluate(Counting(), pairs, tmp_path / "run")["scores"]
    if change == "mask":
        folder = tmp_path / "set" / "a" / "invalid"
        folder.mkdir()
        for path in sorted((tmp_path / "set" / "a" / "frames").iterdir()):
            half = torch.zeros(3, H, W)
            half[:, : H // 2] = 1
            write_image(folder / path.name, half)
        pairs = Pairs(tmp_path / "set", name="mine")
    else:  # in a file of the same size
        path = pairs.records[2].flow
        size = path.stat().st_size
        flow, valid = read_flow(path)
        write_flow(path, flow + 3, valid)
        assert path.stat().st_size == size
    again = Counting()
    after = evaluate(again, pairs, tmp_path / "run")["scores"]
    assert again.calls == 0
    assert after == by_hand(pairs)
    assert after["epe"] != before["epe"]
    assert (after["pixels"] < before["pixels"]) == (change == "mask")


def test_evaluate_refuses_other_frames_of_same_size(pairs: FlowDataset, tmp_path: Path) -> None:
    evaluate(Counting(), pairs, tmp_path / "run")
    copied = tmp_path / "copy"
    shutil.copytree(pairs.root, copied)
    assert evaluate(Counting(), Pairs(copied, name="mine"), tmp_path / "run")["this_call"]["estimated"] == 0
    path = copied / "a" / "frames" / "f_01.png"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    refuses(r"dataset\.frames was", evaluate, Counting(), Pairs(copied, name="mine"), tmp_path / "run")


MINE = """
import torch

class Mine:
    method, backend, parameters = "mine", "none", {}

    def __call__(self, frame1, frame2, **more):
        return torch.full((len(frame1), 2, *frame1.shape[2:]), VALUE)
"""


def mine(folder: Path, value: str, written: bool = True) -> Any:
    """Somebody's method without parameters, in a file of its own or typed in."""
    text, names = MINE.replace("VALUE", value), {"__name__": "nowhere"}
    if not written:
        exec(compile(text, "<input>", "exec"), names)
        return names["Mine"]()
    path = folder / "their_method.py"
    path.write_text(text, "utf-8")
    spec = importlib.util.spec_from_file_location("their_method", path)
    module = sys.modules["their_method"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Mine()


def test_run_compares_settings_by_value(tmp_path: Path) -> None:
    class Backwards(frozenset[str]):
        def __iter__(self) -> Iterator[str]:
            return iter(sorted({"b", "a"}, reverse=True))

    assert _describe_constant(Backwards("ab")) == _describe_constant(frozenset("ab"))
    config = {"parameters": {"gain": float("nan")}}
    PredictionRun(tmp_path / "run", config).save_prediction_unless_complete("a", torch.zeros(2, 4, 4), {"seconds": 1.0})
    PredictionRun(tmp_path / "run", {"parameters": {"gain": float("nan")}})
    refuses("gain was None, is 1", PredictionRun, tmp_path / "run", {"parameters": {"gain": 1}})


@pytest.mark.parametrize("written", [True, False], ids=["in a file", "typed in"])
def test_evaluate_refuses_changed_source_of_method(pairs: FlowDataset, tmp_path: Path, written: bool) -> None:
    for scale in ("1", "1/2"):
        folder = tmp_path / scale.replace("/", "of")
        first = evaluate(ReducedSizeEstimator(mine(tmp_path, "1.0", written), scale), pairs, folder)
        same = evaluate(ReducedSizeEstimator(mine(tmp_path, "1.0", written), scale), pairs, folder)
        assert (first["this_call"]["estimated"], same["this_call"]["estimated"]) == (len(pairs), 0)
        with pytest.raises(InputError, match=r"other settings \(source was '\w+', is '\w+'\)"):
            evaluate(ReducedSizeEstimator(mine(tmp_path, "2.0", written), scale), pairs, folder)
    assert "source" not in evaluate(Counting(), pairs, tmp_path / "ours")["config"]


def test_evaluate_scores_only_pairs_with_truth(tmp_path: Path) -> None:
    whole = sequence(tmp_path / "set", {"a": 3, "b": 2})
    shutil.rmtree(tmp_path / "set" / "b" / "flow")
    shutil.rmtree(tmp_path / "set" / "b" / "occlusions")
    some = Pairs(tmp_path / "set", name="mine")
    result = evaluate(Counting(), some, tmp_path / "run")
    assert len(some) == len(whole) == 3
    assert result["this_call"]["estimated"] == 3
    assert result["scores"]["images"] == 2
    alone = by_hand(some, indices=range(2))
    assert result["scores"] == alone
    assert score(some, PredictionRun.load(tmp_path / "run"))["scores"] == alone


@pytest.mark.parametrize("change", ["parameter", "scale", "warm start"])
def test_evaluate_refuses_other_settings(pairs: FlowDataset, tmp_path: Path, change: str) -> None:
    evaluate(Counting(), pairs, tmp_path / "run")
    estimator: Any = Counting(gain=2.0) if change == "parameter" else Counting()
    settings = EvaluationSettings(warm_start=change == "warm start")
    if change == "scale":
        estimator = ReducedSizeEstimator(estimator, "1/2")
    with pytest.raises(InputError, match="was begun with other settings") as caught:
        evaluate(estimator, pairs, tmp_path / "run", settings)
    wanted = {
        "parameter": "parameters.gain was 10.0, is 2.0",
        "scale": "parameters.scale was None, is '1/2'",
        "warm start": "parameters.warm_start was False, is True",
    }[change]
    assert wanted in str(caught.value)


def test_run_without_predictions_takes_other_settings(pairs: FlowDataset, tmp_path: Path) -> None:
    class Failing(Counting):
        def __call__(self, *_: Any, **__: Any) -> Tensor:
            raise InputError("it fails before the first prediction")

    refuses("fails before the first", evaluate, Failing(gain=2.0), pairs, tmp_path / "run")
    failed = PredictionRun.load(tmp_path / "run")
    failed.write_json("failure.json", {"failure": "out of memory"})
    result = evaluate(Counting(), pairs, tmp_path / "run")
    assert result["this_call"]["estimated"] == len(pairs)
    assert json.loads((tmp_path / "run" / "config.json").read_text())["parameters"]["gain"] == Counting().gain
    assert not (tmp_path / "run" / "failure.json").exists()
    refuses("other settings", failed.save_prediction_unless_complete, "late", torch.zeros(2, H, W), {"seconds": 1.0})


@pytest.mark.unit
def test_run_stores_null_for_nonfinite_numbers(pairs: FlowDataset, tmp_path: Path) -> None:
    def stored(file: str) -> Any:
        def refuse_constant(name: str) -> None:
            raise AssertionError(f"{name} is no JSON")

        return json.loads((tmp_path / "run" / file).read_text(), parse_constant=refuse_constant)

    result = evaluate(Counting(), pairs, tmp_path / "run")
    assert math.isnan(result["scores"]["s40_plus"])
    assert stored("result.json")["scores"]["s40_plus"] is None
    assert stored("result.json")["scores"]["epe"] == result["scores"]["epe"]
    PredictionRun.load(tmp_path / "run").write_json("a.json", {"a": [float("nan"), {"b": float("inf")}], "c": 1.5})
    assert stored("a.json") == {"a": [None, {"b": None}], "c": 1.5}


@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        ("predictions/{}.json", {"seconds": None}, r"\.json: expected an entry seconds \(number\), got None"),
        ("predictions/{}.json", {"threads": "two"}, r"\.json: expected an entry threads \(count\), got 'two'"),
        ("scores/pooled/{}.json", {"state": {}}, r"\.json: state: expected a state_dict\(\) of FlowMetrics"),
        ("scores/pooled/{}.json", {"state": 3}, r"\.json: expected an entry state \(object\), got 3"),
    ],
)
def test_score_names_stored_files_with_missing_entries(
    pairs: FlowDataset, tmp_path: Path, file: str, change: dict[str, Any], words: str
) -> None:
    evaluate(Counting(), pairs, tmp_path / "run")
    path = tmp_path / "run" / file.format(pairs.records[1].name)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    refuses(words, evaluate, Counting(), pairs, tmp_path / "run")


@pytest.mark.unit
def test_run_load_refuses_deeply_nested_json(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[" * 100_000)
    refuses(r"config\.json: expected JSON", PredictionRun.load, tmp_path)


@pytest.mark.unit
def test_run_refuses_folder_with_other_files(pairs: FlowDataset, tmp_path: Path) -> None:
    refuses("expected a new folder or one of a run", evaluate, Counting(), pairs, tmp_path / "set")
    refuses(r"has a config\.json", PredictionRun.load, tmp_path)


@pytest.mark.parametrize("warm_start", [False, True])
def test_evaluate_process_ranks_cover_all_pairs(pairs: FlowDataset, tmp_path: Path, warm_start: bool) -> None:
    whole = evaluate(Counting(), pairs, tmp_path / "alone", EvaluationSettings(warm_start=warm_start))
    taken = []
    for rank in range(3):
        process = ProcessRank(rank, 3)
        taken += process.list_pair_indices_of_own_sequences(pairs) if warm_start else process.list_pair_indices(pairs)
        settings = EvaluationSettings(warm_start=warm_start, process=process)
        estimator = Counting()
        predict(
            estimator, pairs, PredictionRun(tmp_path / "shared", build_run_config(pairs, estimator, settings)), settings
        )
    assert sorted(taken) == list(range(len(pairs)))
    assert (
        evaluate(Counting(), pairs, tmp_path / "shared", EvaluationSettings(warm_start=warm_start))["scores"]
        == whole["scores"]
    )


@pytest.mark.parametrize(("rank", "count"), [("x", "2"), ("0", ""), ("2", "2"), ("-1", "2"), ("0", "0")])
def test_get_torchrun_process_refuses_wrong_variables(monkeypatch: pytest.MonkeyPatch, rank: str, count: str) -> None:
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", count)
    refuses("RANK, WORLD_SIZE: expected numbers as torchrun sets them", read_torchrun_process_rank)


def test_parse_scale_returns_nearest_fraction() -> None:
    assert str(parse_scale("1/8")) == "1/8"
    assert parse_scale(0.25) == parse_scale("1/4")
    assert str(parse_scale(0.5**0.5)) == "33461/47321"  # the nearest with a denominator of at most 65536
    for wrong in ("0", "2", "a", "1/0", "nan"):
        refuses("scale", parse_scale, wrong)


def test_reduced_size_estimator_returns_full_size_flow() -> None:
    seen: list[tuple[int, ...]] = []

    class Constant(Counting):
        def __call__(self, frame1: Tensor, frame2: Tensor, **more: Any) -> Tensor:
            seen.append(tuple(frame1.shape))
            if more["initial_flow"] is not None:
                return more["initial_flow"]
            return torch.tensor([2.0, -1.0])[None, :, None, None].expand(len(frame2), 2, *frame2.shape[-2:])

    frame = torch.rand(1, 3, 30, 50)
    flow = ReducedSizeEstimator(Constant(), "1/4")(frame, frame)
    assert seen == [(1, 3, 8, 12)]
    assert flow.shape == (1, 2, 30, 50)
    assert torch.allclose(flow[0, 0], torch.tensor(2.0 * 50 / 12))
    assert torch.allclose(flow[0, 1], torch.tensor(-1.0 * 30 / 8))
    start = torch.tensor([6.0, 3.0])[None, :, None, None].expand(1, 2, 30, 50)
    assert torch.allclose(ReducedSizeEstimator(Constant(), "1/2")(frame, frame, initial_flow=start), start)


def sites(root: Path) -> None:
    frame = torch.rand(3, H, W, generator=torch.Generator().manual_seed(2))
    for i in (1, 2):
        for folder in ("test/clean/market_1/frame_", "test/0003/frame_left/frame_left_"):
            path = root / f"{folder}{i:04d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            write_image(path, frame)
    for i in (10, 11):
        path = root / "testing/image_2" / f"000000_{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_image(path, frame)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("sintel-clean-test", "clean/market_1/frame_0001.flo"),
        ("kitti-2015-test", "flow/000000_10.png"),
        ("spring-test", "0003/flow_FW_left/flow_FW_left_0001.flo5"),
    ],
)
def test_write_submission_writes_layout_of_each_site(tmp_path: Path, name: str, file: str) -> None:
    sites(tmp_path / "data")
    if name == "spring-test":
        (tmp_path / "data/test/clean").rename(tmp_path / "elsewhere")
    dataset = open_dataset(name, tmp_path / "data")
    result = evaluate(Counting(), dataset, tmp_path / "run")
    assert result["scores"] is None
    run = PredictionRun.load(tmp_path / "run")
    assert write_submission(dataset, run, tmp_path / "out") == [tmp_path / "out" / file]
    expected = read_flow(run.get_prediction_path(dataset.records[0].name)).flow
    written = read_flow(tmp_path / "out" / file)
    assert written.valid.all()
    assert torch.allclose(written.flow, expected, atol=1 / 64 if "kitti" in name else 0)
    refuses("has no truth", score, dataset, run)


def test_write_submission_needs_every_prediction(tmp_path: Path, pairs: FlowDataset) -> None:
    sites(tmp_path / "data")
    dataset = Sintel(tmp_path / "data", split="test")
    evaluate(Counting(), dataset, tmp_path / "run")
    run = PredictionRun.load(tmp_path / "run")
    run.get_prediction_path(dataset.records[0].name).unlink()
    refuses("has no prediction of market_1/frame_0001", write_submission, dataset, run, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(InputError, match="mine: expected one of Sintel, KITTI2012, KITTI2015, Spring"):
        write_submission(pairs, run, tmp_path / "out")


@pytest.mark.parametrize("scale", [None, "1/2"])
def test_evaluate_prepares_estimator_for_frame_size(pairs: FlowDataset, tmp_path: Path, scale: str | None) -> None:
    """The configuration is that of the prepared estimator; one may be prepared for the device alone."""

    class OnDevice(Counting):
        def prepare(self, device: object) -> None:  # all that docs/evaluation.md asks for
            self.prepared = str(device)

    def scaled(inner: Any) -> Any:
        return inner if scale is None else ReducedSizeEstimator(inner, scale)

    result = evaluate(scaled(Prepared()), pairs, tmp_path / "run")
    assert result["config"]["parameters"]["weights_sha256"] == "0123"
    used = Prepared()
    evaluate(scaled(used), pairs, tmp_path / "run")
    assert used.calls == 0
    if scale is not None:
        scaled(used).prepare("cpu", (30, 50))
        assert used.prepared == ("cpu", (15, 25))
    inner = OnDevice()
    evaluate(scaled(inner), pairs, tmp_path / "alone")
    assert inner.prepared == "cpu"


def test_evaluate_refuses_other_backend_in_same_folder(pairs: FlowDataset, tmp_path: Path) -> None:
    result = evaluate(Counting(), pairs, tmp_path / "run")
    assert result["config"]["backend"] == "automatic"
    other = Counting()
    other.requested_backend = "dense"  # type: ignore[attr-defined]
    for estimator in (other, ReducedSizeEstimator(other, 1)):
        refuses("backend was 'automatic', is 'dense'", evaluate, estimator, pairs, tmp_path / "run")
    assert TVL1Estimator(backend="reference").requested_backend == "reference"


def test_score_refuses_other_frames(pairs: FlowDataset, tmp_path: Path) -> None:
    evaluate(Counting(), pairs, tmp_path / "run")
    other = sequence(tmp_path / "other", {"a": 4, "b": 2})
    refuses(r"other frames \(dataset\.pairs was 5, is 4", score, other, PredictionRun.load(tmp_path / "run"))


@pytest.mark.unit
def test_run_accepts_moved_weights(tmp_path: Path) -> None:
    def config(path: str, checksum: str | None) -> dict[str, Any]:
        return {"method": "raft", "parameters": {"weights": path, "weights_sha256": checksum}}

    PredictionRun(tmp_path / "run", config("a/raft.pth", "12ab")).save_prediction_unless_complete(
        "a", torch.zeros(2, 4, 4), {}
    )
    PredictionRun(tmp_path / "run", config("b/raft.pth", "12ab"))
    refuses("weights_sha256 was '12ab', is '34cd'", PredictionRun, tmp_path / "run", config("a/raft.pth", "34cd"))
    PredictionRun(tmp_path / "random", config("random", None)).save_prediction_unless_complete(
        "a", torch.zeros(2, 4, 4), {}
    )
    refuses("weights was 'random', is 'other'", PredictionRun, tmp_path / "random", config("other", None))


def test_evaluate_refuses_non_estimators(pairs: FlowDataset, tmp_path: Path) -> None:
    for wrong in (torch.nn.Linear(2, 2), TVL1Estimator, "tvl1"):
        refuses("estimator: expected an Estimator", evaluate, wrong, pairs, tmp_path / "run")
        refuses("estimator: expected an Estimator", predict, wrong, pairs, PredictionRun(tmp_path / "other", {}))
    assert not (tmp_path / "run").exists()


@pytest.mark.unit
def test_score_repeats_for_replaced_prediction(pairs: FlowDataset, tmp_path: Path) -> None:
    before = evaluate(Counting(), pairs, tmp_path / "run")
    run = PredictionRun.load(tmp_path / "run")
    assert score(pairs, run)["scores"] == before["scores"]
    prediction = run.get_prediction_path(pairs.records[0].name)
    state = prediction.stat()
    write_flow(prediction, torch.full((2, H, W), 50.0))
    assert prediction.stat().st_size == state.st_size
    after = score(pairs, PredictionRun.load(tmp_path / "run"))["scores"]
    assert after["epe"] > before["scores"]["epe"] + 5


def test_score_keeps_scores_of_copied_predictions(
    pairs: FlowDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = evaluate(Counting(), pairs, tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "copy", copy_function=shutil.copyfile)
    monkeypatch.setattr(PredictionRun, "read_prediction", lambda *_: pytest.fail("was scored again"))
    assert score(pairs, PredictionRun.load(tmp_path / "copy"))["scores"] == before["scores"]


@pytest.mark.unit
def test_save_drops_scores_of_replaced_prediction(tmp_path: Path) -> None:
    run = PredictionRun(tmp_path / "run", {})
    run.save_prediction_unless_complete("shot[1]/a*", torch.zeros(2, 3, 4), {})
    run.store_score("pooled", "shot[1]/a*", "truth", {"images": 1})
    assert run.read_score_if_current("pooled", "shot[1]/a*", "truth") == {"images": 1}
    run.get_prediction_path("shot[1]/a*").unlink()
    run.save_prediction_unless_complete("shot[1]/a*", torch.zeros(2, 3, 4), {})
    assert run.read_score_if_current("pooled", "shot[1]/a*", "truth") is None


@pytest.mark.unit
@pytest.mark.parametrize(("step", "other"), [("iterdir", "a"), ("mkdir", "a"), ("mkdir", "b")])
def test_run_starts_in_concurrent_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, other: str
) -> None:
    """Of one configuration; of two, one process is refused."""
    folder, once = tmp_path / "run", getattr(Path, step)
    if step == "iterdir":
        folder.mkdir()

    def as_another_begins(self: Path, *args: Any, **more: Any) -> Any:
        monkeypatch.undo()
        if step == "mkdir":
            once(self, *args, **more)
        PredictionRun(folder, {"method": other})
        return once(self) if step == "iterdir" else None

    monkeypatch.setattr(Path, step, as_another_begins)
    if other == "a":
        assert PredictionRun(folder, {"method": "a"}).config == {"method": "a"}
    else:
        refuses("method was 'b', is 'a'", PredictionRun, folder, {"method": "a"})
    assert json.loads((folder / "config.json").read_text()) == {"method": other}
    assert [path.name for path in folder.iterdir()] == ["config.json"]


@pytest.mark.unit
def test_save_keeps_complete_prediction_of_other_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a process stores a pair again that another one is scoring already."""
    run = PredictionRun(tmp_path / "run", {})
    run.save_prediction_unless_complete("pair", torch.zeros(2, 3, 4), {"seconds": 1})
    run.store_score("pooled", "pair", "truth", {"images": 1})
    seen = []

    def watched(*_: object, **__: object) -> None:
        seen.append(run.read_summary_if_complete("pair"))
        raise AssertionError

    monkeypatch.setattr(runs, "write_flow", watched)
    run.save_prediction_unless_complete("pair", torch.ones(2, 3, 4), {"seconds": 2})
    assert seen == []
    assert run.read_summary_if_complete("pair") == {"seconds": 1, "bytes": 12 + 2 * 3 * 4 * 4}
    assert run.read_score_if_current("pooled", "pair", "truth") == {"images": 1}


@pytest.mark.unit
def test_run_reads_vanishing_files_as_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = PredictionRun(tmp_path / "run", {})
    run.save_prediction_unless_complete("pair", torch.zeros(2, 3, 4), {})
    run.store_score("pooled", "pair", "truth", {"images": 1})
    is_file = Path.is_file

    def taken(path: Path) -> bool:
        there = is_file(path)
        path.unlink(missing_ok=True)  # between the question and the reading
        return there

    monkeypatch.setattr(Path, "is_file", taken)
    run.get_score_path("pooled", "pair").unlink()
    assert run.read_score_if_current("pooled", "pair", "truth") is None
    run.get_prediction_path("pair").with_suffix(".json").unlink()
    assert run.read_summary_if_complete("pair") is None


def test_evaluate_fills_and_ignores_unknown_pixels(tmp_path: Path) -> None:
    pytest.importorskip("OpenImageIO")
    from fullfield.io.oiio import Header, write_and_verify_picture
    from fullfield.io.windows import FrameWindow

    for folder in ("frames", "flow"):
        (tmp_path / "shot" / folder).mkdir(parents=True)
    for number, box in enumerate(((4, 2, W - 4, H - 2), (0, 0, W, H - 6))):
        pixels = np.full((box[3], box[2], 3), 0.25, np.float32)
        pixels[1, 1] = math.nan
        window = FrameWindow(box, (0, 0, W, H))
        path = tmp_path / "shot" / "frames" / f"f_{number}.exr"
        write_and_verify_picture(path, "openexr", pixels, ("R", "G", "B"), Header(window=window))
    write_flow(tmp_path / "shot" / "flow" / "f_0.flo", torch.zeros(2, H, W))
    dataset = Pairs(tmp_path, name="mine")
    received: list[Tensor] = []

    class Recording(Counting):
        def __call__(self, frame1: Tensor, frame2: Tensor, **options: Any) -> Tensor:
            received.extend((frame1, frame2))
            return super().__call__(frame1, frame2, **options)

    with pytest.warns(UserWarning, match="NaN or infinite"):
        result = evaluate(Recording(), dataset, tmp_path / "run")
    assert all(frame.min() > 0.4 for frame in received), "0.25 of light is 0.54; nothing is black"
    assert result["scores"]["pixels"] == (W - 4) * (H - 2) - 1
    with pytest.warns(UserWarning, match="NaN or infinite"):
        valid = dataset[0].valid
    assert valid is not None
    assert valid.sum() == (W - 4) * (H - 2) - 1
    for path in (tmp_path / "run").rglob("*.json"):
        if "score" in str(path):
            path.unlink()
    with pytest.warns(UserWarning, match="NaN or infinite"):
        again = score(dataset, PredictionRun.load(tmp_path / "run"))
    assert again["scores"] == result["scores"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes have no names here")
def test_evaluate_refuses_frame_in_pipe(pairs: FlowDataset, tmp_path: Path) -> None:
    frame = pairs.records[0].frame1
    frame.unlink()
    os.mkfifo(frame)
    with pytest.raises(InputError, match="expected a regular file, got a device, pipe or socket"):
        evaluate(Counting(), pairs, tmp_path / "run")
