"""The point convolution's kernels compile for every GPU from Turing on, within registers and shared memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from assembled import said_of
from test_nvrtc import ARCHS, DTYPES, SHARED, compiles, device_of, most, needs_nvrtc, resources

from fullfield.ops.point_conv.cuda import config
from fullfield.ops.point_conv.protocol import Request


def request_of(
    dtype: torch.dtype, channels: tuple[int, int] = (64, 64), rows: int = 900_000, cells: int = 27, groups: int = 1
) -> Request:
    return Request(torch.device("cuda", 0), dtype, channels, groups, cells, rows, rows, 16 * rows)


def served(request: Request, arch: str) -> Request:
    """Return the request as the launches change it."""
    return request if device_of(arch).multiplies_bfloat16 else config.without_bfloat16(request)


@needs_nvrtc
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_resources(arch: str, dtype: torch.dtype) -> None:
    request, device = served(request_of(dtype), arch), device_of(arch)
    operands = config.operands_of(request, False)
    forward, gradient = (
        config.multiply_config(request, operands, device),
        config.outer_config(request, operands, device),
    )
    assert forward.shared(27, operands.parts) <= device.shared
    assert gradient.shared(operands.parts) <= device.shared
    found = resources(forward.source(operands), arch) | resources(gradient.source(operands), arch)
    assert set(found) - {"magnitude"} == {"multiply", "pack", "outer", "add_shares"}
    registers, spilled = found["multiply"]
    assert registers * forward.threads * forward.blocks <= 1 << 16
    assert spilled <= (32 if arch == "sm_90a" else 16)
    if isinstance(forward, config.MultiplyHopper):  # else its warps would wait for registers for ever
        wanted = 128 * (forward.groups * forward.registers + forward.listing)
        assert wanted <= registers * forward.threads
    registers, spilled = found["outer"]
    assert registers * 32 * gradient.warps <= 1 << 16
    assert spilled <= (0 if arch == "sm_90a" and operands.code else 256)
    for name in ("pack", "add_shares"):
        assert found[name][0] <= most(48, arch)
        assert found[name][1] == 0


@needs_nvrtc
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("channels", [(64, 64), (64, 128), (8, 16)], ids=str)
def test_wgmma_runs_beside_the_rest(dtype: torch.dtype, channels: tuple[int, int]) -> None:
    """The assembler waits for every wgmma where it cannot tell its registers apart, and says so."""
    request, device = request_of(dtype, channels), device_of("sm_90a")
    operands = config.operands_of(request, False)
    forward, gradient = (f(request, operands, device) for f in (config.multiply_config, config.outer_config))
    assert isinstance(forward, config.MultiplyHopper)
    found = resources(forward.source(operands), "sm_90a")["multiply"][0]
    assert 128 * (forward.groups * forward.registers + forward.listing) <= found * forward.threads
    for form in (forward, gradient):
        assert not said_of(form.source(operands), "sm_90a").waits


@needs_nvrtc
@pytest.mark.parametrize("arch", [*SHARED])
@pytest.mark.parametrize(
    ("channels", "groups", "cells", "rows"),
    [((1, 1), 1, 1, 10), ((512, 512), 1, 27, 3000), ((3, 64), 1, 343, 200_000), ((32, 32), 32, 125, 10**7)],
    ids=str,
)
def test_any_request_fits(arch: str, channels: tuple[int, int], groups: int, cells: int, rows: int) -> None:
    device = device_of(arch)
    for dtype in DTYPES:
        request = served(request_of(dtype, channels, rows, cells, groups), arch)
        operands = replace(config.operands_of(request, False), beside=True)
        forward, gradient = (f(request, operands, device) for f in (config.multiply_config, config.outer_config))
        assert forward.shared(cells, operands.parts) <= device.shared
        assert gradient.shared(operands.parts) <= device.shared
        assert 1 <= gradient.warps <= 16
    if arch in ("sm_75", "sm_86", "sm_90a"):
        assert "multiply" in compiles(forward.source(operands), arch)
        assert "outer" in compiles(gradient.source(operands), arch)


def test_the_kernels_include_nothing() -> None:
    sources = sorted(Path(config.__file__).parent.glob("*.cu*"))
    assert len(sources) >= 5
    assert not [path.name for path in sources if "#include" in path.read_text("utf-8")]
