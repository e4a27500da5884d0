"""Every pair starts from the flow of the one before, moved along."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from evaluation_sets import Counting, H, W
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fullfield.datasets import FlowDataset, Pairs
from fullfield.evaluation import EvaluationSettings, evaluate
from fullfield.evaluation.run import PredictionRun
from fullfield.io import read_flow, write_image
from fullfield.ops._splatting import fill_unknown_vectors, predict_next_flow


def test_evaluate_warm_start_passes_moved_flow(pairs: FlowDataset, tmp_path: Path) -> None:
    estimator = Counting()
    evaluate(estimator, pairs, tmp_path / "run", EvaluationSettings(warm_start=True))
    starts = estimator.starts[1:]
    assert [start is None for start in starts] == [True, False, False, True, False]
    first = read_flow(PredictionRun.load(tmp_path / "run").get_prediction_path("a/f_00")).flow
    assert torch.equal(starts[1][0], predict_next_flow(first))


def test_evaluate_warm_start_ends_at_gap_and_sequence(tmp_path: Path) -> None:
    root = tmp_path / "set"
    for shot, numbers in (("a", (1, 2, 3, 6, 7)), ("b", (7, 8, 9))):
        for i in numbers:
            path = root / shot / "frames" / f"f_{i:02d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            write_image(path, torch.full((3, H, W), i / 10))
    estimator, pairs = Counting(), Pairs(root, name="mine")
    evaluate(estimator, pairs, tmp_path / "run", EvaluationSettings(warm_start=True))
    started = {r.name: start is not None for r, start in zip(pairs.records, estimator.starts[1:], strict=True)}
    assert started == {"a/f_01": False, "a/f_02": True, "a/f_06": False, "b/f_07": False, "b/f_08": True}


def test_evaluate_warm_start_resumes_from_stored_flow(pairs: FlowDataset, tmp_path: Path) -> None:
    settings = EvaluationSettings(warm_start=True)
    with pytest.raises(KeyboardInterrupt):
        evaluate(Counting(fail_at=2), pairs, tmp_path / "run", settings)
    rest = Counting()
    evaluate(rest, pairs, tmp_path / "run", settings)
    assert torch.equal(
        rest.starts[0][0],
        predict_next_flow(read_flow(PredictionRun.load(tmp_path / "run").get_prediction_path("a/f_00")).flow),
    )


def test_predict_next_flow_equals_loop() -> None:
    flow = torch.zeros(2, 7, 9)
    flow[0, 3, 2] = 4.0
    moved = predict_next_flow(flow)
    assert moved[:, 3, 6].tolist() == [4.0, 0.0]
    assert moved[:, 3, 2].tolist() == [0.0, 0.0]
    constant = torch.tensor([3.0, -2.0])[:, None, None].expand(2, 7, 9)
    assert torch.equal(predict_next_flow(constant), constant)
    assert torch.equal(predict_next_flow(torch.full((2, 4, 4), 100.0)), torch.zeros(2, 4, 4))
    broken = constant.clone()
    broken[:, 2, 2] = float("nan")
    assert predict_next_flow(broken).isfinite().all()
    flow = torch.full((2, 1, 9), float("nan"))
    flow[:, 0, [0, 2, 7]] = torch.tensor([[4.0, 2.0, -3.0], [0.0, 0.0, 0.0]])
    assert predict_next_flow(flow)[0, 0, 4] == 4.0
    flow[:, 0, 8] = torch.tensor([-4.0, 0.0])
    assert predict_next_flow(flow)[0, 0, 4] == -4.0


def filled_by_rings(flow: Tensor, known: Tensor) -> Tensor:
    """Ring by ring, from the definition."""
    flow, known = flow.clone(), known.clone()
    while not known.all():
        before, reached = flow.clone(), known.clone()
        for y, x in (~known).nonzero().tolist():
            window = slice(max(0, y - 1), y + 2), slice(max(0, x - 1), x + 2)
            if known[window].any():
                flow[:, y, x] = before[(slice(None), *window)][:, known[window]].mean(1)
                reached[y, x] = True
        known = reached
    return flow


@pytest.mark.parametrize("share", [0.02, 0.4, 0.9])
def test_predict_next_flow_fills_holes_from_rim(share: float) -> None:
    generator = torch.Generator().manual_seed(4)
    known = torch.rand(23, 31, generator=generator) < share
    known[5, 7] = True
    known[8:19, 9:28] = False
    flow = torch.randn(2, 23, 31, generator=generator) * known
    assert torch.allclose(fill_unknown_vectors(flow, known), filled_by_rings(flow, known), atol=1e-5)


class Elements(TorchDispatchMode):
    """Counts what operations give that give something new."""

    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        new = isinstance(out, Tensor) and not any(out is given for given in args)
        self.count += out.numel() if new else 0
        return out


def test_predict_next_flow_work_grows_with_pixels() -> None:
    flow = torch.zeros(2, 64, 512)
    flow[0, :, :256] = 200.0
    with Elements() as elements:
        assert predict_next_flow(flow).isfinite().all()
    assert elements.count < 200 * flow[0].numel()  # ring after ring over the whole frame takes more than 1000
