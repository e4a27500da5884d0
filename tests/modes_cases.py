"""What every public function computes, by its name: run under each mode in a process of its own, JSON to stdout.

``python modes_cases.py`` computes every case under each default dtype first and plainly last, so that no table is made
under PyTorch's usual one before. A line of the result is null where the case gave what it gives plainly, else what
was wrong. ``python modes_cases.py cuda`` hands in tensors on that device; what works on the CPU alone has to say so
in one line, as an InputError.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fullfield import InputError, metrics, viz
from fullfield import nn as ours
from fullfield.datasets import open_dataset
from fullfield.estimators import NetworkEstimator, OpenCVFlow, RefinedEstimator, TVL1Estimator
from fullfield.estimators._frames import read_or_convert_frame
from fullfield.estimators.estimation import estimate, estimate_batch
from fullfield.integrations import forms
from fullfield.io import write_flow, write_image
from fullfield.metrics import registration as poses
from fullfield.metrics.distance import compute_boundary_distance
from fullfield.metrics.pixels import angular_error, compute_true_motion_length
from fullfield.models import RAFT, SEARAFT, Cascade, RAFTConfig, SEARAFTConfig, load_weights
from fullfield.models.pointcnnpp import PointResNet, PointResNetConfig, PointUNet, PointUNetConfig
from fullfield.models.sea_raft import compute_expected_log_scale
from fullfield.nn.upsampling import convex_upsample
from fullfield.ops import correlation, matching, neighbors, point_conv, point_norm, spatial_correlation, tvl1
from fullfield.ops._splatting import predict_next_flow
from fullfield.ops.point_conv.geometry import compute_equal_volume_radius
from fullfield.registration import (
    LearnedDescriptor,
    compute_alignment_errors,
    measure_alignment,
    register,
    register_by_ransac,
)
from fullfield.registration.scan import choose_voxel
from fullfield.sequences import ShotSettings, follow_frames, warp_image
from fullfield.sequences.estimation import estimate_sequence
from fullfield.testing import sample_room_scan, sample_textured_scene
from fullfield.training import flow as learning
from fullfield.training.descriptor import compute_mutual_match_precision, contrastive_loss
from fullfield.training.flow.batch import FlowBatch
from fullfield.training.flow.loss import mean_end_point_error
from fullfield.training.flow.pictures import PicturePack
from fullfield.training.flow.stepping import TrainingStepper
from fullfield.viz.errors import create_error_colors, draw_error_legend
from fullfield.viz.points import draw_alignment_legend
from fullfield.viz.wheel import FlowColors, create_color_wheel

F32 = torch.float32
DEVICE = sys.argv[1] if len(sys.argv) > 1 else "cpu"
FASTEST = "cpu" if DEVICE == "cpu" else None
"""Backend: the one for the device."""
CASES: dict[str, Callable[[], Any]] = {}


def case(*names: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Register a function as the case of these public names."""

    def keep(function: Callable[[], Any]) -> Callable[[], Any]:
        for name in names:
            CASES[name] = function
        return function

    return keep


def noise(*shape: int, seed: int = 0, dtype: torch.dtype = F32) -> Tensor:
    """Return a tensor of a normal distribution."""
    return noise_on_cpu(*shape, seed=seed).to(DEVICE, dtype)


def noise_on_cpu(*shape: int, seed: int = 0) -> Tensor:
    """Return a float64 tensor of a normal distribution on the CPU."""
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def flow(height: int = 24, width: int = 32) -> Tensor:
    return noise(2, height, width, seed=3) * 3


def frames(channels: int = 3, height: int = 64, width: int = 80) -> tuple[Tensor, Tensor]:
    draw = np.random.default_rng(5)
    first = torch.from_numpy(draw.integers(0, 256, (channels, height, width), np.uint8)).to(DEVICE)
    return first, first.roll(2, -1)


def cloud(count: int = 300, seed: int = 0, dtype: torch.dtype = F32) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).uniform(0, 1, (count, 3))).to(DEVICE, dtype)


def compute_with_gradients(function: Callable[..., Tensor], *leaves: Tensor) -> list[Any]:
    """Return the result of a function and its gradients."""
    leaves = tuple(leaf.clone().requires_grad_() for leaf in leaves)
    out = function(*leaves)
    if not out.requires_grad:  # inference mode
        return [out, *(None for _ in leaves)]
    return [out.detach(), *torch.autograd.grad((out.float() * noise(*out.shape, seed=9)).sum(), leaves)]


def features(seed: int = 0, dtype: torch.dtype = F32) -> Tensor:
    return noise(1, 16, 20, 24, seed=seed, dtype=dtype)


def around() -> Tensor:
    sides = (torch.arange(side, dtype=F32, device=DEVICE) for side in (20, 24))
    y, x = torch.meshgrid(*sides, indexing="ij")
    return torch.stack((x, y))[None] + noise(1, 2, 20, 24, seed=7)


def lookups(backend: str | None, dtype: torch.dtype = F32) -> Callable[[], Any]:
    def compute() -> Any:
        def made(one: Tensor, two: Tensor, at: Tensor) -> Tensor:
            levels = correlation.correlation_pyramid(two, 3)
            return correlation.correlation_lookup(one, levels, at, 3, backend=backend, out_dtype=F32)

        exact = torch.float64 if dtype == torch.float64 else F32
        return compute_with_gradients(made, features(0, dtype), features(1, dtype), around().to(exact))

    return compute


for _backend in ("cpu", "dense", "reference"):
    for _dtype in (F32, torch.bfloat16):
        CASES[f"ops.correlation.correlation_lookup {_backend} {_dtype}"] = lookups(_backend, _dtype)
CASES["ops.correlation.correlation_lookup"] = lookups(FASTEST)


for _dtype in (F32, torch.bfloat16):
    CASES[f"ops.spatial_correlation.spatial_correlation reference {_dtype}"] = lambda d=_dtype: compute_with_gradients(
        lambda one, two: spatial_correlation.spatial_correlation(one, two, 5, dilation_patch=2, backend="reference"),
        features(0, d),
        features(1, d),
    )
CASES["ops.spatial_correlation.spatial_correlation"] = CASES[
    f"ops.spatial_correlation.spatial_correlation reference {F32}"
]


@case("nn.FlowPropagation")
def _() -> Any:
    module = ours.FlowPropagation(16).to(F32)
    for number, parameter in enumerate(module.parameters()):
        parameter.data = noise(*parameter.shape, seed=number) / 4
    return compute_with_gradients(module, features(), flow(20, 24)[None])


@case("nn.SEARAFTCorrBlock")
def _() -> Any:
    block = ours.SEARAFTCorrBlock(features(), features(1), SimpleNamespace(corr_levels=3, corr_radius=3))
    ones = torch.ones(1, 1, 20, 24, dtype=F32, device=DEVICE)
    return block(around()), block(around(), ones)


@case("nn.TorchvisionCorrBlock")
def _() -> Any:
    block = ours.TorchvisionCorrBlock(num_levels=3, radius=3)
    block.build_pyramid(features(), features(1))
    return block.index_pyramid(around())


def geometry(**options: Any) -> Any:
    return point_conv.radius_geometry(cloud(), 0.15, 3, **options)


def parts(found: Any) -> list[Tensor]:
    return [*found.forward, found.offsets, found.center_offsets]


@case("ops.point_conv.triplet_geometry")
def _() -> Any:
    count = torch.arange(20, device=DEVICE)
    i, j, k = count // 2, count % 7, count % 27
    found = point_conv.triplet_geometry(i, j, k, (10, 7))
    return parts(found) + compute_with_gradients(
        lambda f, w: point_conv.point_conv(f, w, found), noise(7, 4), noise(27, 4, 8)
    )


def convolutions(backend: str | None) -> Callable[[], Any]:
    def compute() -> Any:
        point_geometry = geometry()
        weight, bias = noise(27, 4, 8, seed=2) / 9, noise(8, seed=4)
        plain = compute_with_gradients(
            lambda f, w, b: point_conv.point_conv(f, w, point_geometry, b, 2, backend=backend),
            noise(300, 8),
            weight,
            bias,
        )
        return plain, point_conv.point_conv(noise(300, 8), weight, point_geometry, None, 2, backend=backend)

    return compute


CASES["ops.point_conv.point_conv"] = convolutions(FASTEST)
CASES["ops.point_conv.point_conv reference"] = convolutions("reference")


@case("ops.point_conv.point_pool", "nn.PointPool", "nn.CloudPool")
def _() -> Any:
    made = [
        compute_with_gradients(lambda f, m=mode: point_conv.point_pool(f, geometry(), m), noise(300, 8))
        for mode in ("max", "mean")
    ]
    return made, ours.PointPool()(noise(300, 8), geometry()), ours.CloudPool()(noise(300, 8), (100, 200))


@case("ops.point_norm.point_norm", "nn.PointNorm")
def _() -> Any:
    scale, shift = noise(8, seed=1), noise(8, seed=2)
    running = point_norm.Running(
        torch.zeros(8, dtype=F32, device=DEVICE), torch.ones(8, dtype=F32, device=DEVICE), 0.1, True
    )
    return [
        compute_with_gradients(
            lambda f: point_norm.point_norm(f, scale, shift, "layer", residual=noise(300, 8, seed=6)), noise(300, 8)
        ),
        point_norm.point_norm(noise(300, 8), scale, shift, "instance", sizes=(100, 200)),
        point_norm.point_norm(noise(300, 8), scale, shift, "batch", running=running, relu=True),
        *running[:2],
    ]


@case("nn.PointConv", "models.pointcnnpp.PointResNet", "models.pointcnnpp.PointUNet", "models.pointcnnpp.PointPyramid")
def _() -> Any:
    made = []
    for network in (
        PointResNet(PointResNetConfig(classes=5, channels=(8, 8, 16, 16))),
        PointUNet(PointUNetConfig(channels=(8, 8, 16, 16))),
    ):
        network = fill_weights(network.to(F32)).eval()
        network.requires_grad_(False)
        pyramid = network.build_pyramid(cloud(200))
        made.append(network(noise(200, network.config.in_channels), pyramid))
    return made


@case("ops.neighbors.radius_search", "ops.neighbors.knn_search")
def _() -> Any:
    made = []
    for backend in (FASTEST, "reference"):
        found = neighbors.radius_search(cloud(), 0.2, cloud(50, 1), backend=backend)
        made += [*found, *neighbors.knn_search(cloud(), 5, cloud(50, 1), backend=backend)]
    return made


def solved(backend: str | None, dtype: torch.dtype = F32) -> Callable[[], Any]:
    def compute() -> Any:
        first, second = (frame[None].to(dtype) / 255 for frame in frames(1, 40, 48))
        config = tvl1.TVL1Config(warps=2, iterations=4, scales=3)
        if backend == FASTEST:
            tvl1.TVL1Solver(40, 48, config, dtype=dtype, device=DEVICE)(first, second)
        return tvl1.tvl1(first, second, config, initial_flow=noise(1, 2, 40, 48), backend=backend)

    return compute


CASES["ops.tvl1.tvl1"] = CASES["ops.tvl1.TVL1Solver"] = solved(FASTEST)
CASES["ops.tvl1.tvl1 reference"] = solved("reference")
CASES["ops.tvl1.tvl1 reference float64"] = solved("reference", torch.float64)


def fill_weights(network: Any) -> Any:
    """Fill the weights of a network independently of the default dtype."""
    for number, tensor in enumerate(network.state_dict().values()):
        if tensor.is_floating_point():
            tensor.copy_((noise_on_cpu(*tensor.shape, seed=number).to(F32) * 0.05).abs() + (tensor.dim() == 1) * 0.5)
    return network.to(DEVICE)


def network(kind: str = "raft") -> Any:
    network = RAFT(RAFTConfig.small()) if kind == "raft" else SEARAFT(SEARAFTConfig.fullfield_s())
    return fill_weights(network.to(F32)).eval()


@case("models.RAFT", "models.raft.RAFT", "models.load_weights")
def _() -> Any:
    filled = load_weights("raft-small", saved(network())).to(DEVICE)
    first, second = (frame[None] for frame in frames())
    with torch.no_grad():
        return filled(first, second, updates=2), *filled.state_dict().values()


@case("models.SEARAFT", "models.sea_raft.SEARAFT", "models.sea_raft.compute_expected_log_scale")
def _() -> Any:
    first, second = (frame[None] for frame in frames())
    with torch.no_grad():
        held = compute_expected_log_scale(noise(1, 4, 8, 8), SEARAFTConfig.small())
        return network("sea")(first, second, updates=1), held


@case("models.Cascade")
def _() -> Any:
    first, second = (frame[None] for frame in frames(3, 128, 128))
    with torch.no_grad():
        return Cascade(network(), updates=1, coarse_updates=1, threshold=100)(first, second)


_FOLDER = tempfile.TemporaryDirectory()


def saved(made: Any) -> Path:
    path = Path(_FOLDER.name) / "weights.pth"
    torch.save(made.cpu().state_dict(), path)
    return path


@case(
    "estimate",
    "estimators.estimate",
    "estimate_batch",
    "estimators.estimate_batch",
    "Flow",
    "estimators.Flow",
    "estimators.TVL1Estimator",
    "estimators.as_frame",
)
def _() -> Any:
    made = [estimate(*frames(3, 40, 48), "tvl1", preset="fast").flow]
    made += [flow.flow for flow in estimate_batch(*[frame[None] for frame in frames(3, 40, 48)], "tvl1", preset="fast")]
    for frame in (
        np.arange(60, dtype=np.uint16).reshape(6, 10),
        np.linspace(0, 1, 60, dtype=np.float16).reshape(6, 10),
    ):
        made.append(read_or_convert_frame(frame))
    return made, TVL1Estimator()(*(frame[None].to(F32) / 255 for frame in frames(1, 40, 48)))


@case("estimators.NetworkEstimator", "estimators.CascadedEstimator")
def _() -> Any:
    path = saved(network())
    first, second = frames()
    return NetworkEstimator("raft-small", _small(path))(first[None], second[None])


def _small(path: Path) -> Any:
    from fullfield.estimators.network_config import RAFTSettings

    return RAFTSettings(weights=str(path), updates=2)


@case("evaluation.predict", "evaluation.evaluate")  # what they compute beside estimators
def _() -> Any:
    from fractions import Fraction

    from fullfield.estimators.cascaded import ReducedSizeEstimator

    halved = ReducedSizeEstimator(TVL1Estimator(), Fraction(1, 2))
    return predict_next_flow(flow()), halved(*(frame[None].to(F32) / 255 for frame in frames(3, 40, 48)))


@case("metrics.FlowMetrics")
def _() -> Any:
    held = metrics.FlowMetrics()
    occluded = noise(24, 32, seed=8) > 1
    held.update(flow() + 1, flow(), occluded=occluded)
    held.update(flow() * 1.5, flow())
    return list(held.compute().values())


for _name in ("aae", "end_point_error", "epe", "fl_all", "outliers", "wauc"):
    CASES[f"metrics.{_name}"] = lambda name=_name: getattr(metrics, name)(flow() + noise(2, 24, 32, seed=1), flow())


def pose(seed: int) -> Tensor:
    turn = np.linalg.qr(np.random.default_rng(seed).normal(size=(3, 3)))[0]
    pose = np.eye(4)
    pose[:3, :3], pose[:3, 3] = turn * np.linalg.det(turn), (0.1, 0.2, seed)
    return torch.from_numpy(pose).to(DEVICE)


@case(
    "metrics.inlier_ratio", "metrics.feature_matching_recall", "metrics.registration_recall",
    "metrics.registration_rmse", "metrics.relative_rotation_error", "metrics.relative_translation_error",
    "metrics.rmse_by_information", "metrics.compute_rmse_by_mean_outer_product", "metrics.second_moment",
)  # fmt: skip
def _() -> Any:
    first, second, points = pose(1), pose(2), cloud(dtype=torch.float64)
    rotation = poses.relative_rotation_error(first, second)
    information = torch.eye(6, dtype=torch.float64, device=DEVICE)
    return [
        poses.inlier_ratio(points, points, pose(1), threshold=0.4),
        poses.feature_matching_recall(torch.tensor([0.1, 0.01], dtype=F32)),
        poses.registration_recall(rre=rotation[None], rte=rotation[None]),
        poses.registration_rmse(first, second, points),
        rotation,
        poses.relative_translation_error(first, second),
        poses.rmse_by_information(first, second, information),
        poses.compute_rmse_by_mean_outer_product(first, second, poses.compute_mean_homogeneous_outer_product(points)),
    ]


def _scans() -> tuple[Any, Any]:
    scan = sample_room_scan(1, 1000)
    turned = pose(3).cpu().numpy()
    return scan, scan @ turned[:3, :3].T + turned[:3, 3]


@case(
    "registration.register",
    "registration.choose_voxel",
    "registration.compute_alignment_errors",
    "testing.sample_room_scan",
)
def _() -> Any:
    source, target = _scans()
    found = register(source, target, iterations=500, samples=200)
    assert found.transform is not None
    return found.transform, found.confidence, choose_voxel(source, target), compute_alignment_errors(source, target)


@case("registration.register_by_ransac", "registration.measure_alignment")
def _() -> Any:
    source, target = _scans()
    found = register_by_ransac(source, target, iterations=500, samples=200)
    assert found.transform is not None
    return found.transform, measure_alignment(source, target, found.transform, voxel=choose_voxel(source, target))


@case("registration.LearnedDescriptor")
def _() -> Any:
    source, target = _scans()
    found = register(source, target, iterations=500, samples=200, descriptor=LearnedDescriptor.published())
    return found.transform


@case("training.contrastive_loss", "training.matching_ratio")
def _() -> Any:
    first, second = (torch.nn.functional.normalize(noise(40, 8, seed=seed), dim=1) for seed in (1, 2))
    matches = torch.arange(20, device=DEVICE)[:, None].expand(20, 2)
    places = noise(40, 3) * 4
    rate = compute_mutual_match_precision(first, second, places, places)
    return compute_with_gradients(lambda a, b: contrastive_loss(a, b, matches, places, places), first, second), rate


@case("training.train_descriptor", "training.synthesize_overlapping_pair", "training.synthetic_scene")
def _() -> Any:
    from fullfield.registration.learned_network import DescriptorConfig
    from fullfield.training import DescriptorTraining, train_descriptor
    from fullfield.training import descriptor as loop

    assert loop._VALIDATION_PAIRS
    loop._VALIDATION_PAIRS = 1

    with tempfile.TemporaryDirectory() as folder:
        small = DescriptorTraining(
            DescriptorConfig(channels=8, layers=1), steps=1, pairs=1, block=1, reuse=1, anchors=64, cells=150
        )
        made = train_descriptor(folder, small, device="cpu")
        return list(made.descriptor.model.state_dict().values())


@case(
    "training.flow.augment",
    "training.flow.collate_flow",
    "training.flow.loss_mask",
    "training.flow.cut_or_pad_random_window",
    "training.flow.mean_error",
    "training.flow.sequence_loss",
    "training.flow.laplace_mixture_loss",
)
def _() -> Any:
    from fullfield.datasets import FlowSample

    scene = sample_textured_scene(40, 56, seed=4)
    sample = FlowSample("one", scene.frame1, scene.frame2, scene.flow, scene.valid, scene.occluded)
    batch = learning.collate_flow([learning.cut_or_pad_random_window(sample, (32, 40), (seed,)) for seed in range(2)])
    changes = learning.Augmentation((24, 32), (0.9, 1.3), colour=0.4, eraser=1.0)
    changed = learning.augment(FlowBatch(*(part.to(DEVICE) for part in batch)), changes, (0, 1))
    counted = learning.loss_mask(changed)
    first = noise(2, 2, 24, 32)
    info = noise(2, 4, 24, 32, seed=1)
    return [
        *changed,
        counted,
        mean_end_point_error(first, changed.flow, counted),
        compute_with_gradients(lambda a, b: learning.sequence_loss([a, b], changed.flow, counted), first, first + 1),
        compute_with_gradients(
            lambda a, b: learning.laplace_mixture_loss([(a, b)], changed.flow, counted), first, info
        ),
    ]


@case("ops.tvl1.refine_flow", "ops.tvl1.FlowRefiner")
def _() -> Any:
    first, second = (frame[None].to(F32) / 255 for frame in frames(3, 24, 32))
    start = torch.tensor([2.0, 0.0], dtype=F32, device=DEVICE).view(1, 2, 1, 1) + noise(1, 2, 24, 32) / 4
    return [tvl1.refine_flow(first, second, start, backend=name) for name in (FASTEST, "reference")]


@case("estimate_sequence", "estimators.RefinedEstimator")
def _() -> Any:
    pictures = [*frames(3, 24, 32), frames(3, 24, 32)[0].roll(4, -1)]
    method = RefinedEstimator(TVL1Estimator(tvl1.TVL1Config(warps=1, iterations=2)))
    flows = [found.forward for found in estimate_sequence(pictures, method)]
    return [None if one is None else one.flow for one in flows]


@case("testing.sample_textured_scene", "testing.Scene")
def _() -> Any:
    scene = sample_textured_scene(48, 64, seed=2)
    return scene.frame1, scene.frame2, scene.flow, scene.valid, scene.occluded


@case(
    "viz.FlowColors",
    "viz.flow_to_image",
    "viz.measure_max_motion",
    "viz.draw_overlay",
    "viz.draw_error_map",
    "viz.draw_sheet",
)
def _() -> Any:
    first = frames(3, 24, 32)[0].to(F32) / 255
    made = [viz.flow_to_image(flow()), FlowColors(5.0).draw(flow()), viz.draw_overlay(flow(), first, arrow_step=8)]
    errors = viz.draw_error_map(flow() + 1, flow())
    return [
        *made,
        viz.measure_max_motion(flow()),
        errors,
        viz.draw_sheet([("one", made[0]), ("two", made[1])]),
    ]


@case("sequences.warp_image")
def _() -> Any:
    return warp_image(frames(3, 24, 32)[0].to(F32) / 255, flow())


@case(
    "viz.draw_wheel_legend",
    "viz.create_color_wheel",
    "viz.create_error_colors",
    "viz.draw_error_legend",
    "viz.draw_alignment_legend",
)
def _() -> Any:
    legends = (
        viz.draw_wheel_legend(64, 5.0),
        draw_error_legend(256, max_error=3.0),
        draw_alignment_legend(200, max_error=1.0),
    )
    return *legends, create_color_wheel(), create_error_colors()


@case("viz.frame_to_image", "viz.draw_alignment")
def _() -> Any:
    points = cloud(dtype=torch.float64)
    view = viz.draw_alignment(points, points + 0.01, points[:, 0], max_error=1.0, size=(60, 80))
    return view, [viz.frame_to_image(frame) for frame in (noise(3, 8, 9).abs(), cloud(9).T[..., None])]


# ---- training of flow, and shots; on the CPU


def still_noise(*shape: int, seed: int = 0) -> Tensor:
    return noise_on_cpu(*shape, seed=seed).to(F32)


def values(*shape: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).uniform(0, 1, shape)).to(F32)


class SmallNetwork(torch.nn.Module):
    """Network of one convolution with two predictions; its weights do not depend on the default dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Conv2d(6, 6, 3, padding=1, dtype=F32)
        with torch.no_grad():
            self.inner.weight.copy_(0.1 * still_noise(6, 6, 3, 3, seed=4))
            self.inner.bias.zero_()

    def predictions_with_mixture(self, frame1: Tensor, frame2: Tensor) -> list[tuple[Tensor, Tensor]]:
        found = self.inner(torch.cat((frame1, frame2), 1))
        return [(found[:, :2], found[:, 2:]), (2 * found[:, :2], found[:, 2:])]

    def predictions(self, frame1: Tensor, frame2: Tensor) -> list[Tensor]:
        return [flow for flow, _ in self.predictions_with_mixture(frame1, frame2)]

    def forward(self, frame1: Tensor, frame2: Tensor) -> Tensor:
        return self.predictions(frame1, frame2)[-1]


def batch(count: int = 2) -> FlowBatch:
    known = values(count, 16, 24, seed=8) < 0.9
    shapes = (count, 3, 16, 24)
    flow = 2 * still_noise(count, 2, 16, 24, seed=7)
    return FlowBatch(values(*shapes, seed=5), values(*shapes, seed=6), flow, known, ~known)


class Source:
    """Source of equal pairs at every call."""

    def batch(self, batch_index: int, pair_count: int) -> FlowBatch:
        del batch_index
        return batch(pair_count)


def write_dataset(folder: Path) -> Any:
    """Write a data set of one pair into a folder and open it."""
    pairs = batch(1)
    for number, frame in enumerate((pairs.frame1, pairs.frame2)):
        write_image(folder / f"{number}.png", frame[0])
    write_flow(folder / "flow.flo", pairs.flow[0])
    (folder / "pairs.txt").write_text("0.png 1.png flow.flo\n")
    return open_dataset("pairs", folder)


@case("training.flow.AugmentedPairs")
def _() -> list[Tensor]:
    change = learning.Augmentation(size=(8, 16), scale=(0.8, 1.4), flip=0.5, colour=0.4, eraser=1)
    return [*learning.AugmentedPairs(Source(), change, seed=3).batch(1, 2)]


@case(*(f"training.flow.{name}" for name in ("TrainingStepper", "AveragedWeights", "train_flow", "FlowValidation")))
def _() -> list[Tensor]:
    """Train outside of inference mode, because training needs gradients."""
    with torch.inference_mode(mode=False), torch.enable_grad():
        model = SmallNetwork()
        stepper = TrainingStepper(model, learning.FlowTraining(batch=2))
        stepper.train_on_batch(batch(), 0, learning_rate=1e-3)
        average = learning.AveragedWeights(model)
        average.update_average(1)
        with tempfile.TemporaryDirectory() as folder:
            run = learning.train_flow(
                Path(folder) / "run", SmallNetwork(), Source(), learning.FlowTraining(steps=2, batch=2)
            )
        checked = learning.FlowValidation({"made": Source()}, pairs=2)(model)
        return [
            model.inner.weight.detach(),
            average.model.inner.weight,
            run.model.inner.weight,
            torch.tensor(checked, dtype=F32),
        ]


@case("training.flow.DatasetPairs", "training.flow.Mixture")
def _() -> list[Tensor]:
    with tempfile.TemporaryDirectory() as folder:
        data = write_dataset(Path(folder))
        part = learning.DatasetPairs(data, (8, 16), seed=1).batch(0, 2)
    mixed = learning.Mixture([(Source(), 1.0), (Source(), 1.0)]).batch(0, 2)
    return [*part, *mixed]


@case("training.flow.PairGenerator")
def _() -> list[Tensor]:
    pictures = (255 * values(2, 16, 16, 3)).to(torch.uint8)
    shapes = (255 * values(1, 8, 8)).to(torch.uint8)
    pack = PicturePack(pictures, shapes, ("a", "b"))
    style = learning.SceneStyle(instants=2)
    return [*learning.PairGenerator((8, 16), pictures=pack, compressed=1.0, style=style).batch(0, 2)]


@case("sequences.estimate_sequence")
def _() -> list[Tensor]:
    frames = [values(3, 40, 48, seed=seed) for seed in range(3)]
    estimator = TVL1Estimator(tvl1.TVL1Config(scales=2, warps=1, iterations=3))
    found = []
    for flows in estimate_sequence(frames, estimator, settings=ShotSettings("both", occlusion=True, confidence=True)):
        for part in (flows.forward, flows.backward):
            found += [] if part is None else [part.flow]
        found += [*flows.occlusion.values(), *flows.confidence.values()]
    return found


@case("sequences.follow_frames")
def _() -> list[Tensor]:
    frames = [values(3, 40, 48, seed=seed) for seed in range(3)]
    estimator = TVL1Estimator(tvl1.TVL1Config(scales=2, warps=1, iterations=3))
    found = []
    for frame in follow_frames(frames, 2, estimator, device=DEVICE):
        found += [motion for motion in (frame.forward, frame.backward) if motion is not None]
        found += [*frame.occlusion.values(), *frame.confidence.values()]
    return found


@case("estimators.OpenCVFlow")
def _() -> Any:
    first, second = (frame.permute(1, 2, 0).cpu().numpy() for frame in frames(3, 24, 32))
    return OpenCVFlow("tvl1", config=tvl1.TVL1Config(warps=1, iterations=2), device=DEVICE).calc(first, second)


TABLE: dict[str | tuple[str, ...], Callable[[], Any]] = {
    "ops.correlation.correlation_pyramid": lambda: correlation.correlation_pyramid(features(), 3),
    "nn.SpatialCorrelationSampler": lambda: compute_with_gradients(
        ours.SpatialCorrelationSampler(patch_size=7, stride=2, dilation_patch=2), features(), features(1)
    ),
    "ops.matching.global_matching": lambda: compute_with_gradients(matching.global_matching, features(), features(1)),
    "ops.matching.global_attention": lambda: compute_with_gradients(
        matching.global_attention, features(), features(1), flow(20, 24)[None]
    ),
    "ops.matching.local_matching": lambda: compute_with_gradients(
        lambda a, b: matching.local_matching(a, b, 2), features(), features(1)
    ),
    "ops.matching.local_attention": lambda: compute_with_gradients(
        lambda a, b, c: matching.local_attention(a, b, c, 1), features(), features(1), flow(20, 24)[None]
    ),
    "nn.CorrelationPyramid": lambda: compute_with_gradients(
        lambda a, b, c: ours.CorrelationPyramid(a, b, 3, 3)(c), features(), features(1), around()
    ),
    "nn.RAFTCorrBlock": lambda: ours.RAFTCorrBlock(features(), features(1), 3, 3)(around()),
    "nn.DroidCorrBlock": lambda: ours.DroidCorrBlock(features()[None], features(1)[None], 3)(
        around().permute(0, 2, 3, 1)[None]
    ),
    "nn.StereoCorrBlock": lambda: ours.StereoCorrBlock(features(), features(1), 3, 3)(around()),
    "nn.local_correlation_with_flow": lambda: ours.local_correlation_with_flow(
        features(), features(1), noise(1, 2, 20, 24), 3
    ),
    "metrics.angular_error": lambda: angular_error(flow() + noise(2, 24, 32, seed=1), flow()),
    "nn.convex_upsample": lambda: compute_with_gradients(
        lambda a, b: convex_upsample(a, b, 8), noise(1, 2, 5, 6), noise(1, 576, 5, 6, seed=1)
    ),
    # what decides whether a block is the lookup
    "integrations.patch": lambda: forms._draw_features_and_coords((20, 24)),
    "ops.point_conv.radius_geometry": lambda: parts(geometry()) + parts(geometry(centers=cloud(80, 1), radius=0.2)),
    "ops.point_conv.knn_geometry": lambda: parts(point_conv.knn_geometry(cloud(), 0.1, 8)),
    "ops.point_conv.voxel_geometry": lambda: parts(point_conv.voxel_geometry(cloud(), 0.1)),
    "ops.point_conv.compute_equal_volume_radius": lambda: compute_equal_volume_radius(0.1, 5),
    ("ops.neighbors.grid_downsample", "ops.neighbors.spatial_order"): lambda: (
        *neighbors.grid_downsample(cloud(), 0.2),
        neighbors.spatial_order(cloud()),
    ),
    ("metrics.split_four_values", "metrics.true_motion", "metrics.compute_boundary_distance"): lambda: (
        metrics.split_four_values(flow()),
        compute_true_motion_length(flow()),
        compute_boundary_distance(noise(24, 32) > 1),
    ),
}
for _names, _compute in TABLE.items():
    case(*((_names,) if isinstance(_names, str) else _names))(_compute)


def flatten_result(value: Any) -> Iterator[Any]:
    """Yield the tensors and numbers of a nested result."""
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from flatten_result(item)
    else:
        yield torch.from_numpy(value) if isinstance(value, np.ndarray) else value


SPREAD = 0.0 if DEVICE == "cpu" else 1e-3
"""Allowed difference as a fraction of the largest value: a GPU sums in any order."""


def find_difference(found: Any, plain: Any, allowed: float) -> str | None:
    """Return the first difference, or None; ``allowed`` is a fraction of the largest value."""
    one, two = list(flatten_result(found)), list(flatten_result(plain))
    if len(one) != len(two):
        return f"{len(one)} parts instead of {len(two)}"
    for number, (a, b) in enumerate(zip(one, two, strict=True)):
        if a is None:  # a gradient, in inference mode
            continue
        if isinstance(a, Tensor):
            if a.dtype != b.dtype and not allowed:
                return f"part {number} is {a.dtype} instead of {b.dtype}"
            a, b = a.detach().double().cpu(), b.detach().double().cpu()
            if a.shape != b.shape:
                return f"part {number} is {tuple(a.shape)} instead of {tuple(b.shape)}"
            off = float((a - b).nan_to_num().abs().max()) if a.numel() else 0.0
            if not torch.equal(a.isnan(), b.isnan()) or off > allowed * float(
                b.nan_to_num().abs().max() if b.numel() else 0
            ):
                return f"part {number} differs by {off:.3g}"
        elif a != b and not (a != a and b != b):
            return f"part {number} is {a} instead of {b}"
    return None


@contextlib.contextmanager
def use_default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Set the default dtype inside of the block."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


MODES: dict[str, Callable[[], Any]] = {
    "bfloat16": lambda: use_default_dtype(torch.bfloat16),
    "float64": lambda: use_default_dtype(torch.float64),
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast(torch.device(DEVICE).type, torch.bfloat16),
    "plain": contextlib.nullcontext,
}
# What autocast is for: networks, and what multiplies matrices as a layer of theirs would; of lower precision there.
LOWER = (
    "models.",
    "nn.DroidCorrBlock",
    "nn.FlowPropagation",
    "nn.PointConv",
    "nn.local_correlation_with_flow",
    "ops.point_conv.point_conv",
    "ops.point_conv.triplet_geometry",  # its case convolves
    "training.contrastive_loss",
    "training.matching_ratio",  # of the same case
    "training.flow.TrainingStepper",  # a network
    "training.flow.AveragedWeights",
    "training.flow.train_flow",
    "training.flow.FlowValidation",
)

# PyTorch's own attention, whose gradient autocast reaches when it is asked for inside.
LOWER_ON_A_GPU = ("ops.matching.global_attention",)


def main() -> None:
    """Compute all cases in all modes, compare with the plain mode and print the errors."""
    torch.set_num_threads(1)
    results: dict[str, dict[str, Any]] = {}
    for mode, inside in MODES.items():
        results[mode] = outcomes = {}
        for compute in CASES.values():
            if compute in outcomes:
                continue
            with inside():
                try:
                    outcomes[compute] = compute()
                except Exception as error:  # noqa: BLE001 - reported
                    outcomes[compute] = error
    errors: dict[str, dict[str, str | None]] = {}
    for mode in MODES:
        errors[mode] = {}
        for name, compute in CASES.items():
            actual, plain = results[mode][compute], results["plain"][compute]
            lower = LOWER if DEVICE == "cpu" else (*LOWER, *LOWER_ON_A_GPU)
            allowed = 0.3 if mode == "autocast" and name.startswith(lower) else SPREAD
            wrong = repr(actual) if isinstance(actual, Exception) else None
            if DEVICE != "cpu" and isinstance(actual, InputError) and "\n" not in str(actual):
                wrong = None  # a refusal in one line
            if wrong is None and not isinstance(plain, Exception):
                wrong = find_difference(actual, plain, allowed)
            errors[mode][name] = wrong
    json.dump(errors, sys.stdout)


if __name__ == "__main__":
    main()
