"""What the launches of the GPU gradients are told, as far as a machine without a GPU can tell."""

from __future__ import annotations

import contextlib
from collections import defaultdict

import pytest
import torch

from fullfield.ops import _launching
from fullfield.ops._launching import GpuProperties
from fullfield.ops.correlation import cuda
from fullfield.ops.correlation.cuda import launch_backward
from fullfield.ops.correlation.cuda.config import (
    choose_fitting_lookup_config_or_none,
    choose_forward_config,
    is_scaled_to_float16,
)
from fullfield.ops.correlation.cuda.launch_backward import FeatureGradients
from fullfield.ops.correlation.protocol import LookupRequest

TURING = GpuProperties(0, "", "sm_75", 40, 64 << 10)
HOPPER = GpuProperties(0, "", "sm_90a", 132, 227 << 10)


class Kernel:
    """Checks launches instead of making them."""

    def raise_shared_memory_limit(self, _: int, size: int) -> None:
        assert size <= HOPPER.shared

    def launch(self, grid: tuple[int, int], *_: object) -> None:
        assert min(grid) > 0


class LibraryCache:
    def load(self, sources: list[object], *_: object) -> list[dict[str, Kernel]]:
        return [defaultdict(Kernel) for _ in sources]


@pytest.fixture(autouse=True)
def _no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_backward, "LIBRARIES", LibraryCache())
    monkeypatch.setattr(launch_backward, "raw_stream", lambda _: 0)
    monkeypatch.setattr(_launching, "get_gpu_properties", lambda _: HOPPER)
    monkeypatch.setattr(_launching, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())


def gradients_of(batch: int, size1: tuple[int, int], size2: tuple[int, int], levels: int = 4) -> FeatureGradients:
    sizes = tuple((size2[0] >> level, size2[1] >> level) for level in range(levels))
    request = LookupRequest(batch, 256, size1, sizes, 4, torch.bfloat16, torch.device("cpu"), True)
    state = tuple(torch.zeros(3) for _ in range(4))
    return FeatureGradients(request, choose_forward_config(request, HOPPER), HOPPER, state)


@pytest.mark.parametrize(
    ("batch", "size1", "size2"),
    [(0, (9, 13), (9, 13)), (2, (0, 5), (0, 7)), (2, (4, 5), (0, 7)), (1, (1, 1), (1, 1)), (2, (64, 96), (40, 50))],
)
@pytest.mark.parametrize("wanted", [(True, True), (True, False), (False, True)])
def test_allocate_sums_accepts_every_size(
    batch: int, size1: tuple[int, int], size2: tuple[int, int], wanted: tuple[bool, bool]
) -> None:
    features = gradients_of(batch, size1, size2)
    sums = features.allocate_sums(*wanted)
    for _ in range(3):
        features.add_lookup_gradient(torch.zeros(batch, 324, *size1), torch.zeros(batch, 2, *size1), sums, 0)
    done = features.finish_gradients(sums)
    assert (done.fmap1 is not None, done.levels is not None) == wanted
    if done.fmap1 is not None:
        assert done.fmap1.shape == (batch, 256, *size1)
    if done.levels is not None:
        assert [tuple(level.shape) for level in done.levels] == [
            (batch, 256, size2[0] >> level, size2[1] >> level) for level in range(4)
        ]


def test_allocate_sums_arrays_do_not_overlap() -> None:
    """Every array of the parameters lies in its tensor, and ends where the next one begins."""
    features = gradients_of(2, (20, 37), (45, 70))
    sums = features.allocate_sums(True, True)
    p, tiles, spots = sums.params, sums.params.p.tiles, features.target_tiles
    assert (tiles, spots) == (2 * 3 * 5, 2 * (6 * 9 + 3 * 5 + 2 * 3 + 1 * 1))
    _, _, patches, notes, marks = sums.memory
    count = 4 * tiles
    assert patches.numel() == count * 12 * 12 * 64
    assert (p.bounds - p.covered, p.largest - p.bounds) == (1024 * count, 16 * count)
    assert (p.full_levels - p.largest, p.full_tiles - p.full_levels) == (4 * count, 4 * count)
    assert p.full_tiles + 4 * tiles == notes.data_ptr() + 4 * notes.numel()
    assert (p.bands, p.target_largest - p.bands) == (marks.data_ptr(), 8 * spots)
    assert p.bounds % 16 == p.covered % 16 == 0
    assert (p.full_targets - p.target_largest, p.turn - p.full_targets) == (4 * spots, 4 * spots)
    assert p.full - p.turn == 4 * (tiles + spots)
    assert p.work - p.full == 4 * tiles
    assert p.work + 4 * launch_backward.WORK == marks.data_ptr() + 4 * marks.numel()
    assert not marks.any()


def test_allocate_sums_splits_coarse_levels() -> None:
    features = gradients_of(1, (224, 512), (224, 512))
    sums = features.allocate_sums(True, True)
    assert list(sums.params.splits)[:4] == [1, 1, 4, 14]


@pytest.mark.parametrize(
    ("radius", "channels", "reason"),
    [
        (4, 256, None),
        (7, 64, None),
        (8, 64, "a radius of 8 needs more shared memory than the 64 KiB of a block here"),
        (4, 8192, "8192 channels need more shared memory than the 64 KiB of a block here"),
    ],
)
def test_fit_lookup_config_refuses_plans_beyond_turing_memory(
    radius: int, channels: int, reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_launching, "get_device_gpu_properties", lambda _: TURING)
    monkeypatch.setattr(_launching, "explain_unsupported_device", lambda _: None)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        request = LookupRequest(1, channels, (9, 13), ((9, 13),), radius, dtype, torch.device("cuda", 0), True)
        assert cuda.explain_unsupported(request) == reason
        config = choose_forward_config(request, TURING)
        assert not config.bf16
        if reason is None:
            assert is_scaled_to_float16(request, config) == (dtype != torch.float16)
            assert all(
                choose_fitting_lookup_config_or_none(config, out, last, TURING.shared)
                for out, last in ((0, False), (1, False))
            )
