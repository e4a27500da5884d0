"""The public functions. float32 on the CPU goes to compiled kernels where numba is there."""

from __future__ import annotations

from torch import Tensor

from fullfield import _check
from fullfield.ops.splatting import cpu, reference


def moved_forward(flow: Tensor) -> Tensor:  # [2, H, W] -> [2, H, W]
    """The motion of the last pair, at the pixels of the next one's first frame, if motion goes on as it was.

    Each vector lands at the pixel nearest to its end; of several the longest stays (it moves over what is slower), of
    equally long ones the last. Vectors that are not finite go nowhere. Pixels that none reaches are filled as by
    :func:`fill_holes`. RAFT's own warm start does the same on its 1/8 grid with the nearest vector instead.

    The work grows with the number of pixels, however large the holes are. Raises InputError for another shape.
    """
    _check.tensor(flow, "flow", (2, "H", "W"))
    return cpu.moved_forward(flow) if cpu.serves(flow) else reference.moved_forward(flow)


def fill_holes(flow: Tensor, known: Tensor) -> Tensor:  # [2, H, W], bool [H, W] -> [2, H, W]
    """Unknown vectors take the mean of their known neighbours, ring by ring from the rim inwards.

    Zero where nothing is known. Each pixel is in one ring. Raises InputError for other shapes or devices.
    """
    _check.tensor(flow, "flow", (2, "H", "W"))
    _check.tensor(known, "known", flow.shape[1:], device=flow.device)
    return cpu.fill_holes(flow, known) if cpu.serves(flow) else reference.fill_holes(flow, known)


def carried(
    flow: Tensor,  # [2, H, W], finite
    part: float,
    trust: Tensor,  # [H, W], 0 to 1
    known: Tensor,  # bool [H, W]
) -> tuple[Tensor, Tensor, Tensor]:  # [2, H, W], [H, W], [H, W]
    """A flow on the pixels that its vectors reach after ``part`` of their way.

    Returns the vectors there, how far a pixel is covered, and the mean trust of what covers it. Every vector is
    shared out bilinearly to four pixels, by weights that fall steeply with its trust. Raises InputError for other
    shapes or devices.
    """
    _check.tensor(flow, "flow", (2, "H", "W"))
    for plane, name in ((trust, "trust"), (known, "known")):
        _check.tensor(plane, name, flow.shape[1:], device=flow.device)
    return cpu.carried(flow, part, trust, known) if cpu.serves(flow) else reference.carried(flow, part, trust, known)
