"""Losses of descriptors."""

from __future__ import annotations

import torch
from torch import Tensor

from fullfield import _check


def contrastive_loss(
    first: Tensor,  # [A, C], of length 1
    second: Tensor,  # [B, C], of length 1
    matches: Tensor,  # [K, 2] int64: rows that are the same place
    moved: Tensor,  # [A, 3]: the places of ``first`` in the frame of ``second``
    places: Tensor,  # [B, 3]
    *,
    temperature: float = 0.07,
    reach: float = 2.0,
) -> Tensor:
    """Return the InfoNCE loss in both directions (van den Oord, Li, Vinyals, 2018), a scalar.

    Each match competes with all points of the other cloud, except those within ``reach`` of the true place, which are
    neither right nor wrong.

    Raises:
        InputError: for shapes that do not fit, no match, a temperature or reach that is not above 0.
    """
    _check.tensor(first, "first", ("A", "C"))
    _check.tensor(second, "second", ("B", first.shape[1]))
    _check.tensor(matches, "matches", ("K", 2), dtypes=(torch.int64,))
    _check.require(len(matches) > 0, "matches", "at least one", matches)
    _check.tensor(moved, "moved", (first.shape[0], 3))
    _check.tensor(places, "places", (second.shape[0], 3))
    _check.number(temperature, "temperature", above=0.0)
    _check.number(reach, "reach", above=0.0)
    rows, columns = matches[:, 0], matches[:, 1]
    forth = _towards(first[rows], second, columns, moved[rows], places, temperature, reach)
    back = _towards(second[columns], first, rows, places[columns], moved, temperature, reach)
    return (forth + back) / 2


def _towards(
    anchors: Tensor, others: Tensor, right: Tensor, here: Tensor, there: Tensor, temperature: float, reach: float
) -> Tensor:
    alike = anchors @ others.T / temperature
    near = torch.cdist(here, there) < reach
    near[torch.arange(len(right), device=right.device), right] = False
    return torch.nn.functional.cross_entropy(alike.masked_fill(near, -torch.inf), right)


@torch.no_grad()
def matching_ratio(first: Tensor, second: Tensor, moved: Tensor, places: Tensor, *, reach: float = 2.0) -> float:
    """Return the share of mutual nearest descriptors within ``reach``; shapes as in :func:`contrastive_loss`.

    NaN without any.
    """
    with torch.autocast(first.device.type, enabled=False):
        alike = first @ second.T
    forth, back = alike.argmax(1), alike.argmax(0)
    rows = torch.arange(len(first), device=first.device)
    rows = rows[back[forth] == rows]
    return float(((moved[rows] - places[forth[rows]]).norm(dim=1) <= reach).double().mean())
