"""RAFT against the implementations that its weights were made for, in the same process."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_networks import pair, tiny
from torch import Tensor, nn
from torch.nn import functional

from fullfield.models import RAFT, RAFTConfig
from fullfield.models.state import convert_torchvision_keys
from refusals import refuses

SIZES = ["large", "small"]


def config(size: str, **changes: Any) -> RAFTConfig:
    return RAFTConfig.large(**changes) if size == "large" else RAFTConfig.small(**changes)


@pytest.fixture(params=SIZES)
def size(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def small() -> RAFT:
    return tiny("raft-small")


@pytest.fixture
def from_vision(torchvision: Any, size: str) -> nn.Module:
    torch.manual_seed(1)
    models = torchvision.models.optical_flow
    made: nn.Module = (models.raft_large if size == "large" else models.raft_small)(weights=None)
    return _statistics(made)


@pytest.fixture
def from_ptlflow(ptlflow: Any, size: str) -> nn.Module:
    torch.manual_seed(2)
    made: nn.Module = ptlflow.get_model("raft" if size == "large" else "raft_small")
    made.iters = 2  # type: ignore[assignment]
    return _statistics(made)


def _statistics(model: nn.Module) -> nn.Module:
    """Batch norms that do something."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.2, 0.2)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.uniform_(module.bias, -0.2, 0.2)
    return model


def loss(flows: list[Tensor]) -> Tensor:
    random = torch.Generator().manual_seed(9)
    truth = torch.randn(flows[0].shape, generator=random)
    return sum((0.8**i * (flow - truth).abs().mean() for i, flow in enumerate(reversed(flows))), torch.zeros(()))


def same_gradients(model: RAFT, theirs: dict[str, Tensor]) -> None:
    """Equal but for activations that rounding carries over the kink of their ReLU: one is 1 % on frames this small."""
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        size = float(torch.linalg.vector_norm(theirs[name]))
        off = float(torch.linalg.vector_norm(parameter.grad - theirs[name]))
        # A bias in front of an instance norm has no effect: its gradient is rounding alone.
        assert off <= 2e-2 * size + 1e-5, (name, off, size)


def test_raft_equals_torchvision(from_vision: nn.Module, size: str) -> None:
    model = RAFT(config(size)).eval()
    model.load_checkpoint(from_vision.state_dict())
    first, second = pair(128, 136, 2)
    with torch.no_grad():
        theirs = from_vision.eval()(2 * first - 1, 2 * second - 1, num_flow_updates=2)
        ours = model.predictions(first, second, 2)
        assert torch.equal(model(first, second, 2), ours[-1])
    assert len(ours) == len(theirs) == 2
    assert float(theirs[-1].abs().max()) > 1
    for mine, other in zip(ours, theirs, strict=True):
        assert float((mine - other).abs().max()) < 1e-4
    loss(from_vision.train()(2 * first - 1, 2 * second - 1, num_flow_updates=2)).backward()
    loss(model.train().predictions(first, second, 2)).backward()
    gradients = {name: parameter.grad for name, parameter in from_vision.named_parameters()}
    same_gradients(model, convert_torchvision_keys(gradients))
    for mine, other in zip(model.buffers(), from_vision.buffers(), strict=True):  # batch statistics were updated
        torch.testing.assert_close(mine, other)


def test_raft_equals_ptlflow_at_any_size(from_ptlflow: nn.Module, size: str) -> None:
    model = RAFT(config(size)).eval()
    model.load_checkpoint({f"module.{name}": value for name, value in from_ptlflow.state_dict().items()})
    first, second = pair(131, 146, 2)
    images = torch.stack((first, second), 1).flip(2)  # BGR
    with torch.no_grad():
        theirs = from_ptlflow.eval()({"images": images})["flows"][:, 0]
        ours = model(first, second, 2)
    assert float(theirs.abs().max()) > 1
    assert float((ours - theirs).abs().max()) < 1e-4
    from_ptlflow.train().freeze_bn()  # type: ignore[operator]
    model.train()
    model.freeze_batch_norm()
    # Of one pair: with frozen statistics a batch's gradients are a sum.
    loss(from_ptlflow({"images": images[:1]})["flow_preds"]).backward()
    loss(model.predictions(first[:1], second[:1], 2)).backward()
    same_gradients(
        model, {name: parameter.grad for name, parameter in from_ptlflow.named_parameters(remove_duplicate=False)}
    )


def test_raft_initial_flow_equals_ptlflow_warm_start(
    from_ptlflow: nn.Module, size: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = RAFT(config(size)).eval()
    model.load_checkpoint(from_ptlflow.state_dict())
    home = __import__("ptlflow.models.raft.raft", fromlist=["raft"])
    monkeypatch.setattr(home, "forward_interpolate_batch", lambda flow: flow)
    first, second = pair(128, 144)
    start = torch.randn(1, 2, 16, 18, generator=torch.Generator().manual_seed(3))
    images = torch.stack((first, second), 1).flip(2)
    with torch.no_grad():
        theirs = from_ptlflow.eval()({"images": images, "prev_preds": {"flow_small": start}})["flows"][:, 0]
        ours = model(first, second, 2, initial_flow=start)
        cold = model(first, second, 2)
    assert float((ours - theirs).abs().max()) < 1e-4
    assert float((ours - cold).abs().max()) > 1


def test_raft_zero_updates_upsample_initial_flow(small: RAFT) -> None:
    first, second = pair(60, 90)
    start = torch.full((1, 2, 15, 20), 1.5)
    flow = small(first, second, 0, initial_flow=start)
    assert flow.shape == (1, 2, 60, 90)
    torch.testing.assert_close(flow[:, 0], torch.full((1, 60, 90), 1.5 * 90 / 20))
    torch.testing.assert_close(flow[:, 1], torch.full((1, 60, 90), 1.5 * 60 / 15))
    refuses("updates: expected an integer >= 1", small, first, second, 0)
    refuses("updates: expected an integer >= 1", small.predictions, first, second, 0, initial_flow=start)


def test_raft_kitti_padding_pads_below(size: str) -> None:
    name = "raft" if size == "large" else "raft-small"
    evenly, below = tiny(name), tiny(name, padding="kitti")
    below.load_checkpoint(evenly.state_dict())
    first, second = pair(45, 64)
    with torch.no_grad():
        kitti = below(first, second, 2)
        by_hand = evenly(*(functional.pad(frame, (0, 0, 0, 3), mode="replicate") for frame in (first, second)), 2)
        assert torch.equal(kitti, by_hand[..., :45, :])
        assert not torch.equal(kitti, evenly(first, second, 2))


def test_raft_coordinates_have_no_gradient(small: RAFT) -> None:
    first, second = pair(32, 32)
    start = torch.zeros(1, 2, 4, 4, requires_grad=True)
    flows = small.predictions(first, second, 2, initial_flow=start)
    flows[-1].sum().backward()
    assert start.grad is None or float(start.grad.abs().max()) == 0


def test_raft_predictions_upsample_in_one_batch(size: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, frames = tiny("raft" if size == "large" else "raft-small"), pair(130, 136, 2)
    cells = 2 * 17 * 17
    sizes: list[int] = []
    mask = model.predict_mask

    def seen(net: Tensor) -> Tensor | None:
        sizes.append(net.shape[0] // 2)
        return mask(net)

    monkeypatch.setattr(model, "predict_mask", seen)

    def predicted(together: int) -> list[Tensor]:
        sizes.clear()
        monkeypatch.setattr("fullfield.models.raft.model._TOGETHER_CELLS", {"cpu": together * cells})
        return model.predictions(*frames, updates=5)

    alone = predicted(0)
    assert sizes == [1] * 5
    for together, groups in ((2, [2, 2, 1]), (9, [5])):
        found = predicted(together)
        assert sizes == groups
        for one, other in zip(found, alone, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    found[0].mul_(2)  # each may be written to
    none = torch.zeros(0, 3, 130, 136)
    assert [flow.shape[0] for flow in model.predictions(none, none, updates=5)] == [0] * 5


def test_raft_lookup_dtype_in_training_follows_features(small: RAFT, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fullfield.models.raft.model.CorrelationPyramid", lambda *_, **options: options["out_dtype"])

    def get_out_dtype(on_gpu: bool, learns: bool) -> object:
        fmap: Any = SimpleNamespace(dtype=torch.bfloat16, is_cuda=on_gpu, requires_grad=learns)
        return small.build_pyramid(fmap, fmap)

    assert get_out_dtype(True, True) is torch.bfloat16
    assert get_out_dtype(False, True) is get_out_dtype(True, False) is None
    with torch.no_grad():
        assert get_out_dtype(True, True) is None


def test_raft_freeze_batch_norm_survives_train() -> None:
    model = RAFT(RAFTConfig.large())
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    assert norms
    model.freeze_batch_norm()
    assert model.training
    assert not any(norm.training for norm in norms)
    model.eval()
    assert not any(norm.training for norm in model.train().modules() if norm in norms)
    model.freeze_batch_norm(False)
    assert all(norm.training for norm in norms)


def test_raft_dropout_applies_in_training_only() -> None:
    torch.manual_seed(0)
    model = RAFT(RAFTConfig.small(dropout=0.5))
    first, second = pair(32, 32)
    with torch.no_grad():
        assert not torch.equal(model(first, second, 1), model(first, second, 1))
        model.eval()
        assert torch.equal(model(first, second, 1), model(first, second, 1))


def test_raft_float64_matches_float32(small: RAFT) -> None:
    first, second = pair(32, 40)
    with torch.no_grad():
        single = small(first, second, 2)
        double = small.double()(first.double(), second.double(), 2)
    torch.testing.assert_close(double.float(), single, rtol=0, atol=1e-3)


def test_raft_official_weights_match_listed_error(data_dir: Path) -> None:
    from fullfield.estimators._frames import read_or_convert_frame
    from fullfield.io import read_flow

    folder = data_dir / "flow" / "middlebury" / "Venus"
    weights = data_dir / "weights" / "raft-small.pth"
    if not folder.is_dir() or not weights.is_file():
        pytest.skip(f"{folder} or {weights} is absent")
    model = RAFT(RAFTConfig.small()).eval()
    model.load_checkpoint(weights)
    with torch.inference_mode():
        flow = model(
            read_or_convert_frame(folder / "frame10.png")[None], read_or_convert_frame(folder / "frame11.png")[None]
        )
    truth = read_flow(folder / "flow10.flo")
    error = torch.linalg.vector_norm(flow[0] - truth.flow, dim=0)[truth.valid].mean()
    assert float(error) == pytest.approx(0.372, abs=5e-4)  # ptlflow 0.4.2 with the same weights, three digits
