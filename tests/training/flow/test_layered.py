"""The renderer of layered scenes: flow, occlusion and pictures of scenes whose truth is known by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fullfield import InputError
from fullfield.ops._positions import create_pixel_grid
from fullfield.training.flow.config import PRESETS, SceneStyle
from fullfield.training.flow.layered import INFINITE, SQUARE, LayeredScenes, PictureAtlas, render_pairs
from fullfield.training.flow.layered.scene import COLOURS, ELLIPSOID, LIGHT, PAINT, SOFTNESS, TEXTURE
from fullfield.training.flow.mesh_shapes import create_procedural_meshes
from fullfield.training.flow.scene import sample_scenes
from refusals import refuses

HEIGHT, WIDTH = 24, 32


def atlas(device: str = "cpu") -> PictureAtlas:
    """A ramp to the right, a flat picture; one silhouette: the left half."""
    ramp = torch.arange(16, dtype=torch.uint8).mul(16)[None, :, None].expand(16, 16, 3)
    shapes = torch.zeros(1, 8, 8, dtype=torch.uint8)
    shapes[:, 1:7, 1:4] = 255
    pictures = torch.stack((ramp, torch.full((16, 16, 3), 200, dtype=torch.uint8)))
    return PictureAtlas(pictures.contiguous().to(device), shapes.to(device))


def moved(x: float, y: float, half_width: float, half_height: float) -> Tensor:
    """[3, 3]: a card whose middle lies at a pixel."""
    return torch.tensor([[half_width, 0, x], [0, half_height, y], [0, 0, 1.0]])


def scene(front_shape: int = SQUARE, step: tuple[float, float] = (5.0, -3.0)) -> LayeredScenes:
    """A card of 12×8 pixels, with the ramp, before a plane that moves 1 to the right."""
    frames = [
        torch.stack((moved(14, 13, 6, 4), moved(15.5, 11.5, 16, 12))),
        torch.stack((moved(14 + step[0], 13 + step[1], 6, 4), moved(16.5, 11.5, 16, 12))),
    ]
    to_card = torch.stack([torch.stack([matrix.inverse()] * 2) for matrix in frames])[None]
    paint = torch.zeros(1, 2, PAINT)
    paint[..., SOFTNESS] = 1
    paint[..., TEXTURE] = paint[..., TEXTURE + 4] = 8
    paint[..., TEXTURE + 2] = 8
    paint[..., COLOURS : COLOURS + 3] = paint[..., COLOURS + 6 : COLOURS + 9] = 1
    ids = torch.tensor([[[0, front_shape], [1, INFINITE]]], dtype=torch.int32)
    return LayeredScenes(
        to_card.contiguous(),
        torch.zeros(*to_card.shape[:4], 3),
        torch.nn.functional.pad(frames[1], (0, 1))[None],
        paint,
        ids,
        torch.tensor([2], dtype=torch.int32),
        torch.zeros(1, 2, 1, 3),
        torch.ones(1, dtype=torch.int32),
        torch.zeros(1, 3),
        torch.tensor([[1.0, 0.0]]),
        torch.zeros(1, dtype=torch.int32),
    )


def test_render_pairs_flow_and_occlusion_equal_values_by_hand() -> None:
    found = render_pairs(scene(), atlas(), (HEIGHT, WIDTH))
    inside = torch.zeros(HEIGHT, WIDTH, dtype=torch.bool)
    inside[10:17, 9:20] = True  # pixels whose centres are well in the card; its edge is half covered
    assert torch.allclose(found.flow[0, :, inside], torch.tensor([[5.0], [-3.0]]), atol=1e-5)
    outside = torch.ones_like(inside)
    outside[8:19, 7:22] = False
    assert torch.allclose(found.flow[0, :, outside], torch.tensor([[1.0], [0.0]]), atol=1e-5)
    assert bool(found.valid.all())
    # The card at (19, 10) hides what the plane shows there; the last column leaves the frame.
    hidden = found.occluded[0]
    assert bool(hidden[:, -1].all())
    assert bool(hidden[7:9, 14:23].all())
    assert not bool(hidden[0:3, : WIDTH - 1].any())
    assert not bool(hidden[inside].any())
    assert torch.allclose(found.frame1[0, :, 0, 0], torch.full((3,), 200 / 255), atol=1e-3)
    row = found.frame1[0, 0, 13, 9:20]
    assert bool((row.diff() > 0).all())
    assert torch.allclose(found.frame2[0, 0, 10, 14:25], row, atol=1e-4)


def test_render_pairs_silhouette_covers_its_area() -> None:
    half = render_pairs(scene(0), atlas(), (HEIGHT, WIDTH))
    assert torch.allclose(half.flow[0, :, 13, 10], torch.tensor([5.0, -3.0]), atol=1e-5)
    assert torch.allclose(half.flow[0, :, 13, 18], torch.tensor([1.0, 0.0]), atol=1e-5)


def test_render_pairs_without_layers_shows_background() -> None:
    scenes = scene()
    colour = torch.tensor([0.2, 0.5, 0.9])
    alone = scenes._replace(counts=torch.tensor([1], dtype=torch.int32), background=colour[None])
    found, expected = (render_pairs(one, atlas(), (HEIGHT, WIDTH)) for one in (alone, scenes))
    assert torch.allclose(found.frame1[0, :, 0], colour[:, None].expand(3, WIDTH))
    assert torch.equal(found.frame1[..., 10:17, 9:20], expected.frame1[..., 10:17, 9:20])
    assert found.valid[0, 10:17, 9:20].all()
    assert not found.valid[0, 0].any()


def test_render_pairs_points_behind_camera_have_no_flow() -> None:
    away = scene()
    turned = away.to_frame.clone()
    turned[:, :, 2, 2] = -1
    found = render_pairs(away._replace(to_frame=turned), atlas(), (HEIGHT, WIDTH))
    assert not bool(found.valid.any())
    assert bool(found.occluded.all())
    assert not bool(found.flow.any())


def test_render_pairs_names_bad_arguments() -> None:
    held = scene()
    for change, word in (
        ({"paint": held.paint[..., :-1]}, "paint"),
        ({"ids": held.ids.long()}, "ids"),
        ({"ids": held.ids + 5}, "ids"),
        ({"counts": held.counts.repeat(2)}, "counts"),
    ):
        refuses(f"^{word}: expected", render_pairs, held._replace(**change), atlas(), (HEIGHT, WIDTH))
    refuses(r"^size: expected", render_pairs, held, atlas(), (0, 4))
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match=r"^backend: 'cuda' cannot serve this request "):
            render_pairs(held, atlas(), (HEIGHT, WIDTH), backend="cuda")
    with pytest.raises(InputError, match=r"^pictures: expected a power of two"):
        PictureAtlas(torch.zeros(1, 12, 12, 3, dtype=torch.uint8), torch.zeros(0, 8, 8, dtype=torch.uint8))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("style", PRESETS.values(), ids=PRESETS)
def test_render_pairs_on_gpu_equals_reference(style: SceneStyle) -> None:
    held = atlas("cuda")
    meshes = create_procedural_meshes(5)
    held.meshes = meshes.to("cuda")
    scenes = sample_scenes(
        range(6), (96, 130), seed=2, picture_count=2, shape_count=1, mesh_table=meshes.table, style=style
    ).to("cuda")
    found, expected = (render_pairs(scenes, held, (96, 130), backend=backend) for backend in ("cuda", "reference"))
    for name, one, other in zip(found._fields, found, expected, strict=True):
        away = (one.float() - other.float()).abs()
        assert float((away > 5e-3).float().mean()) < 5e-3, name
    again = render_pairs(scenes, held, (96, 130))
    for name, one, other in zip(found._fields, found, again, strict=True):
        if scenes.meshes is None or not name.startswith("frame"):
            assert torch.equal(one, other), name
        else:  # the light of meshes is summed in any order
            assert torch.allclose(one, other, atol=1e-4), name


def ball(step: float = 6.0, spin: float = 0.7) -> tuple[LayeredScenes, Tensor, Tensor]:
    """Return a textured, stretched ball that moves and turns before a plane, and A (3×3) and c of it in both frames."""
    focal, middle = 40.0, torch.tensor([15.5, 11.5])
    camera = torch.tensor([[focal, 0, middle[0]], [0, focal, middle[1]], [0, 0, 1]], dtype=torch.float64)
    cosine, sine = math.cos(spin), math.sin(spin)
    turned = torch.tensor([[cosine, 0, sine], [0, 1, 0], [-sine, 0, cosine]], dtype=torch.float64)
    axes = torch.diag(torch.tensor([0.9, 0.7, 0.5], dtype=torch.float64))
    shapes = torch.stack((axes, turned @ axes * 1.1))
    centres = torch.tensor([[0.1, 0.0, 5.0], [0.1 + step * 5 / focal, 0.1, 5.4]], dtype=torch.float64)
    inverse = torch.linalg.inv(shapes)
    base = scene()
    base.to_card[0, :, :, 0] = (inverse @ torch.linalg.inv(camera))[:, None].float()
    base.centres[0, :, :, 0] = (inverse @ centres[:, :, None])[:, None, :, 0].float()
    base.to_frame[0, 0] = (camera @ torch.cat((shapes[1], centres[1][:, None]), 1)).float()
    base.ids[0, 0, 1] = ELLIPSOID
    base.paint[0, 0, LIGHT : LIGHT + 3] = torch.tensor([0.2, -0.1, -0.3])
    return base, shapes, centres


def test_render_pairs_ellipsoid_flow_equals_marched_rays() -> None:
    """A ray marched in small steps until it enters the ellipsoid finds the same point, flow and visibility."""
    scenes, shapes, centres = ball()
    found = render_pairs(scenes, atlas(), (HEIGHT, WIDTH))
    focal, middle = 40.0, (15.5, 11.5)
    depths = torch.arange(4.4, 6.3, 4e-4, dtype=torch.float64)

    def entered(frame: int, x: float, y: float) -> Tensor | None:
        ray = torch.tensor([(x - middle[0]) / focal, (y - middle[1]) / focal, 1.0], dtype=torch.float64)
        points = torch.linalg.solve(shapes[frame], (depths[:, None] * ray - centres[frame]).T).T
        hits = (points.square().sum(1) < 1).nonzero()
        return points[int(hits[0])] if len(hits) else None

    seen = hidden = 0
    for y in range(HEIGHT):
        for x in range(WIDTH):
            if (point := entered(0, x, y)) is None:
                continue
            place = shapes[1] @ point + centres[1]
            to = place[:2] / place[2] * focal + torch.tensor(middle, dtype=torch.float64)
            torch.testing.assert_close(found.flow[0, :, y, x].double(), to - torch.tensor([x, y]), atol=0.05, rtol=0)
            if not (0 <= to[0] <= WIDTH - 1 and 0 <= to[1] <= HEIGHT - 1):
                assert found.occluded[0, y, x]
                continue
            first = entered(1, float(to[0]), float(to[1]))
            if first is None or 0.02 < (first - point).norm() < 0.2:
                continue  # too close to the outline for marched rays
            visible = bool((first - point).norm() <= 0.02)
            assert bool(found.occluded[0, y, x]) is not visible
            seen, hidden = seen + visible, hidden + (not visible)
    assert seen > 40
    assert hidden > 2


def test_render_pairs_ellipsoid_texture_follows_flow() -> None:
    scenes, _, _ = ball(spin=0.2)
    scenes.paint[0, 0, LIGHT + 3 : LIGHT + 6] = scenes.paint[0, 0, LIGHT : LIGHT + 3]
    found = render_pairs(scenes, atlas(), (HEIGHT, WIDTH))
    x, y = create_pixel_grid((HEIGHT, WIDTH), found.flow.device)
    to_x, to_y = x + found.flow[0, 0], y + found.flow[0, 1]
    grid = torch.stack((2 * to_x / (WIDTH - 1) - 1, 2 * to_y / (HEIGHT - 1) - 1), -1)[None]
    carried = torch.nn.functional.grid_sample(found.frame2, grid, align_corners=True)
    inner = torch.zeros(HEIGHT, WIDTH, dtype=torch.bool)
    inner[9:14, 13:18] = True
    assert (found.frame1 - carried)[0, :, inner & ~found.occluded[0]].abs().mean() < 0.02
