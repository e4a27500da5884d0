"""Index arrays in memory with room to spare, and what the kernels make of it, emulated."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

import pytest
import torch
from emulator import HOPPER, Emulator
from torch import Tensor

from fullfield.models.pointcnnpp import PointPyramid, PointResNet, PointResNetConfig
from fullfield.models.pointcnnpp.recorded import PaddedPyramid, _lengths
from fullfield.ops.neighbors import cuda as neighbors
from fullfield.ops.point_conv import protocol, reference
from fullfield.ops.point_conv.cuda import config, launch, padding, pooling
from fullfield.ops.point_conv.padding import PaddedArrays
from fullfield.ops.point_norm import cuda as norms

DTYPES = (torch.int64, torch.int32, torch.uint8)


@pytest.mark.parametrize("emulated", [False, True])
def test_the_last_number_is_repeated(emulated: bool, emulate: Callable[..., Emulator]) -> None:
    if emulated:
        emulate(padding, serve=True)
    lengths = [(0, 0), (0, 5), (1, 1), (3, 3000), (2048, 2049), (5000, 5000)]
    kinds = [(dtype, *pair) for dtype in DTYPES for pair in lengths]  # more than a launch takes
    rooms = [torch.zeros(room, dtype=dtype) for dtype, _, room in kinds]
    arrays = PaddedArrays(rooms)
    for seed in range(2):  # the second time there is something else before
        generator = torch.Generator().manual_seed(seed)
        given = [torch.randint(1, 200, (count,), generator=generator).to(dtype) for dtype, count, _ in kinds]
        before = [room.clone() for room in rooms]
        arrays.fill(given)
        for array, room, old in zip(given, rooms, before, strict=True):
            count = array.numel()
            last = array[-1].expand(room.numel() - count) if count else old
            assert torch.equal(room, torch.cat([array, last]))


@pytest.fixture
def machine(emulate: Callable[..., Emulator], monkeypatch: pytest.MonkeyPatch) -> Emulator:
    """All kernels of a network for tensors of the CPU, in memory that is poisoned and watched; not its geometry."""
    made = emulate(launch, norms, padding, pooling, gpu=HOPPER, serve=True)
    monkeypatch.setattr(config, "_BANDS", 0)  # wgmma for any number of rows
    monkeypatch.setattr(protocol, "builder", lambda _: reference)
    monkeypatch.setattr(neighbors, "supports", lambda _: "not here")
    return made


def clouds(sizes: tuple[int, ...], seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Points on bent sheets, offsets, features."""
    generator = torch.Generator().manual_seed(seed)
    points = torch.rand(sum(sizes), 3, generator=generator)
    points[:, 2] = 0.3 * points[:, 0] ** 2
    offsets = torch.tensor([0, *accumulate(sizes)])
    return points, offsets, torch.randn(sum(sizes), 3, generator=generator)


def gradients(model: PointResNet, features: Tensor, pyramid: PointPyramid) -> list[Tensor]:
    """The logits and all gradients."""
    logits = model(features, pyramid)
    loss = torch.nn.functional.cross_entropy(logits.float(), torch.arange(logits.shape[0]))
    return [logits.detach(), *torch.autograd.grad(loss, list(model.parameters()))]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_absent_points_change_nothing(machine: Emulator, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    settings = PointResNetConfig(grid=0.1, classes=3, channels=(16, 32), blocks=(1, 1), stem_kernel=3)
    model = PointResNet(settings).to(dtype)
    padded: PaddedPyramid | None = None
    for seed, sizes in enumerate(((150, 0, 60), (20, 40, 90))):
        points, offsets, features = clouds(sizes, seed)
        features = features.to(dtype)
        pyramid = model.prepare(points, offsets)
        right = gradients(model, features, pyramid)
        lengths = _lengths(pyramid, settings.steps())
        if padded is None:
            padded = PaddedPyramid(pyramid, settings.steps(), [int(1.5 * length) for length in lengths])
        assert padded.fits(lengths)
        padded.load(pyramid)
        wide = torch.zeros(padded.pyramid.points[0].shape[0], 3, dtype=dtype)
        wide[: len(features)] = features
        found = gradients(model, wide, padded.pyramid)
        allowed = 1e-4 if dtype == torch.float32 else 1e-2
        for one, two in zip(found, right, strict=True):
            assert (one - two).norm() <= allowed * two.norm(), one.shape
    assert {"pack", "multiply", "outer", "layer_forward", "layer_backward", "pool_max", "pad"} <= set(machine.launched)
    assert padded is not None
    assert not padded.fits([length + 100 for length in lengths])
