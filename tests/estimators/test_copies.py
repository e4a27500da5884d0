"""Copies between host and device."""

from __future__ import annotations

import pytest
import torch

from fullfield.estimators import _devices as copies


@pytest.mark.unit
def test_to_host_and_to_device_copy_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def plain(shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
        made.append(shape.numel())
        return torch.empty(shape, dtype=dtype)

    monkeypatch.setattr(copies, "_allocate_page_locked", plain)
    monkeypatch.setattr(copies, "_CHUNK", 40)
    for values in (torch.rand(3, 5, 7), torch.rand(5, 7, 3).permute(2, 0, 1), torch.arange(9, dtype=torch.uint8)):
        made.clear()
        assert torch.equal(copies._copy_in_page_locked_chunks(values, torch.device("cpu")), values)
        assert sum(made) == values.numel()
        assert max(made) * values.element_size() <= 40


@pytest.mark.unit
def test_to_device_copies_only_between_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.rand(4)
    assert copies.to_host(values) is values
    assert copies.to_device(values, torch.device("cpu")) is values
    # A copy to the CPU that does not wait returns memory that the GPU has not yet written.
    arrived = torch.rand(2)
    monkeypatch.setattr(copies, "to_host", lambda values: arrived)  # noqa: ARG005
    assert copies.to_device(torch.rand(4), torch.device("cpu")) is arrived


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_to_device_and_to_host_keep_values_on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("cuda", 0)
    monkeypatch.setattr(copies, "_CHUNK", 1 << 20)
    values = torch.rand(3, 1000, 1003)
    there = copies.to_device(values, gpu)
    values.zero_()  # the copy has left the caller's memory
    back = copies.to_host(there)
    assert back.is_pinned()
    assert torch.equal(back, there.cpu())
    assert torch.equal(copies.to_device(there, torch.device("cpu")), back)
    assert float(back.mean()) > 0.4

    def refused(*_: object) -> torch.Tensor:
        raise RuntimeError("no page-locked memory")

    monkeypatch.setattr(copies, "_allocate_page_locked", refused)
    assert torch.equal(copies.to_host(copies.to_device(back, gpu)), back)
