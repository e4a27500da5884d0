"""Input of a learned descriptor on NVIDIA GPUs, by kernels compiled on the user's machine."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fullfield._kernels.nvrtc import KernelSource, LibraryCache
from fullfield.ops import _launching
from fullfield.ops._launching import get_address
from fullfield.ops.neighbors.ragged import Neighbors
from fullfield.ops.point_conv.triplets import Triplets
from fullfield.registration.descriptors import BINS

LIBRARIES = LibraryCache("descriptor kernels")
_WARPS = 8
_SOURCE = Path(__file__).with_name("describe.cu")
_Params = _launching.parse_structures(_SOURCE)["DescribeParams"]


@functools.cache
def generate_descriptor_source(input_count: int, cells_per_axis: tuple[int, int, int]) -> KernelSource:
    """Return the source of all kernels for ``input_count`` numbers of a point and these cells."""
    text = _launching.read_source(_launching.HALVES, _launching.BATCHES, _launching.WARPS, _SOURCE)
    rings, elevations, bends = cells_per_axis
    return KernelSource.with_macros(
        text, INPUTS=input_count, BINS=BINS, RINGS=rings, ELEVATIONS=elevations, BENDS=bends
    )


class Describer:
    """Kernels for networks that see ``inputs`` numbers of a point, and cells ``kernel`` between ``edges``."""

    def __init__(self, inputs: int, kernel: tuple[int, int, int], edges: tuple[float, ...]) -> None:
        self._inputs, self._kernel, self._cells = inputs, kernel, math.prod(kernel)
        self._on = dict[torch.device, Tensor]()
        self._edges = [*edges, *(math.tan(math.pi * (k / BINS - 0.5)) for k in range(1, BINS))]

    def _launch_kernel(self, name: str, device_tensor: Tensor, params: Any) -> None:
        kernels = _launching.load_kernels(
            LIBRARIES, generate_descriptor_source(self._inputs, self._kernel), device_tensor.get_device()
        )
        kernels.launch(name, -(-params.count // _WARPS), 32 * _WARPS, params)

    def compute_shapes_and_write_normals(
        self, fine: Tensor, queries: Tensor, neighbors: Neighbors, shape_radius: float, normals_out: Tensor
    ) -> Tensor:
        """Return features [N, inputs] whose first four are the shapes of the points around each query.

        ``neighbors`` has the points that a normal is computed from, ``shape_radius`` limits those of the shape;
        ``normals_out`` [N, 3] is an output. Points are float64.
        """
        features = fine.new_empty(len(queries), self._inputs, dtype=torch.float32)
        p = _Params()
        p.fine, p.queries, p.rows, p.indices = map(get_address, (fine, queries, *neighbors))
        p.upright, p.features = normals_out.data_ptr(), features.data_ptr()
        p.count, p.near, p.reach = len(queries), shape_radius**2, shape_radius
        self._launch_kernel("local_shapes", fine, p)
        return features

    def bin_neighbors_and_write_fpfh_if_given(
        self, points: Tensor, normals: Tensor, neighbors: Neighbors, bits: int, features_out: Tensor | None = None
    ) -> tuple[Tensor, Triplets]:
        """Return the neighbours in each cell [N, cells], and the triplets; fill ``features_out`` with FPFH."""
        count, dtype = len(points), torch.float32
        neighbors_per_cell = points.new_empty(count, self._cells, dtype=dtype)
        entries = points.new_empty(len(neighbors.indices) - count, dtype=torch.int32)
        own = None if features_out is None else points.new_empty(count, 3 * BINS, dtype=dtype)
        if points.device not in self._on:
            self._on[points.device] = torch.tensor(self._edges, dtype=dtype).to(points.device)
        p = _Params()
        p.points, p.normals, p.rows, p.indices = map(get_address, (points, normals, *neighbors))
        p.edges, p.own, p.cells, p.entries, p.features = map(
            get_address, (self._on[points.device], own, neighbors_per_cell, entries, features_out)
        )
        p.count, p.bits = count, bits
        self._launch_kernel("look_at_pairs", points, p)
        if features_out is not None:
            self._launch_kernel("weigh_histograms", points, p)
        rows = neighbors.offsets - torch.arange(count + 1, device=points.device)
        return neighbors_per_cell, Triplets(rows, entries, points.new_empty(0, dtype=torch.uint8))

    def concatenate_ring_means_and_root_shares(
        self, features: Tensor, neighbors_per_cell: Tensor, triplets: Triplets, bits: int
    ) -> Tensor:
        """Return features, their means over the rings, and the roots of the cells' shares, one after the other."""
        count, rings = len(features), self._kernel[0]
        properties = features.new_empty(count, (1 + rings) * self._inputs + self._cells)
        p = _Params()
        p.features, p.counts, p.rows, p.words = map(
            get_address, (features, neighbors_per_cell, triplets.rows, triplets.entries)
        )
        p.known, p.count, p.bits = properties.data_ptr(), count, bits
        self._launch_kernel("known_properties", features, p)
        return properties
