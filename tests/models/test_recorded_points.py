"""Recorded training steps of the residual networks on points."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from itertools import accumulate

import pytest
import torch
from emulator import HOPPER, Emulator
from torch import Tensor
from torch.nn.functional import cross_entropy

from benchmarks.cases.points import recorded_step
from benchmarks.cases.points.network import judged, relative_errors
from benchmarks.cases.points.recorded_step import RecordedStep
from fullfield.models.pointcnnpp import PointPyramid, PointResNet, PointResNetConfig
from fullfield.ops.neighbors import cuda as neighbors
from fullfield.ops.point_conv import explain_backends, protocol, reference
from fullfield.ops.point_conv.cuda import config, launch, pooling
from fullfield.ops.point_norm import cuda as norms
from refusals import refuses

CONFIGS = {
    "basic": PointResNetConfig(grid=0.04, classes=5, channels=(8, 8, 16, 16)),
    "bottleneck": PointResNetConfig.resnet50(grid=0.04, classes=5, channels=(4, 8, 8, 12), blocks=(1, 2, 1, 1)),
}
REASON = dict(explain_backends("cuda"))["cuda"] if torch.cuda.is_available() else "no GPU that PyTorch can use"
Batch = tuple[Tensor, PointPyramid, Tensor]


def made(name: str, dtype: torch.dtype = torch.float32, device: str = "cpu") -> PointResNet:
    torch.manual_seed(0)
    return PointResNet(CONFIGS[name]).to(device, dtype)


def batch(model: PointResNet, sizes: tuple[int, ...], seed: int) -> Batch:
    """Return features, pyramid and labels of points on bent sheets."""
    generator = torch.Generator().manual_seed(seed)
    points = torch.rand(sum(sizes), 3, generator=generator)
    points[:, 2] = 0.3 * points[:, 0] ** 2 + 0.1 * points[:, 1]
    features = torch.randn(sum(sizes), 3, generator=generator)
    labels = torch.randint(model.config.classes, (len(sizes),), generator=generator)
    weight = model.classifier.weight
    pyramid = model.build_pyramid(points.to(weight.device), torch.tensor([0, *accumulate(sizes)]))
    return features.to(weight), pyramid, labels.to(weight.device)


def loss_of(logits: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(logits if logits.dtype == torch.float64 else logits.float(), labels)


def plain(model: PointResNet, features: Tensor, pyramid: PointPyramid, labels: Tensor) -> list[Tensor]:
    """Return the loss and all gradients without a recording."""
    loss = loss_of(model(features, pyramid), labels)
    return [loss.detach(), *torch.autograd.grad(loss, [p for p in model.parameters() if p.requires_grad])]


def results(step: RecordedStep, given: Batch) -> list[Tensor]:
    """Return the loss and all gradients of a recorded step."""
    loss = step(*given)
    return [loss, *(p.grad.clone() for p in step.network.parameters() if p.grad is not None)]


def check(step: RecordedStep, given: Batch) -> None:
    """The errors are at most twice those of a plain step in the same dtype, plus its rounding."""
    model = step.network
    dtype = model.classifier.weight.dtype
    exact = PointResNet(model.config).to(model.classifier.weight.device, torch.float64)
    exact.load_state_dict({name: value.double() for name, value in model.state_dict().items()})
    right = plain(exact, given[0].double(), *given[1:])
    eager = relative_errors(plain(model, *given), right)
    wrong, facts = judged(relative_errors(results(step, given), right), eager, dtype)
    assert wrong is None, (wrong, facts)


def in_memory(
    model: PointResNet, like: Batch, spare: float
) -> tuple[recorded_step._Memory, Callable[[Batch], list[Tensor]]]:
    """Return memory for larger batches, and a function that computes loss and gradients of a batch there."""
    step = RecordedStep(model, loss_of, *like)
    memory = step._memory = recorded_step._Memory(model.config.list_geometry_steps(), *like[:2], like[2:], spare)

    def run(given: Batch) -> list[Tensor]:
        assert memory.is_compatible(*given[:2], given[2:])
        memory.load(*given[:2], given[2:])
        loss, gradients = step._padded_step()
        return [loss, *gradients]

    return memory, run


@pytest.mark.parametrize("name", CONFIGS)
def test_recorded_memory_padding_keeps_results(name: str) -> None:
    model = made(name)
    like = batch(model, (300, 200), 0)
    memory, run = in_memory(model, like, 0.3)
    memory.features.fill_(torch.inf)
    for seed, sizes in enumerate(((300, 200), (0, 120), (350, 4))):
        inputs = batch(model, sizes, seed)
        assert float(relative_errors(run(inputs), plain(model, *inputs)).max()) < 1e-4
    count = batch(model, (400, 400), 0)
    assert not memory.is_compatible(*count[:2], count[2:])


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_recorded_memory_padding_keeps_emulated_results(
    dtype: torch.dtype, emulate: Callable[..., Emulator], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All kernels of the features, whose memory is poisoned and watched; the geometry is the reference's."""
    machine = emulate(launch, norms, pooling, gpu=HOPPER, serve=True)
    monkeypatch.setattr(config, "_BANDS", 0)  # wgmma for any number of rows
    monkeypatch.setattr(protocol, "choose_triplet_backend_module", lambda _: reference)
    monkeypatch.setattr(neighbors, "explain_unsupported", lambda _: "not here")
    torch.manual_seed(0)
    settings = PointResNetConfig(grid=0.1, classes=3, channels=(16, 32), blocks=(1, 1), stem_kernel=3)
    model = PointResNet(settings).to(dtype)
    like, smaller = batch(model, (150, 0, 60), 0), batch(model, (20, 40, 90), 1)
    _, run = in_memory(model, like, 0.5)
    for inputs in (like, smaller):
        apart = float(relative_errors(run(inputs), plain(model, *inputs)).max())
        assert apart <= (1e-4 if dtype == torch.float32 else 1e-2)
    assert {"pack", "multiply", "outer", "layer_forward", "layer_backward", "pool_max"} <= set(machine.launched)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16], ids=str)
def test_cloud_means_equal_definition(dtype: torch.dtype) -> None:
    features = (torch.arange(24).view(8, 3) * 100 + 60_000).clamp(max=65_000).to(dtype).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        actual = recorded_step._means(features, torch.tensor([3, 0, 4]))
    right = torch.stack([features[:3].mean(0), torch.zeros(3, dtype=dtype), features[3:7].mean(0)])
    torch.testing.assert_close(actual, right)
    (grad,) = torch.autograd.grad(actual.sum(), features)
    share = torch.tensor([1 / 3] * 3 + [1 / 4] * 4 + [0]).to(dtype)
    torch.testing.assert_close(grad, share[:, None].expand(8, 3))


def test_recorded_step_without_gpu_is_plain() -> None:
    model = made("basic")
    step = RecordedStep(model, loss_of, *batch(model, (200, 150), 0))
    for seed, sizes in enumerate(((200, 150), (100,))):
        inputs = batch(model, sizes, seed)
        actual = results(step, inputs)
        assert not actual[0].requires_grad
        assert all(torch.equal(a, b) for a, b in zip(actual, plain(model, *inputs), strict=True))
    assert (step.replays, step.plain_steps) == (0, 2)


def test_recorded_step_falls_back_to_plain_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a graph that computes its work at every replay, as there is no GPU here."""
    monkeypatch.setattr(RecordedStep, "_replay", RecordedStep._padded_step)
    model = made("basic")
    like = batch(model, (200, 150), 0)
    step = RecordedStep(model, loss_of, *like)
    step._memory = recorded_step._Memory(model.config.list_geometry_steps(), *like[:2], like[2:], 0.5)
    monkeypatch.setattr(torch.cuda, "device", lambda _: warnings.catch_warnings())
    cases = [((200, 150), 1), ((100, 220), 1), ((0, 40), 1), ((400, 300), 0), ((200, 150, 60), 0), ((200, 150), 1)]
    for seed, (sizes, replays) in enumerate(cases):
        before = step.replays
        inputs = batch(model, sizes, seed)
        assert float(relative_errors(results(step, inputs), plain(model, *inputs)).max()) < 1e-4
        assert step.replays - before == replays, sizes
    with monkeypatch.context() as patch:
        patch.setattr(torch, "get_float32_matmul_precision", lambda: "medium")
        step(*like)
    assert (step.replays, step.plain_steps) == (4, 3)
    step.loss = lambda logits, labels, scale: scale * loss_of(logits, labels)
    step(*like, torch.tensor(2.0))
    assert step.plain_steps == 4


def test_recorded_step_refuses_bad_arguments() -> None:
    model = made("basic")
    inputs = batch(model, (100, 80), 0)
    features, pyramid, labels = inputs
    other = PointResNet(CONFIGS["basic"].replace(norm="batch"))
    forward_only = model.build_pyramid(torch.rand(180, 3), gradient=False)
    step = RecordedStep(model, loss_of, *inputs)
    for call, message in (
        (lambda: RecordedStep(torch.nn.Linear(2, 2), loss_of, *inputs), "network: expected a PointResNet"),
        (lambda: RecordedStep(other, loss_of, *inputs), "network: expected one whose config.norm is 'layer', got 'b"),
        (lambda: RecordedStep(model, None, *inputs), "loss: expected a function"),
        (lambda: RecordedStep(model, loss_of, *inputs, spare=-0.1), "spare: "),
        (lambda: step(features[1:], pyramid, labels), "features: "),
        (lambda: step(features, forward_only, labels), "geometry: expected one prepared with gradient=True"),
        (lambda: step(features.clone().requires_grad_(), pyramid, labels), "features: expected a tensor that does not"),
        (lambda: RecordedStep(model, lambda logits, _: logits, *inputs)(*inputs), "loss: expected a function"),
    ):
        refuses(f"^{message}", call)
    model.stem.requires_grad_(False)
    refuses("^network: expected the parameters of the recording", lambda: step(*inputs))


# ---- on a GPU


gpu = pytest.mark.gpu
on_gpu = pytest.mark.skipif(REASON is not None, reason=str(REASON))
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@gpu
@on_gpu
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_recorded_step_replays_batches_of_other_sizes(name: str, dtype: torch.dtype) -> None:
    model = made(name, dtype, "cuda")
    step = RecordedStep(model, loss_of, *batch(model, (3000, 2000), 0), spare=0.5)
    for seed, sizes in enumerate(((3000, 2000), (2000, 2500), (1, 1000), (0, 3500), (3100, 2100), (3000, 2000))):
        check(step, batch(model, sizes, seed % 5))
    assert (step.replays, step.plain_steps) == (6, 0)
    check(step, batch(model, (6000, 4000), 7))
    check(step, batch(model, (2000, 1500, 900), 8))
    assert (step.replays, step.plain_steps) == (6, 2)


@gpu
@on_gpu
def test_recorded_step_is_deterministic_and_does_not_synchronize() -> None:
    model = made("basic", torch.float16, "cuda")
    one, other = (batch(model, (2500, 1500), seed) for seed in (0, 1))
    step = RecordedStep(model, loss_of, *one)
    actual = []
    for inputs in (one, other, one):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the mode is a prototype
            torch.cuda.set_sync_debug_mode("error")
            try:
                actual.append(results(step, inputs))
            finally:
                torch.cuda.set_sync_debug_mode("default")
    assert step.replays == 3
    assert all(torch.equal(a, b) for a, b in zip(actual[0], actual[2], strict=True))
    assert not torch.equal(actual[0][0], actual[1][0])


@gpu
@on_gpu
def test_recorded_step_follows_optimizer_and_parameter_changes() -> None:
    """Replays read the weights of now, and frozen weights get no gradient."""
    model = made("basic", device="cuda")
    model.stem.requires_grad_(False)
    inputs = batch(model, (2000, 1500), 0)
    step = RecordedStep(model, loss_of, *inputs)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05)
    losses = []
    for number in range(6):
        actual = results(step, inputs)
        assert float(relative_errors(actual, plain(model, *inputs)).max()) < 1e-3
        losses.append(float(actual[0]))
        optimizer.step()
        optimizer.zero_grad(set_to_none=number % 2 == 0)
    assert losses[-1] < losses[0]
    assert step.replays == 6
    assert all(p.grad is None for p in model.stem.parameters())
    model.half()
    refuses("^network: expected the parameters of the rec", lambda: step(inputs[0].half(), *inputs[1:]))


@gpu
@on_gpu
def test_recorded_step_works_under_autocast() -> None:
    model = made("basic", device="cuda")
    inputs = batch(model, (2000, 1500), 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with torch.autocast("cuda", torch.float16):
        step = RecordedStep(model, loss_of, *inputs)
        for _ in range(3):  # weights that were cast before a step are not used after it
            actual = results(step, inputs)
            torch.clear_autocast_cache()
            apart = relative_errors(actual, plain(model, *inputs))
            assert float(apart.square().mean().sqrt()) < 0.1
            optimizer.step()
    assert step.replays == 3
    assert model.stem.conv.weight.grad.dtype == torch.float32


@gpu
@on_gpu
def test_recorded_step_refuses_loss_that_synchronizes() -> None:
    model = made("basic", device="cuda")
    inputs = batch(model, (600, 400), 0)

    def waiting(logits: Tensor, labels: Tensor) -> Tensor:
        return loss_of(logits, labels) * float(logits.detach().sum())

    refuses("^loss: expected a function that does not wait", lambda: RecordedStep(model, waiting, *inputs))
    gc.collect()  # the error's traceback holds the graph of the refused step, and that the nodes of its stream
    check(RecordedStep(model, loss_of, *inputs), inputs)
