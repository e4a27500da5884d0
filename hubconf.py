"""Entries of torch.hub: ``torch.hub.load("OWNER/fullfield", "fullfield_s")``; of a checkout with ``source="local"``.

Every network is called with two frames ``[B, 3, H, W]``, RGB from 0 to 1, and returns the flow ``[B, 2, H, W]`` in
pixels of the first one: x right, y down.
"""

import sys
from pathlib import Path

import torch

dependencies = ["torch", "numpy", "safetensors"]

_SOURCE = str(Path(__file__).resolve().parent / "src")
if _SOURCE not in sys.path:
    sys.path.append(_SOURCE)  # behind what is installed; torch.hub keeps a checkout, which it does not install


def _network(method: str, weights: str | None) -> torch.nn.Module:
    from fullfield.models import load_weights

    return load_weights(method, weights)


def fullfield_s(weights: str | None = None) -> torch.nn.Module:
    """The small network whose weights are in the repository; ``weights``: a file of your own."""
    return _network("fullfield-s", weights)


def raft(weights: str | None = None) -> torch.nn.Module:
    """RAFT; ``weights``: a file, an entry of ``fullfield weights list``, or None for raft-sintel, which is fetched."""
    return _network("raft", weights)


def sea_raft(weights: str | None = None) -> torch.nn.Module:
    """SEA-RAFT (M); ``weights`` as for :func:`raft`, None for sea-raft-m-spring."""
    return _network("sea-raft-m", weights)
