"""Meshes of scenes: flow, validity and occlusion against rays cast in float64, and what their pixels show."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fullfield.training.flow.config import SceneStyle
from fullfield.training.flow.layered import INFINITE, MESH, SQUARE, LayeredScenes, PictureAtlas, render_pairs
from fullfield.training.flow.layered.meshes import (
    DEFORMATION,
    MATERIALS,
    MESH_COLOURS,
    MeshPlacement,
    MeshStore,
    SceneTriangles,
    build_mesh_store_from_clips,
    project_and_light_scene_triangles,
)
from fullfield.training.flow.layered.scene import COLOURS, PAINT, SOFTNESS, TEXTURE
from fullfield.training.flow.mesh_scene import MESHES
from fullfield.training.flow.mesh_shapes import create_procedural_meshes
from fullfield.training.flow.pairs import PairGenerator
from fullfield.training.flow.pictures import PicturePack, create_procedural_picture_pack
from fullfield.training.flow.scene import sample_scenes
from fullfield.training.flow.scene_draw import compute_rotation_matrices
from refusals import refuses

HEIGHT, WIDTH, FOCAL = 48, 64, 60.0
MIDDLE = np.array([(WIDTH - 1) / 2, (HEIGHT - 1) / 2])
CAMERA = np.array([[FOCAL, 0, MIDDLE[0]], [0, FOCAL, MIDDLE[1]], [0, 0, 1]])
Floats = NDArray[np.float64]


def atlas(meshes: MeshStore | None, device: str = "cpu") -> PictureAtlas:
    """Return an atlas of one smooth picture, without silhouettes."""
    wave = (127.5 + 100 * torch.sin(torch.arange(32) * (2 * torch.pi / 32))).to(torch.uint8)
    picture = torch.stack(
        (wave[:, None].expand(32, 32), wave[None].expand(32, 32), wave.flip(0)[:, None] // 2 + wave // 2)
    )
    pictures = picture.permute(1, 2, 0)[None].contiguous()
    store = None if meshes is None else meshes.to(device)
    return PictureAtlas(pictures.to(device), torch.zeros(0, 8, 8, dtype=torch.uint8, device=device), store)


def placement(poses: Floats, store: MeshStore, layers: list[int]) -> MeshPlacement:
    """Place mesh n of the store by poses [I, 2, 3, 4] in scene 0, without deformation or light from a lamp."""
    count = len(poses)
    table = store.table
    colours = torch.zeros(count, MATERIALS, MESH_COLOURS)
    colours[..., 1:4] = colours[..., 7:10] = 1
    light = torch.zeros(count, 2, 4)
    light[..., 0] = 1
    texture = torch.zeros(count, 3, 4)
    texture[:, [0, 1, 2], [0, 1, 2]] = 16
    rows = torch.from_numpy(table.first_rows[:count])[:, None, None].expand(count, 2, 2).contiguous()
    return MeshPlacement(
        scene=torch.zeros(count, dtype=torch.int64),
        layer=torch.tensor(layers),
        vertex_counts=torch.from_numpy(table.vertex_counts[:count]),
        triangle_counts=torch.from_numpy(table.triangle_counts[:count]),
        first_triangles=torch.from_numpy(table.first_triangles[:count]),
        rows=rows,
        blend=torch.zeros(count, 2),
        pose=torch.from_numpy(poses).float(),
        camera=torch.tensor([[FOCAL, *MIDDLE]]).float().expand(count, 3).contiguous(),
        deformation=torch.zeros(count, 2, DEFORMATION),
        texture=texture,
        light=light,
        flat=torch.zeros(count),
        pictures=torch.zeros(count, MATERIALS, dtype=torch.int32),
        colours=colours,
    )


def pose(turn: tuple[float, float, float], size: float, centre: tuple[float, float, float]) -> Floats:
    """Return the map [3, 4] from a mesh to the camera."""
    return np.concatenate([compute_rotation_matrices(np.array(turn)) * size, np.array(centre)[:, None]], 1)


def on_screen(x: float, y: float, half_width: float = 40, half_height: float = 30) -> Floats:
    """Return the map [3, 3] from a card to pixels."""
    return np.array([[half_width, 0, x], [0, half_height, y], [0, 0, 1.0]])


def scene(poses: Floats, store: MeshStore, *, exposures: int = 1) -> LayeredScenes:
    """Return a small card before two meshes, before a plane; all move."""
    cards = [
        [on_screen(20, 20, 5, 4), np.zeros((3, 3)), on_screen(MIDDLE[0], MIDDLE[1])],
        [on_screen(27, 22, 5, 4), np.zeros((3, 3)), on_screen(MIDDLE[0] + 1, MIDDLE[1])],
    ]
    inverse = [[np.linalg.inv(card) if card.any() else card for card in frame] for frame in cards]
    to_card = torch.tensor(np.array(inverse)).float()[None, :, None].expand(1, 2, 1 + exposures, 3, 3, 3).contiguous()
    paint = torch.zeros(1, 3, PAINT)
    paint[..., SOFTNESS] = 1
    paint[..., TEXTURE] = paint[..., TEXTURE + 4] = 20
    paint[..., COLOURS : COLOURS + 3] = paint[..., COLOURS + 6 : COLOURS + 9] = 1
    moments = torch.zeros(1, 2, exposures, 3)
    moments[:, 0, :, 0] = 1
    return LayeredScenes(
        to_card,
        torch.zeros(*to_card.shape[:4], 3),
        functional.pad(torch.tensor(np.array(cards[1])).float(), (0, 1))[None],
        paint,
        torch.tensor([[[0, SQUARE], [0, MESH], [0, INFINITE]]], dtype=torch.int32),
        torch.tensor([3], dtype=torch.int32),
        moments,
        torch.tensor([exposures], dtype=torch.int32),
        torch.zeros(1, 3),
        torch.tensor([[1.0, 0.0]]),
        torch.zeros(1, dtype=torch.int32),
        placement(poses, store, [1, 1]),
    )


def two_meshes() -> tuple[Floats, MeshStore]:
    """Return a turning tube that leaves the frame, and a torus that goes through it."""
    poses = np.array(
        [
            [pose((0.2, 0.3, 1.0), 1.6, (0.9, 0.2, 4.0)), pose((0.5, -0.1, 1.2), 1.7, (1.5, 0.3, 3.8))],
            [pose((1.0, 0.2, 0.1), 1.2, (-0.6, 0.3, 4.4)), pose((0.6, 0.4, -0.2), 1.2, (-0.5, 0.1, 4.2))],
        ]
    )
    return poses, build_mesh_store_from_clips([mesh_of(create_procedural_meshes(5), index) for index in (1, 2)])


def mesh_of(store: MeshStore, index: int) -> tuple[list[NDArray[np.float32]], NDArray[np.int64], NDArray[np.uint8]]:
    """Return a mesh of a store as :func:`build_mesh_store_from_clips` takes it."""
    row, vertices, _, first, count = (int(column[index]) for column in store.table)
    points = store.vertices[row : row + vertices].float().numpy()[None]
    part = slice(first, first + count)
    return [points], store.triangles[part].long().numpy(), store.materials[part].numpy()


class RayCaster:
    """Rays against triangles by Möller and Trumbore's method, in float64: [M, V, 3] vertices of frames."""

    def __init__(self, poses: Floats, store: MeshStore) -> None:
        self.corners: list[Floats] = []
        for frame in (0, 1):
            frame_corners = []
            for index in range(len(poses)):
                (points,), faces, _ = mesh_of(store, index)
                moved = points[0].astype(np.float64) @ poses[index, frame, :, :3].T + poses[index, frame, :, 3]
                frame_corners.append(moved[faces])
            self.corners.append(np.concatenate(frame_corners))

    def cast(self, frame: int, x: float, y: float) -> tuple[int, float, Floats] | None:
        """Return the nearest triangle, the depth, and the weights of its corners."""
        ray = np.array([(x - MIDDLE[0]) / FOCAL, (y - MIDDLE[1]) / FOCAL, 1.0])
        first, second, third = np.moveaxis(self.corners[frame], 1, 0)
        one, two = second - first, third - first
        across = np.cross(ray, two)
        volume = (one * across).sum(-1)
        safe = np.where(volume == 0, 1.0, volume)
        u = (-first * across).sum(-1) / safe
        below = np.cross(-first, one)
        v, depth = below @ ray / safe, (two * below).sum(-1) / safe
        hits = (volume != 0) & (u >= 0) & (v >= 0) & (u + v <= 1) & (depth > 0.01)
        if not hits.any():
            return None
        nearest = int(np.argmin(np.where(hits, depth, np.inf)))
        return nearest, float(depth[nearest]), np.array([1 - u[nearest] - v[nearest], u[nearest], v[nearest]])


def test_render_pairs_mesh_flow_equals_cast_rays() -> None:
    """Cast rays give the same flow, and all but some pixels at outlines the same occlusion."""
    poses, store = two_meshes()
    rendered = render_pairs(scene(poses, store), atlas(store), (HEIGHT, WIDTH))
    caster = RayCaster(poses, store)
    assert bool(rendered.valid.all())
    on_mesh = hidden = hidden_inside = other_owner = other_occlusion = 0
    for y in range(HEIGHT):
        for x in range(WIDTH):
            flow = rendered.flow[0, :, y, x].double().numpy()
            at_edge = False
            if abs(x - 20) <= 5.5 and abs(y - 20) <= 4.5:
                expected, layer, depth = np.array([7.0, 2.0]), 0, 1.0
                at_edge = abs(abs(x - 20) - 5) < 0.6 or abs(abs(y - 20) - 4) < 0.6
            elif (hit := caster.cast(0, x, y)) is not None:
                point = hit[2] @ caster.corners[1][hit[0]]
                expected, layer, depth = FOCAL * point[:2] / point[2] + MIDDLE - (x, y), 1, point[2]
                on_mesh += 1
            else:
                expected, layer, depth = np.array([1.0, 0.0]), 2, 1.0
            if np.abs(flow - expected).max() > 0.01:
                other_owner += not at_edge
                continue
            to = expected + np.array([x, y])
            occluded = not (0 <= to[0] <= WIDTH - 1 and 0 <= to[1] <= HEIGHT - 1)
            if not occluded:
                covered = abs(to[0] - 27) <= 5 and abs(to[1] - 22) <= 4
                seen = caster.cast(1, *to)
                occluded = layer > 0 and covered
                occluded |= layer == 2 and seen is not None
                behind = layer == 1 and seen is not None and seen[1] < depth * (1 - 1e-3)
                occluded |= behind
                hidden_inside += behind
            hidden += occluded
            other_occlusion += bool(rendered.occluded[0, y, x]) != bool(occluded)
    assert on_mesh > 600
    assert hidden > 300
    assert hidden_inside > 30
    assert other_owner <= 2
    assert other_occlusion < 0.01 * HEIGHT * WIDTH


def test_render_pairs_mesh_frames_follow_flow() -> None:
    poses, store = two_meshes()
    rendered = render_pairs(scene(poses, store), atlas(store), (HEIGHT, WIDTH))
    y, x = torch.meshgrid(torch.arange(HEIGHT), torch.arange(WIDTH), indexing="ij")
    to = torch.stack(((x + rendered.flow[:, 0]) / (WIDTH - 1), (y + rendered.flow[:, 1]) / (HEIGHT - 1)), -1) * 2 - 1
    carried = functional.grid_sample(rendered.frame2, to, align_corners=True)
    moving = ~rendered.occluded & (rendered.flow.norm(dim=1) > 2)
    away, still = ((frame - rendered.frame1).abs().mean(1)[moving] for frame in (carried, rendered.frame2))
    assert int(moving.sum()) > 500
    assert float(away.median()) < 0.25 * float(still.median())


def test_render_pairs_exposure_averages_instants() -> None:
    """Four instants average four sharp frames, of which each shows the meshes at its own time."""
    poses, store = two_meshes()
    base = scene(poses, store, exposures=4)
    base.exposures[0, 0, :, 0] = torch.tensor([1.3, 1.1, 0.9, 0.6])
    blurred = render_pairs(base, atlas(store), (HEIGHT, WIDTH)).frame1
    sharp = []
    for instant in range(4):
        alone = base._replace(exposures=base.exposures[:, :, [instant]], instants=torch.ones_like(base.instants))
        alone = alone._replace(to_card=base.to_card[:, :, :2], centres=base.centres[:, :, :2])
        sharp.append(render_pairs(alone, atlas(store), (HEIGHT, WIDTH)).frame1)
    assert torch.allclose(blurred, torch.stack(sharp).mean(0), atol=1e-5)
    assert float((sharp[0] - sharp[3]).abs().mean()) > 0.01
    fewer = render_pairs(base._replace(instants=torch.tensor([2], dtype=torch.int32)), atlas(store), (HEIGHT, WIDTH))
    assert torch.allclose(fewer.frame1, torch.stack(sharp[:2]).mean(0), atol=1e-5)


def test_build_scene_triangles_places_and_projects_vertices() -> None:
    generator = np.random.default_rng(0)
    poses = generator.standard_normal((2, 3, 3)).astype(np.float32)
    store = build_mesh_store_from_clips([([poses], np.array([[0, 1, 2]]), np.array([3], np.uint8))])
    places = np.array([[pose((0.1, 0.2, 0.3), 0.5, (0.1, 0.2, 5.0)), pose((0.4, 0.0, 0.1), 0.6, (0.3, 0.0, 4.0))]])
    meshes = placement(places, store, [0])
    meshes.rows[0, :] = torch.tensor([0, 3])
    meshes.blend[0] = torch.tensor([0.25, 0.75])
    meshes.deformation[0, 1, -1] = 0.4
    built = project_and_light_scene_triangles(meshes, store, meshes.count_vertices_and_triangles())
    rest = poses.astype(np.float16).astype(np.float64)
    for frame, share in enumerate((0.25, 0.75)):
        own = rest[0] + share * (rest[1] - rest[0])
        for corner in range(3):
            point = compute_rotation_matrices(np.array([0.0, 0.4 * frame * own[corner, 1], 0.0])) @ own[corner]
            seen = CAMERA @ (places[0, frame, :, :3] @ point + places[0, frame, :, 3])
            np.testing.assert_allclose(built.points[corner, frame], seen, rtol=1e-5)
    assert built.owners.tolist() == [[0, 0, 3]]
    np.testing.assert_allclose(built.texels, 16 * rest[0], rtol=1e-5)


def test_build_scene_triangles_ignores_autocast() -> None:
    poses, store = two_meshes()
    meshes = placement(poses, store, [0, 0])
    exact = project_and_light_scene_triangles(meshes, store, meshes.count_vertices_and_triangles())
    with torch.autocast("cpu", torch.bfloat16):
        same = project_and_light_scene_triangles(meshes, store, meshes.count_vertices_and_triangles())
    for name, one, other in zip(exact._fields, exact, same, strict=True):
        assert torch.equal(one, other), name


def triangle(points: list[list[float]], lamp: list[float], flat: float) -> SceneTriangles:
    """Return two triangles at an edge, 4 before the camera, under a lamp."""
    store = build_mesh_store_from_clips(
        [([np.array([points], np.float32)], np.array([[0, 1, 2], [2, 1, 3]]), np.zeros(2, np.uint8))]
    )
    meshes = placement(np.array([[pose((0, 0, 0), 1.0, (0, 0, 4))] * 2]), store, [0])
    meshes.light[..., 0], meshes.light[..., 1:] = 0.2, torch.tensor(lamp)
    return project_and_light_scene_triangles(
        meshes._replace(flat=torch.tensor([flat])), store, meshes.count_vertices_and_triangles()
    )


def test_render_pairs_light_follows_visible_normals() -> None:
    points = [[-1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, -1.0, 0.0], [1.0, 0.0, -1.0]]
    towards = [0.0, 0.0, -1.0]  # to the camera
    facets = triangle(points, towards, 1.0).light[..., 0]
    assert torch.allclose(facets[0], torch.tensor(1.2))
    assert torch.allclose(facets[1], torch.tensor(0.2 + 0.5**0.5))
    smooth = triangle(points, towards, 0.0).light[..., 0]
    assert torch.allclose(smooth[0, 1:], smooth[1, [1, 0]])
    assert float(facets[1, 0]) < float(smooth[0, 1]) < float(facets[0, 0])
    assert torch.allclose(triangle(points, [0.0, 0.0, 1.0], 1.0).light, torch.tensor(0.2))


def test_create_procedural_meshes_are_closed_in_unit_sphere() -> None:
    store, more = create_procedural_meshes(6), create_procedural_meshes(7)
    assert torch.equal(store.vertices, more.vertices[: len(store.vertices)])
    for index in range(6):
        (points,), faces, materials = mesh_of(store, index)
        assert 0.99 < float(np.linalg.norm(points, axis=-1).max()) < 1.001
        edges = np.sort(np.concatenate([faces[:, [0, 1]], faces[:, [1, 2]], faces[:, [2, 0]]]), 1)
        counts = np.unique(edges, axis=0, return_counts=True)[1]
        assert (counts == 2).mean() > 0.95  # all but the rings at the ends
        assert materials.max() < MATERIALS


def test_create_procedural_meshes_of_bars_are_closed_and_face_outwards() -> None:
    store, more = create_procedural_meshes(1, barred_count=8), create_procedural_meshes(2, barred_count=9)
    count = int(store.table.vertex_counts[1:].sum())
    assert torch.equal(store.vertices[-count:], more.vertices[-count - int(more.table.vertex_counts[-1]) :][:count])
    for index in range(1, 9):
        (points,), faces, _ = mesh_of(store, index)
        assert 0.99 < float(np.linalg.norm(points, axis=-1).max()) < 1.001
        corners = points[0].astype(np.float64)[faces]
        edges = np.sort(np.concatenate([faces[:, [0, 1]], faces[:, [1, 2]], faces[:, [2, 0]]]), 1)
        assert (np.unique(edges, axis=0, return_counts=True)[1] == 2).all()
        volume = np.einsum("fi,fi->f", corners[:, 0], np.cross(corners[:, 1], corners[:, 2])).sum() / 6
        assert volume > 0, "triangles face inwards"


@pytest.fixture(scope="module")
def pictures() -> PicturePack:
    return create_procedural_picture_pack(4, 32, shape_count=4)._replace(meshes=create_procedural_meshes(5))


STYLE = replace(SceneStyle.from_preset("meshes"), instants=3, noise=0)


def test_pair_generator_mesh_pair_is_independent_of_batch(pictures: PicturePack) -> None:
    pairs = PairGenerator((40, 56), seed=3, pictures=pictures, style=STYLE, compressed=0)
    together, alone = pairs.batch(0, 3), pairs.batch(2, 1)
    for whole, part in zip(together, alone, strict=True):
        assert torch.allclose(whole[2:].float(), part.float(), atol=1e-5)
    assert not torch.equal(pairs.batch(1, 1).flow[0], together.flow[0])


def test_pair_generator_meshes_face_both_cameras(pictures: PicturePack) -> None:
    assert pictures.meshes is not None
    table = pictures.meshes.table
    scenes = sample_scenes(range(40), (368, 496), seed=1, picture_count=4, shape_count=4, mesh_table=table, style=STYLE)
    assert scenes.meshes is not None
    counts = torch.bincount(scenes.meshes.scene, minlength=40)
    assert int(counts.max()) <= MESHES
    assert float((counts > 0).float().mean()) > 0.8
    layers = scenes.ids[scenes.meshes.scene, scenes.meshes.layer, 1]
    assert bool((layers == MESH).all())
    built = project_and_light_scene_triangles(
        scenes.meshes, pictures.meshes, scenes.meshes.count_vertices_and_triangles()
    )
    assert float(built.points[..., 2].min()) > 0.1
    at = built.points[..., :2] / built.points[..., 2:]
    inside = ((at >= 0) & (at <= torch.tensor([495.0, 367.0]))).all(-1).float().mean(0)
    assert 0.3 < float(inside[0]) < 0.95
    assert float((at[:, 1] - at[:, 0]).norm(dim=-1).median()) > 5


def test_pair_generator_photograph_parts_match_backdrop() -> None:
    """Objects and backdrop have the same texels at the same pixels of the first frame, and other motion."""
    style = replace(SceneStyle(), photographs=1.0)
    scenes = sample_scenes(range(60), (48, 64), seed=5, picture_count=1 << 24, shape_count=4, style=style)
    pixel = torch.tensor([20.0, 11.0, 1.0], dtype=torch.float64)

    def on_cards(frame: int) -> Tensor:
        seen = scenes.to_card[:, frame, 0].double() @ pixel
        return seen / seen[..., 2:]

    affine = scenes.paint[..., TEXTURE : TEXTURE + 6].double().unflatten(-1, (2, 3))
    texels, later = ((affine @ on_cards(frame)[..., None])[..., 0] for frame in (0, 1))
    every = torch.arange(60)
    last = scenes.counts.long() - 1
    behind = (scenes.ids[..., 0] == scenes.ids[every, last][:, None, 0]) & (
        every[: scenes.ids.shape[1]] < last[:, None]
    )
    assert 10 < int(behind.any(1).sum()) < 55  # the others have walls or a ground
    assert int(behind.sum()) > 60
    away = (texels - texels[every, last][:, None]).abs().amax(-1)
    assert float(away[behind].max()) < 0.05
    assert float((later - later[every, last][:, None]).abs().amax(-1)[behind].median()) > 1
    colours = scenes.paint[..., COLOURS : COLOURS + 12]
    assert torch.equal(colours[behind], colours[every, last][behind.nonzero()[:, 0]])


def test_pair_generator_refuses_mesh_style_without_meshes(pictures: PicturePack) -> None:
    refuses(
        "^mesh_table: expected a table of meshes for this style, got none",
        lambda: sample_scenes(range(2), (40, 56), seed=0, picture_count=1, shape_count=0, style=STYLE),
    )
    bare = atlas(None)
    refuses("^pictures: expected an atlas with meshes", PairGenerator, (40, 56), pictures=bare, style=STYLE)
    poses, store = two_meshes()
    refuses("^atlas: expected one with meshes", render_pairs, scene(poses, store), bare, (HEIGHT, WIDTH))
    broken = store._replace(triangles=store.triangles.long())
    refuses("^triangles: expected", PictureAtlas, *_textures(bare), broken)
    assert pictures.meshes is not None
    wrong = scene(poses, store)
    assert wrong.meshes is not None
    wrong = wrong._replace(meshes=wrong.meshes._replace(blend=wrong.meshes.blend[:1]))
    refuses("^meshes: blend: expected", render_pairs, wrong, atlas(store), (HEIGHT, WIDTH))


def _textures(of: PictureAtlas) -> tuple[Tensor, Tensor]:
    return torch.zeros(1, 8, 8, 3, dtype=torch.uint8), of.shapes


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("size", [(96, 130), (368, 496)], ids=str)
def test_render_pairs_mesh_kernels_on_gpu_equal_reference(size: tuple[int, int]) -> None:
    """Kernels and definition agree but for pixels on an edge, where the last bit decides."""
    store = create_procedural_meshes(20)
    pack = create_procedural_picture_pack(6, 64, shape_count=8)
    with_meshes = PictureAtlas(pack.pictures.cuda(), pack.shapes.cuda(), store.to("cuda"))
    scenes = sample_scenes(
        range(6),
        size,
        seed=2,
        picture_count=6,
        shape_count=8,
        mesh_table=store.table,
        style=SceneStyle.from_preset("meshes"),
    ).to("cuda")
    found, expected = (render_pairs(scenes, with_meshes, size, backend=name) for name in ("cuda", "reference"))
    for name, one, other in zip(found._fields, found, expected, strict=True):
        away = (one.float() - other.float()).abs()
        assert float((away > 5e-3).float().mean()) < 5e-3, name
    again = render_pairs(scenes, with_meshes, size, backend="cuda")
    for name, one, other in zip(found._fields, found, again, strict=True):
        assert torch.allclose(one.float(), other.float(), atol=1e-4), name
    assert float(found.occluded.float().mean()) > 0.02
