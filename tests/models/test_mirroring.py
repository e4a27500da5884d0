"""Flow of mirrored frames."""

from __future__ import annotations

import pytest
import torch

from fullfield.models.mirroring import mirror_flow


@pytest.mark.parametrize("axes", [(-2, -1), (-1,), (-2,)])
def test_mirror_flow_matches_mirrored_frames(axes: tuple[int, ...]) -> None:
    frame = torch.rand(1, 3, 5, 7, generator=torch.Generator().manual_seed(0))
    flow = torch.zeros(1, 2, 5, 7)
    flow[:, 0], flow[:, 1] = 1.0, 2.0
    moved = frame.roll((2, 1), (2, 3))
    mirrored = mirror_flow(flow, axes)
    horizontal, vertical = (int(motion) for motion in mirrored[0, :, 0, 0])
    assert torch.equal(frame.flip(axes).roll((vertical, horizontal), (2, 3)), moved.flip(axes))
    assert torch.equal(flow[0, :, 0, 0], torch.tensor([1.0, 2.0])), "the given flow stays"
    flow[0, :, 0, 1] = 5
    row, column = (4 if -2 in axes else 0), (5 if -1 in axes else 1)
    assert torch.equal(mirror_flow(flow, axes)[0, :, row, column].abs(), torch.tensor([5.0, 5.0]))
    assert torch.equal(mirror_flow(mirror_flow(flow, axes), axes), flow)
