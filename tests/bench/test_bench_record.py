"""``python -m benchmarks record``: what it writes is what the network looked up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.cases.correlation.analysis import read_shares, recorded_positions
from benchmarks.cases.correlation.record import recording
from fullfield.io import read_frame
from fullfield.models import RAFT, RAFTConfig


@pytest.mark.usefixtures("scene")
def test_record_command_writes_recorded_positions(cli: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    model = RAFT(RAFTConfig.small()).eval()
    torch.save(model.state_dict(), "small.pth")
    Path("out").mkdir()
    command = ("record", "raft-small", "--weights", "small.pth", "--updates", 3, "--pair", "a.png", "b.png")
    ran = cli(*command, "-o", "out", "--json")
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
    assert "8×6, 3 lookups, radius 3" in cli(*command, "-o", "out").out
    (shares,) = cli("analyze", "out/a.npy", "--radius", 3, "--blocks", 4, "--json").json["files"]
    assert shares["shares"] == [share.as_dict() for share in read_shares(recorded_positions(written), 3, blocks=[4])]
    assert (shares["size"], shares["updates"]) == ([6, 8], 3)
