"""Scans of synthetic rooms, to try registration without data."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def room_scan(seed: int, points: int = 9000, *, scan: int = 0, noise: float = 0.003) -> NDArray[np.float64]:
    """Return points [points, 3] in metres on a floor, two walls and twelve boxes that are turned about the vertical.

    Args:
        seed: seed of the room; the same seed gives the same room.
        points: number of points.
        scan: seed of the points; another scan samples other points of the same surfaces.
        noise: standard deviation of the points' error, in metres.
    """
    room, draw = np.random.default_rng(seed), np.random.default_rng((seed, scan))
    width, depth, height = room.uniform((4.5, 3.5, 2.2), (6.5, 5.0, 3.0))
    corners = [((0, 0, 0), (width, 0, 0), (0, depth, 0)), ((0, 0, 0), (width, 0, 0), (0, 0, height))]
    corners.append(((0, 0, 0), (0, depth, 0), (0, 0, height)))
    faces = [np.array(corner, np.float64) for corner in corners]
    for _ in range(12):
        angle = room.uniform(0, np.pi)
        along = np.array([np.cos(angle), np.sin(angle), 0])
        edges = np.stack([along, np.array([-along[1], along[0], 0]), np.array([0.0, 0, 1])])
        edges *= room.uniform(0.25, 1.0, (3, 1))
        at = room.uniform((0.5, 0.5, 0.0), (width - 0.5, depth - 0.5, 1.2))
        for i, j, k in ((0, 1, 2), (1, 2, 0), (2, 0, 1)):
            faces += [np.stack([at, edges[i], edges[j]]), np.stack([at + edges[k], edges[i], edges[j]])]
    areas = np.array([np.linalg.norm(np.cross(face[1], face[2])) for face in faces])
    chosen = np.stack(faces)[draw.choice(len(faces), points, p=areas / areas.sum())]
    u, v = draw.random((2, points, 1))
    cloud: NDArray[np.float64] = chosen[:, 0] + u * chosen[:, 1] + v * chosen[:, 2]
    return cloud + draw.normal(scale=noise, size=cloud.shape)
