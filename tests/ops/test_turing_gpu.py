"""Kernels as GPUs before compute capability 8.0 run them: PTX for 7.5 on the GPU that is here, forms chosen for a T4.

The driver makes machine code of the PTX, so that instructions and results are tested, but not speed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import test_matching as matching
import test_neighbors_cuda as neighbors
import test_passes as passes
import test_point_conv_cuda as point_conv
import test_point_norm as point_norm
import test_spatial_correlation as spatial
import test_tvl1_cuda as tvl1
import torch
from lookup_cases import BACKENDS, DTYPES, SHIFTS, check, check_moving, single_level

from fullfield.ops import _launching
from fullfield.ops.tvl1.cuda import fused
from tests.oracles.correlation import make_case

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]
LOOKUPS = BACKENDS["cuda"]
SHARED = 64 << 10
"""Bytes of shared memory that a block may take on Turing."""


@pytest.fixture(autouse=True)
def _turing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    about = torch.cuda.get_device_properties(0)
    device = _launching.GpuProperties(0, about.name, "compute_75", about.multi_processor_count, SHARED)
    for name in ("get_gpu_properties", "get_device_gpu_properties"):
        monkeypatch.setattr(_launching, name, lambda _: device)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _=None: (7, 5))
    monkeypatch.setattr(_launching, "_KERNELS", {})
    _launching._explain_unsupported_gpu.cache_clear()
    torch.manual_seed(0)
    yield
    assert _launching._KERNELS, "no kernel was compiled for compute_75"
    _launching._explain_unsupported_gpu.cache_clear()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("radius", "channels", "motion"), [(4, 256, "smooth"), (4, 67, "random"), (7, 64, "outside")])
def test_correlation_lookup_on_turing_matches_float64(
    dtype: torch.dtype, radius: int, channels: int, motion: str
) -> None:
    case = make_case((17, 33), (20, 40), batch=2, channels=channels, levels=4, radius=radius, motion=motion)
    if dtype == torch.float32:
        check(LOOKUPS, case, dtype)
    check(LOOKUPS, single_level(case), dtype, pooled=False)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shifts", ["drifting", "jumping"])
def test_lookup_gradients_on_turing_match_float64(dtype: torch.dtype, shifts: str) -> None:
    case = make_case((48, 72), batch=1, channels=256, levels=4, radius=4)
    check_moving(LOOKUPS, case, SHIFTS[shifts], dtype)


def test_lookup_channels_last_on_turing_equals_contiguous() -> None:
    """float32 at 256 channels takes more than 64 KiB in blocks of all channels."""
    case = LOOKUPS.make((17, 33), (20, 40), channels=256, levels=4, radius=4)
    plain, last = (
        LOOKUPS.pair(case, memory_format=layout)(case.coords)
        for layout in (torch.contiguous_format, torch.channels_last)
    )
    assert last.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(last, plain, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("channels", "groups"), [((64, 64), 1), ((17, 130), 1), ((32, 32), 32)], ids=str)
def test_point_conv_on_turing_matches_float64(dtype: torch.dtype, channels: tuple[int, int], groups: int) -> None:
    point_conv.check_on_gpu(point_conv.surface(strided=groups == 1), channels, groups, dtype)


@pytest.mark.parametrize("size", [(44, 52), (16, 1100)], ids=str)
def test_tvl1_on_turing_equals_reference(size: tuple[int, int]) -> None:
    tvl1.test_tvl1_cuda_equals_reference(next(iter(tvl1.VARIANTS)), size)


@pytest.mark.parametrize("precision", tvl1.PRECISIONS)
def test_tvl1_fused_warps_on_turing_match_unfused(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = []
    best = fused.choose_tiling_if_faster
    monkeypatch.setattr(
        fused, "choose_tiling_if_faster", lambda *arguments: chosen.append(best(*arguments)) or chosen[-1]
    )
    config = tvl1.QUICK.replace(precision=precision)
    frames = tvl1.scene(90, 131)
    error = (tvl1.solved(frames, config) - tvl1.truth(frames, config)).abs()
    assert any(cut is not None for cut in chosen)
    assert all(cut is None or cut.shape.shared_bytes <= SHARED for cut in chosen)
    assert error.mean() < (1e-4 if precision == "float32" else 1e-2)
    assert error.max() < (5e-3 if precision == "float32" else 0.2)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", passes.NAMES)
def test_fused_kernels_on_turing_equal_reference(name: str, dtype: torch.dtype) -> None:
    passes.compare(name, dtype, torch.device("cuda"), (21, 37, 96), (300, 500), 384)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("number", range(len(spatial.LARGE)))
def test_spatial_correlation_on_turing_equals_reference(number: int, dtype: torch.dtype) -> None:
    spatial.test_spatial_correlation_on_gpu_equals_reference(*spatial.LARGE[number], dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_global_matching_on_turing_equals_reference(dtype: torch.dtype) -> None:
    matching.test_matching_kernels_on_gpu_equal_reference(dtype)


@pytest.mark.parametrize(
    "check",
    [
        lambda: neighbors.search_on_a_gpu("volume"),
        lambda: point_norm.TestOnTheGpu().test_point_norm_gradients_match_float64("layer", torch.bfloat16, 1000, 64),
    ],
    ids=["neighbours", "point norm"],
)
def test_other_operators_on_turing_equal_reference(check: Callable[[], None]) -> None:
    check()
