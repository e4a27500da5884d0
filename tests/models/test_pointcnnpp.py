"""The backbones on small clouds."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from fullfield.models.pointcnnpp import PointPyramid, PointResNet, PointResNetConfig, PointUNet, PointUNetConfig
from refusals import refuses

SIZES = (220, 0, 150)
RESNETS = {
    "resnet18": PointResNetConfig.resnet18,
    "resnet34": PointResNetConfig.resnet34,
    "resnet50": PointResNetConfig.resnet50,
}


def clouds(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """Points on bent sheets, offsets, features of three channels."""
    generator = torch.Generator().manual_seed(0)
    points = torch.rand(sum(SIZES), 3, generator=generator, dtype=torch.float64)
    points[:, 2] = 0.3 * points[:, 0] ** 2 + 0.1 * points[:, 1]
    features = torch.randn(sum(SIZES), 3, generator=generator)
    return points.to(dtype), torch.tensor([0, *SIZES]).cumsum(0), features


def small(config: PointResNetConfig) -> PointResNetConfig:
    return config.replace(grid=0.04, classes=5, channels=(4, 8, 8, 12))


def assert_every_gradient(model: torch.nn.Module) -> None:
    for label, parameter in model.named_parameters():
        assert parameter.grad.isfinite().all(), label
        assert parameter.grad.any(), label


@pytest.mark.parametrize(
    ("name", "blocks", "parameters"),
    [("resnet18", 8, 33_716_904), ("resnet34", 16, 64_026_536), ("resnet50", 16, 48_247_976)],
)
def test_point_resnet_matches_published_sizes(name: str, blocks: int, parameters: int) -> None:
    """27 weights where an image network has nine, 343 in the stem; a norm has two numbers a channel."""
    config = RESNETS[name]()
    with torch.device("meta"):
        assert sum(p.numel() for p in PointResNet(config).parameters()) == parameters
    assert config.name == f"pointcnnpp-{name}"
    assert sum(config.blocks) == blocks


@pytest.mark.parametrize("name", RESNETS)
def test_point_resnet_logits_of_empty_cloud_equal_bias(name: str) -> None:
    torch.manual_seed(0)
    points, offsets, features = clouds()
    model = PointResNet(small(RESNETS[name]()))
    pyramid = model.build_pyramid(points, offsets)
    logits = model(features.requires_grad_(), pyramid)
    assert logits.shape == (3, 5)
    torch.nn.functional.cross_entropy(logits, torch.tensor([0, 1, 4])).backward()
    assert_every_gradient(model)
    assert features.grad.isfinite().all()
    assert torch.equal(logits[1], model.classifier.bias)  # the empty cloud
    assert torch.equal(model(features, pyramid), logits)


def test_point_networks_batch_equals_singles() -> None:
    torch.manual_seed(0)
    points, offsets, features = clouds()
    for norm in ("layer", "instance"):
        model = PointResNet(small(PointResNetConfig.resnet18(norm=norm)))
        dense = PointUNet(PointUNetConfig(in_channels=3, grid=0.05, channels=(4, 8, 8), blocks=(1, 1, 1), norm=norm))
        together, features_together = (m(features, m.build_pyramid(points, offsets)) for m in (model, dense))
        for number, (first, last) in enumerate(pairwise(offsets)):
            if first < last:
                part = slice(int(first), int(last))
                alone = model(features[part], model.build_pyramid(points[part]))
                torch.testing.assert_close(together[number], alone[0], rtol=1e-4, atol=1e-5)
                alone = dense(features[part], dense.build_pyramid(points[part]))
                torch.testing.assert_close(features_together[part], alone, rtol=1e-4, atol=1e-4)


def test_point_unet_prepare_halves_density_per_level() -> None:
    points, offsets, _ = clouds(torch.float64)
    far = points + torch.tensor([400_000.0, 5_400_000.0, 100.0], dtype=torch.float64)
    config = PointUNetConfig(grid=0.05, channels=(4, 4, 4), blocks=(1, 1, 1), stem_kernel=3)
    pyramid = PointUNet(config).build_pyramid(far, offsets)
    assert pyramid.sizes[0] == SIZES
    assert [len(p) for p in pyramid.points] == [sum(s) for s in pyramid.sizes]
    assert len(pyramid.points[0]) > len(pyramid.points[1]) > len(pyramid.points[2]) > 0
    for level, kept in enumerate(pyramid.kept_indices):
        assert torch.equal(pyramid.points[level + 1], pyramid.points[level][kept])
        cells = (pyramid.points[level + 1][: pyramid.sizes[level + 1][0]] / (0.05 * 2 ** (level + 1))).floor()
        assert len(cells.unique(dim=0)) == len(cells)
        up = pyramid.geometries[level + 1, level, 3]
        assert (up.forward.rows.diff() > 0).all()  # every fine point sees a coarse one


def test_point_unet_features_follow_point_order() -> None:
    torch.manual_seed(0)
    points, _, features = clouds()
    points, features = points[:220], features[:220]
    model = PointUNet(PointUNetConfig(in_channels=3, out_channels=7, grid=0.05, channels=(4, 8, 8), blocks=(1, 1, 2)))
    out = model(features.requires_grad_(), model.build_pyramid(points))
    assert out.shape == (220, 7)
    torch.testing.assert_close(out.norm(dim=1), torch.ones(220))
    order = torch.randperm(220)
    moved = model(features[order], model.build_pyramid(points[order]))
    torch.testing.assert_close(moved, out[order], rtol=1e-4, atol=1e-4)
    (out * torch.randn(220, 7)).sum().backward()
    assert_every_gradient(model)
    plain = PointUNet(model.config.replace(unit_length=False))
    plain.load_state_dict(model.state_dict())
    torch.testing.assert_close(torch.nn.functional.normalize(plain(features, plain.build_pyramid(points)), dim=1), out)


def test_point_network_compiles_without_graph_break() -> None:
    torch.manual_seed(0)
    points, offsets, features = clouds()
    model = PointUNet(PointUNetConfig(in_channels=3, grid=0.08, channels=(4, 8), blocks=(1, 1)))
    pyramid = model.build_pyramid(points, offsets)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(features, pyramid), model(features, pyramid))
    compiled(features, pyramid).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize(
    ("norm", "backend"), [pytest.param("layer", "aot_eager", marks=pytest.mark.long), ("instance", "eager")]
)
def test_point_networks_compile_once_for_any_size(norm: str, backend: str) -> None:
    """One graph for the first batch, one for sizes that vary."""
    torch.manual_seed(0)
    model = PointResNet(
        PointResNetConfig(grid=0.08, classes=5, channels=(4, 8), blocks=(1, 1), stem_kernel=3, norm=norm)
    )
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    for seed, sizes in enumerate([(220, 150), (190, 270), (250, 140)]):
        points = torch.rand(sum(sizes), 3, generator=torch.Generator().manual_seed(seed))
        points *= torch.tensor([1 + 0.4 * seed, 1, 0.2])  # so that the coarse levels differ as well
        pyramid = model.build_pyramid(points, torch.tensor([0, *sizes]).cumsum(0))
        out = compiled(points, pyramid)
        torch.testing.assert_close(out, model(points, pyramid))
        out.sum().backward()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2
    torch._dynamo.reset()


def test_point_network_gradients_through_torch_func_equal_backward() -> None:
    torch.manual_seed(0)
    points, offsets, features = clouds()
    model = PointResNet(small(PointResNetConfig.resnet18()))
    pyramid = model.build_pyramid(points, offsets)
    model(features, pyramid).square().sum().backward()

    def loss(parameters: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(model, parameters, (features, pyramid)).square().sum()

    found = torch.func.grad(loss)(dict(model.named_parameters()))
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("norm", ["layer", "batch", "instance"])
def test_point_network_half_precision_is_close_to_float32(norm: str) -> None:
    torch.manual_seed(0)
    points, offsets, features = clouds()
    model = PointResNet(small(PointResNetConfig.resnet18(norm=norm))).eval()
    pyramid = model.build_pyramid(points, offsets)
    exact = model(features, pyramid)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = model(features, pyramid)
    mixed.float().sum().backward()
    assert model.stem.conv.weight.grad.dtype == torch.float32
    whole = model.bfloat16()(features.bfloat16(), pyramid)
    assert whole.dtype == torch.bfloat16
    for got in (mixed, whole):
        torch.testing.assert_close(got.float(), exact, rtol=0.1, atol=0.15)


def test_point_networks_accept_empty_batches() -> None:
    model = PointResNet(small(PointResNetConfig.resnet18()))
    logits = model(torch.zeros(0, 3), model.build_pyramid(torch.zeros(0, 3), torch.tensor([0, 0])))
    assert torch.equal(logits, model.classifier.bias[None])
    dense = PointUNet(PointUNetConfig(channels=(4, 8), blocks=(1, 1)))
    assert dense(torch.zeros(0, 1), dense.build_pyramid(torch.zeros(0, 3))).shape == (0, 32)
    assert dense(torch.zeros(1, 1), dense.build_pyramid(torch.zeros(1, 3))).isfinite().all()


def test_point_networks_refuse_bad_arguments() -> None:
    points, offsets, features = clouds()
    model = PointResNet(small(PointResNetConfig.resnet18()))
    pyramid = model.build_pyramid(points, offsets, gradient=False)
    other = PointUNet(PointUNetConfig(in_channels=3))
    for call, message in (
        (lambda: model(features[:, :2], pyramid), "features: "),
        (lambda: model(features[1:], pyramid), "features: "),
        (lambda: other(features, pyramid), "pyramid: expected one prepared by this network"),
        (
            lambda: model(features.clone().requires_grad_(), pyramid),
            "geometry: expected one prepared with gradient=True",
        ),
        (lambda: PointPyramid.build(points, 0.0, 2, []), "grid: "),
    ):
        refuses(f"^{message}", call)
    with torch.no_grad():
        assert model(features.requires_grad_(), pyramid).isfinite().all()
    for field, bad in (
        ("block", "wide"),
        ("norm", "group"),
        ("blocks", (2, 2)),
        ("blocks", ()),
        ("channels", (64, 128, 0, 4)),
        ("grid", -1.0),
        ("classes", 0),
        ("stem_kernel", 9),
    ):
        refuses(rf"^{field}: ", PointResNetConfig().replace, **{field: bad})


def test_model_configs_and_weights_import_no_torch() -> None:
    modules = ("models", "models.weights", "models.raft.config", "models.sea_raft.config")
    script = f"import sys, {', '.join(f'fullfield.{module}' for module in modules)}\n"
    script += "from fullfield.models.pointcnnpp import PointResNetConfig, PointUNetConfig\n"
    script += "PointResNetConfig.resnet50().as_dict(), PointUNetConfig().list_geometry_steps()\n"
    script += "assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)
