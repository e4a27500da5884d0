"""Descriptors from a network on native points, and their files.

The network sees a cloud in voxels, so the same weights serve a room and a street.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fullfield import _check
from fullfield._check import InputError
from fullfield.io.files import write_atomically
from fullfield.models.downloads import DownloadProgress
from fullfield.models.state import load_state_into, read_state_dict_and_name, recognize_network_if_possible
from fullfield.models.weights import WEIGHTS, fetch_weights
from fullfield.ops import _launching
from fullfield.ops.neighbors import grid_downsample, knn_search, radius_search
from fullfield.ops.neighbors.api import run_radius_searches
from fullfield.ops.neighbors.ragged import Cloud
from fullfield.ops.point_conv.geometry import build_geometry_from_sorted_triplets
from fullfield.ops.point_conv.triplets import can_pack_index_and_cell
from fullfield.registration.descriptors import Floats, Ints, compute_normals_and_shapes, find_nearest
from fullfield.registration.learned_network import (
    BITS,
    CELLS,
    DESCRIBER,
    KERNEL,
    LINKED,
    WIDTH,
    DescriptorConfig,
    DescriptorNetwork,
    Links,
    Resolution,
    Surroundings,
    find_surroundings,
)
from fullfield.registration.scan import (
    FEATURE_RADIUS,
    NORMAL_RADIUS,
    Descriptors,
    compute_root_fpfh,
    select_one_index_per_cell,
)

MAX_BYTES = 10_000_000
"""Of a file of weights."""
SHAPE_RADIUS = 2.0  # voxels
_MIN_DISTANCE = 0.1  # voxels below which points weigh the same in an interpolation
PUBLISHED = "descriptor"
"""Entry of the published descriptor in :data:`fullfield.models.weights.WEIGHTS`."""
_NAME = "descriptor"  # of the configuration in a file's header


def fetch_published_descriptor_file(progress: DownloadProgress | None = None) -> Path:
    """Return the file of the published descriptor, of a checkout or downloaded; ``progress`` as :func:`fetch_weights`.

    Raises:
        InputError: if the file on this machine is not the published one.
        OSError: if the download fails; the line says what to download by hand and where to put it.
    """
    path = fetch_weights(PUBLISHED, progress)
    if hashlib.sha256(path.read_bytes()).hexdigest() != WEIGHTS[PUBLISHED].sha256:
        raise InputError(f"{path}: is not the file that was published; delete it")
    return path


class NetworkInput(NamedTuple):
    """Input of the network for one cloud."""

    points: Tensor  # [N, 3] float32, voxels
    normals: Tensor  # [N, 3] float32, of either sign
    features: Tensor  # [N, INPUTS] float32
    surroundings: Surroundings | None = None  # None: to be computed


def prepare_input_of_one_resolution(
    fine_points: Floats, rows: Ints, *, with_surroundings: bool = False
) -> NetworkInput:
    """Prepare the network's input from ``fine_points`` [F, 3], one point per half voxel.

    ``rows`` are the points to describe; ``with_surroundings`` adds their surroundings, of the neighbours that FPFH
    searches.
    """
    points = fine_points[rows]
    normals, shapes = compute_normals_and_shapes(fine_points, points, NORMAL_RADIUS, SHAPE_RADIUS)
    neighbors = radius_search(torch.from_numpy(points), FEATURE_RADIUS, sort_indices=False)
    features = np.concatenate([shapes, compute_root_fpfh(points, normals, neighbors)], 1)
    coordinates, upright, values = (torch.from_numpy(array.astype(np.float32)) for array in (points, normals, features))
    seen = find_surroundings(coordinates, upright, neighbors=neighbors, gradient=False) if with_surroundings else None
    return NetworkInput(coordinates, upright, values, seen)


class Levels(NamedTuple):
    """Inputs of the network for one cloud at all resolutions, the finest first."""

    inputs: tuple[NetworkInput, ...]
    links: tuple[Links, ...]  # of each but the first to the one before

    def to(self, device: torch.device) -> Levels:
        """Return the inputs on a device."""
        inputs = (
            NetworkInput(one.points.to(device), one.normals.to(device), one.features.to(device)) for one in self.inputs
        )
        return Levels(tuple(inputs), tuple(Links(*(tensor.to(device) for tensor in one)) for one in self.links))


def prepare_network_input_per_resolution(
    fine_points: Floats, rows: Ints, resolution_count: int, *, with_surroundings: bool = False
) -> Levels:
    """Prepare the inputs at several resolutions, each half the one before; see :func:`prepare_input_of_one_resolution`.

    Every resolution is seen in its own voxels, so its points stand to the finer ones as ``fine_points[rows]`` to all.
    """
    inputs, links = (
        [prepare_input_of_one_resolution(fine_points, rows, with_surroundings=with_surroundings)],
        list[Links](),
    )
    for _ in range(1, resolution_count):
        fine_points = fine_points[rows] / 2
        rows = select_one_index_per_cell(fine_points, 1.0)
        inputs.append(prepare_input_of_one_resolution(fine_points, rows, with_surroundings=with_surroundings))
        distances, linked = find_nearest(fine_points[rows], fine_points, min(LINKED, len(rows)))
        links.append(_build_interpolation_links(*(torch.from_numpy(array) for array in (rows, linked, distances))))
    return Levels(tuple(inputs), tuple(links))


def prepare_levels_on_device(fine_points: Tensor, rows: Tensor, resolution_count: int) -> Levels:
    """Return :func:`prepare_network_input_per_resolution` of float64 tensors, with surroundings, on their device."""
    if _launching.explain_unsupported_device(fine_points.device) is not None:
        return prepare_network_input_per_resolution(fine_points.cpu().numpy(), rows.cpu().numpy(), resolution_count).to(
            fine_points.device
        )
    _check.require(bool(torch.isfinite(fine_points).all()), "fine_points", "finite coordinates", "NaN or infinity")
    _check.require(can_pack_index_and_cell(len(rows), CELLS), "rows", f"at most {1 << BITS} points", len(rows))
    inputs, links = list[NetworkInput](), list[Links]()
    fine_points = fine_points.contiguous()
    points = fine_points[rows]
    for scale in range(resolution_count):
        if scale:
            fine_points = points / 2
            rows = grid_downsample(fine_points, 1.0).indices
            points = fine_points[rows]
            linked = (
                knn_search(points, min(LINKED, len(rows)), fine_points)
                .indices.view(len(fine_points), -1)
                .to(torch.int64)
            )
            links.append(_build_interpolation_links(rows, linked, (points[linked] - fine_points[:, None]).norm(dim=2)))
        cloud, queries = (
            Cloud(cloud_points, torch.tensor([0, len(cloud_points)])) for cloud_points in (fine_points, points)
        )
        flat, coordinates = (cloud_points.to(torch.float32) for cloud_points in (fine_points, points))
        normal_neighbors, feature_neighbors = run_radius_searches(
            [
                (cloud, queries, (flat, coordinates), NORMAL_RADIUS),
                (queries, queries, (coordinates, coordinates), FEATURE_RADIUS),
            ]
        )
        outward = torch.empty_like(coordinates)
        features = DESCRIBER.compute_shapes_and_write_normals(
            fine_points, points, normal_neighbors, SHAPE_RADIUS, outward
        )
        neighbors_per_cell, triplets = DESCRIBER.bin_neighbors_and_write_fpfh_if_given(
            coordinates, outward, feature_neighbors, BITS, features
        )
        geometry = build_geometry_from_sorted_triplets(coordinates, queries.offsets, triplets, KERNEL, gradient=False)
        inputs.append(NetworkInput(coordinates, outward, features, Surroundings(geometry, neighbors_per_cell)))
    return Levels(tuple(inputs), tuple(links))


def _build_interpolation_links(rows: Tensor, linked: Tensor, distances: Tensor) -> Links:
    """Return the connections to the points ``linked`` [N, k <= LINKED], weighted by 1 / distance²."""
    weights = 1 / distances.clamp(min=_MIN_DISTANCE).square()
    weights /= weights.sum(1, keepdim=True)
    missing = (0, LINKED - linked.shape[1])
    pad = torch.nn.functional.pad
    return Links(rows, pad(linked, missing), pad(weights.to(torch.float32), missing))


def build_network_arguments(
    clouds: Sequence[Levels], *, gradient: bool
) -> tuple[Tensor, Surroundings, list[Resolution]]:
    """Return the arguments of :class:`DescriptorNetwork` for a batch of clouds, one after the other."""
    inputs = list(zip(*(cloud.inputs for cloud in clouds), strict=True))
    offsets = [torch.tensor([0, *(len(one.points) for one in level)]).cumsum(0) for level in inputs]
    read = list[tuple[Tensor, Surroundings]]()
    for level, starts in zip(inputs, offsets, strict=True):
        points, normals, features = (torch.cat(tensors) for tensors in zip(*(one[:3] for one in level), strict=True))
        surroundings = level[0].surroundings if len(level) == 1 and not gradient else None
        if surroundings is None:
            surroundings = find_surroundings(points, normals, starts, gradient=gradient)
        read.append((features, surroundings))
    coarser = list[Resolution]()
    for number, level_links in enumerate(zip(*(cloud.links for cloud in clouds), strict=True)):
        finer, own = (starts.tolist()[:-1] for starts in offsets[number : number + 2])
        links = Links(
            torch.cat([one.kept + start for one, start in zip(level_links, finer, strict=True)]),
            torch.cat([one.nearest + start for one, start in zip(level_links, own, strict=True)]),
            torch.cat([one.weights for one in level_links]),
        )
        coarser.append(Resolution(*read[number + 1], links))
    return (*read[0], coarser)


class LearnedDescriptor:
    """Trained network that replaces FPFH: ``register(..., descriptor=LearnedDescriptor.published())``.

    Attributes:
        config: a :class:`DescriptorConfig`.
        model: a :class:`DescriptorNetwork`. Where it is, is where it runs.

    >>> descriptor = LearnedDescriptor.load("runs/descriptor/weights.safetensors")  # doctest: +SKIP
    >>> result = register("scan_02.ply", "scan_01.ply", descriptor=descriptor)  # doctest: +SKIP
    """

    def __init__(self, model: DescriptorNetwork) -> None:
        self.model = model
        self.config = model.config

    @classmethod
    def load(cls, path: str | os.PathLike[str], device: str | torch.device = "cpu") -> LearnedDescriptor:
        """Load a file that :meth:`save` wrote.

        Raises:
            InputError: for any other file, with its name and, if known, its kind.
            OSError: if it cannot be read.
        """
        target_device = _check.resolve_available_device(device)
        state, name = read_state_dict_and_name(path)
        stored = _read_safetensors_header_or_empty(Path(path)).get(_NAME)
        if stored is None:
            looks = recognize_network_if_possible(state)
            raise InputError(
                f"{name}: expected a descriptor of points, as fullfield train descriptor writes it, got weights "
                + (f"of {looks}" if looks else "without its configuration")
            )
        try:
            values = json.loads(stored)
        except ValueError:
            values = None
        _check.require(isinstance(values, dict), name, "a descriptor's configuration in its header", repr(stored)[:60])
        config = DescriptorConfig.from_dict(values, name)
        with torch.device("meta"):  # nothing is allocated that the file does not hold
            template = DescriptorNetwork(config).state_dict()
        stored_count, expected_count = (
            sum(value.numel() for value in tensors.values()) for tensors in (state, template)
        )
        _check.require(
            stored_count == expected_count, name, f"{expected_count} numbers for its configuration", f"{stored_count}"
        )
        finite = all(bool(value.isfinite().all()) for value in state.values())
        _check.require(finite, name, "finite weights", "some that are not")
        model = DescriptorNetwork(config)
        load_state_into(model, state, name, "the descriptor that its header describes")
        return cls(model.to(target_device).eval())

    @classmethod
    def published(
        cls, device: str | torch.device = "cpu", *, progress: DownloadProgress | None = None
    ) -> LearnedDescriptor:
        """Load the published descriptor, of a checkout or downloaded; benchmarks/notes/descriptor.md has its training.

        Arguments and errors as :func:`fetch_published_descriptor_file`.
        """
        return cls.load(fetch_published_descriptor_file(progress), device)

    @property
    def device(self) -> torch.device:
        """Device of the model, which computes the descriptors."""
        return next(self.model.parameters()).device

    def encode_as_safetensors(self) -> bytes:
        """Encode weights (float32, safetensors) and configuration; the same weights give the same bytes.

        Raises InputError where that would be more than :data:`MAX_BYTES`.
        """
        from safetensors.torch import save

        state = {key: value.detach().cpu().contiguous() for key, value in self.model.state_dict().items()}
        content = save(state, {_NAME: json.dumps(self.config.as_dict(), sort_keys=True)})
        _check.require(
            len(content) <= MAX_BYTES, "channels", f"weights of at most {MAX_BYTES} bytes", f"{len(content)}"
        )
        return content

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write :meth:`encode_as_safetensors` to a file."""
        content = self.encode_as_safetensors()
        with write_atomically(path) as temporary:
            temporary.write_bytes(content)

    def __call__(self, fine_points: Floats, rows: Ints) -> Floats:
        """Return features [N, C] of ``fine_points[rows]``; ``fine_points`` [F, 3] has one point per half voxel."""
        return self.compute_normals_and_features(fine_points, rows).features

    def compute_normals_and_features(self, fine_points: Floats, rows: Ints) -> Descriptors:
        """Return normals [N, 3] and features [N, C] of ``fine_points[rows]``."""
        if not len(rows):
            return Descriptors(np.empty((0, 3)), np.empty((0, WIDTH)))
        device = self.device
        if device.type == "cpu":
            levels = prepare_network_input_per_resolution(fine_points, rows, self.config.scales, with_surroundings=True)
        else:
            cloud, selected = (torch.from_numpy(array).to(device) for array in (fine_points, rows))
            levels = prepare_levels_on_device(cloud, selected, self.config.scales)
        self.model.eval()
        with torch.inference_mode(), torch.autocast(device.type, enabled=False):
            features = self.model(*build_network_arguments([levels], gradient=False))
        return Descriptors(*(array.cpu().double().numpy() for array in (levels.inputs[0].normals, features)))


def _read_safetensors_header_or_empty(path: Path) -> dict[str, str]:
    """Return the header of a safetensors file; empty for other files."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            return file.metadata() or {}
    except SafetensorError:
        return {}
