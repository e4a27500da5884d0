"""Following a reference frame: accuracy on synthetic shots, resumption, cuts."""

from __future__ import annotations

from dataclasses import replace
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fullfield._check import InputError
from fullfield.io import read_flow_layers, write_image
from fullfield.ops.tvl1.config import PRESETS
from fullfield.ops.warping import warp_planes_and_mark_inside
from fullfield.sequences import follow_pool, worker
from fullfield.sequences.follow import follow_frames
from fullfield.sequences.follow_job import FollowJob, write_reference_flow
from fullfield.sequences.follow_pool import split_into_nonempty_sides, write_reference_flows_on_devices
from fullfield.sequences.names import find_frame_files
from fullfield.sequences.outputs import Output
from fullfield.sequences.tracking import (
    FlowField,
    FrameMatch,
    Tracker,
    _mark_inconsistent_pixels_occluded,
    _select_direct_match_where_trusted,
    compute_confidence,
    compute_expected_error_px,
    list_chain_source_steps,
    list_needed_source_steps,
)
from fullfield.testing.shots import SyntheticShot

HEIGHT, WIDTH = 60, 80


class OracleMatcher:
    """True motion with a constant error, found by the identity of the frames."""

    def __init__(self, shot: SyntheticShot, frames: list[Tensor], bias_px: float) -> None:
        self.shot, self.frames, self.bias_px = shot, frames, bias_px
        self.pairs: list[tuple[int, int]] = []

    def __call__(
        self, frame1: Tensor, frame2: Tensor, _forward: Tensor | None, _backward: Tensor | None
    ) -> tuple[Tensor, Tensor, None]:
        first, second = (next(i for i, f in enumerate(self.frames) if f is frame) for frame in (frame1, frame2))
        self.pairs.append((first, second))
        flows = [self.shot.compute_flow_and_visibility(*pair).flow[None] for pair in ((first, second), (second, first))]
        return flows[0] + self.bias_px, flows[1] - self.bias_px, None


@pytest.fixture(scope="module")
def shot() -> SyntheticShot:
    return SyntheticShot(HEIGHT, WIDTH, 14, seed=3, bodies=2, shutter=0.0)


def mean_error(flow: Tensor, shot: SyntheticShot, first: int, second: int) -> float:
    truth = shot.compute_flow_and_visibility(first, second)
    return float(torch.linalg.vector_norm(flow - truth.flow, dim=0)[truth.visible].mean())


def test_synthetic_shot_truth_maps_frames(shot: SyntheticShot) -> None:
    first, second, truth = shot.render_frame(2), shot.render_frame(6), shot.compute_flow_and_visibility(2, 6)
    warped, inside = warp_planes_and_mark_inside(second[None], truth.flow[None])
    visible = truth.visible & inside[0]
    visible[1:-1, 1:-1] &= torch.stack([visible.roll((y, x), (0, 1)) for y in (-1, 0, 1) for x in (-1, 0, 1)]).all(0)[
        1:-1, 1:-1
    ]
    assert 0.3 < float(visible.float().mean()) < 1
    # The brightness changes from frame to frame, so ratios are compared.
    ratio = (warped[0].mean(0) / first.mean(0).clamp(min=0.05))[visible]
    assert float((ratio - ratio.median()).abs().median()) < 0.03
    back = shot.compute_flow_and_visibility(6, 2)
    there_and_back = truth.flow + warp_planes_and_mark_inside(back.flow[None], truth.flow[None])[0][0]
    assert float(there_and_back.abs().mean(0)[visible].median()) < 0.05


def test_follow_tracker_prefers_good_direct_match(shot: SyntheticShot) -> None:
    frames = [shot.render_frame(index)[None] for index in range(shot.frames)]
    matcher = OracleMatcher(shot, frames, bias_px=0.2)
    tracker = Tracker(frames[0], matcher, None)
    layers: dict[str, Tensor] = {}
    for frame in frames[1:]:
        layers = tracker.track_next_frame(frame)
    last = shot.frames - 1
    assert mean_error(layers["forward"], shot, 0, last) < 2.5 * 0.2 * 2**0.5  # chaining would give 13 times as much
    assert mean_error(layers["backward"], shot, last, 0) < 2.5 * 0.2 * 2**0.5


def test_follow_tracker_occlusion_marks_hidden_pixels(shot: SyntheticShot) -> None:
    frames = [shot.render_frame(index)[None] for index in range(8)]
    tracker = Tracker(frames[0], OracleMatcher(shot, frames, bias_px=0.0), None)
    for frame in frames[1:]:
        layers = tracker.track_next_frame(frame)
    visible = shot.compute_flow_and_visibility(0, 7).visible
    predicted = layers["occlusion.forward"] < 0.5
    true_positives = float((visible & predicted).sum())
    assert 2 * true_positives / float(visible.sum() + predicted.sum()) > 0.93


def test_follow_tracker_restored_equals_uninterrupted(shot: SyntheticShot) -> None:
    frames = [shot.render_frame(index)[None] for index in range(shot.frames)]
    whole = Tracker(frames[0], OracleMatcher(shot, frames, bias_px=0.1), None)
    stored = [whole.track_next_frame(frame, rounds_to_half=True) for frame in frames[1:]]
    continued = Tracker(frames[0], OracleMatcher(shot, frames, bias_px=0.1), None)
    for frame, layers in zip(frames[1:9], stored[:8], strict=True):
        continued.restore_frame(frame, layers)
    for frame, expected in zip(frames[9:], stored[8:], strict=True):
        for name, plane in continued.track_next_frame(frame, rounds_to_half=True).items():
            assert torch.equal(plane, expected[name]), name


def test_prefer_trusted_match_selects_match_by_error_and_occlusion() -> None:
    def field(u: float, error: float, occlusion: float) -> FlowField:
        flow = torch.tensor([u, 0.0]).view(2, 1, 1)
        return FlowField(flow, torch.full((1, 1), error), torch.full((1, 1), occlusion))

    chain = field(3.0, 4.0, 1.0)
    assert float(_select_direct_match_where_trusted(chain, field(7.0, 0.8, 0.7)).flow[0]) == 7
    assert float(_select_direct_match_where_trusted(chain, field(7.0, 0.8, 0.7)).occlusion) > 0.5
    assert float(_select_direct_match_where_trusted(chain, field(7.0, 3.0, 0.7)).flow[0]) == 3  # not trusted
    assert (
        float(_select_direct_match_where_trusted(field(3.0, 4.0, 0.1), field(7.0, 0.8, 0.7)).flow[0]) == 3
    )  # the chain is visible


@pytest.mark.parametrize(("motion_px", "is_hidden"), [(-0.4, False), (-1.5, True)])
def test_follow_tracker_hides_pixels_beyond_frame_edge(shot: SyntheticShot, motion_px: float, is_hidden: bool) -> None:
    def match(*_: object) -> tuple[Tensor, Tensor, None]:
        flow = torch.zeros(1, 2, HEIGHT, WIDTH)
        flow[:, 0] = motion_px
        return flow, -flow, None

    frame = shot.render_frame(0)[None]
    layers = Tracker(frame, match, None).track_next_frame(frame + 0.01)
    assert bool((layers["occlusion.forward"][5:-5, 0] > 0.5).all()) == is_hidden
    assert float((layers["occlusion.forward"][:, 10:-10] > 0.5).float().mean()) < 0.2
    assert float((layers["forward"][0] - motion_px).abs().max()) < 1e-6


def test_compute_expected_error_is_inverse_of_compute_confidence() -> None:
    error = torch.tensor([0.1, 0.5, 1.0, 5.0, 40.0])
    assert torch.allclose(compute_expected_error_px(compute_confidence(error)), error, rtol=1e-2)


@pytest.fixture
def plates(tmp_path: Path, shot: SyntheticShot, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for index in range(6):
        write_image(f"plate.{1001 + index}.png", shot.render_frame(index))
    return tmp_path


QUICK = {"warps": 2, "iterations": 4}


def follow_job(pattern: str, numbers: list[int], reference: int) -> FollowJob:
    from fullfield.estimators.estimation import build_estimator

    config = build_estimator("tvl1", "fast", **QUICK).config  # type: ignore[attr-defined]
    return FollowJob(find_frame_files("plate.%04d.png"), tuple(numbers), reference, Output(pattern), "tvl1", config)


def run_job(job: FollowJob, numbers: list[int] | None = None) -> list[int]:
    estimator, plates = job.set_threads_and_build_prepared_estimator(), job.open_plates()
    settled, plan = job.write_settings_and_get_job_and_plan(estimator, plates)
    outcome = write_reference_flow(settled, plan.missing if numbers is None else numbers, estimator, plates)
    assert not outcome.problems, outcome.problems
    return outcome.written


@pytest.mark.usefixtures("plates")
def test_follow_continues_on_both_sides_of_reference() -> None:
    numbers = list(range(1001, 1007))
    assert run_job(follow_job("whole.%04d.exr", numbers, 1003)) == numbers
    reference = read_flow_layers("whole.1003.exr")
    assert not reference["forward"].any()
    assert float(reference["confidence.backward"].min()) == 1
    job = follow_job("parts.%04d.exr", numbers, 1003)
    assert run_job(job, [1003, 1004, 1002]) == [1002, 1003, 1004]
    assert run_job(job) == [1001, 1005, 1006]  # continues from the stored frames
    assert run_job(job) == []
    for number in numbers:
        whole, parts = (read_flow_layers(f"{name}.{number}.exr") for name in ("whole", "parts"))
        assert whole.keys() == parts.keys()
        assert all(torch.equal(whole[name], parts[name]) for name in whole), number


@pytest.fixture
def added_steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Steps that trackers compute."""
    steps: list[int] = []
    add = Tracker.track_next_frame

    def count_add(tracker: Tracker, *args: Any, **options: Any) -> dict[str, Tensor]:
        steps.append(tracker.step)
        return add(tracker, *args, **options)

    monkeypatch.setattr(Tracker, "track_next_frame", count_add)
    return steps


@pytest.mark.usefixtures("plates")
def test_follow_of_other_range_continues_from_existing_files(added_steps: list[int]) -> None:
    run_job(follow_job("whole.%04d.exr", list(range(1001, 1007)), 1001))
    run_job(follow_job("parts.%04d.exr", [1001, 1002, 1003], 1001))
    added_steps.clear()
    assert run_job(follow_job("parts.%04d.exr", [1005, 1006], 1001)) == [1005, 1006]
    assert added_steps == [3, 4, 5]
    assert not Path("parts.1004.exr").exists()
    for number in (1005, 1006):
        whole, parts = (read_flow_layers(f"{name}.{number}.exr") for name in ("whole", "parts"))
        assert all(torch.equal(whole[name], parts[name]) for name in whole), number


@pytest.mark.usefixtures("plates")
def test_follow_hashes_every_plate_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from fullfield._ledger import versions
    from fullfield.sequences import plates

    hashed: list[str] = []
    compute = versions.compute_sampled_checksum

    def count_checksum(path: str) -> str:
        hashed.append(Path(path).name)
        return compute(path)

    for module in (versions, plates):
        monkeypatch.setattr(module, "compute_sampled_checksum", count_checksum)
    names = [f"plate.{number}.png" for number in range(1001, 1007)]
    run_job(follow_job("ref.%04d.exr", [1001, 1002, 1003, 1004, 1005], 1002))
    assert sorted(name for name in hashed if name.startswith("plate")) == names[:5]
    hashed.clear()
    assert run_job(follow_job("ref.%04d.exr", [1006], 1002)) == [1006]
    read_steps = {0, 4} | list_needed_source_steps(4)  # the plates that are read for their pictures
    assert sorted(name for name in hashed if name.startswith("plate")) == [
        names[1 + step] for step in sorted(read_steps)
    ]
    hashed.clear()
    assert run_job(follow_job("ref.%04d.exr", list(range(1001, 1007)), 1002)) == []
    assert hashed == []


def test_follow_decodes_video_before_reference_in_blocks(
    shot: SyntheticShot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("av")
    from fullfield.io import VideoWriter
    from fullfield.sequences import open_plates
    from fullfield.sequences.plates import VideoPlates

    path = str(tmp_path / "clip.mp4")
    with VideoWriter(path, WIDTH, HEIGHT, 25) as writer:
        for index in range(8):
            writer.write((255 * shot.render_frame(index)).to(torch.uint8), index / 25)
    opened: list[VideoPlates] = []
    open_video = VideoPlates._reopen_from_start

    def count_open(video: VideoPlates) -> None:
        opened.append(video)
        open_video(video)

    monkeypatch.setattr(VideoPlates, "_reopen_from_start", count_open)
    video = open_plates(path)
    opened.clear()
    followed = list(follow_frames(video, 8, "tvl1", config=PRESETS["fast"].replace(**QUICK)))
    assert [frame.number for frame in followed] == [8, 7, 6, 5, 4, 3, 2, 1]
    assert len(opened) == 1  # after the reference was read
    frames = [open_plates(path).read(number).frame for number in range(1, 9)]
    listed = list(follow_frames(frames, 8, "tvl1", config=PRESETS["fast"].replace(**QUICK)))
    for one, other in zip(followed, listed, strict=True):
        assert torch.equal(one.forward, other.forward), one.number


@pytest.mark.usefixtures("plates")
def test_follow_on_two_devices_equals_one() -> None:
    numbers = list(range(1001, 1007))
    for reference in (1003, 1006):
        run_job(follow_job(f"one{reference}.%04d.exr", numbers, reference))
    tasks = []
    for reference in (1003, 1006):
        job = follow_job(f"two{reference}.%04d.exr", numbers, reference)
        settled, plan = job.write_settings_and_get_job_and_plan(
            job.set_threads_and_build_prepared_estimator(), job.open_plates()
        )
        tasks.append((settled, plan.missing))
    reported: list[int] = []
    outcomes = write_reference_flows_on_devices(tasks, ["cpu", "cpu"], report_frame=reported.append)
    assert [outcome.written for outcome in outcomes] == [numbers, numbers]
    assert sorted(reported) == sorted(2 * numbers)
    for reference in (1003, 1006):
        for number in numbers:
            one, two = (read_flow_layers(f"{name}{reference}.{number}.exr") for name in ("one", "two"))
            assert all(torch.equal(one[name], two[name]) for name in one), (reference, number)
        assert run_job(follow_job(f"two{reference}.%04d.exr", numbers, reference)) == []


@pytest.mark.usefixtures("plates")
@pytest.mark.long
def test_write_reference_flows_on_devices_refuses_unusable_method() -> None:
    job = follow_job("ref.%04d.exr", [1001, 1002], 1001)
    settled, plan = job.write_settings_and_get_job_and_plan(
        job.set_threads_and_build_prepared_estimator(), job.open_plates()
    )
    with pytest.raises(InputError, match="no_such"):
        write_reference_flows_on_devices([(replace(settled, method="no_such"), plan.missing)], ["cpu", "cpu"])


@pytest.mark.usefixtures("plates")
@pytest.mark.parametrize("error", [OSError("plate.1001.png: cannot be read"), EOFError("no more data")])
def test_follow_device_process_sends_errors(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(follow_pool, "write_reference_flow", fail)
    monkeypatch.setattr(worker.signal, "signal", lambda *_: None)
    monkeypatch.setattr(worker.os, "_exit", lambda _: None)
    pipe, worker_pipe = Pipe()
    pipe.send((follow_job("ref.%04d.exr", [1001, 1002], 1001), [1001, 1002]))
    follow_pool._write_sides_until_parent_ends(worker_pipe, "cpu", 1)
    kind, content = pipe.recv()
    assert kind == ("refused" if isinstance(error, OSError) else "error")
    assert str(error) in content


def test_split_at_reference_shares_no_frames() -> None:
    assert split_into_nonempty_sides([5, 1, 3, 4], 3) == [[3, 4, 5], [1]]
    assert split_into_nonempty_sides([5, 4], 9) == [[4, 5]]
    assert split_into_nonempty_sides([], 9) == []


@pytest.mark.parametrize("step", [1, 3, 7, 8, 9, 20, 40, 41, 100])
def test_list_source_steps_covers_sources_of_later_frames(step: int) -> None:
    sources = list_chain_source_steps(step)
    assert sources[0] == step - 1
    assert all(0 <= source < step for source in sources)
    stored = list_needed_source_steps(step)
    assert set(sources) <= stored
    assert len(stored) <= 12
    for later in range(step, step + 80):
        assert {source for source in list_chain_source_steps(later) if source < step} <= stored


@pytest.mark.usefixtures("plates")
def test_follow_recomputes_frames_of_replaced_plate(shot: SyntheticShot) -> None:
    numbers = list(range(1001, 1007))
    job = follow_job("ref.%04d.exr", numbers, 1002)
    run_job(job)
    write_image("plate.1004.png", shot.render_frame(4))
    assert run_job(job) == [1004, 1005, 1006]


@pytest.mark.usefixtures("plates")
def test_follow_refuses_other_settings_and_missing_reference() -> None:
    numbers = list(range(1001, 1007))
    run_job(follow_job("ref.%04d.exr", numbers[:2], 1002))
    with pytest.raises(InputError, match=r"reference"):
        run_job(follow_job("ref.%04d.exr", numbers, 1003))
    with pytest.raises(InputError, match=r"reference: expected a frame of plate\.%04d\.png, got 1050"):
        follow_job("ref.%04d.exr", numbers, 1050).open_plates()


def test_follow_stops_at_cut(shot: SyntheticShot) -> None:
    other = SyntheticShot(HEIGHT, WIDTH, 4, seed=11)
    frames = [*(shot.render_frame(index) for index in range(3)), *(other.render_frame(index) for index in range(2))]
    results = list(follow_frames(frames, 1, "tvl1", config=PRESETS["fast"].replace(**QUICK)))
    assert [result.number for result in results] == [1, 2, 3, 4, 5]
    assert [result.is_cut_off for result in results] == [False, False, False, True, True]
    assert float(results[4].occlusion["forward"].min()) == 1
    assert float(results[4].forward.min()) > WIDTH  # leads out of the frame


def test_follow_hides_far_round_trips_whatever_their_expected_error() -> None:
    """Where two frames show nothing in common, flow is arbitrary and its expected error large."""
    zero, large_error = torch.zeros(HEIGHT, WIDTH), torch.full((HEIGHT, WIDTH), 50.0)
    flows = [torch.zeros(2, HEIGHT, WIDTH) for _ in range(2)]
    flows[1][0, :, : WIDTH // 2] = 25.0
    match = _mark_inconsistent_pixels_occluded(FrameMatch(*(FlowField(flow, large_error, zero) for flow in flows)))
    for field in match:
        assert float(field.occlusion[:, : WIDTH // 2].min()) > 0.95
        assert float(field.occlusion[:, WIDTH // 2 :].max()) < 0.05


@pytest.mark.usefixtures("plates")
def test_follow_bad_plate_fails_only_its_frame() -> None:
    Path("plate.1003.png").write_bytes(b"")
    numbers = list(range(1001, 1007))
    job = follow_job("ref.%04d.exr", numbers, 1001)
    estimator, source = job.set_threads_and_build_prepared_estimator(), job.open_plates()
    settled, plan = job.write_settings_and_get_job_and_plan(estimator, source)
    outcome = write_reference_flow(settled, plan.missing, estimator, source)
    assert outcome.written == [1001, 1002, 1004, 1005, 1006]
    assert [Path(problem.path).name for problem in outcome.problems] == ["plate.1003.png"]
    assert np.isfinite(read_flow_layers("ref.1006.exr")["forward"].numpy()).all()


def test_follow_tracker_hides_unknown_pixels_in_both_directions(shot: SyntheticShot) -> None:
    frames = [shot.render_frame(index)[None] for index in range(2)]
    valid = torch.ones(HEIGHT, WIDTH, dtype=torch.bool)
    valid[:, :20] = False
    layers = Tracker(frames[0], OracleMatcher(shot, frames, bias_px=0.0), None, valid=valid).track_next_frame(
        frames[1], valid=valid
    )
    for direction in ("forward", "backward"):
        assert float(layers[f"occlusion.{direction}"][:, :20].min()) == 1
        assert float(layers[f"confidence.{direction}"][:, :20].max()) < 0.05
        assert float(layers[f"occlusion.{direction}"][:, 30:].mean()) < 0.5


@pytest.mark.usefixtures("plates")
def test_follow_hides_unknown_pixels_of_reference() -> None:
    mask = torch.ones(3, HEIGHT, WIDTH)
    mask[:, :, :20] = 0
    write_image("mask.png", mask)
    job = replace(follow_job("ref.%04d.exr", [1001], 1001), reading={"mask": "mask.png"})
    valid = job.open_plates().read(1001).valid
    assert valid is not None
    assert 0 < float(valid.float().mean()) < 1
    assert run_job(job) == [1001]
    layers = read_flow_layers("ref.1001.exr")
    for direction in ("forward", "backward"):
        assert torch.equal(layers[f"occlusion.{direction}"], (~valid).float())
        assert torch.equal(layers[f"confidence.{direction}"], valid.float())
