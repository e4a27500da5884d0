"""Recorded training steps of the residual networks on points."""

from __future__ import annotations

import warnings
from itertools import accumulate
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fullfield import InputError
from fullfield.models.pointcnnpp import PointPyramid, PointResNet, PointResNetConfig, RecordedStep, recorded
from fullfield.models.pointcnnpp.recorded import PaddedPyramid, _lengths
from fullfield.nn.points import cloud_means
from fullfield.ops.point_conv import backends
from refusals import refuses

CONFIGS = {
    "basic": PointResNetConfig(grid=0.04, classes=5, channels=(8, 8, 16, 16)),
    "bottleneck": PointResNetConfig.resnet50(grid=0.04, classes=5, channels=(4, 8, 8, 12), blocks=(1, 2, 1, 1)),
}
REASON = dict(backends("cuda"))["cuda"] if torch.cuda.is_available() else "no GPU that PyTorch can use"


def batch(sizes: tuple[int, ...], seed: int, device: str = "cpu") -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Points on bent sheets, offsets, features and labels."""
    generator = torch.Generator().manual_seed(seed)
    points = torch.rand(sum(sizes), 3, generator=generator)
    points[:, 2] = 0.3 * points[:, 0] ** 2 + 0.1 * points[:, 1]
    features = torch.randn(sum(sizes), 3, generator=generator)
    labels = torch.randint(5, (len(sizes),), generator=generator)
    return points.to(device), torch.tensor([0, *accumulate(sizes)]), features.to(device), labels.to(device)


def plain(model: PointResNet, features: Tensor, pyramid: PointPyramid, labels: Tensor) -> list[Tensor]:
    """The loss and all gradients without a recording."""
    loss = loss_of(model(features, pyramid), labels)
    return [loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))]


def loss_of(logits: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(logits.float(), labels)


def assert_close(found: list[Tensor], right: list[Tensor], allowed: float) -> None:
    for one, two in zip(found, right, strict=True):
        assert (one - two).norm() <= allowed * two.norm(), one.shape


@pytest.mark.parametrize("name", CONFIGS)
def test_absent_points_change_nothing(name: str) -> None:
    torch.manual_seed(0)
    model = PointResNet(CONFIGS[name])
    steps = model.config.steps()
    points, offsets, *_ = batch((300, 200), 0)
    like = model.prepare(points, offsets)
    padded = PaddedPyramid(like, steps, [int(1.3 * length) for length in _lengths(like, steps)])
    for seed, sizes in enumerate(((300, 200), (0, 120), (350, 4))):
        points, offsets, features, labels = batch(sizes, seed)
        pyramid = model.prepare(points, offsets)
        assert padded.fits(_lengths(pyramid, steps))
        padded.load(pyramid)
        wide = torch.zeros(padded.pyramid.points[0].shape[0], 3)
        wide[: len(features)] = features
        found, right = plain(model, wide, padded.pyramid, labels), plain(model, features, pyramid, labels)
        assert_close(found, right, 1e-4)
    points, offsets, *_ = batch((400, 400), 0)
    assert not padded.fits(_lengths(model.prepare(points, offsets), steps))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16], ids=str)
def test_means_of_clouds(dtype: torch.dtype) -> None:
    features = (torch.arange(24).view(8, 3) * 100 + 60_000).clamp(max=65_000).to(dtype).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        found = cloud_means(features, torch.tensor([3, 3, 7]))
    right = torch.stack([features[:3].mean(0), torch.zeros(3, dtype=dtype), features[3:7].mean(0)])
    torch.testing.assert_close(found, right)
    (grad,) = torch.autograd.grad(found.sum(), features)
    share = torch.tensor([1 / 3] * 3 + [1 / 4] * 4 + [0]).to(dtype)
    torch.testing.assert_close(grad, share[:, None].expand(8, 3))


def test_without_a_gpu_every_step_is_plain() -> None:
    torch.manual_seed(0)
    model = PointResNet(CONFIGS["basic"])
    step = RecordedStep(model, loss_of)
    for seed, sizes in enumerate(((200, 150), (100,))):
        points, offsets, features, labels = batch(sizes, seed)
        pyramid = model.prepare(points, offsets)
        right = plain(model, features, pyramid, labels)
        loss = step(features, pyramid, labels)
        assert not loss.requires_grad
        assert all(torch.equal(a, b) for a, b in zip([loss, *(p.grad for p in model.parameters())], right, strict=True))
    assert step.recordings == 0


def test_mistakes_are_named() -> None:
    model = PointResNet(CONFIGS["basic"])
    points, offsets, features, labels = batch((100, 80), 0)
    pyramid = model.prepare(points, offsets)
    step = RecordedStep(model, loss_of)
    other = PointResNet(CONFIGS["basic"].replace(norm="batch"))
    for call, message in (
        (lambda: RecordedStep(torch.nn.Linear(2, 2), loss_of), "network: expected a PointResNet"),
        (lambda: RecordedStep(other, loss_of), "network: expected one whose config.norm is 'layer', got 'batch'"),
        (lambda: RecordedStep(model, None), "loss: expected a function"),
        (lambda: RecordedStep(model, loss_of, spare=-0.1), "spare: "),
        (lambda: step(features[1:], pyramid, labels), "features: "),
        (lambda: step(features.clone().requires_grad_(), pyramid, labels), "features: expected a tensor that does not"),
        (lambda: RecordedStep(model, lambda logits, _: logits)(features, pyramid, labels), "loss: expected a function"),
    ):
        refuses(f"^{message}", call)


def test_what_is_recorded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a graph that computes its work at every replay, as there is no GPU here."""

    def record(graph: Any, work: Any, _: Any) -> None:
        graph.again = lambda: work(graph._features, graph._padded.pyramid, graph._targets)

    monkeypatch.setattr(recorded._Graph, "record", record)
    monkeypatch.setattr(recorded._Graph, "replay", lambda graph, _: graph.again())
    torch.manual_seed(0)
    model = PointResNet(CONFIGS["basic"])
    step = RecordedStep(model, loss_of, spare=0.5)

    def check(sizes: tuple[int, ...], seed: int, recordings: int) -> None:
        points, offsets, features, labels = batch(sizes, seed)
        pyramid = model.prepare(points, offsets)
        loss = step._on_gpu(features, pyramid, (labels,))
        found = [loss, *(p.grad for p in model.parameters())]
        assert_close(found, plain(model, features, pyramid, labels), 1e-4)
        assert step.recordings == recordings

    check((200, 150), 0, 1)
    check((100, 220), 1, 1)
    check((0, 40), 2, 1)
    check((400, 300), 3, 2)  # does not fit
    check((200, 150), 0, 2)
    check((200, 150, 60), 4, 3)  # another number of clouds
    check((400, 300, 60), 4, 4)
    model.double().float()  # its parameters have moved
    check((200, 150, 60), 5, 5)
    with pytest.raises(InputError, match=r"^geometry: expected one prepared with gradient=True"):
        step._on_gpu(*without_gradient(model))


def without_gradient(model: PointResNet) -> tuple[Tensor, PointPyramid, tuple[Tensor]]:
    points, offsets, features, labels = batch((200, 150, 60), 5)
    return features, model.prepare(points, offsets, gradient=False), (labels,)


# ---- on a GPU


gpu = pytest.mark.gpu
on_gpu = pytest.mark.skipif(REASON is not None, reason=str(REASON))
MOST = {torch.float32: 1e-3, torch.float16: 3e-2, torch.bfloat16: 0.15}


def prepared(model: PointResNet, sizes: tuple[int, ...], seed: int) -> tuple[Tensor, PointPyramid, Tensor]:
    """Features of the model's dtype, pyramid and labels, on the GPU."""
    points, offsets, features, labels = batch(sizes, seed, "cuda")
    return features.to(model.stem.conv.weight.dtype), model.prepare(points, offsets), labels


def check_step(step: RecordedStep, sizes: tuple[int, ...], seed: int, allowed: float) -> None:
    """A recorded step has the loss and the gradients of a plain one."""
    model = step.network
    given = prepared(model, sizes, seed)
    right = plain(model, *given)
    loss = step(*given).clone()
    assert_close([loss, *(p.grad for p in model.parameters())], right, allowed)


@gpu
@on_gpu
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("dtype", MOST, ids=str)
def test_batches_of_other_sizes_are_replayed(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = PointResNet(CONFIGS[name]).to("cuda", dtype)
    step = RecordedStep(model, loss_of, spare=0.5)
    for seed, sizes in enumerate(((3000, 2000), (2000, 2500), (1, 1000), (0, 3500), (3100, 2100), (3000, 2000))):
        check_step(step, sizes, seed % 5, MOST[dtype])
    assert step.recordings == 1
    check_step(step, (6000, 4000), 7, MOST[dtype])  # does not fit
    check_step(step, (3000, 2000), 0, MOST[dtype])
    assert step.recordings == 2
    check_step(step, (2000, 1500, 900), 8, MOST[dtype])  # another number of clouds
    assert step.recordings == 3


@gpu
@on_gpu
def test_same_bits_in_every_replay_and_nothing_waits() -> None:
    torch.manual_seed(0)
    model = PointResNet(CONFIGS["basic"]).to("cuda", torch.float16)
    step = RecordedStep(model, loss_of)
    one, other = (prepared(model, (2500, 1500), seed) for seed in (0, 1))
    results = []
    for given in (one, other, one):
        step(*given)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the mode is a prototype
            torch.cuda.set_sync_debug_mode("error")
            try:
                loss = step(*given)
            finally:
                torch.cuda.set_sync_debug_mode("default")
        results.append([loss, *(p.grad.clone() for p in model.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(results[0], results[2], strict=True))
    assert not torch.equal(results[0][0], results[1][0])


@gpu
@on_gpu
def test_an_optimizer_and_parameters_that_change() -> None:
    """Replays read the weights of now; frozen and moved parameters are recorded again."""
    torch.manual_seed(0)
    model = PointResNet(CONFIGS["basic"]).cuda()
    step = RecordedStep(model, loss_of)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for number in range(6):
        check_step(step, (2000, 1500), 0, 1e-3)
        optimizer.step()
        optimizer.zero_grad(set_to_none=number % 2 == 0)
        features, pyramid, labels = prepared(model, (2000, 1500), 0)
        losses.append(float(loss_of(model(features, pyramid), labels).detach()))
    assert losses[-1] < losses[0]
    assert step.recordings == 1
    for parameter in model.stem.parameters():
        parameter.requires_grad_(False)
    given = prepared(model, (2000, 1500), 0)
    step(*given)
    assert step.recordings == 2
    assert all(p.grad is None for p in model.stem.parameters())
    assert all(p.grad is not None for p in model.stages.parameters())
    model.requires_grad_(True).half()
    check_step(step, (2000, 1500), 0, MOST[torch.float16])
    assert step.recordings == 3


@gpu
@on_gpu
def test_autocast() -> None:
    torch.manual_seed(0)
    model = PointResNet(CONFIGS["basic"]).cuda()
    step = RecordedStep(model, loss_of)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with torch.autocast("cuda", torch.float16):
        for seed in range(3):  # weights that were cast before a step are not used after it
            check_step(step, (2000, 1500), seed, MOST[torch.float16])
            optimizer.step()
            torch.clear_autocast_cache()
    assert step.recordings == 1
    assert model.stem.conv.weight.grad.dtype == torch.float32
