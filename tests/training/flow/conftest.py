"""A network and pairs that are small enough to train in a test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from flow_parts import Scenes


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """On one thread: many small operators on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def scenes() -> Scenes:
    return Scenes()
