"""What the tests of evaluation share."""

from __future__ import annotations

from pathlib import Path

import pytest
from evaluation_sets import sequence

from fullfield.datasets import FlowDataset


@pytest.fixture
def pairs(tmp_path: Path) -> FlowDataset:
    return sequence(tmp_path / "set", {"a": 4, "b": 3})
