"""Who takes part in the points benchmark. All compute one convolution by the same triplets."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from benchmarks.cases.points.listing import ORDERS, listing
from benchmarks.harness import Unsupported, first_line
from fullfield._check import InputError
from fullfield.ops import _launching
from fullfield.ops.point_conv import PointGeometry, point_conv
from fullfield.ops.point_conv.protocol import BACKENDS, CONVOLUTIONS, ConvRequest

Apply = Callable[[Tensor, Tensor], Tensor]
"""(features [N, Cin], weight [K, Cin, Cout]) → [M, Cout], differentiable in both."""


@dataclass(frozen=True)
class Problem:
    """One convolution."""

    geometry: PointGeometry
    channels: tuple[int, int]
    dtype: torch.dtype
    voxels: Tensor | None = None
    """[N, 3] int64 ≥ 0: in voxel mode, with one point a voxel, the points' voxels."""

    @property
    def device(self) -> torch.device:
        """Return the geometry's device."""
        return self.geometry.device

    def request(self) -> ConvRequest:
        """Return the problem as backends are asked for it."""
        g = self.geometry
        return ConvRequest(
            device=self.device,
            dtype=self.dtype,
            channels=self.channels,
            groups=1,
            cells=g.cells,
            rows=g.center_count,
            columns=g.points,
            entries=g.forward.entries.numel(),
            precision=torch.get_float32_matmul_precision(),
        )


@dataclass(frozen=True)
class Contender:
    """``prepare`` does what is done once per geometry and is not timed."""

    name: str
    prepare: Callable[[Problem], Apply]
    ours: bool = False
    figures: str = "layer"
    """In which comparisons it takes part beside ours: "layer" in all but figure B and voxels; "lowering" in figures A
    and C, "order" in figure B, "voxels" where points are voxels."""


def _own(name: str, problem: Problem) -> Apply:
    reason = CONVOLUTIONS.explain_refusal(name, problem.request())
    if reason is not None:
        raise Unsupported(reason)
    return lambda features, weight: point_conv(features, weight, problem.geometry, backend=name)


def our_contenders(names: Sequence[str] = BACKENDS) -> list[Contender]:
    """Return the backends of :func:`fullfield.ops.point_conv.point_conv`."""
    return [Contender(name, partial(_own, name), ours=True) for name in names]


# ---- in PyTorch


def _pairs(geometry: PointGeometry) -> list[tuple[int, Tensor, Tensor]]:
    """(cell, centres, points) of the cells in use."""
    i, j, k = geometry.triplets()
    order = torch.argsort(k, stable=True)
    counts = torch.bincount(k, minlength=geometry.cells).tolist()
    parts = zip(torch.split(i[order], counts), torch.split(j[order], counts), strict=True)
    return [(cell, centers, points) for cell, (centers, points) in enumerate(parts) if counts[cell]]


def _scattered(problem: Problem) -> Apply:
    """Cell by cell: gather the inputs, multiply, add to the outputs."""
    pairs, centers = _pairs(problem.geometry), problem.geometry.center_count

    def apply(features: Tensor, weight: Tensor) -> Tensor:
        out = features.new_zeros(centers, weight.shape[2])
        for cell, i, j in pairs:
            out.index_add_(0, i, features.index_select(0, j) @ weight[cell])
        return out

    return apply


def _im2col(problem: Problem) -> Apply:
    """Sum the inputs of every bucket into one matrix [M, K · Cin], then multiply once."""
    i, j, k = problem.geometry.triplets()
    bucket, centers, cells = i * problem.geometry.cells + k, problem.geometry.center_count, problem.geometry.cells

    def apply(features: Tensor, weight: Tensor) -> Tensor:
        columns = features.new_zeros(centers * cells, features.shape[1])
        columns.index_add_(0, bucket, features.index_select(0, j))
        return columns.view(centers, -1) @ weight.flatten(0, 1)

    return apply


def _reduced(problem: Problem) -> Apply:
    """Every triplet's product stored, [T, Cout], then one reduction over the centres."""
    pairs, centers = _pairs(problem.geometry), problem.geometry.center_count
    rows = torch.cat([i for _, i, _ in pairs]) if pairs else torch.zeros(0, dtype=torch.int64, device=problem.device)

    def apply(features: Tensor, weight: Tensor) -> Tensor:
        products = [features.index_select(0, j) @ weight[cell] for cell, _, j in pairs]
        out = features.new_zeros(centers, weight.shape[2])
        return out.index_add_(0, rows, torch.cat(products)) if products else out

    return apply


def _listed(order: str, problem: Problem) -> Apply:
    reason = _launching.explain_unsupported_device(problem.device)
    if reason is not None:
        raise Unsupported(reason)
    return listing(problem.geometry.triplets(), problem.geometry.center_count, order)


def _listed_in_triton(problem: Problem) -> Apply:
    if problem.device.type != "cuda":
        raise Unsupported("runs on NVIDIA GPUs")
    try:
        module = importlib.import_module("benchmarks.cases.points.listing_triton")
    except ImportError as error:
        raise Unsupported(f"needs Triton ({first_line(error)})") from None
    apply: Apply = module.listing_in_triton(problem.geometry.triplets(), problem.geometry.center_count)
    return apply


def baselines() -> list[Contender]:
    """Return the contenders that need only PyTorch and this package."""
    return [
        Contender("gather-GEMM-scatter", _scattered),
        Contender("the supplement's listing", partial(_listed, "k")),
        Contender("the listing in Triton", _listed_in_triton),
        Contender("im2col + GEMM", _im2col, figures="lowering"),
        Contender("GEMM + reduction", _reduced, figures="lowering"),
        *[Contender(f"listing sorted by {order}", partial(_listed, order), figures="order") for order in ORDERS],
    ]


# ---- other people's


def _pointelligence(layers: ModuleType, problem: Problem) -> Apply:
    i, j, k = problem.geometry.triplets()
    at = torch.argsort(k, stable=True)
    i, j, k = (column[at].to(torch.int32) for column in (i, j, k))  # as its own builder leaves them
    cells, centers = problem.geometry.cells, problem.geometry.center_count
    starts = torch.bincount(k, minlength=cells).cumsum(0)
    segments = torch.cat([starts.new_zeros(1), starts])
    layer = layers.PointConv3d(*problem.channels, problem.geometry.kernel_size, bias=False)
    layer = layer.to(device=problem.device, dtype=problem.dtype)

    def apply(features: Tensor, weight: Tensor) -> Tensor:
        given, named = (features, i, j, k, centers), {"seg_offs": segments}
        out: Tensor = torch.func.functional_call(layer, {"weight": weight[:, None]}, given, named)
        return out

    return apply


def pointelligence(folder: str) -> Contender:
    """Return the layer of a checkout of ant-research/pointelligence, by the route it chooses, through Triton.

    Its CUDA extension is not needed: where it is not installed, an empty module stands in.

    Raises:
        InputError: where the folder holds none, or it does not import.
    """
    if not (Path(folder) / "layers" / "conv.py").is_file():
        raise InputError(f"--pointelligence {folder}: expected a checkout with layers/conv.py")
    if "sparse_engines_cuda" not in sys.modules and importlib.util.find_spec("sparse_engines_cuda") is None:
        for name in ("sparse_engines_cuda", "sparse_engines_cuda._C"):
            sys.modules.setdefault(name, ModuleType(name))
    sys.path.insert(0, str(Path(folder).resolve()))
    try:
        module = importlib.import_module("layers.conv")
        importlib.import_module("sparse_engines.mvmr_cutlass")  # what the layer imports when it is called
    except (ImportError, RuntimeError, AttributeError) as error:
        raise InputError(f"--pointelligence {folder}: does not import ({error})") from error
    finally:
        sys.path.remove(str(Path(folder).resolve()))
    return Contender("pointelligence", partial(_pointelligence, module))


# ---- by voxels: only where the points are voxels, one a voxel


def _voxels(problem: Problem) -> Tensor:
    if problem.voxels is None:
        raise Unsupported("knows voxels only: it takes part where every point is one")
    return problem.voxels


def _spconv(module: ModuleType, problem: Problem) -> Apply:
    voxels = _voxels(problem)
    numbers = torch.cat([torch.zeros_like(voxels[:, :1]), voxels], 1).to(torch.int32)
    shape = (voxels.amax(0) + 1).tolist()
    sides = list(problem.geometry.kernel_size)
    layer = module.SubMConv3d(*problem.channels, sides, bias=False, indice_key="once")
    layer = layer.to(device=problem.device, dtype=problem.dtype)
    known: dict[str, object] = {}

    def run(features: Tensor, weight: Tensor) -> Any:
        turned = weight.view(*sides, *weight.shape[1:]).permute(4, 0, 1, 2, 3).contiguous()
        sparse = module.SparseConvTensor(features, numbers, shape, 1, indice_dict=known)
        return torch.func.functional_call(layer, {"weight": turned}, (sparse,))

    with torch.no_grad():  # pairs of voxels are found here, once: the layer leaves them in its result
        features = torch.zeros(len(voxels), problem.channels[0], dtype=problem.dtype, device=problem.device)
        weight = features.new_zeros(problem.geometry.cells, *problem.channels)
        known.update(run(features, weight).indice_dict)

    def apply(features: Tensor, weight: Tensor) -> Tensor:
        out: Tensor = run(features, weight).features
        return out

    return apply


def _ocnn(module: ModuleType, problem: Problem) -> Apply:
    voxels = _voxels(problem)
    if problem.geometry.kernel_size != (3, 3, 3):
        raise Unsupported("has kernels of 3 cells a side only")
    depth = max(2, int(voxels.max()).bit_length())
    if depth > 16:
        raise Unsupported(f"has octrees of at most 16 levels, needs {depth}")
    tree = module.octree.Octree(depth, min(2, depth), 1, problem.device)
    tree.build_octree(module.octree.Points((voxels.float() + 0.5) * (2.0 / 2**depth) - 1.0))
    tree.construct_all_neigh()
    requested = torch.cat([voxels, torch.zeros_like(voxels[:, :1])], 1).float()
    node = tree.search_xyzb(requested, depth, nempty=True).to(torch.int64)
    layer = module.nn.OctreeConv(*problem.channels, [3], nempty=True)  # takes its Triton kernel where it can
    layer = layer.to(device=problem.device, dtype=problem.dtype)
    back = torch.empty_like(node).index_copy_(0, node, torch.arange(len(node), device=node.device))
    sorted_already = bool((node == torch.arange(len(node), device=node.device)).all())

    def apply(features: Tensor, weight: Tensor) -> Tensor:
        given = features if sorted_already else features.index_select(0, back)
        out: Tensor = torch.func.functional_call(layer, {"weights": weight}, (given, tree, depth))
        return out if sorted_already else out.index_select(0, node)

    return apply


def voxel_peers() -> tuple[list[Contender], dict[str, str]]:
    """Return spconv, ocnn and spconv-triton as far as they are installed, and why the others are absent."""
    result, absent = [], {}
    for name, place, prepare in (
        ("spconv", "spconv.pytorch", _spconv),
        ("ocnn", "ocnn", _ocnn),
        ("port spconv_triton", "spconv_triton.pytorch", _spconv),  # the same interface, kernels in Triton
    ):
        try:
            module = importlib.import_module(place)
        except (ImportError, OSError, RuntimeError) as error:
            absent[name] = f"does not import ({first_line(error)})"
            continue
        version = getattr(importlib.import_module(place.partition(".")[0]), "__version__", "")
        result.append(Contender(f"{name} {version}".strip(), partial(prepare, module), figures="voxels"))
    return result, absent
