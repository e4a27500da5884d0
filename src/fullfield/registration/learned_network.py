"""U-Net on native points; with one resolution its output does not depend on the cloud's pose.

The cells of its kernels are not along the axes of the coordinates: which cell a neighbour falls into says how far away
it is, how high over the tangent plane, and how its normal is turned against the point's own. All of that is the same in
every pose, and whichever way PCA's normals point.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from fullfield import _check
from fullfield._check import InputError
from fullfield._config import Config
from fullfield.io.files import describe_error
from fullfield.ops import _launching
from fullfield.ops.neighbors import radius_search
from fullfield.ops.neighbors.ragged import Neighbors
from fullfield.ops.point_conv import PointGeometry, point_conv
from fullfield.ops.point_conv.geometry import build_geometry_from_sorted_triplets
from fullfield.ops.point_conv.triplets import Triplets, can_pack_index_and_cell, count_index_bits
from fullfield.registration.cuda import Describer
from fullfield.registration.descriptors import kernels, pack_points_and_normals, run_ranges_on_all_threads

RINGS = (3.0, 5.5, 8.0)
"""Distances, voxels; the last is how far a layer sees."""
_ELEVATIONS = (0.15, 0.5)  # of a neighbour over the tangent plane, sines
_BENDS = (0.6, 1.2)  # angle between the normals, radians; the first separates either side of 0, the second only one
_EDGES = (*RINGS[:-1], *_ELEVATIONS, *map(math.cos, _BENDS))
KERNEL = (len(RINGS), len(_ELEVATIONS) + 1, 5)
"""Rings, elevations, bends."""
CELLS = math.prod(KERNEL)
BITS = count_index_bits(CELLS)  # of an entry's index
INPUTS = 37
"""Numbers per point: its shape, 4, and its FPFH, 33."""
WIDTH = INPUTS + len(RINGS) * INPUTS + CELLS
"""Numbers per point before anything is learned: its inputs, their means over the rings, a histogram of cells."""
DESCRIBER = Describer(INPUTS, KERNEL, _EDGES)
_HEAD_SCALE = 0.05  # share of its usual size with which the head starts


@dataclass(frozen=True)
class DescriptorConfig(Config):
    """Configuration of a learned descriptor."""

    channels: int = 64
    """Of its layers."""
    layers: int = 3
    scales: int = 1
    """Resolutions of the cloud, 1 to 4: one point per voxel, per 2 voxels, and so on."""

    def __post_init__(self) -> None:
        _check.check_number(self.scales, "scales", integer=True, low=1, high=4)
        _check.check_number(self.channels, "channels", integer=True, low=1, high=1024)
        _check.check_number(self.layers, "layers", integer=True, low=0, high=16)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], name: str = "config") -> DescriptorConfig:
        """Build the configuration from the result of :meth:`as_dict`; errors begin with ``name``."""
        try:
            return cls(**values)
        except (TypeError, ValueError) as error:
            raise InputError(f"{name}: {describe_error(error)}") from None


class Surroundings(NamedTuple):
    """Neighbourhoods of a batch of clouds, made once for all layers."""

    geometry: PointGeometry  # a triplet for each neighbour, itself left out
    neighbors_per_cell: Tensor  # [N, CELLS] float32

    @property
    def neighbor_counts(self) -> Tensor:
        """Number of neighbours of each point, [N, 1] float32, at least 1."""
        return self.neighbors_per_cell.sum(1, keepdim=True).clamp(min=1)


def find_surroundings(
    points: Tensor,  # [N, 3] float32, voxels
    normals: Tensor,  # [N, 3] of length 1, of either sign
    offsets: Tensor | None = None,  # [B + 1]; None: one cloud
    *,
    neighbors: Neighbors | None = None,
    gradient: bool = True,
) -> Surroundings:
    """Find the neighbours within the last ring, unless ``neighbors`` has them, and their cells.

    The cell of a neighbour is (ring · 3 + elevation) · 5 + bend: how far away it is, how high over the tangent plane,
    and the angle between the normals. ``gradient`` prepares the backward pass too.
    """
    device, count = points.device, points.shape[0]
    on_cpu = device.type == "cpu"
    if _launching.explain_unsupported_device(device) is not None and not on_cpu:
        on_cpu_surroundings = find_surroundings(points.cpu(), normals.cpu(), offsets, gradient=gradient)
        return Surroundings(on_cpu_surroundings.geometry.to(device), on_cpu_surroundings.neighbors_per_cell.to(device))
    _check.require(can_pack_index_and_cell(count, CELLS), "points", f"at most {1 << BITS}", count)
    if neighbors is None:  # GPUs find them in an order that varies: sums are the same each time if they are sorted
        neighbors = radius_search(
            points, RINGS[-1], offsets=offsets, sort_indices=_launching.explain_unsupported_device(device) is None
        )
    if _launching.explain_unsupported_device(device) is None:
        neighbors_per_cell, triplets = DESCRIBER.bin_neighbors_and_write_fpfh_if_given(points, normals, neighbors, BITS)
    else:
        neighbors_per_cell, triplets = _bin_neighbors_on_cpu(points, normals, neighbors)
    clouds = torch.tensor([0, count]) if offsets is None else offsets.to("cpu", torch.int64)
    geometry = build_geometry_from_sorted_triplets(points, clouds, triplets, KERNEL, gradient=gradient)
    return Surroundings(geometry, neighbors_per_cell)


def _bin_neighbors_on_cpu(points: Tensor, normals: Tensor, neighbors: Neighbors) -> tuple[Tensor, Triplets]:
    """Return the number of neighbours in each cell [N, CELLS], and the triplets."""
    count, entries = points.shape[0], int(neighbors.offsets[-1]) - points.shape[0]
    neighbors_per_cell = torch.empty(count, CELLS, dtype=torch.float32)
    packed = torch.empty(entries, dtype=torch.int32)
    surface = pack_points_and_normals(*(tensor.detach().numpy() for tensor in (points, normals)))
    inputs = surface, neighbors.offsets.numpy(), neighbors.indices.numpy(), np.array(_EDGES, np.float32)
    outputs = neighbors_per_cell.numpy(), packed.numpy().view(np.uint32)
    kernel = kernels().sort_and_count_neighbors_by_cell
    run_ranges_on_all_threads(count, lambda first, last: kernel(*inputs, BITS, *outputs, first, last))
    rows = neighbors.offsets - torch.arange(count + 1)
    return neighbors_per_cell, Triplets(rows, packed, torch.empty(0, dtype=torch.uint8))


def _append_ring_means_and_shares_on_cpu(
    features: Tensor, neighbors_per_cell: Tensor, rows: Tensor, entries: Tensor
) -> Tensor:
    """Return the unlearned properties [N, WIDTH], without gradients; ``rows`` and ``entries`` are of the triplets."""
    compiled = kernels()
    padded = nn.functional.pad(features.detach(), (0, compiled.ROW - INPUTS)).numpy()
    properties = torch.empty(len(features), WIDTH, dtype=torch.float32)
    arguments = (
        padded,
        neighbors_per_cell.numpy(),
        rows.numpy(),
        entries.numpy().view(np.uint32),
        BITS,
        len(RINGS),
        properties.numpy(),
    )
    run_ranges_on_all_threads(
        len(features), lambda first, last: compiled.compute_ring_means_and_root_shares(*arguments, first, last)
    )
    return properties


class Links(NamedTuple):
    """Connections of a coarser cloud to the next finer one."""

    kept: Tensor  # [N'] int64: rows of the finer cloud that are the coarser one's points
    nearest: Tensor  # [N, LINKED] int64: coarse points near each finer one
    weights: Tensor  # [N, LINKED] float32: their weights in an interpolation, of sum 1

    def interpolate_at_finer_points(self, values: Tensor) -> Tensor:
        """Interpolate values [N', C] of the coarser cloud at the finer one's points, [N, C]."""
        return nn.functional.embedding_bag(self.nearest, values, per_sample_weights=self.weights, mode="sum")


LINKED = 3


class Resolution(NamedTuple):
    """Coarser cloud as the network reads it."""

    features: Tensor  # [N', INPUTS]
    surroundings: Surroundings
    links: Links


class DescriptorNetwork(nn.Module):
    """Residual layers of point convolution, added to a linear map of known properties of the surroundings.

    The map starts as the identity, the layers near zero. Coarser resolutions start without influence, so a network with
    the other weights of one that has a single resolution gives the same descriptors.
    """

    def __init__(self, config: DescriptorConfig | None = None) -> None:
        super().__init__()
        self.config = config or DescriptorConfig()
        channels, layers = self.config.channels, range(self.config.layers)
        self.enter = nn.Sequential(
            nn.LayerNorm(WIDTH, dtype=torch.float32), nn.Linear(WIDTH, channels, dtype=torch.float32)
        )
        self.layers = nn.ModuleList(PairLayer(channels) for _ in layers)
        self.head = nn.Linear((self.config.layers + 1) * channels, WIDTH, dtype=torch.float32)
        self.direct = nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.float32)
        with torch.no_grad():
            nn.init.eye_(self.direct.weight)
            self.head.weight.mul_(_HEAD_SCALE)
            self.head.bias.zero_()
        self.coarser = nn.ModuleList(CoarseStage(channels) for _ in range(self.config.scales - 1))
        ups = [nn.Linear(channels, channels, dtype=torch.float32) for _ in self.coarser[1:]]
        for up in ups:
            nn.init.zeros_(up.weight)
            nn.init.zeros_(up.bias)
        self.up = nn.ModuleList(ups)
        self.join = Join(channels) if self.coarser else None

    def concatenate_ring_means_and_root_shares(self, features: Tensor, surroundings: Surroundings) -> Tensor:
        """Append the rings' mean features and the roots of the cells' shares of neighbours to features, [N, WIDTH]."""
        forward = surroundings.geometry.forward
        if _launching.explain_unsupported_device(features.device) is None:
            return DESCRIBER.concatenate_ring_means_and_root_shares(
                features, surroundings.neighbors_per_cell, forward, BITS
            )
        return _append_ring_means_and_shares_on_cpu(
            features.cpu(), surroundings.neighbors_per_cell.cpu(), forward.rows.cpu(), forward.entries.cpu()
        ).to(features.device)

    def forward(self, features: Tensor, surroundings: Surroundings, coarser: Sequence[Resolution] = ()) -> Tensor:
        """Map inputs [N, INPUTS] to descriptors [N, WIDTH] of length 1; ``coarser`` has the other resolutions."""
        properties = self.concatenate_ring_means_and_root_shares(features, surroundings)
        state = self.enter(properties)
        states = [state]
        for layer in self.layers:
            state = state + layer(state, surroundings)
            states.append(state)
        descriptors = torch.addmm(self.head(torch.cat(states, 1)), properties, self.direct.weight.T)
        if self.join is not None:
            addition, seen = self._compute_coarse_contribution_and_features(state, coarser)
            descriptors = descriptors + addition + self.join(state, seen)
        return nn.functional.normalize(descriptors, dim=1)

    def _compute_coarse_contribution_and_features(
        self, state: Tensor, coarser: Sequence[Resolution]
    ) -> tuple[Tensor, Tensor]:
        """Return what coarser resolutions add to the descriptors [N, WIDTH], and their features [N, C]."""
        stages = cast("Sequence[CoarseStage]", self.coarser)
        properties, states = list[Tensor](), list[Tensor]()
        for stage, level in zip(stages, coarser, strict=True):
            properties.append(self.concatenate_ring_means_and_root_shares(level.features, level.surroundings))
            state = stage.compute_coarse_features(properties[-1], state[level.links.kept], level.surroundings)
            states.append(state)
        addition, seen = stages[-1].direct(properties[-1]), states[-1]
        for at in reversed(range(len(coarser))):
            addition, seen = (
                coarser[at].links.interpolate_at_finer_points(addition),
                coarser[at].links.interpolate_at_finer_points(seen),
            )
            if at:
                addition = addition + stages[at - 1].direct(properties[at - 1])
                seen = self.up[at - 1](seen) + states[at - 1]
        return addition, seen


class CoarseStage(nn.Module):
    """Part of the network that works on one of the coarser clouds."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.enter = nn.Sequential(
            nn.LayerNorm(WIDTH, dtype=torch.float32), nn.Linear(WIDTH, channels, dtype=torch.float32)
        )
        self.finer = nn.Linear(channels, channels, dtype=torch.float32)
        self.layer = PairLayer(channels)
        self.direct = nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.float32)
        nn.init.zeros_(self.direct.weight)

    def compute_coarse_features(self, properties: Tensor, finer: Tensor, surroundings: Surroundings) -> Tensor:
        """Compute features [N', C] from what is known of the cloud and the finer cloud's features of its points."""
        state: Tensor = self.enter(properties) + self.finer(finer)
        out: Tensor = state + self.layer(state, surroundings)
        return out


class Join(nn.Module):
    """Two layers on every point that combine its features with those from coarser clouds; zero at the start."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(2 * channels, dtype=torch.float32)
        self.mix = nn.Linear(2 * channels, 2 * channels, dtype=torch.float32)
        self.out = nn.Linear(2 * channels, WIDTH, dtype=torch.float32)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, own: Tensor, coarser: Tensor) -> Tensor:
        """Map features [N, C] and [N, C] to what they add to the descriptors, [N, WIDTH]."""
        out: Tensor = self.out(self.mix(self.norm(torch.cat([own, coarser], 1))).relu())
        return out


class PairLayer(nn.Module):
    """Layer that averages over a point's neighbours with one matrix per cell, normalises, applies ReLU and mixes."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        bound = 1.0 / math.sqrt(channels)
        self.weight = nn.Parameter(torch.empty(CELLS, channels, channels, dtype=torch.float32).uniform_(-bound, bound))
        self.own = nn.Linear(channels, channels, dtype=torch.float32)
        self.norm = nn.LayerNorm(channels, dtype=torch.float32)
        self.mix = nn.Linear(channels, channels, dtype=torch.float32)

    def forward(self, state: Tensor, surroundings: Surroundings) -> Tensor:
        """Map features [N, C] to features [N, C]."""
        seen = point_conv(state, self.weight, surroundings.geometry) / surroundings.neighbor_counts
        out: Tensor = self.mix(self.norm(seen + self.own(state)).relu())
        return out
