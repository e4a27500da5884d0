"""``python -m benchmarks record``: what it writes is what the network looked up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.cases.correlation.record import recording
from fullfield.io import read_frame
from fullfield.models import RAFT, RAFTConfig
from fullfield.nn import CorrelationPyramid
from fullfield.ops.correlation import correlation_lookup, correlation_pyramid
from fullfield.ops.correlation.prepared import Lookups


def test_positions_of_every_pair_are_recorded() -> None:
    before = Lookups.lookup
    first, second = torch.randn(2, 1, 4, 6, 8)
    grid = torch.stack(torch.meshgrid(torch.arange(8.0), torch.arange(6.0), indexing="xy"))[None]
    with recording() as found:
        pairs = [CorrelationPyramid(first, second, 2, radius) for radius in (1, 2)]
        for shift in (0.0, 1.5, -3.0):
            for pair in pairs:
                pair(grid + shift)
        correlation_lookup(first, correlation_pyramid(second, 1), grid, 3)
    assert Lookups.lookup is before
    assert [(each.radius, len(each.positions)) for each in found] == [(1, 3), (2, 3), (3, 1)]
    for each in found[:2]:
        offsets = each.offsets()
        assert offsets.shape == (3, 2, 6, 8)
        assert [float(step.unique()) for step in offsets] == [0.0, 1.5, -3.0]


def test_a_failing_network_leaves_nothing_behind() -> None:
    before = Lookups.lookup
    with pytest.raises(RuntimeError, match="on purpose"), recording():
        raise RuntimeError("on purpose")
    assert Lookups.lookup is before


@pytest.mark.usefixtures("scene")
def test_command(cli: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    model = RAFT(RAFTConfig.small()).eval()
    torch.save(model.state_dict(), "small.pth")
    Path("out").mkdir()
    asked = ("record", "raft-small", "--weights", "small.pth", "--updates", 3, "--pair", "a.png", "b.png")
    ran = cli(*asked, "-o", "out", "--json")
    assert ran.code == 0, ran.err
    (one,) = ran.json["files"]
    assert (one["file"], one["radius"], one["shape"]) == ("out/a.npy", 3, [3, 2, 6, 8])
    written = torch.from_numpy(np.load("out/a.npy"))
    assert float(written[0].abs().max()) == 0  # the first lookup is where the flow is zero
    frames = [read_frame(name)[None] for name in ("a.png", "b.png")]
    with torch.no_grad(), recording() as found:
        model(*frames, updates=3)
    torch.testing.assert_close(written, found[0].offsets(), atol=1e-4, rtol=1e-4)
    assert float(written[2].abs().max()) > 0
    assert "8×6, 3 lookups, radius 3" in cli(*asked, "-o", "out").out
    assert cli("analyze", "out/a.npy", "--radius", 3, "--json").json["files"][0]["updates"] == 3
