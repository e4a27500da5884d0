"""Weights of a network, and estimators with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from network_scene import Made

from fullfield.estimators import NetworkEstimator
from fullfield.estimators.network_config import RAFTSettings
from fullfield.models import RAFT, RAFTConfig


@pytest.fixture(scope="module")
def model() -> RAFT:
    torch.manual_seed(5)
    return RAFT(RAFTConfig.small()).eval()


@pytest.fixture(scope="module")
def weights(model: RAFT, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file in the form of the official ones."""
    path = tmp_path_factory.mktemp("weights") / "raft-small.pth"
    torch.save({f"module.{name}": value for name, value in model.state_dict().items()}, path)
    return path


@pytest.fixture
def make(weights: Path) -> Made:
    def made(backend: str | None = None, **parameters: Any) -> NetworkEstimator:
        return NetworkEstimator("raft-small", RAFTSettings(weights=str(weights), **parameters), backend=backend)

    return made
