"""Flow for frames of another size: the vectors change with the pixels."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fullfield._check import check_number, check_tensor, require
from fullfield.io.flow import FlowData

_MIN_VALID = 0.5  # of what a new pixel is averaged from


def resize_flow(
    flow: Tensor,  # [2, H, W]
    size: tuple[int, int],  # new height and width
    valid: Tensor | None = None,  # bool [H, W]; everywhere by default
) -> FlowData:
    """Return a flow for frames of another size: vectors are resampled, and multiplied by the ratio of the sizes.

    A flow with no larger side averages over the pixels that each new pixel covers, any other one reads bilinearly. Only
    known vectors count; a pixel that reads fewer known than unknown ones is not valid, and 0.

    >>> from fullfield.io import read_flow, resize_flow, write_flow  # doctest: +SKIP
    >>> proxy = read_flow("proxy.exr")  # doctest: +SKIP
    >>> write_flow("full.exr", *resize_flow(proxy.flow, (2160, 4096), proxy.valid))  # doctest: +SKIP

    Raises:
        InputError: for other shapes.
    """
    check_tensor(flow, "flow", (2, "H", "W"))
    require(isinstance(size, (tuple, list)) and len(size) == 2, "size", "a height and a width", size)
    for side in size:
        check_number(side, "size", integer=True, low=1)
    height, width = flow.shape[-2:]
    valid_mask = flow.isfinite().all(0)
    if valid is not None:
        valid_mask = valid_mask & check_tensor(valid, "valid", flow.shape[1:], dtypes=(torch.bool,))
    weights = valid_mask[None, None].to(torch.float32)
    planes = torch.where(valid_mask, flow.to(torch.float32), 0.0)[None]
    is_smaller = size[0] <= height and size[1] <= width
    options = {"mode": "area"} if is_smaller else {"mode": "bilinear", "align_corners": False}
    sums, shares = (functional.interpolate(values, tuple(size), **options) for values in (planes, weights))
    is_valid = shares[0, 0] >= _MIN_VALID
    ratios = torch.tensor([size[1] / width, size[0] / height], device=flow.device).view(2, 1, 1)
    resized = torch.where(is_valid, sums[0] / shares[0].clamp(min=_MIN_VALID), 0.0) * ratios
    return FlowData(resized, is_valid)
