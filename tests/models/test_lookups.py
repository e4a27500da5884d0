"""What a network asks of the lookup at one size, and whether the dense volume fits."""

from __future__ import annotations

import pytest
import torch

from fullfield.models import RAFT, SEARAFT, RAFTConfig, SEARAFTConfig
from fullfield.models.framing import padding_for
from fullfield.models.lookups import PairSize, dense_fits, lookup_request

CPU = torch.device("cpu")


@pytest.mark.parametrize("model", [RAFT(RAFTConfig.small(levels=3)), SEARAFT(SEARAFTConfig.small(channels=32))])
def test_the_request_is_what_the_network_will_ask(model: RAFT | SEARAFT) -> None:
    frame = torch.rand(2, 3, 45, 83)
    request = lookup_request(model.config, PairSize.of(frame))
    padding = padding_for(45, 83)
    with torch.no_grad():
        encoded = model.eval().encode(*[model.prepare(frame, padding)] * 2)
    assert (request.batch, request.channels, *request.size1) == encoded.fmap1.shape
    assert (request.levels, request.radius) == (model.config.levels, model.config.radius)
    assert request.sizes2[1] == (request.size1[0] // 2, request.size1[1] // 2)
    assert request.device == frame.device


def test_the_volume_has_its_share_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    config = RAFTConfig.small(levels=1)
    assert dense_fits(lookup_request(config, PairSize(1, 8 * 128, 8 * 128, CPU)))  # 1 GiB
    assert not dense_fits(lookup_request(config, PairSize(3, 8 * 128, 8 * 128, CPU)))

    monkeypatch.setattr("torch.cuda.mem_get_info", lambda _: (2 << 30, 80 << 30))
    monkeypatch.setattr("torch.cuda.memory_reserved", lambda _: 5 << 28)
    monkeypatch.setattr("torch.cuda.memory_allocated", lambda _: 1 << 28)
    on_gpu = torch.device("cuda", 0)  # 40 % of 2 + 1 GiB
    assert dense_fits(lookup_request(config, PairSize(1, 8 * 128, 8 * 128, on_gpu)))
    assert not dense_fits(lookup_request(config, PairSize(1, 8 * 128, 8 * 160, on_gpu)))
