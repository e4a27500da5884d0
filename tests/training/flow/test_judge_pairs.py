"""``benchmarks/experiments/judge_pairs.py``, which continues official weights on synthetic pairs."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from PIL import Image

from benchmarks.experiments import judge_pairs, score_methods
from fullfield.io import write_flow
from fullfield.models import RAFT, RAFTConfig, load_weights
from fullfield.training.flow import SceneStyle
from fullfield.training.flow.config import MIXTURE
from fullfield.training.flow.pictures import create_procedural_picture_pack
from refusals import refuses

SMALL = ("--size", "32x24", "--batch", "1", "--updates", "1", "--scored-updates", "1", "--device", "cpu", "--mixture")


@pytest.fixture
def judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, with random weights and one real pair."""
    module = judge_pairs
    drawn = create_procedural_picture_pack(2, 32, shape_count=4)
    monkeypatch.setattr("fullfield.training.flow.pairs.create_procedural_picture_pack", lambda: drawn)
    monkeypatch.setattr(module, "DATA", tmp_path)
    monkeypatch.setattr(module, "_UNSEEN", 1)
    (tmp_path / "weights").mkdir()
    torch.manual_seed(0)
    torch.save(RAFT(RAFTConfig.small()).state_dict(), tmp_path / "weights" / "raft-small.pth")
    folder = tmp_path / "flow" / "sintel" / "hard" / "sequence_2"
    folder.mkdir(parents=True)
    for number in (1, 2):
        Image.new("RGB", (40, 32), (90 * number, 80, 70)).save(folder / f"frame_000{number}.png")
    write_flow(folder / "frame_0001.flo", torch.ones(2, 32, 40), torch.ones(32, 40, dtype=torch.bool))
    return module


def test_judge_pairs_stores_scores_during_training(
    judge: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    output, kept = tmp_path / "result.json", tmp_path / "kept"
    stored: list[Any] = []
    add = judge.Scores.add

    def read(*args: Any) -> None:
        add(*args)
        stored.append(json.loads(output.read_text()))

    monkeypatch.setattr(judge.Scores, "add", read)
    mixture = ["small:noise~0,instants~2=0.5", "usual:instants~2=0.5"]
    judge.main(["--pairs", "3", *SMALL, *mixture, "-o", str(output), "--keep", str(kept)])
    assert [[row["pairs"] for row in result["scores"]] for result in stored] == [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3]]
    first, _, between, last = stored[-1]["scores"]
    assert first["weights"] == first["average"]
    assert last["weights"]["errors"]["sequence_2"] != first["weights"]["errors"]["sequence_2"]
    assert last["weights"] != last["average"]
    assert last["weights"]["hard"] is None  # three of the pairs are missing
    assert 0 < last["learning_rate"] < between["learning_rate"] < 1.5e-4
    assert stored[-1]["settings"]["mixture"] == mixture
    assert "raft-small small:noise~0,instants~2=0.5 usual:instants~2=0.5: 3 pairs" in capsys.readouterr().out
    for name in ("weights", "average"):
        network = load_weights("raft-small", kept.with_suffix(f".{name}.safetensors"))
        assert judge.means(judge.score(network, torch.device("cpu"), 1, flips=False)) == pytest.approx(
            last[name]["errors"]
        )


@pytest.mark.long
def test_judge_pairs_trains_fullfield_with_range_of_updates(judge: ModuleType, tmp_path: Path) -> None:
    output, kept = tmp_path / "result.json", tmp_path / "kept"
    options = ["--network", "fullfield-s", "--pairs", "1", *SMALL, "small:instants~2=1", "--score-at", "--flips"]
    judge.main([*options, "--updates", "1-2", "--scored-updates", "1", "2", "-o", str(output), "--keep", str(kept)])
    first, last = (row["average"] for row in json.loads(output.read_text())["scores"])
    assert first["errors"] != first["errors, 2 updates"]
    assert last["errors"] != first["errors"]
    network = load_weights("fullfield-s", kept.with_suffix(".average.safetensors"))
    device = torch.device("cpu")
    scored = judge.score(network, device, 1, flips=True)
    assert judge.means(scored) == pytest.approx(last["errors"])
    assert scored["sequence_2"] == pytest.approx(last["orientations"]["sequence_2"])
    assert judge.means(judge.score(network, device, 1, flips=False)) != pytest.approx(last["errors"])
    trained = load_weights("fullfield-s", kept.with_suffix(".weights.safetensors"))
    assert judge.means(judge.score(trained, device, 1, flips=True)) != pytest.approx(last["errors"])


def test_judge_pairs_scores_mirrored_frames(judge: ModuleType) -> None:
    """A network that knows the truth only if its frames are not mirrored has errors of the other images."""

    class Ones(torch.nn.Module):
        def forward(self, frame1: torch.Tensor, _: torch.Tensor, updates: int) -> torch.Tensor:
            return torch.full((1, 2, *frame1.shape[2:]), float(updates))

    errors = judge.score(Ones(), torch.device("cpu"), 1, flips=True)
    assert errors["sequence_2"] == pytest.approx([0, 2, 2, 8**0.5])
    assert judge.means(errors)["sequence_2"] == pytest.approx((0 + 2 + 2 + 8**0.5) / 4)


def test_judge_pairs_mixture_cuts_and_augments(judge: ModuleType) -> None:
    options = [*SMALL, "small:instants~2=1"]
    whole, cut = (
        judge.mixture(judge.parser().parse_args([*given, *options]), torch.device("cpu")).batch(0, 2)
        for given in ([], ["--cut", "16x8"])
    )
    assert whole.frame1.shape == (2, 3, 24, 32)
    assert cut.frame1.shape == cut.frame2.shape == (2, 3, 8, 16)
    assert cut.flow.shape == (2, 2, 8, 16)
    windows = whole.frame1.unfold(2, 8, 1).unfold(3, 16, 1).permute(0, 2, 3, 1, 4, 5)
    assert not (windows == cut.frame1[:, None, None]).flatten(3).all(3).any()
    args = judge.parser().parse_args([*options, "--cut", "32x32"])
    refuses("^--cut: expected at most 32x24, the --size, got 32x32", judge.mixture, args, torch.device("cpu"))


def test_judge_pairs_keeps_scores_of_absent_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    methods = score_methods
    before = methods.RESULT.read_bytes()
    monkeypatch.setattr(methods, "DATA", tmp_path)
    assert methods.main(["tvl1"]) == 2
    assert f"{tmp_path}: expected the pairs that have stored errors, middlebury Dimetrodon, " in capsys.readouterr().err
    assert methods.RESULT.read_bytes() == before


def test_judge_pairs_reads_styles(judge: ModuleType) -> None:
    assert judge.style_of("usual=0.4") == (SceneStyle(), 0.4)
    style = SceneStyle(**{**vars(SceneStyle.from_preset("bodies")), "blur": 0.0, "instants": 7})
    assert judge.style_of("bodies:blur~0,instants~7=1") == (style, 1.0)
    for text, reason in (
        ("usual", "style: expected one of usual, .* got ''"),
        ("bodie=0.5", "got 'bodie'; did you mean bodies"),
        ("usual:noises~0=1", "got 'noises'; did you mean noise"),
        ("usual:sheets~0=1", "SceneStyle: expected one of camera_motion, .* got 'sheets'"),
        ("usual=some", "could not convert"),
        ("usual:noise=1", "could not convert"),
    ):
        refuses(rf"^mixture {text}: expected STYLE.*{reason}", judge.style_of, text)
    given = dict(map(judge.style_of, judge.parser().parse_args([]).mixture))
    assert given == {SceneStyle.from_preset(name): share for name, share in MIXTURE.items()}
