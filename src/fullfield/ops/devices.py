"""Choice of the device that computes."""

from __future__ import annotations

import torch

from fullfield import _check
from fullfield.ops import _launching

AUTO = "auto"
"""Device name: the first GPU that runs the kernels, else the CPU."""


def resolve_device(device: str | torch.device, name: str = "device") -> torch.device:
    """Return the named device of this machine with its index; ``"auto"`` is the first GPU with kernels, else the CPU.

    Args:
        device: name of a device, or ``"auto"``.
        name: name of the argument in messages.

    Raises:
        InputError: if this machine has no such device.
    """
    if isinstance(device, str) and device == AUTO:
        gpus = (torch.device("cuda", index) for index in range(torch.cuda.device_count()))
        return next((gpu for gpu in gpus if _launching.explain_unsupported_device(gpu) is None), torch.device("cpu"))
    return torch.empty(0, device=_check.resolve_available_device(device, name)).device
