"""Methods as entries: one place to add one."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from fullfield import InputError, estimate
from fullfield._config import Config, create_field
from fullfield.estimators import registry
from fullfield.estimators.estimation import build_estimator
from fullfield.estimators.registry import METHODS, PTLFLOW, Method, resolve_method_name
from fullfield.models.weights import DEFAULTS, NETWORKS
from refusals import refuses

pytestmark = pytest.mark.unit


@dataclass(frozen=True)
class ShiftConfig(Config):
    """Configuration of a method that does not exist."""

    pixels: float = create_field(1.0, "shift")


class Shift:
    """Estimator of one shift everywhere."""

    method, backend = "shift", "none"

    def __init__(self, config: ShiftConfig, *, backend: str | None) -> None:
        self.config, self.requested_backend = config, backend

    @property
    def parameters(self) -> dict[str, Any]:
        return self.config.as_dict()

    def __call__(self, frame1: Tensor, _frame2: Tensor, **_: object) -> Tensor:
        return torch.full_like(frame1[:, :2], self.config.pixels)


def test_methods_accept_new_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    module = SimpleNamespace(ShiftConfig=ShiftConfig, PRESETS={"default": ShiftConfig()}, Shift=Shift)
    monkeypatch.setitem(__import__("sys").modules, "shift_method", module)
    entry = Method("Shift", "shift_method", "ShiftConfig", estimator="shift_method:Shift")
    monkeypatch.setitem(registry.METHODS, "shift", entry)
    flow = estimate(torch.rand(3, 8, 9), torch.rand(3, 8, 9), "shift", config=ShiftConfig(pixels=2.5))
    assert torch.equal(flow.flow, torch.full((2, 8, 9), 2.5))
    assert build_estimator("shift", backend="fast").requested_backend == "fast"  # type: ignore[attr-defined]


def test_methods_match_networks_and_weights() -> None:
    for name, entry in METHODS.items():
        if entry.network is not None and entry.network not in DEFAULTS:  # not trained yet
            message = f"^weights: expected a file for {name}, which has no published weights, got None"
            refuses(message, estimate, torch.zeros(3, 16, 16), torch.zeros(3, 16, 16), name)
        if name != PTLFLOW:
            estimator = build_estimator(name)
            assert estimator.parameters.get("cascade", False) == entry.cascades, name
    assert {entry.network for entry in METHODS.values()} - {None} == NETWORKS.keys()


def test_get_canonical_method_suggests_nearest_name() -> None:
    refuses("got 'TVL1'; did you mean tvl1", resolve_method_name, "TVL1")
    refuses("raft-smal'; did you mean raft-small", resolve_method_name, "raft-smal")
    with pytest.raises(InputError, match=r"lamda: .*an unknown one; did you mean lambda_"):
        build_estimator("tvl1", lamda=1)
