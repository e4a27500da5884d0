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

import torch
from torch import Tensor, nn

from fullfield import _check
from fullfield._check import InputError
from fullfield._config import Config
from fullfield.io.files import reason
from fullfield.ops.neighbors import Neighbors, radius_search
from fullfield.ops.point_conv import PointGeometry, point_conv
from fullfield.ops.point_conv.geometry import sorted_geometry
from fullfield.registration.descriptors import kernels, parallel

RINGS = (3.0, 5.5, 8.0)
"""Distances, voxels; the last is how far a layer sees."""
_ELEVATIONS = (0.15, 0.5)  # of a neighbour over the tangent plane, sines
_BENDS = (-0.6, 0.0, 0.6, 1.2)  # angle between the normals, radians, above 0 where the surface bends towards them
KERNEL = (len(RINGS), len(_ELEVATIONS) + 1, len(_BENDS) + 1)
"""Rings, elevations, bends."""
CELLS = math.prod(KERNEL)
INPUTS = 37
"""Numbers per point: its shape, 4, and its FPFH, 33."""
WIDTH = INPUTS + len(RINGS) * INPUTS + CELLS
"""Numbers per point before anything is learned: its inputs, their means over the rings, a histogram of cells."""
_BESIDE = 0.05  # share of its usual size with which the head starts


@dataclass(frozen=True)
class DescriptorConfig(Config):
    """Configuration of a learned descriptor."""

    channels: int = 64
    """Of its layers."""
    layers: int = 3
    scales: int = 1
    """Resolutions of the cloud, 1 to 4: one point per voxel, per 2 voxels, and so on."""

    def __post_init__(self) -> None:
        _check.number(self.scales, "scales", integer=True, low=1, high=4)
        _check.number(self.channels, "channels", integer=True, low=1, high=1024)
        _check.number(self.layers, "layers", integer=True, low=0, high=16)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], name: str = "config") -> DescriptorConfig:
        """Build the configuration from the result of :meth:`as_dict`; errors begin with ``name``."""
        try:
            return cls(**values)
        except (TypeError, ValueError) as error:
            raise InputError(f"{name}: {reason(error)}") from None


class Surroundings(NamedTuple):
    """Neighbourhoods of a batch of clouds, made once for all layers."""

    geometry: PointGeometry  # a triplet for each neighbour, itself left out
    cells: Tensor  # [N, CELLS] float32: how many neighbours each cell has
    neighbors: Tensor  # [T] int32: the neighbours of each point, by cell
    rings: Tensor  # [N * rings + 1] int32: where those of each ring of each point begin

    @property
    def counts(self) -> Tensor:
        """Number of neighbours of each point, [N, 1] float32, at least 1."""
        return self.cells.sum(1, keepdim=True).clamp(min=1)


def surroundings(
    points: Tensor,  # [N, 3] float32, voxels
    normals: Tensor,  # [N, 3] of length 1, of either sign
    offsets: Tensor | None = None,  # [B + 1]; None: one cloud
    *,
    found: Neighbors | None = None,
    gradient: bool = True,
) -> Surroundings:
    """Find the neighbours within the last ring, unless ``found`` has them, and their cells.

    ``gradient`` prepares the backward pass too.
    """
    found = radius_search(points, RINGS[-1], offsets=offsets) if found is None else found
    if points.device.type == "cpu":
        cells, j, k = _sorted_on_cpu(points, normals, found)
    else:
        cells, j, k = sorted_cells(points, normals, found)
    clouds = torch.tensor([0, points.shape[0]]) if offsets is None else offsets.to("cpu", torch.int64)
    others = found.offsets.to(points.device).diff() - 1
    geometry = sorted_geometry(points, clouds, others, j, k, KERNEL, gradient=gradient)
    ends = cells.view(-1, CELLS // len(RINGS)).sum(1).to(torch.int32).cumsum(0, dtype=torch.int32)
    return Surroundings(geometry, cells, j.to(torch.int32), torch.nn.functional.pad(ends, (1, 0)))


def sorted_cells(points: Tensor, normals: Tensor, found: Neighbors) -> tuple[Tensor, Tensor, Tensor]:
    """Return counts [N, CELLS], and the neighbours, by point and cell, with their cells, int64.

    The point itself is left out.
    """
    counts, j = found.offsets.to(points.device).diff(), found.indices.to(torch.int64)
    i = torch.repeat_interleave(torch.arange(points.shape[0], device=points.device), counts)
    others = i != j
    i, j = i[others], j[others]
    k = pair_cells(points, normals, i, j)
    bucket = i * CELLS + k
    order = torch.argsort(bucket, stable=True)  # the search gave rows in order, and theirs
    cells = torch.bincount(bucket, minlength=points.shape[0] * CELLS).view(-1, CELLS).to(torch.float32)
    return cells, j[order], k[order]


def _sorted_on_cpu(points: Tensor, normals: Tensor, found: Neighbors) -> tuple[Tensor, Tensor, Tensor]:
    """Return :func:`sorted_cells` in a fifth of the time."""
    count, entries = points.shape[0], int(found.offsets[-1]) - points.shape[0]
    cells, j, k = torch.zeros(count, CELLS, dtype=torch.float32), *torch.empty(2, entries, dtype=torch.int64)
    edges = torch.tensor([*RINGS[:-1], *_ELEVATIONS, *(math.cos(bend) for bend in _BENDS[2:])], dtype=torch.float32)
    given = (points, normals, found.offsets, found.indices, edges, cells, j, k)
    arrays = [part.detach().contiguous().numpy() for part in given]
    kernel = kernels().sorted_cells
    parallel(count, lambda first, last: kernel(*arrays, first, last))
    return cells, j, k


def pair_cells(points: Tensor, normals: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """Return the kernel cells [T] int64 of the points ``j`` seen from the points ``i``."""
    away = points[j] - points[i]
    distance = away.norm(dim=1)
    away = away / distance.clamp(min=1e-6)[:, None]
    own, other = normals[i], normals[j]
    height = (own * away).sum(1)
    own = torch.where(height[:, None] < 0, -own, own)
    along = (own * other).sum(1)
    other = torch.where(along[:, None] < 0, -other, other)
    bend = torch.acos(along.abs().clamp(max=1))
    # Where the normals are about perpendicular, the bend's direction is random: it follows their signs.
    bend = torch.where(((other * away).sum(1) >= height.abs()) | (bend > _BENDS[-1]), bend, -bend)
    edges = [torch.tensor(e, device=points.device, dtype=torch.float32) for e in (RINGS[:-1], _ELEVATIONS, _BENDS)]
    ring, elevation, turn = (torch.bucketize(v, e) for v, e in zip((distance, height.abs(), bend), edges, strict=True))
    return (ring * KERNEL[1] + elevation) * KERNEL[2] + turn


class Links(NamedTuple):
    """Connections of a coarser cloud to the next finer one."""

    kept: Tensor  # [N'] int64: rows of the finer cloud that are the coarser one's points
    nearest: Tensor  # [N, LINKED] int64: coarse points near each finer one
    weights: Tensor  # [N, LINKED] float32: their weights in an interpolation, of sum 1

    def finer(self, values: Tensor) -> Tensor:
        """Interpolate values [N', C] of the coarser cloud at the finer one's points, [N, C]."""
        return (values[self.nearest] * self.weights[..., None]).sum(1)


LINKED = 3


class Resolution(NamedTuple):
    """Coarser cloud as the network reads it."""

    features: Tensor  # [N', INPUTS]
    around: Surroundings
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
            self.head.weight.mul_(_BESIDE)
            self.head.bias.zero_()
        self.coarser = nn.ModuleList(CoarseStage(channels) for _ in range(self.config.scales - 1))
        ups = [nn.Linear(channels, channels, dtype=torch.float32) for _ in self.coarser[1:]]
        for up in ups:
            nn.init.zeros_(up.weight)
            nn.init.zeros_(up.bias)
        self.up = nn.ModuleList(ups)
        self.join = Join(channels) if self.coarser else None

    def known(self, features: Tensor, around: Surroundings) -> Tensor:
        """Return the unlearned properties [N, WIDTH] of inputs [N, INPUTS]."""
        means = nn.functional.embedding_bag(
            around.neighbors, features, around.rings, mode="mean", include_last_offset=True
        )
        histogram = (around.cells / around.counts).sqrt()
        return torch.cat([features, means.view(len(features), -1), histogram], 1)

    def forward(self, features: Tensor, around: Surroundings, coarser: Sequence[Resolution] = ()) -> Tensor:
        """Map inputs [N, INPUTS] to descriptors [N, WIDTH] of length 1; ``coarser`` has the other resolutions."""
        known = self.known(features, around)
        state = self.enter(known)
        states = [state]
        for layer in self.layers:
            state = state + layer(state, around)
            states.append(state)
        described = self.head(torch.cat(states, 1)) + self.direct(known)
        if self.join is not None:
            more, seen = self._from_coarser(state, coarser)
            described = described + more + self.join(state, seen)
        return nn.functional.normalize(described, dim=1)

    def _from_coarser(self, state: Tensor, coarser: Sequence[Resolution]) -> tuple[Tensor, Tensor]:
        """Return what coarser resolutions add to the descriptors [N, WIDTH], and their features [N, C]."""
        stages = cast("Sequence[CoarseStage]", self.coarser)
        known, states = list[Tensor](), list[Tensor]()
        for stage, level in zip(stages, coarser, strict=True):
            known.append(self.known(level.features, level.around))
            state = stage.down(known[-1], state[level.links.kept], level.around)
            states.append(state)
        more, seen = stages[-1].direct(known[-1]), states[-1]
        for at in reversed(range(len(coarser))):
            more, seen = coarser[at].links.finer(more), coarser[at].links.finer(seen)
            if at:
                more = more + stages[at - 1].direct(known[at - 1])
                seen = self.up[at - 1](seen) + states[at - 1]
        return more, seen


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

    def down(self, known: Tensor, finer: Tensor, around: Surroundings) -> Tensor:
        """Compute features [N', C] from what is known of the cloud and the finer cloud's features of its points."""
        state: Tensor = self.enter(known) + self.finer(finer)
        out: Tensor = state + self.layer(state, around)
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

    def forward(self, state: Tensor, around: Surroundings) -> Tensor:
        """Map features [N, C] to features [N, C]."""
        seen = point_conv(state, self.weight, around.geometry) / around.counts
        out: Tensor = self.mix(self.norm(seen + self.own(state)).relu())
        return out
