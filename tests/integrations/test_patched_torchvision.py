"""torchvision's RAFT."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import fullfield
from refusals import refuses


@pytest.fixture(params=["raft_small", pytest.param("raft_large", marks=pytest.mark.long)])
def model(request: pytest.FixtureRequest, torchvision: Any) -> Any:
    torch.manual_seed(0)
    return getattr(torchvision.models.optical_flow, request.param)(weights=None).eval()


def run(model: Any, frames: Any) -> tuple[torch.Tensor, list[torch.Tensor]]:
    model.zero_grad()
    flow = model(*frames, num_flow_updates=2)[-1]
    flow.sum().backward()
    return flow.detach(), [p.grad.clone() for p in model.parameters() if p.grad is not None]


def test_patch_torchvision_keeps_values_and_gradients(model: Any) -> None:
    frames = torch.rand(2, 1, 3, 128, 136, generator=torch.Generator().manual_seed(1)) * 2 - 1
    block = model.corr_block
    before = dict(vars(block))
    with fullfield.patch(model) as handle:
        found, found_grads = run(model, frames)
        assert [(r.where, r.description) for r in handle.replaced] == [("corr_block", "CorrBlock")]
        assert copy.deepcopy(model)(*frames, num_flow_updates=1)[0].isfinite().all()
    assert vars(block) == before
    assert model.corr_block is block

    expected, grads = run(model, frames)
    assert not torch.equal(found, expected)
    assert float((found - expected).abs().max()) < 1e-3 * float(expected.abs().max())
    largest = max(float(g.abs().max()) for g in grads)
    for one, two in zip(found_grads, grads, strict=True):
        assert float((one - two).abs().max()) < 1e-3 * max(float(two.abs().max()), 1e-3 * largest)

    assert torch.equal(model(*frames, num_flow_updates=2)[-1], expected)


def test_patch_refuses_block_with_other_result(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = type(model.corr_block)
    original = kind.index_pyramid
    monkeypatch.setattr(kind, "index_pyramid", lambda self, centroids_coords: 2 * original(self, centroids_coords))
    refuses(r"corr_block .* is not the all-pairs lookup", fullfield.patch, model)
