"""Renderer on NVIDIA GPUs, by a kernel compiled on the user's machine; never waits for the device."""

from __future__ import annotations

import functools
from pathlib import Path

import torch

from fullfield._kernels.nvrtc import Libraries, Source
from fullfield.ops import launching
from fullfield.ops.launching import structures
from fullfield.training.flow.layered.scene import LayeredScenes, PictureAtlas, RenderedPairs

LIBRARIES = Libraries("kernels of layered scenes")
_THREADS = 256
_SOURCE = Path(__file__).with_name("render.cu")
_POINTERS = (
    *("to_card", "centres", "to_frame", "paint", "ids", "counts", "exposed", "background", "sensor", "noise"),
    *("texels", "shapes"),
)
_RESULTS = ("frame1", "frame2", "flow", "valid", "occluded")
_Params = structures(_SOURCE)["LayeredParams"]


def supports(device: torch.device) -> str | None:
    """Return None if the kernels run on the device, else the reason why not."""
    return launching.why_not(device)


@functools.cache
def source() -> Source:
    """Return the source of both kernels."""
    return Source(launching.read_source(launching.HALVES, _SOURCE), ())


def render(scenes: LayeredScenes, atlas: PictureAtlas, size: tuple[int, int]) -> RenderedPairs:
    """Render as :func:`fullfield.training.flow.layered.render_pairs`; arguments are checked."""
    height, width = size
    scenes = LayeredScenes(*(part.contiguous() for part in scenes))
    batch, _, matrices, layers = scenes.to_card.shape[:4]
    device = scenes.to_card.device
    results = RenderedPairs(
        *(torch.empty((batch, channels, height, width), device=device, dtype=torch.float32) for channels in (3, 3, 2)),
        *(torch.empty((batch, height, width), dtype=torch.bool, device=device) for _ in range(2)),
    )
    p = _Params(batch=batch, height=height, width=width, layers=layers, exposures=matrices - 1)
    for name, tensor in zip((*_POINTERS, *_RESULTS), (*scenes, atlas.texels, atlas.shapes, *results), strict=True):
        setattr(p, name, tensor.data_ptr())
    p.pictures, p.side, p.levels = atlas.count, atlas.side, atlas.levels
    p.shape_count, p.shape_side = atlas.shapes.shape[:2]
    pixels, kernels = batch * height * width, launching.kernels(LIBRARIES, source(), scenes.to_card.get_device())
    kernels.launch("render_truth", -(-pixels // _THREADS), _THREADS, p)
    kernels.launch("render_frames", -(-2 * pixels // _THREADS), _THREADS, p)
    return results
