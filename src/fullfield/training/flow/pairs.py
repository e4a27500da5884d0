"""Generator of synthetic pairs with exact flow."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fullfield import _check
from fullfield._check import InputError
from fullfield.training.flow.batch import FlowBatch, PairCounter, PrefetchedBatches
from fullfield.training.flow.config import SceneStyle
from fullfield.training.flow.layered import LayeredScenes, PictureAtlas, render_pairs
from fullfield.training.flow.layered.meshes import MeshTable
from fullfield.training.flow.mesh_shapes import create_procedural_meshes
from fullfield.training.flow.pictures import PicturePack, create_procedural_picture_pack
from fullfield.training.flow.scene import sample_scenes

_BLOCK = 8  # of JPEG
_LUMA = torch.tensor(
    [[0.299, 0.587, 0.114], [-0.168736, -0.331264, 0.5], [0.5, -0.418688, -0.081312]], dtype=torch.float32
)
_RGB = torch.linalg.inv(_LUMA)


class PairGenerator:
    """Generator of synthetic pairs. Pair n does not depend on its batch, nor on the device but for rounding.

    ::

        pairs = PairGenerator((368, 496), device="cuda")
        batch = pairs.batch(0, 32)               # pairs 0 ... 31
        batch.frame1, batch.flow, batch.valid    # [32, 3, 368, 496], [32, 2, ...], [32, ...]

    A scene is a set of opaque planar cards in space before a moving camera: silhouettes, boxes, rooms and grounds, with
    motion blur, changing light, defocus and noise; then some pairs get the blocks of JPEG. The style sets the shares;
    it can add thin bars, jointed figures, bodies of ellipsoids, triangle meshes, haze and darkness, which are off by
    default. :mod:`fullfield.training.flow.layered` documents what is rendered and why the flow is exact.

    Args:
        size: (height, width) of the frames, pixels, at least 8.
        seed: seed of everything.
        device: device that renders the pairs.
        pictures: textures and silhouettes of :func:`~fullfield.training.flow.pictures.load_or_create_picture_pack`; by
            default procedural ones, which need no file. Or the ``atlas`` of another generator on this device, which
            both then share.
        style: shares and lengths of what scenes contain, for instance ``SceneStyle(figures=0.5, thin=0.3)``.
        compressed: share of the pairs with the blocks of JPEG.
        workers: processes that draw the scenes of a training ahead of time; 0: this process draws them.
    """

    def __init__(
        self,
        size: tuple[int, int],
        *,
        seed: int = 0,
        device: torch.device | str = "cpu",
        pictures: PicturePack | PictureAtlas | None = None,
        style: SceneStyle | None = None,
        compressed: float = 0.25,
        workers: int = 0,
    ) -> None:
        for side in size:
            _check.check_number(side, "size", integer=True, low=_BLOCK, high=1 << 15)
        _check.check_number(seed, "seed", integer=True, low=0)
        self.size, self.seed, self.device = (int(size[0]), int(size[1])), seed, _check.resolve_available_device(device)
        _check.check_number(compressed, "compressed", low=0.0, high=1.0)
        self.style, self.compressed = style or SceneStyle(), compressed
        pictures = create_procedural_picture_pack() if pictures is None else pictures
        if not isinstance(pictures, PictureAtlas):
            meshes = create_procedural_meshes(barred_count=24) if pictures.meshes is None else pictures.meshes
            textures, shapes = (tensor.to(self.device) for tensor in (pictures.pictures, pictures.shapes))
            pictures = PictureAtlas(textures, shapes, meshes.to(self.device))
        same = pictures.device.type == self.device.type
        _check.require(same, "pictures", f"an atlas on {self.device}", f"one on {pictures.device}")
        self.atlas = pictures
        store = self.atlas.meshes
        if self.style.meshes and store is None:
            raise InputError("pictures: expected an atlas with meshes for this style, got one without")
        table = store.table if self.style.meshes and store is not None else None
        drawn = _SceneSampler(self.size, seed, self.atlas.count, len(self.atlas.shapes), table, self.style, compressed)
        self._drawn = PrefetchedBatches(drawn, workers, pin=self.device.type == "cuda")

    def prefetch(self, first_batch_index: int, stride: int, count_pairs: PairCounter) -> None:
        """Start to draw the scenes of every ``stride``-th batch from ``first_batch_index`` on."""
        self._drawn.start_prefetching_if_workers(first_batch_index, stride, count_pairs)

    def batch(self, batch_index: int, pair_count: int) -> FlowBatch:
        """Return the pairs ``batch_index * pair_count`` to ``(batch_index + 1) * pair_count - 1``."""
        _check.check_number(batch_index, "batch_index", integer=True, low=0)
        _check.check_number(pair_count, "pair_count", integer=True, low=1)
        scenes, steps = self._drawn.take_or_build_batch(batch_index, pair_count)
        totals = None if scenes.meshes is None else scenes.meshes.count_vertices_and_triangles()
        if self.device.type == "cuda":
            scenes = scenes.map_tensors(self._copy_to_device_without_waiting)
        frame1, frame2, flow, valid, occluded = render_pairs(
            scenes, self.atlas, self.size, vertex_and_triangle_counts=totals
        )
        if steps.any():
            frame1, frame2 = self._simulate_jpeg_in_selected_pairs_inplace(frame1, frame2, steps)
        valid &= flow.abs().amax(1) <= 4 * max(self.size)
        return FlowBatch(frame1, frame2, flow, valid, occluded)

    def _copy_to_device_without_waiting(self, tensor: Tensor) -> Tensor:
        """Copy a tensor to the device without waiting for what the device still has to do."""
        if self.device.type == "cuda":
            tensor = tensor.pin_memory()  # a copy from other memory would wait
        return tensor.to(self.device, non_blocking=True)

    @torch.no_grad()
    def _simulate_jpeg_in_selected_pairs_inplace(
        self, frame1: Tensor, frame2: Tensor, quantization_steps: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the frames with the blocks of JPEG in the pairs that have a step."""
        rough = quantization_steps > 0
        selected, coarse = (
            self._copy_to_device_without_waiting(tensor)
            for tensor in (rough.nonzero()[:, 0], quantization_steps[rough])
        )
        with torch.autocast(self.device.type, enabled=False):
            both = _simulate_jpeg_compression(
                torch.cat([frame.index_select(0, selected) for frame in (frame1, frame2)]),
                coarse.repeat(2)[:, None, None, None],
            )
        for frame, tensor in zip((frame1, frame2), both.chunk(2), strict=True):
            frame.index_copy_(0, selected, tensor)
        return frame1, frame2


@dataclass(frozen=True)
class _SceneSampler:
    """Function that draws a batch on the CPU: its scenes, and the steps of JPEG's quantisation, 0 for none."""

    size: tuple[int, int]
    seed: int
    pictures: int
    shapes: int
    meshes: MeshTable | None
    style: SceneStyle
    compressed: float

    def __call__(self, batch_index: int, pair_count: int) -> tuple[LayeredScenes, Tensor]:
        numbers = range(batch_index * pair_count, (batch_index + 1) * pair_count)
        counts = {"picture_count": self.pictures, "shape_count": self.shapes}
        scenes = sample_scenes(numbers, self.size, seed=self.seed, mesh_table=self.meshes, style=self.style, **counts)
        draw = np.stack([np.random.Generator(np.random.SFC64([self.seed, number, 1])).random(2) for number in numbers])
        steps = np.where(draw[:, 0] < self.compressed, np.exp(draw[:, 1] * math.log(12.0)), 0.0)
        return scenes, torch.from_numpy(steps.astype(np.float32))


def _simulate_jpeg_compression(frames: Tensor, quantization_steps: Tensor) -> Tensor:
    """Return frames [B, 3, H, W] whose 8×8 blocks are quantised: coarser at higher frequencies and in colour."""
    height, width = frames.shape[2:]
    tables = _get_cached_jpeg_tables(frames.device)
    padded = torch.nn.functional.pad(frames, (0, -width % _BLOCK, 0, -height % _BLOCK), mode="replicate")
    blocks = torch.einsum("cd,bdhw->bchw", tables.luma, padded)
    rows, columns = (side // _BLOCK for side in blocks.shape[2:])
    blocks = blocks.reshape(-1, 3, rows, _BLOCK, columns, _BLOCK)
    spectrum = torch.einsum("iy,bchywx,jx->bchiwj", tables.cosines, blocks, tables.cosines)
    step = quantization_steps[..., None, None] * tables.quantisation
    spectrum = (spectrum / step).round_().mul_(step)
    blocks = torch.einsum("iy,bchiwj,jx->bchywx", tables.cosines, spectrum, tables.cosines)
    restored = torch.einsum("cd,bdhw->bchw", tables.rgb, blocks.flatten(4).flatten(2, 3))
    return restored[:, :, :height, :width].clamp(0, 1)


class _JPEGTables(NamedTuple):
    """Constants of JPEG on a device."""

    luma: Tensor  # [3, 3]: from RGB to brightness and two colours
    rgb: Tensor  # [3, 3]: back
    cosines: Tensor  # [8, 8]: the orthonormal transform
    quantisation: Tensor  # [3, 1, 8, 1, 8]: relative steps of the channels and frequencies


@functools.lru_cache(maxsize=16)
def _get_cached_jpeg_tables(device: torch.device) -> _JPEGTables:
    """Return the constants; a copy for each batch would wait for the device."""
    rank = torch.arange(_BLOCK, dtype=torch.float64)
    cosines = torch.cos(torch.pi / _BLOCK * rank[:, None] * (rank + 0.5)) * math.sqrt(2 / _BLOCK)
    cosines[0] /= math.sqrt(2)
    table = 2 + (rank.float()[:, None] + rank.float()) ** 1.3
    channel = torch.tensor([1.0, 2.0, 2.0], dtype=torch.float32)
    quantisation = table[:, None, :] * channel[:, None, None, None, None] / 255
    return _JPEGTables(*(tensor.to(device) for tensor in (_LUMA, _RGB, cosines.float(), quantisation)))
