"""The loss and the precision against what they are by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fullfield.training.descriptor import compute_mutual_match_precision, contrastive_loss
from refusals import refuses

pytestmark = pytest.mark.unit


def case() -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    places = 6 * draw(30, 3)
    moved = torch.cat([places[:20] + 0.3 * draw(20, 3), 6 * draw(5, 3)])
    first, second = (torch.nn.functional.normalize(draw(n, 8) - 0.5) for n in (25, 30))
    return first, second, torch.stack([torch.arange(20), torch.arange(20)], 1)[::2], moved, places


def by_hand(
    first: Tensor, second: Tensor, matches: Tensor, moved: Tensor, places: Tensor, temperature: float, reach: float
) -> float:
    total = 0.0
    for ours, theirs, pairs, here, there in (
        (first, second, matches, moved, places),
        (second, first, matches.flip(1), places, moved),
    ):
        for i, j in pairs.tolist():
            others = [k for k in range(len(theirs)) if k == j or float((here[i] - there[k]).norm()) >= reach]
            logits = {k: float(ours[i] @ theirs[k]) / temperature for k in others}
            total += math.log(sum(math.exp(value) for value in logits.values())) - logits[j]
    return total / 2 / len(matches)


def test_contrastive_loss_and_matching_ratio_equal_loops() -> None:
    given = case()
    for temperature, reach in ((0.07, 2.0), (0.5, 1.0), (1.0, 1e-6)):
        found = contrastive_loss(*given, temperature=temperature, exclusion_radius=reach)
        assert float(found) == pytest.approx(by_hand(*given, temperature, reach), rel=1e-9)
    first, second, _, moved, places = case()
    alike = (first @ second.T).numpy()
    forth, back = alike.argmax(1), alike.argmax(0)
    right = [float((moved[i] - places[j]).norm()) <= 2.0 for i, j in enumerate(forth.tolist()) if back[j] == i]
    assert compute_mutual_match_precision(first, second, moved, places) == pytest.approx(np.mean(right))
    assert compute_mutual_match_precision(second, second, places, places) == 1.0


def test_contrastive_loss_gradients_reach_descriptors() -> None:
    first, second, matches, moved, places = case()
    first.requires_grad_()
    second.requires_grad_()
    assert torch.autograd.gradcheck(
        lambda a, b: contrastive_loss(a, b, matches, moved, places, temperature=0.5), (first, second)
    )
    contrastive_loss(first, second, matches, moved, places).backward()
    assert (first.grad.norm(dim=1) > 0).sum() > 20
    assert (second.grad.norm(dim=1) > 0).sum() > 20


@pytest.mark.parametrize(
    ("number", "value", "message"),
    [
        (1, torch.zeros(30, 7), "second: expected shape"),
        (2, torch.zeros(0, 2, dtype=torch.int64), "matches: expected at least one"),
        (2, torch.zeros(3, 2), "matches: expected dtype int64"),
        (3, torch.zeros(4, 3), "moved_first_points: expected shape"),
    ],
)
def test_contrastive_loss_names_bad_input(number: int, value: Tensor, message: str) -> None:
    given: list[Any] = list(case())
    given[number] = value
    refuses(message, contrastive_loss, *given)
    refuses("temperature: expected a number > 0", contrastive_loss, *case(), temperature=0.0)
