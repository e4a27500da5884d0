"""Entries of torch.hub: ``torch.hub.load("OWNER/fullfield", "fullfield_s")``; for a checkout with ``source="local"``.

Every network takes two frames ``[B, 3, H, W]``, RGB from 0 to 1, and returns the flow ``[B, 2, H, W]`` in pixels of the
first frame: x right, y down.
"""

import sys
from pathlib import Path

import torch

dependencies = ["torch", "numpy", "safetensors"]

_SOURCE = str(Path(__file__).resolve().parent / "src")
if _SOURCE not in sys.path:
    sys.path.append(_SOURCE)  # after installed packages; torch.hub keeps a checkout but does not install it


def _network(method: str, weights: str | None) -> torch.nn.Module:
    from fullfield.models import load_weights

    return load_weights(method, weights)


def fullfield_s(weights: str | None = None) -> torch.nn.Module:
    """Return the smaller network in the package, with its own weights or with the file ``weights``."""
    return _network("fullfield-s", weights)


def fullfield_m(weights: str | None = None) -> torch.nn.Module:
    """Return the larger network in the package, with its own weights or with the file ``weights``."""
    return _network("fullfield-m", weights)


def raft(weights: str | None = None) -> torch.nn.Module:
    """Return RAFT with ``weights``: a file or an entry of ``fullfield weights list``; None downloads raft-sintel."""
    return _network("raft", weights)


def sea_raft(weights: str | None = None) -> torch.nn.Module:
    """Return SEA-RAFT (M) with ``weights`` as for :func:`raft`; None downloads sea-raft-m-spring."""
    return _network("sea-raft-m", weights)
