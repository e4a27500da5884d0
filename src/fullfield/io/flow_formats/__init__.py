"""Flow formats: OpenEXR, and in ``plain`` the others, each with a reader and, where we write it, a writer.

A reader takes a path and returns float32 ``[2, H, W]`` (u, v) = (x right, y down) and bool ``[H, W]``; what the flow
holds where it is not valid is up to the format (EXR: 0, since most of a display window may be empty).
A writer takes a path and the same as contiguous arrays, flow finite where valid, and writes to exactly that path.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fullfield._check import InputError

Planes = NDArray[np.float32]
Mask = NDArray[np.bool_]
Y_NOTE = "fullfield/y"
"""Entry of an OpenEXR header: ``up`` or ``down``. Files without it point up."""
ST_MAP_NOTE = "fullfield/st_map"
"""Entry in the header of an ST map."""


class FlowRangeError(InputError):
    """Flow with vectors that are longer than the format can hold; another format can."""


def mark_finite_vectors(flow: Planes) -> Mask:
    """Return where both u and v of ``[2, H, W]`` are neither NaN nor infinite."""
    both: Mask = np.isfinite(flow[0]) & np.isfinite(flow[1])
    return both


def fill_invalid_with_nan(flow: Planes, valid: Mask) -> Planes:
    """Return the flow with NaN where it is not valid."""
    return np.where(valid, flow, np.float32("nan"))
