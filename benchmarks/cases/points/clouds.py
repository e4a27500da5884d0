"""Clouds of the points benchmark: files or a made-up room, in spatial order, cut down and repeated to a size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from fullfield._check import InputError
from fullfield.io import read_point_cloud
from fullfield.ops.neighbors import grid_downsample, spatial_order
from fullfield.ops.neighbors.api import compute_morton_codes

_APART = 8  # voxels between copies, as many as the largest kernel has cells a side


@dataclass(frozen=True)
class Scene:
    """One or more clouds, one after the other."""

    name: str
    points: Tensor
    """[N, 3] float32, each cloud along a Morton curve."""
    offsets: Tensor
    """[B + 1] int64, on the CPU."""

    def to(self, device: torch.device) -> Scene:
        """Return the same cloud on a device."""
        return Scene(self.name, self.points.to(device), self.offsets)


def join(name: str, clouds: Sequence[Tensor]) -> Scene:
    """Clouds as a batch, each in spatial order."""
    ordered = [cloud[spatial_order(cloud)] for cloud in clouds]
    sizes = torch.tensor([0, *(len(cloud) for cloud in ordered)])
    return Scene(name, torch.cat(ordered), sizes.cumsum(0))


def read(paths: Sequence[str]) -> Scene:
    """Read the clouds of files.

    Raises:
        InputError: for a file that holds none, or points that are not finite.
    """
    clouds = []
    for path in paths:
        points = torch.as_tensor(read_point_cloud(path).points)
        if not points.shape[0]:
            raise InputError(f"{path}: expected points, got none")
        if points.dtype == torch.float64:
            points = points - points.mean(0)
        clouds.append(points.to(torch.float32))
    return join("+".join(dict.fromkeys(Path(path).parent.name or Path(path).stem for path in paths)), clouds)


def room(count: int, seed: int = 0) -> Scene:
    """Return a synthetic scan: five walls and a ball, about 16 points within 1.86 · 7 mm, 2 mm of noise."""
    generator = torch.Generator().manual_seed(seed)
    side = (count / 29_000 / 6.0) ** 0.5  # metres, at the density of a real scan
    part = torch.randint(0, 6, (count,), generator=generator)
    points = torch.rand(count, 3, generator=generator) * side
    for wall, (axis, place) in enumerate([(2, 0.0), (0, 0.0), (0, side), (1, 0.0), (1, side)]):
        points[part == wall, axis] = place
    ball = torch.randn(int((part == 5).sum()), 3, generator=generator)
    points[part == 5] = side / 2 + 0.28 * side * ball / ball.norm(dim=1, keepdim=True).clamp(min=1e-9)
    points += 0.002 * torch.randn(count, 3, generator=generator)
    return join("made-up room", [points])


def thinned(scene: Scene, cell: float) -> Scene:
    """One point a cell."""
    retained = grid_downsample(scene.points, cell, offsets=scene.offsets)
    return Scene(f"{scene.name}, {cell * 100:g} cm grid", scene.points[retained.indices], retained.offsets.cpu())


def voxels_of(scene: Scene, cell: float, count: int | None = None) -> tuple[Scene, Tensor]:
    """One cloud with one point in each voxel that a scene occupies, and the voxels' numbers, [N, 3] from 0 on.

    The scene's clouds and, up to ``count`` points, copies of them stand apart in one grid, so that spconv and ocnn see
    them as one cloud, too. In the order of an octree. Points are the voxels' centres.
    """
    bounds = scene.offsets.tolist()
    parts = []
    for first, last in pairwise(bounds):
        numbers = torch.unique((scene.points[first:last].double() / cell).floor().to(torch.int64), dim=0)
        numbers = numbers - numbers.amin(0)
        parts.append(numbers[torch.argsort(compute_morton_codes(numbers))])
    side = max(int(numbers.max()) for numbers in parts) + _APART
    requested = sum(len(numbers) for numbers in parts) if count is None else count
    places: list[Tensor] = []
    while requested > 0:
        places.append(parts[len(places) % len(parts)][:requested])
        requested -= len(places[-1])
    row = next(n for n in range(1, len(places) + 1) if n**3 >= len(places))
    for number, place in enumerate(places):
        steps = (number // row**2, number // row % row, number % row)
        places[number] = place + side * torch.tensor(steps, device=place.device)
    result = torch.cat(places)
    result = result[torch.argsort(compute_morton_codes(result))]
    points = ((result.double() + 0.5) * cell).to(torch.float32)
    return Scene(voxels_name(scene, cell, count), points, torch.tensor([0, len(points)])), result


def voxels_name(scene: Scene, cell: float, count: int | None = None) -> str:
    """Of what :func:`voxels_of` makes."""
    return f"{scene.name}, voxels of {100 * cell:g} cm" + ("" if count is None else f", {count:,}")


def sized(scene: Scene, count: int) -> Scene:
    """At most or exactly ``count`` points at the scene's own density: part of its first clouds, or copies of them all.

    A part is what comes first along the curve, so that it is one connected piece.
    """
    total = scene.points.shape[0]
    if not total:
        raise InputError("expected a scene with points")
    sizes = scene.offsets.diff().tolist()
    taken: list[int] = []
    while sum(taken) < count:
        taken.append(min(sizes[len(taken) % len(sizes)], count - sum(taken)))
    full, rest = divmod(count, total)
    points = torch.cat([scene.points] * full + [scene.points[:rest]])
    return Scene(f"{scene.name}, {count:,} points", points, torch.tensor([0, *taken]).cumsum(0))


def other_parts(scene: Scene, counts: Sequence[int]) -> list[Scene]:
    """Return one part of each count, where possible of another cloud than the first: its last points."""
    sizes, ends = scene.offsets.diff().tolist(), scene.offsets[1:].tolist()
    result = []
    for number, count in enumerate(counts, 1):
        cloud = number % len(sizes)
        taken = min(count, sizes[cloud])
        points = scene.points[ends[cloud] - taken : ends[cloud]]
        result.append(Scene(f"{scene.name}, {taken:,} points", points, torch.tensor([0, taken])))
    return result


def crowded(scene: Scene, cell: float, count: int) -> Scene:
    """Return the first cloud with ``count`` more points in one cell at its middle point."""
    first = scene.points[: int(scene.offsets[1])]
    generator = torch.Generator().manual_seed(0)
    corner = (first[len(first) // 2] / cell).floor() * cell
    more = corner + cell * torch.rand(count, 3, generator=generator).to(first.device)
    return join(f"{scene.name}, {count:,} points more in a cell", [torch.cat([first, more])])


def on_a_line(count: int, grid: float, device: torch.device) -> Scene:
    """Return points along a line, about 16 of them within 1.86 · ``grid``."""
    generator = torch.Generator().manual_seed(0)
    places = torch.rand(count, generator=generator).sort().values * count
    line = torch.tensor([1.0, 0.0, 0.0]) * (places * grid * (2 * 1.86 / 15.5))[:, None]
    return Scene(f"{count:,} points on a line", line, torch.tensor([0, count])).to(device)


def of_two_densities(scene: Scene, cell: float) -> list[Scene]:
    """Return a batch of the first cloud and all clouds thinned, and its two parts."""
    count = int(scene.offsets[1])
    dense = Scene("its first cloud alone", scene.points[:count], torch.tensor([0, count]))
    sparse = thinned(scene, cell)
    offsets = torch.cat([dense.offsets, sparse.offsets[1:] + count])
    both = Scene(f"{scene.name}, a cloud as scanned and {len(sparse.offsets) - 1} on a {cell * 100:g} cm grid",
                 torch.cat([dense.points, sparse.points]), offsets)  # fmt: skip
    return [both, dense, Scene("its thinned clouds alone", sparse.points, sparse.offsets)]
