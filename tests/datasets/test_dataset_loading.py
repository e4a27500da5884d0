"""Batches of a data set, made by PyTorch's loader in this process and in a worker."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from fullfield.datasets import FlowSample, open_dataset
from fullfield.io import write_flow, write_image


@pytest.mark.parametrize("workers", [0, 1])
def test_data_loader_batches_pairs(tmp_path: Path, workers: int) -> None:
    lines = []
    for number in range(4):
        for letter in "ab":
            write_image(tmp_path / f"{number}{letter}.png", torch.zeros(3, 20, 30, dtype=torch.uint8))
        write_flow(tmp_path / f"{number}.flo", torch.full((2, 20, 30), float(number)))
        lines.append(f"{number}a.png {number}b.png {number}.flo")
    (tmp_path / "pairs.txt").write_text("\n".join(lines))
    dataset = open_dataset("pairs", tmp_path)
    first, second = DataLoader(dataset, batch_size=2, num_workers=workers)  # type: ignore[arg-type]
    assert isinstance(second, FlowSample)
    assert first.frame1.shape == (2, 3, 20, 30)
    assert second.flow[:, 0, 0, 0].tolist() == [2.0, 3.0]
    assert second.occluded is None
    assert len(second.name) == 2
