"""Losses of flow against loops over pixels in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fullfield.training.flow import laplace_mixture_loss, loss_mask, sequence_loss
from fullfield.training.flow.batch import FlowBatch
from fullfield.training.flow.loss import mean_end_point_error
from refusals import refuses

SHAPE = (2, 5, 6)


def problem(seed: int = 0, count: int = 3) -> tuple[list[tuple[Tensor, Tensor]], Tensor, Tensor]:
    """Predictions with info (logarithms of scales within and beyond their limits), truth, pixels that count."""
    torch.manual_seed(seed)
    batch, height, width = SHAPE
    flow = 3 * torch.randn(batch, 2, height, width)
    pairs = [(flow + torch.randn_like(flow), 4 * torch.randn(batch, 4, height, width)) for _ in range(count)]
    return pairs, flow, torch.rand(SHAPE) < 0.7


def density(error: float, info: list[float], low: float, high: float) -> float:
    """Of one component, by the definition of the mixture."""
    shares = [math.exp(info[0]), math.exp(info[1])]
    scales = [math.exp(min(max(info[2], 0), high)), math.exp(min(max(info[3], low), 0))]
    return sum(
        share / sum(shares) * math.exp(-error / scale) / (2 * scale)
        for share, scale in zip(shares, scales, strict=True)
    )


def test_laplace_mixture_loss_equals_definition() -> None:
    pairs, flow, counted_mask = problem()
    expected = 0.0
    for index, (predicted, info) in enumerate(pairs):
        for b, y, x in counted_mask.nonzero().tolist():
            for component in range(2):
                error = abs(float(predicted[b, component, y, x]) - float(flow[b, component, y, x]))
                expected -= 0.7 ** (2 - index) * math.log(density(error, info[b, :, y, x].tolist(), -1.0, 3.0))
    actual = laplace_mixture_loss(pairs, flow, counted_mask, gamma=0.7, log_scale_min=-1.0, log_scale_max=3.0)
    assert float(actual) == pytest.approx(expected / (2 * int(counted_mask.sum())), rel=1e-5)


def test_sequence_loss_is_weighted_mean_error() -> None:
    pairs, flow, counted_mask = problem(1)
    predictions = [predicted for predicted, _ in pairs]
    expected = sum(
        0.8 ** (2 - index) * float((predicted - flow).abs().double()[counted_mask[:, None].expand_as(flow)].mean())
        for index, predicted in enumerate(predictions)
    )
    assert float(sequence_loss(predictions, flow, counted_mask)) == pytest.approx(expected, rel=1e-6)
    wanted_error = (predictions[-1] - flow).norm(dim=1)[counted_mask].mean()
    assert float(mean_end_point_error(predictions[-1], flow, counted_mask)) == pytest.approx(
        float(wanted_error), rel=1e-6
    )


def test_losses_gradients_equal_formulas() -> None:
    pairs, flow, counted_mask = problem(2, 2)
    doubles = [(predicted.double(), info.double()) for predicted, info in pairs]

    def plain(*parts: Tensor) -> Tensor:
        """Without the tricks that keep it finite."""
        total = torch.zeros((), dtype=torch.float64)
        for weight, predicted, info in ((0.85, *parts[:2]), (1.0, *parts[2:])):
            scale = torch.cat((info[:, 2:3].clamp(0, 10), info[:, 3:].clamp(0, 0)), 1).exp()
            error = (predicted - flow).abs()[:, :, None]
            inner = info[:, None, :2].softmax(2) * torch.exp(-error / scale[:, None]) / (2 * scale[:, None])
            total = total - weight * inner.sum(2).log()[counted_mask[:, None].expand_as(flow)].mean()
        return total

    leaves = [tensor.clone().requires_grad_() for pair in doubles for tensor in pair]
    plain(*leaves).backward()
    own = [tensor.clone().float().requires_grad_() for pair in doubles for tensor in pair]
    laplace_mixture_loss([(own[0], own[1]), (own[2], own[3])], flow, counted_mask).backward()
    for mine, reference in zip(own, leaves, strict=True):
        assert torch.allclose(mine.grad.double(), reference.grad, atol=1e-6)


def test_losses_ignore_masked_pixels() -> None:
    pairs, flow, counted_mask = problem(3)
    spoilt = torch.where(counted_mask[:, None], flow, float("nan"))
    for loss in (laplace_mixture_loss, lambda pairs, *rest: sequence_loss([flow for flow, _ in pairs], *rest)):
        leaf = [tuple(tensor.clone().requires_grad_() for tensor in pair) for pair in pairs]
        value = loss(leaf, spoilt, counted_mask)
        assert torch.equal(value, loss(pairs, flow, counted_mask))
        value.backward()
        last = leaf[-1][0]
        assert last.grad.isfinite().all()
        assert not last.grad[(~counted_mask)[:, None].expand_as(flow)].any()
        assert float(loss(pairs, flow, torch.zeros_like(counted_mask))) == 0.0


def test_laplace_mixture_loss_stays_finite_for_large_errors() -> None:
    flow = torch.zeros(1, 2, 4, 4)
    info = torch.tensor([-80.0, 80.0, 50.0, -50.0])[None, :, None, None].expand(1, 4, 4, 4).clone().requires_grad_()
    predicted = torch.full((1, 2, 4, 4), 4000.0, requires_grad=True)
    counted_mask = torch.ones(1, 4, 4, dtype=torch.bool)
    loss = laplace_mixture_loss([(predicted, info)], flow, counted_mask, log_scale_min=-5.0)
    loss.backward()
    assert loss.isfinite()
    assert predicted.grad.isfinite().all()
    assert info.grad.isfinite().all()


def test_loss_mask_selects_pixels() -> None:
    flow = torch.zeros(1, 2, 1, 5)
    flow[0, :, 0, 1] = torch.tensor([30.0, 40.0])
    flow[0, 0, 0, 2] = float("nan")
    valid = torch.tensor([[[True, True, True, False, True]]])
    occluded = torch.tensor([[[False, False, False, False, True]]])
    frames = torch.zeros(1, 3, 1, 5)
    batch = FlowBatch(frames, frames, flow, valid, occluded)
    assert loss_mask(batch).tolist() == [[[True, True, False, False, True]]]
    assert loss_mask(batch, max_flow=50.0).tolist() == [[[True, False, False, False, True]]]
    assert loss_mask(batch, include_occluded=False).tolist() == [[[True, True, False, False, False]]]


def test_losses_compile_as_one_graph() -> None:
    pairs, flow, counted_mask = problem(4, count=2)
    inputs = [tensor.requires_grad_() for pair in pairs for tensor in pair]
    compiled = torch.compile(laplace_mixture_loss, fullgraph=True, backend="aot_eager")  # traces the backward too
    actual, expected = compiled(pairs, flow, counted_mask), laplace_mixture_loss(pairs, flow, counted_mask)
    assert torch.allclose(actual, expected)
    for own, right in zip(*(torch.autograd.grad(loss, inputs) for loss in (actual, expected)), strict=True):
        torch.testing.assert_close(own, right)
    predictions = [predicted.detach() for predicted, _ in pairs]
    compiled_sequence = torch.compile(sequence_loss, fullgraph=True, backend="eager")
    assert torch.allclose(
        compiled_sequence(predictions, flow, counted_mask), sequence_loss(predictions, flow, counted_mask)
    )


def test_losses_name_mismatched_arguments() -> None:
    pairs, flow, counted_mask = problem(5)
    predictions = [predicted for predicted, _ in pairs]
    for call, message in (
        (lambda: sequence_loss([], flow, counted_mask), "predictions: expected one at least"),
        (lambda: sequence_loss([flow[:, :, :2]], flow, counted_mask), "predictions: expected shape"),
        (lambda: sequence_loss(predictions, flow, counted_mask.float()), "valid: expected dtype bool"),
        (lambda: sequence_loss(predictions, flow, counted_mask, gamma=0.0), "gamma: expected a number > 0"),
        (lambda: laplace_mixture_loss([(flow, flow)], flow, counted_mask), "predictions: expected shape"),
        (lambda: laplace_mixture_loss(pairs, flow, counted_mask, log_scale_min=1.0), "log_scale_min: expected"),
    ):
        refuses(message, call)
