"""Renderer on NVIDIA GPUs, by a kernel compiled on the user's machine; never waits for the device."""

from __future__ import annotations

import functools
from pathlib import Path

import torch
from torch import Tensor

from fullfield._kernels.nvrtc import KernelSource, LibraryCache
from fullfield.ops import _launching
from fullfield.ops._launching import parse_structures
from fullfield.training.flow.layered.meshes import SceneTriangles
from fullfield.training.flow.layered.scene import LayeredScenes, PictureAtlas, RenderedPairs

LIBRARIES = LibraryCache("kernels of layered scenes")
_THREADS, _TILE = 256, 16
_LAYERS, _MESHES, _FRAMES = (Path(__file__).with_name(name) for name in ("layers.cuh", "meshes.cuh", "render.cu"))
_EMPTY = (1 << 63) - 1  # key of a sample that shows no mesh
_POINTERS = (
    *("to_card", "centres", "to_frame", "paint", "ids", "counts", "exposed", "instants"),
    *("background", "sensor", "noise"),
    *("texels", "shapes"),
)
_TRIANGLES = ("points", "mesh_texels", "corners", "mesh_light", "owners", "mesh_pictures", "mesh_colours")
_RESULTS = ("frame1", "frame2", "flow", "valid", "occluded")
_Params = parse_structures(_LAYERS)["LayeredParams"]


def explain_unsupported(device: torch.device) -> str | None:
    """Return None if the kernels run on the device, else the reason why not."""
    return _launching.explain_unsupported_device(device)


@functools.cache
def get_renderer_kernel_source() -> KernelSource:
    """Return the source of all kernels."""
    return KernelSource(_launching.read_source(_launching.HALVES, _LAYERS, _MESHES, _FRAMES), ())


def render_pairs(
    scenes: LayeredScenes, triangles: SceneTriangles | None, atlas: PictureAtlas, size: tuple[int, int]
) -> RenderedPairs:
    """Render as :func:`fullfield.training.flow.layered.render_pairs`; arguments are checked."""
    height, width = size
    scenes = scenes.map_tensors(Tensor.contiguous)
    batch, _, matrices, layers = scenes.to_card.shape[:4]
    device = scenes.to_card.device
    results = RenderedPairs(
        *(torch.empty((batch, channels, height, width), device=device, dtype=torch.float32) for channels in (3, 3, 2)),
        *(torch.empty((batch, height, width), dtype=torch.bool, device=device) for _ in range(2)),
    )
    p = _Params(batch=batch, height=height, width=width, layers=layers, exposures=matrices - 1)
    pointers = (*scenes[:-1], atlas.texels, atlas.shapes, *results)
    for name, tensor in zip((*_POINTERS, *_RESULTS), pointers, strict=True):
        setattr(p, name, tensor.data_ptr())
    p.pictures, p.side, p.levels = atlas.count, atlas.side, atlas.levels
    p.shape_count, p.shape_side = atlas.shapes.shape[:2]
    pixels, kernels = (
        batch * height * width,
        _launching.load_kernels(LIBRARIES, get_renderer_kernel_source(), scenes.to_card.get_device()),
    )
    if triangles is not None and len(triangles.corners):
        for name, tensor in zip(_TRIANGLES, triangles, strict=True):
            setattr(p, name, tensor.data_ptr())
        keys = torch.full((batch, 2, matrices, height, width), _EMPTY, dtype=torch.int64, device=device)
        p.keys, p.triangles = keys.data_ptr(), len(triangles.corners)
        warps = p.triangles * 2 * matrices
        kernels.launch("draw_triangles", -(-32 * warps // _THREADS), _THREADS, p)
    kernels.launch("render_truth", -(-pixels // _THREADS), _THREADS, p)
    tiles = -(-height // _TILE) * -(-width // _TILE)
    kernels.launch("render_frames", 2 * batch * tiles, _THREADS, p)
    return results
