"""Samples: short words, and batches of a DataLoader."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from fullfield import InputError
from fullfield.datasets import FlowSample, open_dataset
from fullfield.io import write_flow, write_image


def test_a_sample_is_one_line() -> None:
    flow = torch.zeros(2, 300, 400)
    sample = FlowSample("a/1", torch.zeros(3, 300, 400), torch.zeros(3, 300, 400), flow, None, None)
    assert "\n" not in str(sample)
    assert str(sample).startswith("FlowSample('a/1', frame1=float32 tensor [3, 300, 400] on cpu, ")
    assert str(sample).endswith("valid=None, occluded=None)")


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_makes_batches_of_ones_own_pairs(tmp_path: Path, workers: int) -> None:
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
    assert second.flow is not None
    assert second.flow[:, 0, 0, 0].tolist() == [2.0, 3.0]
    assert second.occluded is None
    assert len(second.name) == 2


def test_a_batch_of_which_some_lack_a_part_is_named() -> None:
    whole = FlowSample("a", *torch.zeros(2, 3, 4, 5), torch.zeros(2, 4, 5), torch.ones(4, 5) > 0, None)
    with pytest.raises(InputError, match="b: expected flow like the other pairs of the batch, got none"):
        torch.utils.data.default_collate([whole, whole._replace(name="b", flow=None)])
