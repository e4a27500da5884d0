"""``resolve_device``: names of devices, and the automatic choice."""

from __future__ import annotations

import pytest
import torch

from fullfield import SetupError
from fullfield.ops import _launching
from fullfield.ops.devices import resolve_device
from refusals import refuses

pytestmark = pytest.mark.unit


def test_resolve_device_auto_selects_first_gpu_with_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    reasons = {0: "needs compute capability 7.0, got 3.5", 1: None, 2: None}
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(reasons))
    monkeypatch.setattr(_launching, "explain_unsupported_device", lambda device: reasons[device.index])
    assert resolve_device("auto") == torch.device("cuda", 1)
    reasons.update({1: "cuda-core is missing", 2: "cuda-core is missing"})
    assert resolve_device("auto") == torch.device("cpu")
    reasons.clear()
    assert resolve_device("auto") == torch.device("cpu")


def test_resolve_device_refuses_missing_devices() -> None:
    assert resolve_device("cpu") == torch.device("cpu")
    assert resolve_device(torch.device("cpu")) == torch.device("cpu")
    refuses("--device: expected a device of this machine, got 'gpu7'", resolve_device, "gpu7", "--device")
    refuses("device: expected a device of this machine, got 'meta'", resolve_device, "meta")
    with pytest.raises(SetupError):
        resolve_device("cuda:63")
