"""Public function of the renderer."""

from __future__ import annotations

import torch

from fullfield import _check
from fullfield._check import InputError
from fullfield.ops._backends import Backends
from fullfield.training.flow.layered.meshes import project_and_light_scene_triangles
from fullfield.training.flow.layered.scene import MESH, LayeredScenes, PictureAtlas, RenderedPairs

RENDERERS = Backends("render_pairs", f"{__package__}.", ("cuda", "reference"))
_LARGEST = 1 << 15


@torch.no_grad()
def render_pairs(
    scenes: LayeredScenes,
    atlas: PictureAtlas,
    size: tuple[int, int],
    *,
    vertex_and_triangle_counts: tuple[int, int] | None = None,
    backend: str | None = None,
) -> RenderedPairs:
    """Render both frames of every scene, the flow between them, its validity and its occlusion.

    On a GPU, meshes take 16 (1 + E) bytes for each pixel of a pair while it is rendered: 1.2 GB for 32 pairs of
    496×368 with 12 instants.

    Args:
        scenes: what to render.
        atlas: pictures and silhouettes, on the device of the scenes.
        size: (height, width), pixels.
        vertex_and_triangle_counts: ``scenes.meshes.count_vertices_and_triangles()`` from before the scenes went to
            a GPU; None waits for it.
        backend: ``"cuda"``, ``"reference"``, or None for the best that the device has.

    Raises:
        InputError: for fields that do not fit, ids outside the atlas (on the CPU; on a GPU they are taken modulo its
            size, for looking would wait for the device), or a backend that cannot serve.
    """
    scenes.check_fields()
    device = scenes.to_card.device
    _check.require(isinstance(atlas, PictureAtlas), "atlas", "a PictureAtlas", atlas)
    _check.require(atlas.device == device, "atlas", f"one on {device}", atlas.device)
    for side in size:
        _check.check_number(side, "size", integer=True, low=1, high=_LARGEST)
    renderer = RENDERERS.load(RENDERERS.choose(backend, device))
    if device.type == "cpu":
        for column, low, high in ((0, 0, atlas.count), (1, MESH, len(atlas.shapes))):
            ids = scenes.ids[..., column]
            is_valid = ids.numel() == 0 or (int(ids.min()) >= low and int(ids.max()) < high)
            _check.require(is_valid, "ids", f"{low} ... {high - 1}", ids)
    triangles = None
    if scenes.meshes is not None:
        if atlas.meshes is None:
            raise InputError("atlas: expected one with meshes, got one without")
        vertex_and_triangle_counts = (
            scenes.meshes.count_vertices_and_triangles()
            if vertex_and_triangle_counts is None
            else vertex_and_triangle_counts
        )
        triangles = project_and_light_scene_triangles(scenes.meshes, atlas.meshes, vertex_and_triangle_counts)
    rendered: RenderedPairs = renderer.render_pairs(scenes, triangles, atlas, size)
    return rendered
