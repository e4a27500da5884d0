"""SEA-RAFT: the original's outputs and gradients, and the contract of a network."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tiny_networks import pair, randomise, tiny
from torch import Tensor, nn
from torch.nn import functional

from fullfield import InputError
from fullfield.models import framing
from fullfield.models.framing import choose_padding, mark_unconverged_pairs
from fullfield.models.prepared import PreparedFlowCache
from fullfield.models.sea_raft import SEARAFT, SEARAFTConfig, compute_expected_log_scale
from fullfield.models.sea_raft.depthwise import DepthwiseConvolution
from fullfield.models.weights import NETWORKS


def both_networks(ptlflow: Any, size: str) -> tuple[nn.Module, SEARAFT]:
    """ptlflow's model and ours with the same weights."""
    theirs = ptlflow.get_model(f"sea_raft_{size}").eval()
    randomise(theirs)
    config = SEARAFTConfig.small() if size == "s" else SEARAFTConfig.medium()
    ours = SEARAFT(config).eval()
    ours.load_checkpoint(theirs.state_dict())
    return theirs, ours


def as_images(frame1: Tensor, frame2: Tensor) -> dict[str, Tensor]:
    """What ptlflow's models take: BGR."""
    return {"images": torch.stack((frame1, frame2), 1).flip(2)}


def test_sea_raft_equals_ptlflow(ptlflow: Any) -> None:
    """The medium form; the large one has more updates, and gradients are compared in the small one."""
    theirs, ours = both_networks(ptlflow, "m")
    frame1, frame2 = pair(130, 141)
    with torch.no_grad():
        expected = theirs(as_images(frame1, frame2))["flows"][:, 0]
        got = ours(frame1, frame2)
        assert expected.isfinite().all()
        assert 1 < expected.std() < 100
        torch.testing.assert_close(got, expected, rtol=0, atol=2e-5 * expected.abs().max().item())
        assert (ours(frame1, frame2, 3) - expected).abs().max() > 1e-2  # the last update counts


def test_mark_unconverged_pairs_requires_moving_cells() -> None:
    before = torch.zeros(3, 2, 10, 10)
    after = before.clone()
    after[0, 0, 0, :2] = 0.2  # 2 % of the cells, more than an eighth of a cell
    after[1, 1, 0, :3] = 0.2
    after[2, 0] = 0.12
    assert mark_unconverged_pairs(before, after).tolist() == [False, True, False]
    assert mark_unconverged_pairs(before, after * float("nan")).tolist() == [False] * 3


Moves = Callable[[Tensor, Tensor], Tensor]


@pytest.fixture
def until(monkeypatch: pytest.MonkeyPatch) -> Callable[[Moves], None]:
    """Let a function of the flow before and after an update decide whether a pair still moves."""
    return lambda moves: monkeypatch.setattr(framing, "mark_unconverged_pairs", moves)


@pytest.mark.parametrize("form", ["module", "prepared"])
def test_sea_raft_continues_updates_while_flow_moves(until: Callable[[Moves], None], form: str) -> None:
    model = tiny("sea-raft", max_updates=5, stage_channels=(8, 16, 16))
    assert isinstance(model, SEARAFT)
    two = tuple(torch.cat(both) for both in zip(pair(64, 72), pair(64, 72, seed=2), strict=True))
    run: Any = PreparedFlowCache(model, "exact") if form == "prepared" else model
    first, second = ([frame[number : number + 1] for frame in two] for number in (0, 1))
    start = run(*first, updates=0)
    with torch.no_grad():
        until(lambda old, _: torch.zeros(len(old), dtype=torch.bool))
        assert torch.equal(run(*first), run(*first, updates=2))
        until(lambda old, _: torch.ones(len(old), dtype=torch.bool))
        assert torch.equal(run(*first), run(*first, updates=5))
        assert not torch.equal(run(*first), start)
        seen: list[int] = []

        def alone(old: Tensor, _: Tensor) -> Tensor:
            """The first pair has settled after three updates, the second one never."""
            seen.append(len(old))
            return torch.tensor([len(seen) < 2, True])[: len(old)]

        until(alone)
        both = run(*two)
        assert seen == [2, 2, 2]
        torch.testing.assert_close(both[:1], run(*first, updates=3), rtol=0, atol=1e-4)
        torch.testing.assert_close(both[1:], run(*second, updates=5), rtol=0, atol=1e-4)


def test_sea_raft_given_updates_are_exact(until: Callable[[Moves], None]) -> None:
    model = tiny("sea-raft", max_updates=5)
    assert isinstance(model, SEARAFT)
    until(lambda old, _: torch.ones(len(old), dtype=torch.bool))
    one = pair(64, 72)
    assert len(model.predictions(*one)) == len(model.train().predictions(*one)) == 1 + 2
    assert model.get_max_updates(None) == 2
    assert model.eval().get_max_updates(None) == 5
    assert model.get_max_updates(3) == 3
    assert tiny("sea-raft", updates=0, max_updates=5).get_max_updates(None) == 0
    with pytest.raises(InputError, match="max_updates: expected an integer >= 2"):
        model.config.replace(max_updates=1)


def named_gradients(module: nn.Module) -> dict[str, Tensor]:
    found = {name.replace(".bn3.", ".downsample.1."): p.grad for name, p in module.named_parameters()}
    return {name: grad for name, grad in found.items() if grad is not None}


def test_sea_raft_predictions_and_gradients_equal_ptlflow(ptlflow: Any) -> None:
    theirs, ours = both_networks(ptlflow, "s")
    theirs.iters = 2
    frame1, frame2 = pair(128, 136, batch=2)
    images = as_images(frame1, frame2)
    out = theirs.train()({**images, "flows": torch.zeros(2, 1, 2, 128, 136)})
    got = ours.train().predictions_with_mixture(frame1, frame2, 2)
    assert len(got) == len(out["flow_preds"]) == 3
    generator = torch.Generator().manual_seed(3)
    ours_loss, theirs_loss = torch.zeros(()), torch.zeros(())
    for (flow, info), flow0, info0 in zip(got, out["flow_preds"], out["info_preds"], strict=True):
        for value, wanted in ((flow, flow0), (info, info0)):
            scale = wanted.detach().abs().max().item()
            torch.testing.assert_close(value, wanted, rtol=0, atol=5e-5 * scale)
            weights = torch.randn(wanted.shape, generator=generator) / scale
            ours_loss = ours_loss + (value * weights).mean()
            theirs_loss = theirs_loss + (wanted * weights).mean()
    ours_loss.backward()
    theirs_loss.backward()
    expected, gradients = named_gradients(theirs), named_gradients(ours)
    assert gradients.keys() == expected.keys() == dict(ours.named_parameters()).keys()
    for name, wanted in expected.items():
        # A bias in front of a batch norm has no gradient but rounding.
        assert (gradients[name] - wanted).norm() <= 2e-3 * wanted.norm() + 1e-6, name
    buffers = {k.replace(".bn3.", ".downsample.1."): b for k, b in theirs.named_buffers()}
    for name, buffer in ours.named_buffers():
        torch.testing.assert_close(buffer, buffers[name], rtol=1e-4, atol=1e-4)


def test_flow_with_mixture_returns_mixture_of_last_update() -> None:
    model = tiny("sea-raft")
    pictures = pair(67, 90)
    with torch.no_grad():
        flow, info = model.flow_with_mixture(*pictures)
        every = model.predictions_with_mixture(*pictures)
        torch.testing.assert_close(flow, model(*pictures))
        torch.testing.assert_close((flow, info), every[-1])
        assert len(every) == 3
        assert flow.shape == (1, 2, 67, 90)
        assert info.shape == (1, 4, 67, 90)
        start, first, _ = model.predictions(*pictures)
        torch.testing.assert_close(start, model(*pictures, updates=0))
        torch.testing.assert_close(first, model(*pictures, updates=1))


def test_compute_expected_log_scale_equals_mixture_mean() -> None:
    info = torch.tensor([0.0, 0.0, 3.0, -2.0]).view(1, 4, 1, 1)
    assert compute_expected_log_scale(info, SEARAFTConfig()).item() == pytest.approx(
        1.5
    )  # the narrow scale is limited to 0
    assert compute_expected_log_scale(info, SEARAFTConfig(log_scale_min=-1.0)).item() == pytest.approx(1.0)
    info[:, 2] = 40
    info[:, 0] = 100
    assert compute_expected_log_scale(info, SEARAFTConfig()).item() == pytest.approx(10.0)


def test_sea_raft_initial_flow_replaces_regressed_flow() -> None:
    model = tiny("sea-raft")
    pictures = pair(64, 80)
    with torch.no_grad():
        constant = torch.tensor([3.0, -5.0]).view(1, 2, 1, 1)
        for share in (1, 2, 4, 8):
            start = (constant / share).expand(1, 2, 64 // share, 80 // share)
            flow = model(*pictures, updates=0, initial_flow=start)
            inner = flow[..., 8:-8, 8:-8]  # convex combinations read zeros beyond the border, as the original's do
            torch.testing.assert_close(inner, constant.expand_as(inner))
        regressed = model.regress_initial_flow(
            model.encode(*(model.normalize_and_pad_frame(p, choose_padding(64, 80)) for p in pictures)).net
        )
        torch.testing.assert_close(model(*pictures, initial_flow=regressed), model(*pictures))
        assert (model(*pictures, initial_flow=regressed + 1) - model(*pictures)).abs().max() > 1e-2


OFFICIAL = {
    "name": "spring-M",
    "use_var": True,
    "var_min": 0,
    "var_max": 10,
    "pretrain": "resnet34",
    "initial_dim": 64,
    "block_dims": [64, 128, 256],
    "radius": 4,
    "dim": 128,
    "num_blocks": 2,
    "iters": 4,
    "scale": -1,
    "lr": 4e-4,
}


def test_sea_raft_configurations_are_published_sizes() -> None:
    small, medium, large = SEARAFTConfig.small(), SEARAFTConfig.medium(), SEARAFTConfig.large()
    assert (small.backbone, medium.backbone, large.backbone) == ("resnet18", "resnet34", "resnet34")
    assert (small.updates, medium.updates, large.updates) == (4, 4, 12)
    assert large.replace(name=medium.name, updates=4) == medium
    assert SEARAFTConfig.from_official(OFFICIAL).replace(name=medium.name) == medium
    limits = SEARAFTConfig.from_official({**OFFICIAL, "use_var": False})
    assert (limits.log_scale_min, limits.log_scale_max) == (0, 0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        small.updates = 3  # type: ignore[misc]
    assert len({small, medium, large}) == 3
    assert SEARAFTConfig(**medium.as_dict()) == medium
    assert sum(p.numel() for p in SEARAFT(small).parameters()) == 8_883_460
    ours = SEARAFTConfig.fullfield_m()
    assert ours.replace(name=small.name, max_updates=None, adapts_coarse_starts=True, loss_log_scale_max=None) == small
    assert (ours.updates, ours.max_updates, NETWORKS["fullfield-m"]) == (4, 8, ours)
    with pytest.raises(InputError, match="settings: expected those of a SEA-RAFT network, 'dim' is missing"):
        SEARAFTConfig.from_official({k: v for k, v in OFFICIAL.items() if k != "dim"})


def test_depthwise_convolution_gradients_pass_gradcheck() -> None:
    draw = torch.Generator().manual_seed(4)
    x = torch.randn(2, 3, 6, 5, dtype=torch.float64, generator=draw, requires_grad=True)
    weight = torch.randn(3, 1, 7, 7, dtype=torch.float64, generator=draw, requires_grad=True)
    assert torch.autograd.gradcheck(DepthwiseConvolution.apply, (x, weight))
    own = DepthwiseConvolution.apply(x, weight)  # type: ignore[no-untyped-call]
    assert torch.equal(own, functional.conv2d(x, weight, padding=3, groups=3))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_depthwise_convolution_on_gpu_equals_pytorch(dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(5)
    x, grad = (torch.randn(2, 128, 19, 30, generator=draw).cuda().to(dtype) for _ in range(2))
    weight = torch.randn(128, 1, 7, 7, generator=draw).cuda().to(dtype)
    results = []
    for convolve in (
        DepthwiseConvolution.apply,
        lambda x, weight: functional.conv2d(x.double(), weight.double(), padding=3, groups=128),
    ):
        inputs = [part.contiguous(memory_format=torch.channels_last).requires_grad_() for part in (x, weight)]
        out = convolve(*inputs)
        results.append([out, *torch.autograd.grad(out, inputs, grad.to(out.dtype))])
    for own, exact in zip(*results, strict=True):
        allowed = 1e-5 if dtype == torch.float32 else 1e-2
        assert float((own.detach().double() - exact.detach()).norm() / exact.detach().norm()) < allowed
