"""estimate_sequence and the engine below it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sequence_shots import HEIGHT, WIDTH, moving, quick

from fullfield import estimate, estimate_sequence
from fullfield.cli.main import main
from fullfield.estimators import TVL1Estimator
from fullfield.estimators._frames import read_or_convert_frame
from fullfield.estimators._reliability import estimate_occlusion_and_confidence
from fullfield.io import write_image
from fullfield.sequences import ShotSettings, open_plates
from fullfield.sequences.changes import _compute_sliding_means, is_cut, is_duplicate, shrink_to_grey
from fullfield.sequences.engine import ShotEngine
from fullfield.testing import sample_textured_scene
from refusals import refuses


def test_estimate_sequence_equals_single_pairs(shot: Path, estimator: TVL1Estimator) -> None:
    found = list(estimate_sequence("plate.%04d.png", estimator, direction="both"))
    assert [flows.number for flows in found] == list(range(11, 19))
    assert found[0].backward is None
    assert found[-1].forward is None
    for flows in found:
        assert flows.problems == ()
        for flow, other in ((flows.forward, flows.number + 1), (flows.backward, flows.number - 1)):
            if flow is None:
                continue
            alone = estimate(shot / f"plate.{flows.number:04d}.png", shot / f"plate.{other:04d}.png", estimator)
            torch.testing.assert_close(flow.flow, alone.flow, rtol=0, atol=0)
    middle = found[4].forward
    assert float(middle.flow[0, 10:-10, 10:-10].mean()) == pytest.approx(-2, abs=0.3)


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_estimate_sequence_estimates_direction_and_step(shot: Path, estimator: TVL1Estimator, direction: str) -> None:
    found = list(estimate_sequence(str(shot), estimator, direction=direction, step=3))
    sign = 1 if direction == "forward" else -1
    for flows in found:
        flow, absent = (flows.forward, flows.backward) if sign > 0 else (flows.backward, flows.forward)
        assert absent is None
        assert (flow is not None) == (11 <= flows.number + 3 * sign <= 18)
    flow = found[3].forward or found[3].backward
    alone = estimate("plate.0014.png", f"plate.{14 + 3 * sign:04d}.png", estimator)
    assert torch.equal(flow.flow, alone.flow)


def test_estimate_sequence_reads_neighbors_of_range(shot: Path, estimator: TVL1Estimator) -> None:  # noqa: ARG001
    whole = {f.number: f for f in estimate_sequence("plate.####.png", estimator, direction="both")}
    part = list(estimate_sequence(open_plates("plate.####.png", "13,14"), estimator, direction="both"))
    assert [flows.number for flows in part] == [13, 14]
    for flows in part:
        for mine, theirs in (
            (flows.forward, whole[flows.number].forward),
            (flows.backward, whole[flows.number].backward),
        ):
            assert torch.equal(mine.flow, theirs.flow)


@pytest.mark.parametrize("refine", [False, True])
def test_estimate_sequence_names_frame_with_excessive_values(
    tmp_path: Path, estimator: TVL1Estimator, refine: bool
) -> None:
    """Whichever frame of a pair it is, and with one reason."""
    for number, value in enumerate((0.5, 1e7, 0.5)):
        write_image(tmp_path / f"{number}.exr", torch.full((3, HEIGHT, WIDTH), value, dtype=torch.float32))
    plates = open_plates(tmp_path / "%d.exr")
    found = list(ShotEngine(plates, plates.numbers, estimator, ShotSettings("both", refine=refine)))
    ((path, text),) = {problem for done in found for problem in done.problems}
    assert path == str(tmp_path / "1.exr")
    assert text.startswith("expected values up to 1e+06")


def test_estimate_sequence_reads_each_frame_once(estimator: TVL1Estimator, monkeypatch: pytest.MonkeyPatch) -> None:
    frames = moving(30)
    plates = open_plates(frames)
    read: list[int] = []
    real = plates.read

    def counted(number: int) -> object:
        read.append(number)
        return real(number)

    monkeypatch.setattr(plates, "read", counted)
    settings = ShotSettings("both", occlusion=True, warm_start=True)
    for at, flows in enumerate(estimate_sequence(plates, estimator, settings=settings)):
        assert len(read) <= at + 2 + 3, "this frame, the next one, and three ahead"
        assert flows.number == at + 1
    assert sorted(read) == list(range(1, 31))


def test_estimate_sequence_stopped_early_leaves_no_thread(estimator: TVL1Estimator) -> None:
    before = threading.active_count()
    flows = estimate_sequence(moving(12), estimator)
    next(flows)
    flows.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before
    a, b = moving(2)
    found = list(estimate_sequence([a, b.mean(0, keepdim=True)], estimator))
    assert found[0].forward is not None


def test_estimate_sequence_bad_frame_fails_only_its_pairs(shot: Path, estimator: TVL1Estimator) -> None:
    (shot / "plate.0014.png").write_bytes(b"\x89PNG\r\n\x1a\nnonsense")
    write_image(shot / "plate.0017.png", torch.rand(3, 9, 9))
    found = {f.number: f for f in estimate_sequence("plate.%04d.png", estimator, direction="both")}
    has = {n: (f.forward is not None, f.backward is not None) for n, f in found.items()}
    both, none = (True, True), (False, False)
    assert has == {11: (True, False), 12: both, 13: (False, True), 14: none, 15: (True, False), 16: (False, True),
                   17: none, 18: none}  # fmt: skip
    for number, culprit, word in ((13, 14, "truncated"), (14, 14, "truncated"), (15, 14, "truncated"),
                                  (16, 17, "is 9x9, but plate.0016.png is 56x40"), (18, 17, "is 9x9")):  # fmt: skip
        problem = found[number].problems[0]
        assert problem.path == f"plate.{culprit:04d}.png"
        assert word in problem.reason, problem
    assert found[12].problems == ()


def test_estimate_sequence_reports_gaps_but_not_ends(shot: Path, estimator: TVL1Estimator) -> None:
    (shot / "plate.0014.png").unlink()
    found = {f.number: f for f in estimate_sequence("plate.%04d.png", estimator)}
    assert found[13].forward is None
    assert str(found[13].problems[0]) == "plate.0014.png: no such file"
    assert found[18].problems == ()
    asked = list(estimate_sequence(open_plates("plate.%04d.png", "17-20"), estimator))
    assert next(str(p) for f in asked for p in f.problems) == "plate.0019.png: no such file"


def test_estimate_sequence_warm_start_equals_moved_flow(estimator: TVL1Estimator) -> None:
    from fullfield.ops._splatting import predict_next_flow

    frames = moving(4)
    found = list(estimate_sequence(frames, estimator, settings=ShotSettings("both", warm_start=True)))
    for name, sign in (("forward", 1), ("backward", -1)):
        at = 1 if sign > 0 else 2
        before = getattr(found[at - 1], name)
        start = sign * predict_next_flow(sign * before.flow)
        expected = estimate(frames[at], frames[at + sign], estimator, initial_flow=start)
        assert torch.equal(getattr(found[at], name).flow, expected.flow), name
        cold = estimate(frames[at], frames[at + sign], estimator)
        assert not torch.equal(cold.flow, expected.flow)


def test_estimate_sequence_reports_cuts_and_duplicates(estimator: TVL1Estimator) -> None:
    first, second = moving(4, seed=4), moving(4, seed=9)
    frames = [*first, first[-1], *second]
    found = list(estimate_sequence(frames, estimator, settings=ShotSettings(warm_start=True)))
    assert [pair for flows in found for pair in flows.duplicates] == [(4, 5)]
    assert [pair for flows in found for pair in flows.cuts] == [(5, 6)]
    cold = estimate(frames[4], frames[5], estimator)
    across = found[4].forward
    assert torch.equal(across.flow, cold.flow), "no warm start across a cut"


@pytest.mark.parametrize("seed", range(6))
def test_is_cut_is_false_for_motion(seed: int) -> None:
    scene = sample_textured_scene(120, 160, seed=seed, max_motion=10)
    other = sample_textured_scene(120, 160, seed=seed + 20)
    a, b, c = (shrink_to_grey(frame) for frame in (scene.frame1, scene.frame2, other.frame1))
    assert not is_cut(a, b)
    assert is_cut(a, c)
    assert is_cut(a, np.zeros_like(a))
    assert not is_cut(np.zeros_like(a), np.zeros_like(a))
    assert not is_cut(a, a * 0.8), "a change of exposure"
    assert is_duplicate(scene.frame1, scene.frame1.clone(), allow_compression_noise=False)
    assert not is_duplicate(scene.frame1, scene.frame1 + 1e-3, allow_compression_noise=False)
    assert is_duplicate(scene.frame1, scene.frame1 + 1e-3, allow_compression_noise=True)


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("displacement", [30, 60, 90])
def test_is_cut_is_false_for_fast_pan(displacement: int, axis: int) -> None:
    """The camera moves by 19 to 56 % of the width in one frame."""
    texture, other = (sample_textured_scene(250, 250, seed=seed).frame1 for seed in (3, 8))
    first, second, different = (
        plane.narrow(axis, start, 160).contiguous()
        for plane, start in ((texture, 0), (texture, displacement), (other, 0))
    )
    assert not is_cut(shrink_to_grey(first), shrink_to_grey(second))
    assert is_cut(shrink_to_grey(first), shrink_to_grey(different))
    valid = torch.ones(first.shape[1:], dtype=torch.bool)
    valid[:10] = False
    assert not is_cut(shrink_to_grey(first, valid), shrink_to_grey(second, valid))
    assert is_cut(shrink_to_grey(first, valid), shrink_to_grey(different, valid))


def test_is_cut_compares_pixels_known_in_both() -> None:
    """Frames whose data windows differ are one shot; what is filled or black there says nothing."""
    scene, other = sample_textured_scene(96, 128, seed=3, max_motion=8), sample_textured_scene(96, 128, seed=8)
    left, right = torch.zeros(2, 96, 128, dtype=torch.bool)
    left[:, :80], right[20:, 40:] = True, True
    first = shrink_to_grey(scene.frame1 * left, left)
    assert int(np.isfinite(first).sum()) == round(first.size * 80 / 128)
    assert not is_cut(first, shrink_to_grey(scene.frame2 * right, right))
    assert is_cut(first, shrink_to_grey(other.frame1 * right, right))
    assert not is_cut(first, shrink_to_grey(other.frame1, ~left)), "nothing is known of both"
    assert np.allclose(shrink_to_grey(scene.frame1 * left, left)[:, :29], shrink_to_grey(scene.frame1)[:, :29])


@pytest.mark.parametrize("options", [(), ("--window", "data")])
def test_shot_reports_no_cut_for_changing_data_windows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: tuple[str, ...]
) -> None:
    from fullfield.io.oiio import Header, write_and_verify_picture
    from fullfield.io.windows import FrameWindow

    texture = sample_textured_scene(96, 128, seed=3).frame1
    boxes = ((0, 0, 128, 96), (0, 0, 76, 96), (40, 30, 88, 40), (0, 10, 128, 30))
    for number, (x, y, width, height) in enumerate(boxes):
        pixels = texture[:, y : y + height, x : x + width].permute(1, 2, 0).contiguous().numpy()
        header = Header(window=FrameWindow((x, y, width, height), (0, 0, 128, 96)))
        write_and_verify_picture(tmp_path / f"p.{number}.exr", "openexr", pixels, ("R", "G", "B"), header)
    monkeypatch.chdir(tmp_path)
    method = ("--method", "tvl1", "--preset", "fast", "--iterations", "1")
    assert main(["shot", "p.%d.exr", "-o", "mv.%d.exr", *method, *options]) == 0
    assert "shot changes" not in capsys.readouterr().err


def test_open_plates_pins_frames_for_gpu(shot: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[torch.Tensor] = []
    real = torch.empty

    def empty(*shape: Any, pin_memory: bool = False, **more: Any) -> torch.Tensor:
        made.extend([real(*shape, **more)] if pin_memory else [])
        return made[-1] if pin_memory else real(*shape, **more)

    monkeypatch.setattr(torch, "empty", empty)
    plates = open_plates(f"{shot}/plate.%04d.png")
    ShotEngine(plates, plates.numbers, quick(), ShotSettings())
    plain = plates.read(11).frame
    assert not made, "the CPU wants no such memory"
    plates.pinned = True  # type: ignore[attr-defined]  # as an engine for a GPU says
    frame = plates.read(11).frame
    assert [memory.data_ptr() for memory in made] == [frame.data_ptr()]
    assert torch.equal(frame, plain)


def test_shrink_to_grey_equals_pytorch_averages() -> None:
    for shape in ((3, 120, 160), (1, 7, 5), (3, 37, 101), (1, 300, 2)):
        frame = torch.rand(shape, generator=torch.Generator().manual_seed(1))
        found = shrink_to_grey(frame)
        rows, columns = found.shape
        lines = torch.stack([r.mean((0, 1)) for r in _bins(frame, rows)])[None]
        expected = torch.nn.functional.adaptive_avg_pool2d(lines, (rows, columns))[0]
        np.testing.assert_allclose(found, expected.numpy(), atol=1e-6)
        blocks = torch.nn.functional.avg_pool2d(torch.from_numpy(found)[None, None], 9, 1, 4, count_include_pad=False)
        np.testing.assert_allclose(_compute_sliding_means(found), blocks[0, 0].numpy(), atol=1e-9)


def _bins(frame: torch.Tensor, rows: int) -> list[torch.Tensor]:
    height = frame.shape[1]
    return [frame[:, i * height // rows : -(-(i + 1) * height // rows)] for i in range(rows)]


def test_is_cut_uses_no_pytorch_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    frames = [sample_textured_scene(60, 80, seed=seed).frame1 for seed in (1, 2)]

    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("its threads take all cores from whoever estimates")

    for name in ("equal", "stack", "from_numpy"):
        monkeypatch.setattr(torch, name, forbidden)
    monkeypatch.setattr(torch.Tensor, "__sub__", forbidden)
    for name in ("adaptive_avg_pool2d", "avg_pool2d", "pad"):
        monkeypatch.setattr(torch.nn.functional, name, forbidden)
    assert is_cut(*(shrink_to_grey(frame) for frame in frames))
    assert not is_duplicate(*frames, allow_compression_noise=True)
    assert not is_duplicate(*frames, allow_compression_noise=False)


def test_is_duplicate_compares_every_row() -> None:
    frame = sample_textured_scene(120, 160, seed=1).frame1
    for row in (0, 1, 59, 119):
        other = frame.clone()
        other[1, row, 7] += 0.1
        assert not is_duplicate(frame, other, allow_compression_noise=False), row
        assert not is_duplicate(frame, other, allow_compression_noise=True), row


@pytest.mark.parametrize("direction", ["forward", "both"])
def test_estimate_sequence_continues_with_requested_frames(estimator: TVL1Estimator, direction: str) -> None:
    frames = moving(20)
    whole = {
        done.number: done for done in ShotEngine(open_plates(frames), range(1, 21), estimator, ShotSettings(direction))
    }
    plates, read, asked = open_plates(frames), list[int](), list[tuple[int, ...]]()
    real = plates.read
    plates.read = lambda number: read.append(number) or real(number)  # type: ignore[method-assign,func-returns-value]
    further = iter([[5, 6, 7, 8, 9], [10], list(range(11, 21)), []])

    class Counting:
        method, backend, parameters = estimator.method, estimator.backend, estimator.parameters

        def __call__(self, one: torch.Tensor, two: torch.Tensor, **more: object) -> torch.Tensor:
            asked.append((one.data_ptr(), two.data_ptr()))
            return estimator(one, two, **more)  # type: ignore[arg-type]

    engine = ShotEngine(plates, range(1, 5), Counting(), ShotSettings(direction), request_frames=lambda: next(further))
    numbers = []
    for done in engine:
        numbers.append(done.number)
        for name, flow in whole[done.number].tensors.items():
            assert torch.equal(done.tensors[name], flow), (done.number, name)
    assert numbers == list(range(1, 21))
    assert sorted(read) == list(range(1, 21)), "each plate once"
    assert len(asked) == 19 * (2 if direction == "both" else 1), "each pair once"
    assert engine.stages.by_name["read"].calls == 20


def test_estimate_sequence_refuses_flow_of_other_size(estimator: TVL1Estimator) -> None:
    class Half:
        method, backend, parameters = "half", "none", dict[str, object]()

        def __call__(self, one: torch.Tensor, two: torch.Tensor, **more: object) -> torch.Tensor:
            return estimator(one, two, **more)[..., ::2]  # type: ignore[arg-type]

    first = next(iter(estimate_sequence(moving(2), Half())))
    assert f"the flow of half: expected shape [2, {HEIGHT}, {WIDTH}]" in first.problems[0].reason


def test_estimate_sequence_returns_occlusion_with_flow(estimator: TVL1Estimator) -> None:
    frames = moving(3)
    for direction in ("forward", "both"):
        found = list(
            estimate_sequence(frames, estimator, settings=ShotSettings(direction, occlusion=True, confidence=True))
        )
        there = estimate(frames[1], frames[2], estimator).flow
        back = estimate(frames[2], frames[1], estimator).flow
        pair = (read_or_convert_frame(frames[1])[None], read_or_convert_frame(frames[2])[None])
        occlusion, confidence = estimate_occlusion_and_confidence(*pair, there[None], back[None])
        assert torch.equal(found[1].occlusion["forward"], occlusion[0])
        assert torch.equal(found[1].confidence["forward"], confidence[0])
        assert ("backward" in found[1].occlusion) == (direction == "both")
        assert found[1].forward is not None
        assert found[1].forward.occlusion is found[1].occlusion["forward"]


def test_estimate_sequence_refuses_bad_settings(shot: Path, estimator: TVL1Estimator) -> None:  # noqa: ARG001
    for arguments, word in (
        ({"direction": "sideways"}, "direction: expected one of forward, backward, both"),
        ({"step": 0}, "step: expected an integer >= 1"),
        ({"settings": "both"}, "settings: expected a ShotSettings"),
        ({"preset": "fast"}, "preset: expected no parameters with an Estimator"),
    ):
        refuses(word, next, estimate_sequence("plate.%04d.png", estimator, **arguments))
    refuses("no such file", next, estimate_sequence("none.%04d.png", quick()))
    refuses("window, mask: expected None for a list of frames", open_plates, moving(2), window="data")
