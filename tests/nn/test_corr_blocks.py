"""The blocks to paste: against their formula in float64, and against the classes they replace."""

from __future__ import annotations

import copy
import importlib
import pickle
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fullfield import InputError
from fullfield.nn import (
    DroidCorrBlock,
    RAFTCorrBlock,
    SEARAFTCorrBlock,
    StereoCorrBlock,
    TorchvisionCorrBlock,
    local_correlation_with_flow,
)
from tests.oracles.correlation import assert_within, make_case


def definition(
    fmap1: Tensor,  # [B, C, H, W]
    fmap2: Tensor,
    coords: Tensor,  # [B, 2, H, W]
    levels: int,
    radius: int,
) -> Tensor:  # [B, levels·(2r+1)², H, W] float64
    """The volume of all pairs in float64, pooled, and read through hat functions."""
    batch, channels, height, _ = fmap1.shape
    volume = torch.einsum("bchw,bcyx->bhwyx", fmap1.double(), fmap2.double()) / channels**0.5
    taps = torch.arange(-radius, radius + 1).double()
    out = []
    for level in range(levels):
        if level:
            volume = torch.unflatten(functional.avg_pool2d(volume.flatten(0, 1), 2), 0, (batch, height))
        where = []
        for axis, extent in ((1, volume.shape[3]), (0, volume.shape[4])):
            at = coords[:, axis].double() / 2**level
            at = at[..., None] + taps
            where.append((1 - (at[..., None] - torch.arange(extent)).abs()).clamp(min=0))
        rows, columns = where  # [B, H, W, 2r+1, extent]
        out.append(torch.einsum("bhwyx,bhwjy,bhwix->bijhw", volume, rows, columns).flatten(1, 2))
    return torch.cat(out, 1)


def maps(size: tuple[int, int] = (17, 23), channels: int = 12, batch: int = 2, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Channel splits of one tensor, as networks have them: not contiguous."""
    both = torch.randn(batch, 2 * channels, *size, generator=torch.Generator().manual_seed(seed))
    return both[:, :channels], both[:, channels:]


def positions(fmap1: Tensor, seed: int = 1) -> Tensor:
    """Smooth motion, some of it across the border, stored channels-last."""
    batch, _, height, width = fmap1.shape
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    noise = torch.randn(batch, height, width, 2, generator=torch.Generator().manual_seed(seed))
    return (torch.stack((x, y), -1) + 2.5 * noise).permute(0, 3, 1, 2)


def gradients(block: Callable[[Tensor, Tensor], Tensor], fmap1: Tensor, fmap2: Tensor) -> list[Tensor]:
    """The result and the features' gradients of a weighted sum."""
    leaves = [fmap1.detach().clone().requires_grad_(), fmap2.detach().clone().requires_grad_()]
    out = block(*leaves)
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(5)).to(out)
    return [out.detach(), *torch.autograd.grad((out * weight).sum(), leaves)]


def same(got: Sequence[Tensor], expected: Sequence[Tensor], relative: float = 2e-5) -> None:
    for name, a, b in zip(("result", "fmap1", "fmap2"), got, expected, strict=True):
        assert_within(a, b, relative * float(b.abs().max()), name)


def arguments(levels: int, radius: int) -> Any:
    return SimpleNamespace(corr_levels=levels, corr_radius=radius)


def torchvision_form(levels: int, radius: int, coords: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    def run(fmap1: Tensor, fmap2: Tensor) -> Tensor:
        block = TorchvisionCorrBlock(num_levels=levels, radius=radius)
        block.build_pyramid(fmap1, fmap2)
        return block.index_pyramid(centroids_coords=coords)

    return run


@pytest.mark.parametrize(("levels", "radius"), [(4, 4), (2, 3), (1, 1)])
def test_corr_blocks_equal_definition(levels: int, radius: int) -> None:
    fmap1, fmap2 = maps()
    coords = positions(fmap1)
    expected = gradients(lambda a, b: definition(a, b, coords, levels, radius), fmap1, fmap2)
    args = arguments(levels, radius)
    ones = torch.ones(2, 1, 17, 23)
    blocks: list[Callable[[Tensor, Tensor], Tensor]] = [
        lambda a, b: RAFTCorrBlock(a, b, num_levels=levels, radius=radius)(coords),
        lambda a, b: SEARAFTCorrBlock(a, b, args)(coords),
        lambda a, b: SEARAFTCorrBlock(a, b, args)(coords, dilation=ones),
        torchvision_form(levels, radius, coords),
    ]
    for block in blocks:
        got = gradients(block, fmap1, fmap2)
        same(got, expected)
        assert got[0].dtype == torch.float32
        assert got[0].is_contiguous()


def test_raft_corr_block_returns_float32_for_any_dtype() -> None:
    fmap1, fmap2 = maps()
    coords = positions(fmap1)
    expected = definition(fmap1, fmap2, coords, 4, 4)
    assert_within(RAFTCorrBlock(fmap1, fmap2)(coords), expected, 1e-5, "defaults")
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        out = RAFTCorrBlock(fmap1.to(dtype), fmap2.to(dtype))(coords)
        assert out.dtype == torch.float32
        exact = definition(fmap1.to(dtype), fmap2.to(dtype), coords, 4, 4)
        rounding = max(1e-5, torch.finfo(dtype).eps)  # coarser levels are of the features' dtype
        assert_within(out, exact, rounding * float(exact.abs().max()), str(dtype))
    half = RAFTCorrBlock(fmap1, fmap2, out_dtype=torch.float16)(coords.half())
    assert half.dtype == torch.float16
    exact = definition(fmap1, fmap2, coords.half(), 4, 4)
    assert_within(half, exact, 2e-3 * float(exact.abs().max()), "float16 coordinates")


def test_corr_blocks_accept_unequal_and_small_maps() -> None:
    fmap1, _ = maps((9, 11))
    _, fmap2 = maps((6, 14))
    coords = positions(fmap1)
    out = RAFTCorrBlock(fmap1, fmap2, 2, 2)(coords)
    assert_within(out, definition(fmap1, fmap2, coords, 2, 2), 1e-5, "two sizes")
    tiny = maps((3, 5))
    block = TorchvisionCorrBlock(num_levels=4, radius=4)
    block.build_pyramid(*tiny)
    out = block.index_pyramid(positions(tiny[0]))
    assert out.isfinite().all()
    assert not out[:, 2 * 81 :].any()


# ---- dilation


@pytest.mark.parametrize("inference", [False, True])
def test_sea_raft_corr_block_refuses_changed_dilation(inference: bool) -> None:
    fmap1, fmap2 = maps((7, 6))
    coords = positions(fmap1)
    block = SEARAFTCorrBlock(fmap1, fmap2, arguments(2, 2))
    with torch.inference_mode(inference):
        dilation = torch.ones(2, 1, 7, 6)
        result = block(coords, dilation)
        dilation[:, :, 2] = 1.75
        for changed in (dilation, torch.full_like(dilation, 0.5), torch.full_like(dilation, float("nan"))):
            with pytest.raises(InputError, match="dilation: expected None or ones without gradient, got other values"):
                block(coords, changed)
        repeated = block(coords, torch.ones_like(dilation))
    assert torch.equal(result, block(coords))
    assert torch.equal(repeated, result)


@pytest.mark.unit
def test_sea_raft_corr_block_refuses_wrong_dilation() -> None:
    fmap1, fmap2 = maps((5, 4))
    block = SEARAFTCorrBlock(fmap1, fmap2, arguments(2, 1))
    with pytest.raises(InputError, match=r"dilation: expected shape \[2, 1, 5, 4\]"):
        block(positions(fmap1), torch.ones(2, 2, 5, 4))
    with pytest.raises(InputError, match="dilation: expected None or ones without gradient, got a tensor"):
        block(positions(fmap1), torch.ones(2, 1, 5, 4, requires_grad=True))
    with pytest.raises(InputError, match="coords: expected"):
        block(positions(fmap1)[..., :3], torch.ones(2, 1, 5, 4))
    with pytest.raises(InputError, match="coords: expected a tensor"):
        block(None)  # type: ignore[arg-type]


# ---- every block: traced, on a GPU, and against the class that it replaces


def torchvision_block(a: Tensor, b: Tensor, xy: Tensor) -> Tensor:
    return torchvision_form(4, 4, xy)(a, b)


Block = Callable[[Tensor, Tensor, Tensor], Tensor]
BLOCKS: dict[str, Block] = {
    "raft": lambda a, b, xy: RAFTCorrBlock(a, b)(xy),
    "sea-raft": lambda a, b, xy: SEARAFTCorrBlock(a, b, arguments(4, 4))(xy, torch.ones_like(xy[:, :1])),
    "torchvision": torchvision_block,
    "droid": lambda a, b, xy: DroidCorrBlock(a[None], b[None])(xy.permute(0, 2, 3, 1)[None])[0],
    "unimatch": lambda a, b, xy: local_correlation_with_flow(a, b, xy % 5, 4),
    "stereo": lambda a, b, xy: StereoCorrBlock(a, b)(xy),
}


@pytest.mark.parametrize("name", [name for name in BLOCKS if name != "stereo"])
def test_corr_blocks_compile_in_one_graph(name: str) -> None:
    fmap1, fmap2 = maps((9, 11))
    coords = positions(fmap1).contiguous()

    given = arguments(4, 4)

    def block(a: Tensor, b: Tensor) -> Tensor:
        return SEARAFTCorrBlock(a, b, given)(coords) if name == "sea-raft" else BLOCKS[name](a, b, coords)

    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    same(gradients(compiled, fmap1, fmap2), gradients(block, fmap1, fmap2), 1e-6)


def torchvision_peer(module: Any, a: Tensor, b: Tensor, xy: Tensor) -> Tensor:
    theirs = module.CorrBlock(num_levels=4, radius=4)
    assert theirs.out_channels == TorchvisionCorrBlock(num_levels=4, radius=4).out_channels
    theirs.build_pyramid(a, b)
    found: Tensor = theirs.index_pyramid(centroids_coords=xy)
    return found


PEERS: dict[str, tuple[str, str, Callable[..., Tensor]]] = {
    "raft": ("ptlflow", "models.raft.corr", lambda m, a, b, xy: m.CorrBlock(a, b)(xy)),
    "sea-raft": ("ptlflow", "models.sea_raft.corr", lambda m, a, b, xy: m.CorrBlock(a, b)(xy)),
    "torchvision": ("torchvision", "models.optical_flow.raft", torchvision_peer),
    "unimatch": (
        "ptlflow",
        "models.unimatch.matching",
        lambda m, a, b, xy: m.local_correlation_with_flow(a, b, xy % 5, local_radius=4),
    ),
}


@pytest.mark.filterwarnings("ignore:torch.meshgrid:UserWarning")
@pytest.mark.parametrize("name", PEERS)
def test_corr_blocks_equal_replaced_class(name: str, request: pytest.FixtureRequest) -> None:
    package, path, theirs = PEERS[name]
    module = importlib.import_module(f"{request.getfixturevalue(package).__name__}.{path}")
    fmap1, fmap2 = (fmap.contiguous() for fmap in maps((16, 24)))
    coords = positions(fmap1)
    ours = gradients(lambda a, b: BLOCKS[name](a, b, coords), fmap1, fmap2)
    same(ours, gradients(lambda a, b: theirs(module, a, b, coords), fmap1, fmap2))


def on_gpu(test: Any) -> Any:
    return pytest.mark.gpu(pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")(test))


@on_gpu
@pytest.mark.parametrize("name", BLOCKS)
def test_corr_blocks_on_gpu_equal_cpu(name: str) -> None:
    case = make_case((23, 37), batch=2, channels=48)
    found = []
    for device in ("cpu", "cuda"):
        coords = case.coords.to(device)
        maps_there = (case.fmap1.to(device), case.fmap2.to(device))
        found.append(gradients(lambda a, b, xy=coords: BLOCKS[name](a, b, xy), *maps_there))  # type: ignore[misc]
    same(found[1], found[0], 1e-4)


@on_gpu
def test_sea_raft_corr_block_refuses_dilation_in_graph_capture() -> None:
    case = make_case((8, 12), batch=1, channels=32)
    block = SEARAFTCorrBlock(case.fmap1.cuda(), case.fmap2.cuda(), arguments(4, 4))
    coords = case.coords.cuda()
    ones, seen = (torch.ones(1, 1, 8, 12, device="cuda") for _ in range(2))
    expected = block(coords, seen)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outs = [block(coords), block(coords, seen)]
        with pytest.raises(InputError, match="dilation: expected None while a CUDA graph is captured"):
            block(coords, ones)
    for out in outs:
        out.fill_(float("nan"))
    graph.replay()
    for out in outs:
        assert torch.equal(out, expected)


def test_torchvision_corr_block_copies_are_empty() -> None:
    block = TorchvisionCorrBlock(num_levels=2, radius=2)
    fmap1, fmap2 = maps((8, 8))
    block.build_pyramid(fmap1.requires_grad_(), fmap2)
    block.index_pyramid(positions(fmap1))
    for other in (copy.deepcopy(block), pickle.loads(pickle.dumps(block))):
        assert other.out_channels == 50
        with pytest.raises(RuntimeError, match="index_pyramid: call build_pyramid first"):
            other.index_pyramid(positions(fmap1))
    assert block.index_pyramid(positions(fmap1)).shape == (2, 50, 8, 8)


# ---- DROID-SLAM


def droid_definition(fmap1: Tensor, fmap2: Tensor, coords: Tensor, levels: int, radius: int) -> Tensor:
    flat = (t.flatten(0, 1) for t in (fmap1, fmap2, coords.permute(0, 1, 4, 2, 3)))
    scale = fmap1.shape[2] ** 0.5 / 16
    return torch.unflatten(definition(*flat, levels, radius) * scale, 0, fmap1.shape[:2])


def droid_maps(pairs: int, seed: int = 0, channels: int = 12) -> tuple[Tensor, Tensor, Tensor]:
    """[1, pairs, C, 9, 11] twice, and coordinates [1, pairs, 9, 11, 2]."""
    fmap1, fmap2 = maps((9, 11), channels, pairs, seed)
    return fmap1[None], fmap2[None], positions(fmap1, seed + 1).permute(0, 2, 3, 1)[None]


@pytest.mark.parametrize("channels", [12, 256])
def test_droid_corr_block_equals_original(channels: int) -> None:
    fmap1, fmap2 = (torch.unflatten(t, 0, (2, 3)) for t in maps((9, 11), channels, 6))
    coords = torch.unflatten(positions(fmap1.flatten(0, 1)).permute(0, 2, 3, 1), 0, (2, 3))

    def ours(a: Tensor, b: Tensor) -> Tensor:
        return DroidCorrBlock(a, b, num_levels=3)(coords)

    got = gradients(ours, fmap1, fmap2)
    same(got, gradients(lambda a, b: droid_definition(a, b, coords, 3, 3), fmap1, fmap2))
    assert got[0].shape == (2, 3, 3 * 49, 9, 11)
    moving = coords.clone().requires_grad_()
    assert not DroidCorrBlock(fmap1, fmap2)(moving).requires_grad


def test_droid_corr_block_adds_and_removes_pairs() -> None:
    first, more = droid_maps(3), droid_maps(2, seed=7)
    block = DroidCorrBlock(*first[:2], radius=2)
    before = block(first[2])
    assert block.cat(DroidCorrBlock(*more[:2], radius=2)) is block
    both = [torch.cat(pair, 1) for pair in zip(first, more, strict=True)]
    found = block(both[2])
    assert_within(found, droid_definition(*both, 4, 2), 1e-5, "five pairs")
    assert torch.equal(found[:, :3], before)
    mask = torch.tensor([True, False, True, True, False])
    assert torch.equal(block[mask](both[2][:, mask]), found[:, mask])
    order = torch.tensor([2, 0])
    assert torch.equal(block[order](both[2][:, mask][:, order]), found[:, mask][:, order])
    with pytest.raises(InputError, match="coords: expected positions of 2 pairs"):
        block(both[2])
    with pytest.raises(InputError, match="other: expected a block of 4 levels and radius 2, got 3 levels"):
        block.cat(DroidCorrBlock(*more[:2], num_levels=3, radius=2))
    with pytest.raises(InputError, match=r"fmap2: expected shape \[B, N, C, H, W\]"):
        DroidCorrBlock(first[0], first[1][0])


def test_droid_corr_block_has_dtype_of_product() -> None:
    fmap1, fmap2, coords = droid_maps(2)
    exact = droid_definition(fmap1, fmap2, coords, 4, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = DroidCorrBlock(fmap1, fmap2)(coords)
    assert low.dtype == torch.bfloat16
    assert_within(low, exact, 0.01 * float(exact.abs().max()), "autocast")
    assert DroidCorrBlock(fmap1.half(), fmap2.half())(coords).dtype == torch.float16
    assert DroidCorrBlock(fmap1, fmap2)(coords).dtype == torch.float32


# ---- unimatch


def unimatch_definition(fmap1: Tensor, fmap2: Tensor, flow: Tensor, radius: int) -> Tensor:
    height, width = fmap1.shape[2:]
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    found = definition(fmap1, fmap2, torch.stack((x, y)) + flow, 1, radius)
    return torch.cat([found[:, tap :: 2 * radius + 1] for tap in range(2 * radius + 1)], 1)


def test_local_correlation_with_flow_equals_unimatch() -> None:
    fmap1, fmap2 = maps((9, 11))
    flow = 2.5 * torch.randn(2, 2, 9, 11, generator=torch.Generator().manual_seed(2))

    def ours(a: Tensor, b: Tensor) -> Tensor:
        return local_correlation_with_flow(a, b, flow, 3)

    got = gradients(ours, fmap1, fmap2)
    same(got, gradients(lambda a, b: unimatch_definition(a, b, flow, 3), fmap1, fmap2))
    assert got[0].is_contiguous()
    still = local_correlation_with_flow(fmap1, fmap2, 0.0, local_radius=2)
    assert_within(still, unimatch_definition(fmap1, fmap2, torch.zeros_like(flow), 2), 1e-5, "no flow")


@pytest.mark.unit
def test_local_correlation_with_flow_refuses_bad_arguments() -> None:
    fmap1, fmap2 = maps((5, 4))
    flow = torch.zeros(2, 2, 5, 4)
    for options, message in (
        ({"padding_mode": "border"}, "padding_mode: expected one of zeros"),
        ({"dilation": 2}, "dilation: expected one of 1, got int 2"),
        ({"local_radius": 0}, "radius: expected an integer >= 1"),
        ({"flow": 1.0}, "flow: expected a tensor"),
        ({"flow": flow[:1]}, r"flow: expected shape \[2, 2, 5, 4\]"),
        ({"backend": "cude"}, "backend: expected one of"),
    ):
        arguments: dict[str, Any] = {"flow": flow, "local_radius": 2, **options}
        with pytest.raises(InputError, match=message):
            local_correlation_with_flow(fmap1, fmap2, **arguments)
