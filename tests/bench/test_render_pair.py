"""The program that renders a pair for the benchmark of networks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from benchmarks.experiments import render_pair
from benchmarks.runner import main
from fullfield.io import read_flow, read_frame
from fullfield.models import RAFT
from fullfield.models.weights import NETWORKS, build_random_model
from fullfield.training.flow.batch import FlowBatch

SIZE = (40, 64)


@pytest.fixture
def weights(tmp_path: Path) -> str:
    """Random weights of RAFT, in float16."""
    model = build_random_model(NETWORKS["raft"])
    path = tmp_path / "raft.safetensors"
    save_file({name: (t.half() if t.is_floating_point() else t) for name, t in model.state_dict().items()}, path)
    return str(path)


def sample_pair(size: tuple[int, int], seed: int, _: object) -> FlowBatch:
    """Return a pair of noise that moves by ``seed`` pixels; a column is unknown."""
    frame = torch.rand(1, 3, *size, generator=torch.Generator().manual_seed(seed))
    frame = (frame * 255).round() / 255
    flow = torch.zeros(1, 2, *size)
    flow[:, 0] = seed
    known = torch.ones(1, *size, dtype=torch.bool)
    known[..., 0] = False
    return FlowBatch(frame, frame.roll(seed, 3), flow, known, torch.zeros_like(known))


def test_render_pair_writes_first_pair_that_raft_estimates(
    tmp_path: Path, weights: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def estimate(_: RAFT, first: torch.Tensor, second: torch.Tensor, updates: int) -> torch.Tensor:
        del second, updates
        return torch.full((1, 2, *first.shape[2:]), 8.0) * torch.tensor([1.0, 0.0])[:, None, None]

    monkeypatch.setattr(render_pair, "render_pair", sample_pair)
    monkeypatch.setattr(RAFT, "forward", estimate)
    folder = tmp_path / "pair"
    command = ["--weights", weights, "--size", "64x40", "--device", "cpu", "-o", str(folder)]
    assert render_pair.main([*command, "--seeds", "4", "16"]) == 1
    assert not folder.exists()
    assert render_pair.main([*command, "--seeds", "4", "8", "16"]) == 0
    facts = json.loads((folder / "pair.json").read_text())
    assert (facts["seed"], facts["size"], facts["style"]) == (8, [40, 64], render_pair.STYLE.as_dict())
    assert [(one["seed"], one["epe_px"], one["motion_px"]) for one in facts["tried"]] == [(4, 4, 4), (8, 0, 8)]
    expected = sample_pair(SIZE, 8, None)
    assert torch.equal(read_frame(folder / "frame1.png"), expected.frame1[0])
    assert torch.equal(read_frame(folder / "frame2.png"), expected.frame2[0])
    truth = read_flow(folder / "truth.flo")
    assert torch.equal(truth.valid, expected.valid[0])
    assert torch.equal(truth.flow[:, truth.valid], expected.flow[0][:, truth.valid])
    capsys.readouterr()
    line = ["models", "--methods", "raft", "--sizes", "64x40", "--updates", "1", "--repeats", "1", "--device", "cpu"]
    line += ["--weights", f"raft={weights}", "--pair", str(folder / "frame1.png"), str(folder / "frame2.png")]
    line += ["--truth", str(folder / "truth.flo"), "--forms", "module", "--no-peers", "--json", "-q"]
    monkeypatch.undo()
    assert main(line) == 0
    results = json.loads(capsys.readouterr().out)
    assert results["pair"] == facts
    assert results["weights"] == "rounded to float16 (raft)"
    assert results["cases"][0]["true_flow_px"] == 8
    (folder / "pair.json").write_text("{")
    assert main(line) == 2
    assert "pair.json is not JSON" in capsys.readouterr().err


def test_render_pair_renders_frames_of_8_bits() -> None:
    pair = render_pair.render_pair((24, 40), 2, "cpu")
    levels = pair.frame1 * 255
    assert torch.allclose(levels, levels.round(), atol=1e-3)
    assert pair.frame1.std() > 0.02
    assert pair.flow.shape == (1, 2, 24, 40)


def test_render_pair_names_missing_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert render_pair.main(["--weights", str(tmp_path / "none.pth"), "-o", str(tmp_path / "pair")]) == 2
    assert "--weights" in capsys.readouterr().err
