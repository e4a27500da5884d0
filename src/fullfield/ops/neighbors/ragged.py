"""Clouds of different sizes in one tensor: rows ``offsets[b] ... offsets[b + 1]`` are cloud b."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch._subclasses import FakeTensor

from fullfield import _check

FLOATS = (torch.float32, torch.float64)
MAX_POINTS = 2**31 - 1
# Lengths whose squares are normal float32 numbers.
_MIN_LENGTH, _MAX_LENGTH = 1e-18, 1e18
# Number of a cloud's points that its middle is computed from.
_SAMPLED = 63
# Twice this value fits float32.
_MAX_COORDINATE = 1.7e38


class Neighbors(NamedTuple):
    """Pairs of a query and a point: the points of query ``q`` are ``indices[offsets[q]:offsets[q + 1]]``."""

    offsets: Tensor  # [M + 1] int64
    indices: Tensor  # [P] int32, into the points


class Cloud(NamedTuple):
    """Checked points of one or more clouds."""

    points: Tensor  # [N, 3]
    offsets: Tensor  # [B + 1] int64, on the CPU
    max_magnitude: float = 0.0
    """Largest magnitude of a coordinate."""

    @property
    def batches(self) -> int:
        """Number of clouds."""
        return self.offsets.numel() - 1

    def compute_batch_index(self) -> Tensor:
        """Return the number of each point's cloud, [N] int64 on the points' device."""
        cloud_device, count = self.points.device, self.points.shape[0]
        numbers, sizes = torch.arange(self.batches, device=cloud_device), self.offsets.diff().to(cloud_device)
        return torch.repeat_interleave(numbers, sizes, output_size=count)


def check_distance(distance: object, name: str) -> None:
    """Check a length; InputError if float32 distances cannot be compared with it."""
    _check.check_number(distance, name, low=_MIN_LENGTH, high=_MAX_LENGTH)


def check_and_build_cloud(
    points: Tensor, offsets: Tensor | None, name: str = "points", offsets_name: str = "offsets"
) -> Cloud:
    """Check points and offsets and return them as clouds; waits for the device.

    Raises:
        InputError: if points are not finite [N, 3], or offsets do not cover them in order.
    """
    cloud = check_shape_and_build_cloud(points, offsets, name, offsets_name)
    max_magnitude = compute_max_magnitude(points)
    check_finite(cloud, max_magnitude, name)
    return cloud._replace(max_magnitude=max_magnitude)


def check_shape_and_build_cloud(
    points: Tensor, offsets: Tensor | None, name: str = "points", offsets_name: str = "offsets"
) -> Cloud:
    """Do as :func:`check_and_build_cloud`, but leave values unchecked, so without waiting for the device."""
    _check.check_tensor(points, name, ("N", 3), dtypes=FLOATS)
    check_not_meta_or_fake(points, name)
    count = points.shape[0]
    _check.require(count <= MAX_POINTS, name, f"at most {MAX_POINTS} points", str(count))
    if offsets is None:
        return Cloud(points.detach(), torch.tensor([0, count]))
    _check.check_tensor(offsets, offsets_name, ("B + 1",), dtypes=(torch.int32, torch.int64))
    rows = offsets.detach().to("cpu", torch.int64)
    numbers: list[int] = rows.tolist()  # plain integers are compared faster
    is_valid = len(numbers) >= 1 and numbers[0] == 0 and numbers[-1] == count and numbers == sorted(numbers)
    _check.require(is_valid, offsets_name, f"offsets that rise from 0 to {count}", str(numbers[:8]))
    return Cloud(points.detach(), rows)


def check_not_meta_or_fake(values: Tensor, name: str) -> None:
    """Check that a tensor holds values; InputError if it has none, so that no geometry can be computed from it."""
    real = not values.is_meta and not isinstance(values, FakeTensor)
    _check.require(real, name, "a tensor that holds values", values)


def check_finite(cloud: Cloud, max_magnitude: float, name: str = "points") -> None:
    """Check that all coordinates are finite, by their largest magnitude; InputError if one is not."""
    if not math.isfinite(max_magnitude):
        bad, count = int((~torch.isfinite(cloud.points).all(1)).sum()), cloud.points.shape[0]
        raise _check.InputError(f"{name}: expected finite coordinates, {bad} of {count} points have NaN or infinity")


def check_and_build_cloud_pair(
    points: Tensor,
    queries: Tensor | None,
    offsets: Tensor | None,
    query_offsets: Tensor | None,
    names: tuple[str, str] = ("queries", "query_offsets"),
) -> tuple[Cloud, Cloud]:
    """Check points and queries and return their clouds; without queries the points' cloud twice.

    Raises:
        InputError: as :func:`check_and_build_cloud`, and if the two differ in number of clouds, dtype or device.
    """
    cloud = check_and_build_cloud(points, offsets)
    if queries is None:
        _check.require(query_offsets is None, names[1], f"None without {names[0]}", query_offsets)
        return cloud, cloud
    query_cloud = check_and_build_cloud(queries, query_offsets, *names)
    _check.check_tensor(queries, names[0], ("M", 3), dtypes=(points.dtype,), device=points.device)
    same = query_cloud.batches == cloud.batches
    _check.require(same, names[1], f"{cloud.batches} clouds, as the points have", f"{query_cloud.batches}")
    return cloud, query_cloud


def compute_max_magnitude(points: Tensor) -> float:
    """Return the largest magnitude, 0 without points, NaN or infinity if one is; waits for the device."""
    return float(torch.linalg.vector_norm(points.detach(), torch.inf)) if points.numel() else 0.0


def convert_clouds_to_float32_centering_float64(cloud: Cloud, queries: Cloud) -> tuple[Tensor, Tensor]:
    """Return both as float32; if they are one cloud, the same tensor twice.

    Float64 coordinates become relative to the middle of their cloud first: the median of some of its points, on which a
    distant point has no effect.

    Raises:
        InputError: if float64 coordinates exceed float32's range.
    """
    if cloud.points.dtype == torch.float32:
        points = cloud.points.contiguous()
        return points, points if queries is cloud else queries.points.contiguous()
    max_magnitude = max(cloud.max_magnitude, queries.max_magnitude)
    is_valid = max_magnitude <= _MAX_COORDINATE
    _check.require(
        is_valid, "points", f"coordinates of at most {_MAX_COORDINATE:g}, as float32 holds", f"{max_magnitude:g}"
    )
    middle = _estimate_cloud_medians(cloud)

    def shift_and_convert(c: Cloud) -> Tensor:
        return (c.points - middle[c.compute_batch_index()]).to(torch.float32).contiguous()

    points = shift_and_convert(cloud)
    return points, points if queries is cloud else shift_and_convert(queries)


def _estimate_cloud_medians(cloud: Cloud) -> Tensor:
    """Return the medians [B, 3] float64 by axis, of points at even steps in the tensor."""
    if not cloud.points.shape[0]:
        return cloud.points.new_zeros(cloud.batches, 3)
    sample = cloud.offsets[:-1, None] + torch.arange(_SAMPLED) * cloud.offsets.diff()[:, None] // _SAMPLED
    sample = sample.clamp(max=cloud.points.shape[0] - 1)  # for an empty cloud the first point of the next one
    return cloud.points[sample.to(cloud.points.device)].median(1).values
