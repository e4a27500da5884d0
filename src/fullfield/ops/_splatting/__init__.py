"""Forward warping (splatting) of a flow field [2, H, W], and the filling of holes.

Compiled kernels process float32 on the CPU if numba is installed; PyTorch processes the rest.
"""

from __future__ import annotations

from torch import Tensor

from fullfield import _check
from fullfield.ops._splatting import cpu, reference


def predict_next_flow(flow: Tensor) -> Tensor:  # [2, H, W] -> [2, H, W]
    """Predict the flow of the next pair: move each vector along itself, as if motion were constant.

    Each vector is written to the pixel nearest to its end. Of several vectors the longest wins, as if it covered
    the slower ones; of equally long ones the last. Vectors that are not finite are dropped. Pixels without a
    vector are filled as by :func:`fill_unknown_vectors`. RAFT's own warm start does the same on its 1/8 grid, with the
    nearest vector instead.

    The work grows with the number of pixels, for holes of any size.

    Raises:
        InputError: if the flow has another shape.
    """
    _check.check_tensor(flow, "flow", (2, "H", "W"))
    return cpu.predict_next_flow(flow) if cpu.is_supported(flow) else reference.predict_next_flow(flow)


def fill_unknown_vectors(flow: Tensor, valid: Tensor) -> Tensor:  # [2, H, W], bool [H, W] -> [2, H, W]
    """Fill unknown vectors with the mean of their known neighbours, ring by ring from the rim inwards.

    The result is zero if no vector is known. Each pixel is in one ring.

    Raises:
        InputError: if the shapes or devices do not fit.
    """
    _check.check_tensor(flow, "flow", (2, "H", "W"))
    _check.check_tensor(valid, "valid", flow.shape[1:], device=flow.device)
    return (
        cpu.fill_unknown_vectors(flow, valid) if cpu.is_supported(flow) else reference.fill_unknown_vectors(flow, valid)
    )


def splat_scaled_flow_with_cover_and_confidence(
    flow: Tensor,  # [2, H, W], finite
    length_fraction: float,
    confidence: Tensor,  # [H, W], 0 to 1
    valid: Tensor,  # bool [H, W]
) -> tuple[Tensor, Tensor, Tensor]:  # [2, H, W], [H, W], [H, W]
    """Splat a flow onto the pixels that its vectors reach after ``length_fraction`` of their length.

    Every vector is added bilinearly to four pixels, with weights that rise steeply with its confidence.

    Returns:
        The vectors, how far each pixel is covered, and the mean confidence of the vectors that cover it.

    Raises:
        InputError: if the shapes or devices do not fit.
    """
    _check.check_tensor(flow, "flow", (2, "H", "W"))
    for plane, name in ((confidence, "confidence"), (valid, "valid")):
        _check.check_tensor(plane, name, flow.shape[1:], device=flow.device)
    return (
        cpu.splat_scaled_flow_with_cover_and_confidence(flow, length_fraction, confidence, valid)
        if cpu.is_supported(flow)
        else reference.splat_scaled_flow_with_cover_and_confidence(flow, length_fraction, confidence, valid)
    )
