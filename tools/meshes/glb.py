"""Reader of glTF files (.glb, .gltf): triangles, skins and animations, without textures."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_MAGIC, _JSON, _BIN = 0x46546C67, 0x4E4F534A, 0x004E4942
_DTYPES = {5120: np.int8, 5121: np.uint8, 5122: np.int16, 5123: np.uint16, 5125: np.uint32, 5126: np.float32}
_SIZES = {"SCALAR": 1, "VEC2": 2, "VEC3": 3, "VEC4": 4, "MAT3": 9, "MAT4": 16}
_TRIANGLES = 4  # mode of a primitive


class UnreadableModelError(Exception):
    """A file that holds no meshes this reader understands; the message says why."""


class Clip(NamedTuple):
    """Animation of a model."""

    name: str
    seconds: float
    number: int


class Model:
    """Triangles of a glTF file, which :meth:`pose` places at a time of an animation."""

    def __init__(self, path: Path) -> None:
        """Read a file.

        Raises:
            UnreadableModelError: it is damaged, compressed, or holds no triangles.
        """
        try:
            self._document, self._buffers = _read(path)
            required = self._document.get("extensionsRequired", [])
            if required:
                raise UnreadableModelError(f"needs {', '.join(sorted(required))}")
            self._nodes: list[dict[str, Any]] = self._document.get("nodes", [])
            self._values: dict[int, Floats] = {}
            self._parents = self._find_parents()
            self._pieces: list[_Piece] = []
            self.triangles, self.materials = self._read_primitives()
            self.clips = self._read_clips()
        except (KeyError, IndexError, TypeError, ValueError, struct.error, OSError, RecursionError) as error:
            raise UnreadableModelError(f"damaged ({type(error).__name__}: {error})") from error
        if not len(self.triangles):
            raise UnreadableModelError("has no triangles")

    def pose(self, clip: Clip | None = None, seconds: float = 0.0) -> Floats:
        """Return the vertices [V, 3] at a time of a clip; None: as the file places them."""
        try:
            transforms = self._world(None if clip is None else self._animated(clip, seconds))
            return np.concatenate([piece.transform_vertices(transforms) for piece in self._pieces])
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise UnreadableModelError(f"damaged ({type(error).__name__}: {error})") from error

    def _find_parents(self) -> list[int]:
        parents = [-1] * len(self._nodes)
        for number, node in enumerate(self._nodes):
            for child in node.get("children", []):
                parents[child] = number
        return parents

    def _accessor(self, index: int) -> Floats:
        """Return an accessor's values, read once."""
        if index not in self._values:
            self._values[index] = self._read_accessor(index)
        return self._values[index]

    def _read_accessor(self, index: int) -> Floats:
        """Return an accessor's values [N, components]; whole numbers that stand for fractions become these."""
        accessor = self._document["accessors"][index]
        dtype, components = np.dtype(_DTYPES[accessor["componentType"]]), _SIZES[accessor["type"]]
        count = accessor["count"]
        if "bufferView" not in accessor or "sparse" in accessor:
            raise UnreadableModelError("uses sparse accessors or a compression")
        view = self._document["bufferViews"][accessor["bufferView"]]
        start = view.get("byteOffset", 0) + accessor.get("byteOffset", 0)
        stride = view.get("byteStride", dtype.itemsize * components)
        data = self._buffers[view["buffer"]]
        if count and start + stride * (count - 1) + dtype.itemsize * components > len(data):
            raise UnreadableModelError("is cut off")
        values = np.ndarray((count, components), dtype, data, start, (stride, dtype.itemsize)).astype(np.float64)
        if accessor.get("normalized"):
            values = np.maximum(values / (2.0 ** (8 * dtype.itemsize - (dtype.kind == "i")) - 1), -1.0)
        return values

    def _read_primitives(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return triangles [T, 3] and their materials [T]; remember the pieces that hold the vertices."""
        triangles, materials = [np.zeros((0, 3), np.int64)], [np.zeros(0, np.int64)]
        first = 0
        for number, node in enumerate(self._nodes):
            if "mesh" not in node:
                continue
            for primitive in self._document["meshes"][node["mesh"]]["primitives"]:
                if primitive.get("mode", _TRIANGLES) != _TRIANGLES:
                    continue
                attributes = primitive["attributes"]
                points = self._accessor(attributes["POSITION"])
                if not np.isfinite(points).all():
                    raise UnreadableModelError("has vertices that are not finite")
                indices = np.arange(len(points) // 3 * 3)
                if "indices" in primitive:
                    indices = self._accessor(primitive["indices"])[:, 0].astype(np.int64)
                corners = indices[: len(indices) // 3 * 3].reshape(-1, 3)
                if len(corners) and corners.max() >= len(points):
                    raise UnreadableModelError("has triangles without vertices")
                skin = self._skin(node["skin"], attributes) if "skin" in node and "JOINTS_0" in attributes else None
                self._pieces.append(_Piece(points, number, skin))
                triangles.append(corners + first)
                materials.append(np.full(len(corners), primitive.get("material", -1)))
                first += len(points)
        return np.concatenate(triangles), np.concatenate(materials)

    def _skin(self, index: int, attributes: dict[str, int]) -> _Skin:
        skin = self._document["skins"][index]
        joints = np.array(skin["joints"])
        inverse = np.broadcast_to(np.eye(4), (len(joints), 4, 4))
        if "inverseBindMatrices" in skin:
            inverse = np.swapaxes(self._accessor(skin["inverseBindMatrices"]).reshape(-1, 4, 4), 1, 2)
        weights = self._accessor(attributes["WEIGHTS_0"])
        weights = weights / np.maximum(weights.sum(1, keepdims=True), 1e-9)
        return _Skin(joints, inverse, self._accessor(attributes["JOINTS_0"]).astype(np.int64), weights)

    def _read_clips(self) -> list[Clip]:
        clips = []
        for number, animation in enumerate(self._document.get("animations", [])):
            ends = [float(self._accessor(sampler["input"])[-1, 0]) for sampler in animation["samplers"]]
            clips.append(Clip(animation.get("name", f"{number}"), max(ends, default=0.0), number))
        return clips

    def _animated(self, clip: Clip, seconds: float) -> dict[tuple[int, str], Floats]:
        """Return the parts of nodes' transforms that a clip sets at a time."""
        animation = self._document["animations"][clip.number]
        values = {}
        for channel in animation["channels"]:
            target, sampler = channel["target"], animation["samplers"][channel["sampler"]]
            if "node" not in target or target["path"] == "weights":
                continue
            times = self._accessor(sampler["input"])[:, 0]
            keys = self._accessor(sampler["output"])
            kind = sampler.get("interpolation", "LINEAR")
            if kind == "CUBICSPLINE":
                keys = keys[1::3]  # the tangents around each value are not used
            high = int(np.clip(np.searchsorted(times, seconds), 1, max(len(times) - 1, 1)))
            low = high - 1
            high = min(high, len(times) - 1)
            fraction = 0.0
            if times[high] > times[low]:
                fraction = float(np.clip((seconds - times[low]) / (times[high] - times[low]), 0, 1))
            fraction = float(fraction >= 1) if kind == "STEP" else fraction
            one, two = keys[low], keys[high]
            if target["path"] == "rotation" and one @ two < 0:
                two = -two
            values[target["node"], target["path"]] = one + fraction * (two - one)
        return values

    def _world(self, animated: dict[tuple[int, str], Floats] | None) -> Floats:
        """Return the transforms [N, 4, 4] of all nodes to the scene."""
        own = [_transform(node, number, animated or {}) for number, node in enumerate(self._nodes)]
        world: dict[int, Floats] = {}

        def resolve(number: int, depth: int = 0) -> Floats:
            if depth > len(own):
                raise UnreadableModelError("has nodes that contain themselves")
            if number not in world:
                parent = self._parents[number]
                world[number] = own[number] if parent < 0 else resolve(parent, depth + 1) @ own[number]
            return world[number]

        return np.stack([resolve(number) for number in range(len(own))])


class _Skin(NamedTuple):
    """Joints of a skin, and those of each vertex with their weights."""

    joints: NDArray[np.int64]  # [J]: nodes
    inverse: Floats  # [J, 4, 4]
    which: NDArray[np.int64]  # [V, 4]
    weights: Floats  # [V, 4]


class _Piece(NamedTuple):
    """Vertices of a primitive, which a node or a skin moves."""

    points: Floats  # [V, 3]
    node: int
    skin: _Skin | None

    def transform_vertices(self, world: Floats) -> Floats:
        """Return the vertices in the scene."""
        points = np.concatenate([self.points, np.ones((len(self.points), 1))], 1)
        if self.skin is None:
            moved: Floats = (points @ world[self.node].T)[:, :3]
            return moved
        joints = (world[self.skin.joints] @ self.skin.inverse)[:, :3]
        blended = (self.skin.weights[..., None, None] * joints[self.skin.which]).sum(1)
        points_in_scene: Floats = (blended @ points[..., None])[..., 0]
        return points_in_scene


def _transform(node: dict[str, Any], number: int, animated: dict[tuple[int, str], Floats]) -> Floats:
    """Return the transform [4, 4] of a node to its parent."""
    if "matrix" in node and not any((number, path) in animated for path in ("translation", "rotation", "scale")):
        return np.array(node["matrix"], np.float64).reshape(4, 4).T

    def part(path: str, usual: Sequence[float]) -> Floats:
        return np.asarray(animated.get((number, path), node.get(path, usual)), np.float64)

    x, y, z, w = part("rotation", (0, 0, 0, 1)) / max(float(np.linalg.norm(part("rotation", (0, 0, 0, 1)))), 1e-12)
    turned = np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
            [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
            [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
        ]
    )
    matrix = np.eye(4)
    matrix[:3, :3] = turned * part("scale", (1, 1, 1))
    matrix[:3, 3] = part("translation", (0, 0, 0))
    return matrix


def _read(path: Path) -> tuple[dict[str, Any], list[bytes]]:
    """Return the JSON document and the buffers of a file."""
    data = path.read_bytes()
    if path.suffix.lower() == ".gltf":
        document = json.loads(data)
        names = [buffer["uri"] for buffer in document.get("buffers", [])]
        if any(Path(name).name != name for name in names):
            raise UnreadableModelError("has buffers outside its folder")
        return document, [(path.parent / name).read_bytes() for name in names]
    magic, version, _ = struct.unpack_from("<III", data)
    if magic != _MAGIC or version != 2:
        raise UnreadableModelError("is no GLB file of version 2")
    document, buffers, at = None, [], 12
    while at + 8 <= len(data):
        length, kind = struct.unpack_from("<II", data, at)
        part = data[at + 8 : at + 8 + length]
        if kind == _JSON and document is None:
            document = json.loads(part)
        elif kind == _BIN:
            buffers.append(part)
        at += 8 + length
    if not isinstance(document, dict):
        raise UnreadableModelError("holds no JSON")
    return document, buffers
