"""The CUDA kernels compile for every GPU from Turing on, within registers and shared memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from assembled import said_of

import fullfield
from benchmarks.cases.correlation import steps, voting
from benchmarks.cases.points import listing as points_listing
from benchmarks.cases.tvl1 import romera, tuning
from fullfield._kernels import nvrtc
from fullfield._kernels.nvrtc import KernelSource
from fullfield.ops import _launching
from fullfield.ops._fused import cuda as fused
from fullfield.ops.correlation.cuda import config as shapes
from fullfield.ops.correlation.protocol import LookupRequest
from fullfield.ops.matching import cuda as matching
from fullfield.ops.neighbors import cuda as neighbors
from fullfield.ops.point_conv import protocol as points
from fullfield.ops.point_conv.cuda import config, pooling, triplets
from fullfield.ops.point_norm import cuda as norms
from fullfield.ops.spatial_correlation import cuda as spatial
from fullfield.ops.tvl1 import guided_cuda
from fullfield.ops.tvl1.config import TVL1Config
from fullfield.ops.tvl1.cuda import fused as tvl1_fused
from fullfield.ops.tvl1.cuda import passes as tvl1
from fullfield.ops.tvl1.cuda.pipeline import PipelineShape
from fullfield.ops.tvl1.cuda.state import Level
from fullfield.registration import cuda as describing
from fullfield.registration.learned_network import INPUTS, KERNEL
from fullfield.training.flow.convex_loss import cuda as loss
from fullfield.training.flow.layered import cuda as layered

needs_nvrtc = pytest.mark.skipif(nvrtc.explain_missing_nvrtc() is not None, reason=str(nvrtc.explain_missing_nvrtc()))
SHARED = {"sm_75": 64 << 10, "sm_80": 163 << 10, "sm_86": 99 << 10, "sm_87": 163 << 10, "sm_90a": 227 << 10}
ARCHS = ("sm_75", "sm_80", "sm_87", "sm_90a")
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
Limits = Iterator[tuple[KernelSource, str, float, int]]
"""Sources, names of kernels ("" for all of a source), limits of registers and of spilled bytes."""


def build_lookup_request(
    channels: int = 256, radius: int = 4, dtype: torch.dtype = torch.bfloat16, levels: int = 4
) -> LookupRequest:
    sizes = tuple((64 >> level, 96 >> level) for level in range(levels))
    return LookupRequest(1, channels, (64, 96), sizes, radius, dtype, torch.device("cuda", 0), True, True)


def get_device_gpu_properties(arch: str) -> _launching.GpuProperties:
    return _launching.GpuProperties(0, "", arch, 132, SHARED[arch])


def most(registers: int, arch: str) -> int:
    """Return the limit of registers: before sm_80 a multiprocessor runs 1024 threads, for which 64 suffice."""
    return max(registers, 64) if arch == "sm_75" else registers


def resources(source: KernelSource, arch: str) -> dict[str, tuple[int, int]]:
    """Return registers and spilled bytes of every kernel, as the assembler reports them."""
    return said_of(source, arch).kernels


# ---- the lookup


def generate_lookup_source(
    request: LookupRequest, arch: str, out: int = 0, channels_last: bool = False
) -> KernelSource:
    forward = shapes.choose_forward_config(request, get_device_gpu_properties(arch))
    actual = shapes.choose_fitting_lookup_config_or_none(forward, out, channels_last, SHARED[arch])
    assert actual is not None
    assert shapes.compute_lookup_shared_bytes(actual, out, channels_last) <= SHARED[arch]
    return shapes.generate_lookup_source(actual, out, channels_last)


def generate_collect_and_multiply_sources(
    request: LookupRequest, arch: str, grad: int = 0
) -> tuple[KernelSource, KernelSource]:
    """Return the sources of ``collect`` and of ``multiply_out``."""
    shared = SHARED[arch]
    actual = shapes.derive_gradient_config(shapes.choose_forward_config(request, get_device_gpu_properties(arch)))
    side, variant = (
        shapes.choose_gradient_patch_side(actual, shared),
        shapes.choose_multiply_channels_and_chunks(actual, shared),
    )
    assert side >= 2 * request.radius + 2
    assert actual.padded_channels % variant[0] == 0
    assert shapes.compute_collect_kernel_shared_bytes(side) <= shared
    assert shapes.compute_multiply_kernel_shared_bytes(actual, *variant) <= shared
    return shapes.generate_collect_source(actual, grad, side), shapes.generate_multiply_source(actual, side, *variant)


def of_lookups(arch: str) -> Limits:
    hopper, turing = arch == "sm_90a", arch == "sm_75"
    for dtype in DTYPES:
        request = build_lookup_request(dtype=dtype)
        forward, code = (
            shapes.choose_forward_config(request, get_device_gpu_properties(arch)),
            _launching.CODES[dtype],
        )
        # Hopper's blocks move registers between their warps at run time.
        yield generate_lookup_source(request, arch), "lookup", 168 if hopper else 255, 0 if hopper else 1024
        prepare = shapes.generate_prepare_source(forward, code, shapes.is_scaled_to_float16(request, forward), False)
        yield prepare, "prepare magnitude", 80, 16
        collect, multiply = generate_collect_and_multiply_sources(request, arch)
        # Five blocks a multiprocessor; before sm_80 shared memory holds one.
        yield collect, "collect", 104 if turing else 102, 0
        yield multiply, "multiply_out", 255 if forward.split or turing else 128, 256  # two blocks, where they fit
        yield shapes.generate_coords_gradient_source(forward, 0), "coords_gradient", 72 if turing else 64, 64


# ---- points


def convolution_of(
    dtype: torch.dtype,
    arch: str,
    channels: tuple[int, int] = (64, 64),
    rows: int = 900_000,
    cells: int = 27,
    groups: int = 1,
) -> tuple[points.ConvRequest, config.OperandFormat]:
    """Return the request as the launches change it, and what they multiply."""
    request = points.ConvRequest(torch.device("cuda", 0), dtype, channels, groups, cells, rows, rows, 16 * rows)
    if not get_device_gpu_properties(arch).has_bfloat16_tensor_cores:
        request = config.replace_bfloat16_by_float32(request)
    return request, config.choose_operand_format(request, False)


def of_point_convolutions(arch: str) -> Limits:
    for dtype in DTYPES:
        request, operands = convolution_of(dtype, arch)
        device, hopper = get_device_gpu_properties(arch), arch == "sm_90a"
        forward = config.choose_multiply_variant(request, operands, device)
        gradient = config.choose_outer_product_variant(request, operands, device)
        assert forward.compute_shared_bytes(27, operands.parts_per_value) <= device.shared
        assert gradient.compute_shared_bytes(operands.parts_per_value) <= device.shared
        registers = (1 << 16) / forward.threads / forward.blocks
        yield forward.build_source(operands), "multiply", registers, 32 if hopper else 16
        if isinstance(forward, config.HopperMultiplyVariant):  # else its warps would wait for registers for ever
            expected = 128 * (forward.groups * forward.registers + forward.listing)
            assert expected <= resources(forward.build_source(operands), arch)["multiply"][0] * forward.threads
        spilled = 0 if hopper and operands.code else 256
        yield gradient.build_source(operands), "outer", (1 << 16) / 32 / gradient.warps, spilled
        yield forward.build_source(operands), "pack", most(48, arch), 0
        yield gradient.build_source(operands), "add_shares", most(48, arch), 0


def of_geometries(arch: str) -> Limits:
    sources = {neighbors.generate_radius_search_source(): 64, neighbors.generate_downsampling_source(): 56}
    sources |= {neighbors.generate_tree_search_source(k): limit for k, limit in ((16, 56), (64, 64), (1024, 255))}
    sources |= {describing.generate_descriptor_source(INPUTS, KERNEL): 80}
    sources |= {triplets.generate_triplets_source(*where): 48 for where in product((False, True), repeat=2)}
    sources |= {
        pooling.generate_pooling_source(dtype, dtype == torch.float32): 48 for dtype in (*DTYPES, torch.float64)
    }
    sources |= {points_listing.source(dtype): 128 for dtype in DTYPES}
    # 64 registers leave as many blocks of 256 threads on a multiprocessor as 56.
    for source, limit in sources.items():  # the sort of long rows is called: what it needs is saved around the call
        yield source, "", most(limit, arch), 80


def of_norms(arch: str) -> Limits:
    del arch
    for dtype, (channels, wide, limit) in product(DTYPES, ((64, True, 128), (1000, True, 255), (37, False, 128))):
        yield norms.generate_norm_source(dtype, dtype, channels, wide), "", limit, 64


# ---- images


def of_networks(arch: str) -> Limits:
    del arch
    for dtype in DTYPES:
        yield fused.generate_passes_source(dtype), "", 64, 0
        # Three blocks a multiprocessor, of six warps each.
        spilled = 832 if dtype == torch.float32 else 0
        yield fused.generate_depthwise_source(dtype, 384), "depthwise depthwise_norm", 96, spilled
        for factor, channels_last in ((8, True), (8, False), (3, True)):
            yield fused.generate_convex_source(dtype, factor, channels_last), "convex", 168, 0
    for channels in (2, 6, 7):
        yield fused.generate_convex_gradients_source(torch.bfloat16, channels), "", 255, 0


def of_training(arch: str) -> Limits:
    del arch
    yield loss.get_convex_loss_kernel_source(torch.bfloat16), "", 255, 0
    yield layered.get_renderer_kernel_source(), "", 128, 0


def of_matching(arch: str) -> Limits:
    del arch
    for dtype in (torch.float16, torch.float32):  # all threads that a multiprocessor holds, or half of them
        yield matching.generate_matching_source(dtype), "positions gradient", 64, 0


def of_spatial_correlation(arch: str) -> Limits:
    half_dtype = torch.float16 if arch == "sm_75" else torch.bfloat16
    for dtype, patch in ((torch.float32, 9), (half_dtype, 9), (half_dtype, 21)):
        columns = spatial.divide_displacement_row(patch)
        rows = spatial.choose_displacement_rows_per_block(patch, columns, 1000, SHARED[arch])
        if dtype == torch.float32:
            limit = 65536 / spatial.count_forward_threads_per_block(columns, rows)
            yield spatial.generate_forward_source(True, columns, rows), "spatial_forward", limit, 128
        else:
            half = spatial.choose_half_precision_tiling((patch, patch), 1000)
            limit = 255 if arch == "sm_75" else 128  # one block, or two
            yield spatial.generate_half_precision_forward_source(dtype, True, half), "spatial_forward_half", limit, 128
        for spread in spatial.SPREADS:
            yield spatial.generate_backward_source(dtype, True, columns, spread), "spatial_backward", 168, 64


def of_tvl1(arch: str) -> Limits:
    yield tvl1.generate_pyramid_source(), "grey resample", most(48, arch), 0
    for dtype in (torch.float32, torch.float16):
        yield tvl1.generate_linearise_source(dtype), "linearise", 80, 0
        yield tvl1.generate_median_source(dtype), "median0 median3 median5", 80, 0


def of_guided_refinement(arch: str) -> Limits:
    for shape in guided_cuda.SHAPES:
        source = guided_cuda.generate_refinement_source(shape)
        yield source, "guided_iterate", 65536 / 32 / shape.warps / shape.blocks, 16
        # A multiprocessor of Turing has shared memory for one block of it.
        yield source, "guided_median_float16", 256 if arch == "sm_75" else 128, 0
        yield source, "guided_median_float32", 128, 0
        others = {*resources(source, arch)} - {"guided_iterate", "guided_median_float16", "guided_median_float32"}
        yield source, " ".join(others), 255, 0
    for iterations in (10, 8, 5):
        strips = guided_cuda.STRIPS.plan_strips_if_faster(iterations, (2160, 3840), get_device_gpu_properties(arch))
        if strips is not None:
            yield strips.source, "guided_rows", 168, 0


def of_fused_warps(arch: str) -> Limits:
    """Registers for the block's threads, and few spilled; where levels are smaller than a tile, on one GPU."""
    hopper = arch == ARCHS[-1]
    usable = [shape for shape in tvl1_fused.SHAPES if hopper or shape.cluster == 1]
    for shape in usable[:: 1 if hopper else 5]:
        for small in (False, True)[: 1 + (hopper and shape.rows_per_block * shape.columns_per_lane <= 32)]:
            dtype = torch.float16 if small else torch.float32
            cut = tvl1_fused.LevelTiling(shape, 12, 40, 10, 3, 3, small)
            limit = 65536 / 32 / shape.groups / shape.blocks_per_multiprocessor
            yield tvl1_fused.generate_fused_warp_source(TVL1Config(), cut, dtype), "fused_warp", limit, 256
            assert shape.shared_bytes <= SHARED["sm_90a"]
    assert any(shape.shared_bytes <= SHARED[arch] for shape in tvl1_fused.SHAPES)


def of_voting(arch: str) -> Limits:
    for dtype in (torch.float16, torch.bfloat16) if arch in ("sm_80", "sm_90a") else ():
        yield voting.source(dtype), "vote", 168, 0
    if arch == "sm_90a":
        for last in range(len(voting.STEPS) - 1):
            yield voting.source(torch.bfloat16, last), "vote", 168, 0
        whole = generate_lookup_source(build_lookup_request(), arch)
        for last in range(len(steps.STEPS) - 1):
            yield steps.cut_source(whole, last), "lookup", 168, 0


OPERATORS: list[Callable[[str], Limits]] = [
    of_lookups,
    of_point_convolutions,
    of_geometries,
    of_norms,
    of_networks,
    of_training,
    of_matching,
    of_spatial_correlation,
    of_tvl1,
    of_guided_refinement,
    of_fused_warps,
    of_voting,
]


@needs_nvrtc
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("limits", OPERATORS, ids=lambda limits: limits.__name__)
def test_kernel_registers_and_spills_are_limited(limits: Callable[[str], Limits], arch: str) -> None:
    for source, names, registers, spilled in limits(arch):
        actual = resources(source, arch)
        assert actual
        for name in names.split() or actual:
            assert actual[name][0] <= registers, name
            assert actual[name][1] <= spilled, name


# Of every schedule what it begins with, on every GPU; what tuning may choose instead, on one.
ITERATIONS = [
    (arch, schedule, dtype, shape)
    for (schedule, dtype), candidates in tuning.CANDIDATES.items()
    for number, shape in enumerate(candidates)
    for arch in (ARCHS if number == 0 else ARCHS[-1:] if schedule == "register_pipeline" else ())
]


@needs_nvrtc
@pytest.mark.parametrize(("arch", "schedule", "dtype", "shape"), ITERATIONS, ids=str)
def test_tvl1_iteration_kernels_fit_registers(
    arch: str, schedule: str, dtype: torch.dtype, shape: PipelineShape
) -> None:
    """Registers for as many blocks as are to run at once, and none spilled."""
    device = _launching.GpuProperties(0, "any", arch, 100, SHARED[arch])
    level = Level(1, 1080, 1920, dtype, torch.device("cpu"))
    for launch in romera.passes_of(schedule, level, romera.depth_of(schedule, shape), shape, device):
        registers, spilled = resources(launch.source, arch)[launch.name]
        blocks = shape.blocks if schedule == "register_pipeline" else 2
        assert registers * launch.threads * blocks <= 65536
        assert spilled == 0
        assert launch.shared <= SHARED[arch]


# Everything a user may ask for compiles: radii, several blocks of channels, every result. Shared memory and Hopper
# decide what the source is, so sm_87 gets sm_80's: the largest patches and the smallest are asked of it.
VARIANTS = [
    (1, 1, torch.bfloat16, 0, False),
    (256, 8, torch.float16, 2, False),
    (600, 2, torch.float32, 1, False),
    (100, 5, torch.float32, 0, False),
    (128, 4, torch.bfloat16, 1, True),
]


@pytest.mark.unit
def test_lookup_source_differs_by_shared_memory_and_hopper() -> None:
    for channels, radius, dtype, out, channels_last in VARIANTS:
        request = build_lookup_request(channels, radius, dtype, levels=8)
        one, other = (generate_lookup_source(request, arch, out, channels_last) for arch in ("sm_80", "sm_87"))
        assert one == other


@needs_nvrtc
@pytest.mark.parametrize("arch", SHARED)
def test_lookup_variants_compile(arch: str) -> None:
    for channels, radius, dtype, out, channels_last in VARIANTS[: 2 if arch == "sm_87" else None]:
        if (arch, radius) == ("sm_75", 8):  # refused
            continue
        request = build_lookup_request(channels, radius, dtype, levels=8)
        for source in (
            generate_lookup_source(request, arch, out, channels_last),
            *generate_collect_and_multiply_sources(request, arch, out),
        ):
            assert resources(source, arch)


@needs_nvrtc
@pytest.mark.parametrize("arch", SHARED)
@pytest.mark.parametrize(
    ("channels", "groups", "cells", "rows"),
    [((1, 1), 1, 1, 10), ((512, 512), 1, 27, 3000), ((3, 64), 1, 343, 200_000), ((32, 32), 32, 125, 10**7)],
    ids=str,
)
def test_point_conv_kernels_fit_shared_memory(
    arch: str, channels: tuple[int, int], groups: int, cells: int, rows: int
) -> None:
    device = get_device_gpu_properties(arch)
    for dtype in DTYPES:
        request, operands = convolution_of(dtype, arch, channels, rows, cells, groups)
        operands = replace(operands, beside=True)
        forward, gradient = (
            f(request, operands, device) for f in (config.choose_multiply_variant, config.choose_outer_product_variant)
        )
        assert forward.compute_shared_bytes(cells, operands.parts_per_value) <= device.shared
        assert gradient.compute_shared_bytes(operands.parts_per_value) <= device.shared
        assert 1 <= gradient.warps <= 16
    if arch in ("sm_75", "sm_86", "sm_90a"):
        assert "multiply" in resources(forward.build_source(operands), arch)
        assert "outer" in resources(gradient.build_source(operands), arch)


@needs_nvrtc
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("channels", [(64, 64), (64, 128), (8, 16)], ids=str)
def test_point_conv_wgmma_overlaps_other_instructions(dtype: torch.dtype, channels: tuple[int, int]) -> None:
    """The assembler waits for every wgmma where it cannot tell its registers apart, and says so."""
    request, operands = convolution_of(dtype, "sm_90a", channels)
    forward, gradient = (
        f(request, operands, get_device_gpu_properties("sm_90a"))
        for f in (config.choose_multiply_variant, config.choose_outer_product_variant)
    )
    assert isinstance(forward, config.HopperMultiplyVariant)
    actual = resources(forward.build_source(operands), "sm_90a")["multiply"][0]
    assert 128 * (forward.groups * forward.registers + forward.listing) <= actual * forward.threads
    for variant in (forward, gradient):
        assert not said_of(variant.build_source(operands), "sm_90a").waits


@pytest.mark.unit
def test_kernels_include_no_headers() -> None:
    sources = sorted(Path(fullfield.__file__).parent.rglob("*.cu*"))
    assert len(sources) >= 15
    assert not [path.name for path in sources if re.search(r"^\s*#\s*include", path.read_text("utf-8"), re.MULTILINE)]
