"""Layers on ragged batches of points."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from fullfield import InputError
from fullfield.nn import CloudPool, PointConv, PointNorm, PointPool
from fullfield.ops.point_conv import PointGeometry, point_conv, point_pool, radius_geometry
from fullfield.ops.point_norm import point_norm

SIZES = (30, 1, 0, 45)


@pytest.fixture
def geometry() -> PointGeometry:
    points = torch.rand(sum(SIZES), 3, generator=torch.Generator().manual_seed(0))
    return radius_geometry(points, 0.2, offsets=torch.tensor([0, *SIZES]).cumsum(0))


@pytest.fixture
def features() -> Tensor:
    return torch.randn(sum(SIZES), 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 3 + 2


def test_point_conv_layer_equals_operator(geometry: PointGeometry, features: Tensor) -> None:
    layer = PointConv(6, 8, groups=2).double()
    assert layer.weight.shape == (27, 3, 8)
    assert torch.equal(layer(features, geometry), point_conv(features, layer.weight, geometry, layer.bias, 2))
    assert PointConv(6, 8, bias=False).bias is None
    assert "kernel_size=(3, 3, 3), groups=2, bias=True" in repr(layer)
    assert float(layer.weight.detach().abs().max()) == pytest.approx(81**-0.5, rel=0.05)
    with pytest.raises(InputError, match=r"^geometry: expected kernel size \(5, 5, 5\), got \(3, 3, 3\)"):
        PointConv(6, 8, 5).double()(features, geometry)
    assert (layer.in_channels, layer.out_channels) == (6, 8)
    with pytest.raises(InputError, match=r"^geometry: expected a PointGeometry, got float64 tensor"):
        layer(features, features)
    with pytest.raises(InputError, match=r"^groups: "):
        PointConv(6, 8, groups=4)
    for kernel in (2.5, None, "3", (3, 3), 9):
        with pytest.raises(InputError, match=r"^kernel_size: expected an integer"):
            PointConv(6, 8, kernel)
    assert PointConv(6, 8, np.int64(5)).kernel_size == (5, 5, 5)


@pytest.mark.unit
@pytest.mark.parametrize("kind", ["layer", "batch", "instance"])
def test_point_norm_layer_equals_operator(features: Tensor, kind: str) -> None:
    layer = PointNorm(6, kind).double()
    learned: tuple[Tensor, Tensor] = layer._get_scale_and_shift()
    with torch.no_grad():
        learned[0].fill_(2.0)
        learned[1].fill_(1.0)
    found = layer(features, SIZES)
    assert torch.equal(found, point_norm(features, *learned, kind, sizes=SIZES))
    assert torch.equal(layer.eval()(features, SIZES), found) == (kind != "batch")  # the running statistics
    with pytest.raises(InputError, match=r"^features: expected at least two points"):
        PointNorm(6, "batch").double()(features[:1], (1,))
    with pytest.raises(InputError, match=r"^kind: "):
        PointNorm(6, "group")


@pytest.mark.unit
@pytest.mark.parametrize("kind", ["layer", "batch", "instance"])
def test_point_norm_accepts_empty_and_half_batches(kind: str) -> None:
    norm = PointNorm(3, kind).eval()
    assert norm(torch.zeros(0, 3), (0, 0)).shape == (0, 3)
    assert norm.half()(torch.full((4, 3), 6e4, dtype=torch.float16), (4,)).isfinite().all()


@pytest.mark.parametrize("kind", ["forward", "forward_pre", "full_backward", "full_backward_pre"])
@pytest.mark.parametrize("owner", [0, 1], ids=["convolution", "norm"])
def test_norm_convolve_calls_hooks_of_layers(geometry: PointGeometry, features: Tensor, owner: int, kind: str) -> None:
    features = features.float()
    layers = (PointConv(features.shape[1], 8, bias=False), PointNorm(8))
    plain = layers[1].convolve_and_normalize(layers[0], features, geometry, ())
    seen: list[int] = []
    getattr(layers[owner], f"register_{kind}_hook")(lambda *_: seen.append(1))
    out = layers[1].convolve_and_normalize(layers[0], features.clone().requires_grad_(), geometry, ())
    out.sum().backward()
    assert torch.equal(out, plain)
    assert seen == [1]


def test_point_pool_and_cloud_pool_equal_definition(geometry: PointGeometry, features: Tensor) -> None:
    for mode in ("max", "mean"):
        assert torch.equal(PointPool(mode)(features, geometry), point_pool(features, geometry, mode))
        with pytest.raises(InputError, match=r"^mode: "):
            (PointPool if mode == "max" else CloudPool)("sum")
    with pytest.raises(InputError, match=r"^sizes: expected 76 points in all, got 75$"):
        CloudPool()(features, (*SIZES[1:], 29))
    mean, largest = CloudPool("mean")(features, SIZES), CloudPool("max")(features, SIZES)
    for number, cloud in enumerate(features.split(SIZES)):
        empty = torch.zeros(6, dtype=torch.float64)
        torch.testing.assert_close(mean[number], cloud.mean(0) if len(cloud) else empty)
        assert torch.equal(largest[number], cloud.amax(0) if len(cloud) else empty)


def test_point_layers_compile_without_graph_break(geometry: PointGeometry, features: Tensor) -> None:
    conv, norms = PointConv(6, 6).double(), [PointNorm(6, kind).double() for kind in ("layer", "batch", "instance")]
    pools = (PointPool("max"), PointPool("mean"), CloudPool("max"), CloudPool("mean"))

    def run(inputs: Tensor) -> Tensor:
        out = conv(inputs, geometry)
        for norm in norms:
            out = norm(out, SIZES)
        out = pools[0](out, geometry) + pools[1](out, geometry)
        return pools[2](out, SIZES) + pools[3](out, SIZES)

    torch.testing.assert_close(torch.compile(run, fullgraph=True, backend="eager")(features), run(features))
