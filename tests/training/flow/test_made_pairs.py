"""Made-up pairs: the same number is the same pair, and the flow leads to where things are."""

from __future__ import annotations

from typing import NamedTuple
from unittest import mock

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.nn import functional

from fullfield.training.flow import scene
from fullfield.training.flow.config import MIXTURE, PRESETS, SceneStyle
from fullfield.training.flow.layered import SQUARE, LayeredScenes, PictureAtlas
from fullfield.training.flow.layered.scene import COLOURS, ELLIPSOID, TEXTURE
from fullfield.training.flow.pairs import PairGenerator
from fullfield.training.flow.pictures import PicturePack, create_procedural_picture_pack
from fullfield.training.flow.scene import sample_scenes
from refusals import refuses

SIZE = (40, 56)
SMALL = (20, 28)  # for what is about which pair it is
FEW = SceneStyle(instants=2)  # for what is not about exposures
STYLE = SceneStyle(blur=0, noise=0, gamma=1, instants=2)


@pytest.fixture(scope="module")
def pictures() -> PicturePack:
    return create_procedural_picture_pack(4, 32, shape_count=4)


@pytest.fixture(scope="module")
def maker(pictures: PicturePack) -> PairGenerator:
    return PairGenerator(SIZE, seed=3, pictures=pictures, style=STYLE, compressed=0)


def test_pair_generator_pair_depends_on_number_alone(pictures: PicturePack) -> None:
    maker = PairGenerator(SMALL, seed=3, pictures=pictures, style=STYLE, compressed=0)
    together, second = maker.batch(0, 2), maker.batch(1, 1)
    for full, tensor in zip(together, second, strict=True):
        assert torch.allclose(full[1:].float(), tensor.float(), atol=1e-6)
    other = PairGenerator(SMALL, seed=4, pictures=pictures, style=FEW).batch(0, 2)
    assert not torch.allclose(other.flow, together.flow[:2])
    assert together.frame1.shape == (2, 3, *SMALL)
    assert float(together.frame1.min()) >= 0
    assert float(together.frame1.max()) <= 1


def test_pair_generator_ahead_equals_direct(pictures: PicturePack) -> None:
    origin, ahead = (
        PairGenerator(SMALL, seed=3, pictures=pictures, style=FEW, compressed=0.5, workers=workers)
        for workers in (0, 1)
    )
    ahead.prefetch(4, 3, lambda _: 1)
    drawn: list[int] = []
    make = ahead._drawn._make  # what is not announced is drawn by this process
    ahead._drawn._make = lambda index, count: drawn.append(index) or make(index, count)  # type: ignore[func-returns-value]
    for index in (4, 7, 5):
        assert all(
            torch.equal(one, two) for one, two in zip(origin.batch(index, 1), ahead.batch(index, 1), strict=True)
        )
    assert drawn == [5]


def test_pair_generators_share_picture_atlas(pictures: PicturePack) -> None:
    first = PairGenerator(SMALL, seed=3, pictures=pictures, style=FEW)
    second = PairGenerator(SMALL, seed=3, pictures=first.atlas, style=FEW)
    assert second.atlas is first.atlas
    assert all(torch.equal(one, two) for one, two in zip(first.batch(0, 1), second.batch(0, 1), strict=True))
    elsewhere = PictureAtlas(*(tensor.to("meta") for tensor in (pictures.pictures, pictures.shapes)))
    refuses(r"^pictures: expected an atlas on cpu, got one on meta", PairGenerator, SMALL, pictures=elsewhere)


def test_pair_generator_flow_matches_frames(maker: PairGenerator) -> None:
    """Where nothing is hidden the second frame, looked up along the flow, is the first, up to resampling and light."""
    batch = maker.batch(0, 4)
    height, width = SIZE
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    at = torch.stack(((x + batch.flow[:, 0]) / (width - 1), (y + batch.flow[:, 1]) / (height - 1)), -1) * 2 - 1
    warped = functional.grid_sample(batch.frame2, at, align_corners=True)
    seen = batch.valid & ~batch.occluded
    distance = (warped - batch.frame1).abs().mean(1)
    still = (batch.frame2 - batch.frame1).abs().mean(1)
    moving = seen & (batch.flow.norm(dim=1) > 2)
    assert float(distance[moving].median()) < 0.4 * float(still[moving].median())
    assert 0.02 < float(batch.occluded.float().mean()) < 0.6


def test_scene_style_motion_scales_generated_motion() -> None:
    numbers = range(200)
    kwargs = {"seed": 0, "picture_count": 5, "shape_count": 5}

    def shift(style: SceneStyle) -> float:
        scenes = sample_scenes(numbers, (368, 496), style=style, **kwargs)
        middle = torch.tensor([0.0, 0.0, 1.0])
        position = scenes.to_frame[..., :3] @ middle
        origin = torch.linalg.inv(scenes.to_card[:, 0, 0].double()).float() @ middle
        distance = (position[..., :2] / position[..., 2:] - origin[..., :2] / origin[..., 2:]).norm(dim=-1)
        live = torch.arange(distance.shape[1]) < scenes.counts[:, None]
        return float(distance[live].median())

    assert (
        2.5
        < shift(SceneStyle(camera_motion=18, object_motion=22))
        / shift(SceneStyle(camera_motion=4.5, object_motion=5.5))
        < 6
    )


class Drawn(NamedTuple):
    """Scenes, and the cards in their slots."""

    scenes: LayeredScenes
    bodies: scene._Bodies
    matrices: scene.Floats  # [B, 2, L, 3, 3], to (depth x, depth y, depth) of both frames
    paint: scene.Floats
    ids: NDArray[np.int64]


OBJECTS = slice(0, 12)
BODY, UPPER, LOWER = 4, (5, 6, 7, 8), (9, 10, 11)
HANGS_ON = dict.fromkeys(UPPER, BODY) | {9: 5, 10: 6, 11: 7}


def drawn(count: int, **style: float) -> Drawn:
    """``sample_scenes``, watched."""
    with mock.patch.object(scene, "_build_depth_sorted_scenes", wraps=scene._build_depth_sorted_scenes) as ordered:
        scenes = sample_scenes(
            range(count), (368, 496), seed=5, picture_count=50, shape_count=40, style=SceneStyle(**style)
        )
    bodies, _, _, paint, ids, *_ = ordered.call_args.args
    return Drawn(scenes, bodies, bodies.compute_card_to_frame_matrices(), paint, ids)


def with_a_figure(found: Drawn, plain: Drawn) -> NDArray[np.bool_]:
    """[B]: the body or a limb is not where an object would be."""
    has_figure: NDArray[np.bool_] = (found.bodies.place != plain.bodies.place)[:, OBJECTS].any((1, 2))
    return has_figure


def test_pair_generator_scenes_of_seed_are_stable() -> None:
    """In every version, but for layers that are gone. The usual ones were stored before there were bars and figures."""
    early = {"object_motion": 11, "smooth": 0}
    usual, lively = drawn(8, **early).scenes, drawn(8, thin=0.3, figures=0.5, **early).scenes
    assert usual.counts.tolist() == [13, 20, 11, 19, 15, 12, 7, 15]
    assert usual.ids[:, 0].tolist() == [[5, -2], [41, 19], [21, 5], [13, 29], [8, 31], [22, 3], [5, -2], [34, 6]]
    middles = [(950.681, 494.0695, 2.9147), (571.8082, 153.9075, 2.4736), (359.5429, 365.0573, 2.4499)]
    assert usual.to_frame[[0, 3, 7], 0, :, 2].numpy() == pytest.approx(np.array(middles), rel=1e-4)
    texture = [(33.8962, -49.1426, 653.0815, 30.6688), (-5.2623, -10.0377, 1019.6526, 5.9976)]
    assert usual.paint[[0, 7], 0, TEXTURE : TEXTURE + 4].numpy() == pytest.approx(np.array(texture), rel=1e-4)
    colours = [(1.2404, 1.2353, 1.134), (0.8538, 0.7528, 1.0679)]
    assert usual.paint[[0, 7], 0, COLOURS : COLOURS + 3].numpy() == pytest.approx(np.array(colours), rel=1e-3)
    assert lively.counts.tolist() == [20, 22, 16, 20, 16, 13, 17, 20]
    assert lively.ids[:, 1, 0].tolist() == [13, 48, 21, 34, 45, 26, 36, 30]
    along = [(-42.706, 11.4387), (13.4728, 9.8655), (49.8952, 75.1028)]
    assert lively.to_frame[[0, 3, 7], 3, :2, 0].numpy() == pytest.approx(np.array(along), rel=1e-4)
    for actual in (usual, lively):
        assert actual.noise[[0, 3, 7]].tolist() == [721827976, 1650216091, 302239393]  # the last that is drawn


def test_scene_style_thin_draws_more_and_longer_cards() -> None:
    def sides(found: Drawn) -> scene.Floats:
        """How much longer the longer side of an object is."""
        axes = (found.bodies.along, found.bodies.across)
        ratio = np.divide(*(np.linalg.norm(axis[:, OBJECTS], axis=-1) for axis in axes))
        return np.maximum(ratio, 1 / ratio)

    plain, some, all_of_them = (drawn(100, thin=share) for share in (0, 0.3, 1))
    assert np.quantile(sides(plain), 0.9) < 2.5
    assert np.quantile(sides(all_of_them), (0.5, 0.9)) == pytest.approx((3.5, 20), rel=0.3)
    changed = ~np.isclose(sides(some), sides(plain))
    assert changed.mean() == pytest.approx(0.3, abs=0.04)
    usual, more = (found.bodies.is_present[:, OBJECTS].sum(1) for found in (plain, some))
    assert (more >= usual).all()
    assert usual.mean() + 1 < more.mean() < 9.5
    assert (some.scenes.counts - plain.scenes.counts).tolist() == (more - usual).tolist()


def test_scene_style_figures_sets_fraction_of_scenes() -> None:
    plain, actual = drawn(400), drawn(400, figures=0.3)
    has_figure = with_a_figure(actual, plain)
    assert has_figure.mean() == pytest.approx(0.3, abs=0.07)
    assert (drawn(400, figures=1).bodies.place != plain.bodies.place)[:, BODY:12].any(-1).all()
    # All parts are there, however few objects the scene has, and the other objects stay.
    few = plain.bodies.is_present[:, OBJECTS].sum(1) < BODY
    assert (has_figure & few).any()
    assert actual.bodies.is_present[has_figure, BODY:12].all()
    assert (actual.bodies.is_present == plain.bodies.is_present)[:, :BODY].all()
    assert (actual.bodies.place == plain.bodies.place)[:, :BODY].all()
    # Scenes without one are the same bits as in the usual style.
    assert np.array_equal(actual.matrices[~has_figure], plain.matrices[~has_figure])
    assert np.array_equal(actual.paint[~has_figure], plain.paint[~has_figure])
    assert np.array_equal(actual.ids[~has_figure], plain.ids[~has_figure])
    for name in ("is_present", "depth"):
        assert np.array_equal(getattr(actual.bodies, name)[~has_figure], getattr(plain.bodies, name)[~has_figure])
    for name in ("exposures", "background", "sensor", "noise"):
        assert torch.equal(getattr(actual.scenes, name), getattr(plain.scenes, name))


def test_scene_style_figures_keep_joints_connected() -> None:
    actual = drawn(300, figures=1)
    start, end = np.array([-1.0, 0, 1]), np.array([1.0, 0, 1])
    swung, neighbor = [], []
    for limb, bone in HANGS_ON.items():
        first, second = (actual.matrices[:, frame, limb] for frame in (0, 1))
        on_bone, then_on_bone = (actual.matrices[:, frame, bone] for frame in (0, 1))
        joint, tip = (np.linalg.solve(on_bone, (first @ point)[..., None])[..., 0] for point in (start, end))
        if bone == BODY:
            assert np.hypot(joint[:, 0], joint[:, 1]) == pytest.approx(0.8)
        else:
            assert joint[:, :2] == pytest.approx(np.tile(end[:2], (300, 1)), abs=1e-6)
        assert np.stack((joint[:, 2], tip[:, 2])) == pytest.approx(1)  # both cards lie in one plane
        then = (then_on_bone @ joint[..., None])[..., 0]
        assert second @ start == pytest.approx(then, rel=1e-6, abs=1e-6)
        origin, rigid = second @ end, (then_on_bone @ tip[..., None])[..., 0]
        swung.append(np.linalg.norm(origin[:, :2] / origin[:, 2:] - rigid[:, :2] / rigid[:, 2:], axis=-1))
        neighbor.append(actual.bodies.depth[:, limb] / actual.bodies.depth[:, bone] - 1)
    distance = np.stack(swung)
    assert (distance > 0.1).mean() == pytest.approx(0.75, abs=0.05)  # pixels; the others stand
    assert 4 < np.median(distance[distance > 0.1]) < 20
    # Limbs are nearer than the body or farther; lower ones go on in the direction of the upper ones.
    order = np.sign(np.stack(neighbor))
    assert (np.abs(np.stack(neighbor)) < 0.01).all()
    assert (order[: len(UPPER)] < 0).mean() == pytest.approx(0.6, abs=0.05)
    assert (order[len(UPPER) :] == order[: len(LOWER)]).all()


def test_scene_style_figures_half_have_one_picture() -> None:
    """The others are of as many as the other things."""
    actual = drawn(200, figures=0.6, smooth=0)
    has_figure = with_a_figure(actual, drawn(200, smooth=0))
    pictures, colours = actual.ids[:, BODY:12, 0], actual.paint[:, BODY:12, COLOURS:]
    one = (pictures == pictures[:, :1]).all(1)
    assert (one == (colours == colours[:, :1]).all((1, 2))).all()
    assert not one[~has_figure].any()
    assert one[has_figure].mean() == pytest.approx(0.5, abs=0.12)
    assert len(np.unique(pictures[has_figure, 0])) > 40
    shapes = actual.ids[has_figure, BODY:12, 1]
    assert (shapes[:, 0] >= 0).all()  # a body is a silhouette, most limbs are bars
    assert (shapes[:, 1:] == SQUARE).mean() == pytest.approx(0.75, abs=0.05)


def test_pair_generator_names_bad_arguments(pictures: PicturePack) -> None:
    for arguments, word in (
        ({"size": (4, 40)}, "size"),
        ({"seed": -1}, "seed"),
        ({"compressed": 2.0}, "compressed"),
    ):
        refuses(f"^{word}: expected", PairGenerator, **{"size": SIZE, "pictures": pictures, **arguments})
    for style in (
        {"blur": 2},
        {"thin": 2},
        {"figures": -1},
        {"pans": 2},
        {"pan_motion": 0},
        {"haze": 2},
        {"dark": 2},
    ):
        refuses(f"^{next(iter(style))}: expected", SceneStyle, **style)
    refuses(r"^pair_count: expected", PairGenerator(SIZE, pictures=pictures).batch, 0, 0)


def test_scene_style_presets_differ() -> None:
    assert SceneStyle.from_preset("usual") == SceneStyle()
    assert len(set(PRESETS.values())) == len(PRESETS)
    assert SceneStyle.from_preset("small").object_motion < SceneStyle().object_motion < PRESETS["bodies"].object_motion
    assert PRESETS["figures"].figures == PRESETS["bodies"].bodies == PRESETS["meshes"].meshes == 1
    assert MIXTURE.keys() == PRESETS.keys()
    assert sum(MIXTURE.values()) == pytest.approx(1)
    refuses(
        r"^style: expected one of usual, small, figures, bodies, meshes, got 'figure'; did you mean figures\?$",
        SceneStyle.from_preset,
        "figure",
    )


def test_scene_style_bodies_keep_cards_unchanged() -> None:
    numbers = range(40)
    kwargs = {"seed": 0, "picture_count": 5, "shape_count": 5}
    plain = sample_scenes(numbers, (48, 64), style=SceneStyle(), **kwargs)
    lively = sample_scenes(numbers, (48, 64), style=SceneStyle(bodies=0.5), **kwargs)
    is_solid = (lively.ids[..., 1] == ELLIPSOID) & (torch.arange(lively.ids.shape[1]) < lively.counts[:, None])
    assert 12 <= int(is_solid.any(1).sum()) <= 28
    for number in numbers:
        cards = ~is_solid[number, : lively.counts[number]]
        retained = lively.to_card[number][:, :, : lively.counts[number]][:, :, cards]
        assert torch.equal(retained, plain.to_card[number][:, :, : plain.counts[number]])


def test_scene_style_pans_turn_camera_far() -> None:
    plain, panned = (drawn(200, still_camera=0, camera_motion=6, pans=share) for share in (0, 0.3))
    turn = np.linalg.norm(panned.bodies.camera_turn[:, :2], axis=-1)
    before = np.linalg.norm(plain.bodies.camera_turn[:, :2], axis=-1)
    pans = turn != before
    assert pans.mean() == pytest.approx(0.3, abs=0.1)
    pixels = turn[pans] * panned.bodies.focal[pans]
    assert 25 < np.median(pixels) < 60
    assert np.median(turn[pans]) > 3 * np.median(before[pans])
    shift = np.linalg.norm(panned.bodies.camera_shift[pans, :2], axis=-1) / panned.bodies.view_depth
    assert np.median(shift * panned.bodies.focal[pans]) < 0.5 * np.median(pixels)


def test_scene_style_haze_fades_distant_surfaces() -> None:
    plain, hazy = (drawn(60, smooth=0, haze=share) for share in (0, 0.5))
    assert np.array_equal(hazy.matrices, plain.matrices)
    contrast = hazy.paint[..., COLOURS] / plain.paint[..., COLOURS]
    distance = np.linalg.norm(plain.bodies.centre, axis=-1)
    is_hazy = (contrast < 1).any(1)
    assert is_hazy.mean() == pytest.approx(0.5, abs=0.15)
    assert np.array_equal(hazy.paint[~is_hazy], plain.paint[~is_hazy])
    for contrasts, distances in zip(contrast[is_hazy], distance[is_hazy], strict=True):
        assert (np.diff(contrasts[np.argsort(distances)]) <= 1e-12).all()
    middle = hazy.paint[..., COLOURS + 3 : COLOURS + 6] + 0.5 * hazy.paint[..., COLOURS : COLOURS + 3]
    thick = contrast < 0.15  # little but the haze is left
    assert thick.sum(1).max() > 1
    assert all(
        np.ptp(colours[of_scene], axis=0).max(initial=0) < 0.2
        for colours, of_scene in zip(middle[thick.any(1)], thick[thick.any(1)], strict=True)
    )


def test_scene_style_dark_scales_colours() -> None:
    plain, dark = (drawn(40, dark=share) for share in (0, 0.5))
    exposure = dark.paint[..., COLOURS:][..., :12] / plain.paint[..., COLOURS:][..., :12]
    assert np.allclose(exposure, exposure[:, :1, :1])
    exposure = exposure[:, 0, 0]
    assert (exposure == 1).mean() == pytest.approx(0.5, abs=0.2)
    assert 0.25 <= exposure.min() < 0.35
    assert exposure[exposure < 1].max() <= 0.6
    backgrounds = dark.scenes.background.numpy() / plain.scenes.background.numpy()
    assert backgrounds == pytest.approx(np.tile(exposure[:, None], (1, 3)), rel=1e-5)


def test_scene_style_haze_reaches_meshes(pictures: PicturePack) -> None:
    plain, hazy = (
        PairGenerator(SMALL, pictures=pictures, style=SceneStyle(meshes=1, haze=share))._drawn.take_or_build_batch(
            0, 20
        )[0]
        for share in (0, 1)
    )
    assert plain.meshes is not None
    assert hazy.meshes is not None
    assert torch.equal(hazy.meshes.pose, plain.meshes.pose)
    contrast = hazy.meshes.colours[..., 1] / plain.meshes.colours[..., 1]
    assert 0.3 < float(contrast.median()) < 0.98
    light = hazy.meshes.light - 1
    faded = contrast[:, :1] * (plain.meshes.light[..., 0] - 1)
    assert torch.allclose(light[..., 0], faded, atol=1e-5)


def test_scene_style_plain_meshes_have_colours_alone(pictures: PicturePack) -> None:
    textured, plain = (
        PairGenerator(
            SMALL, pictures=pictures, style=SceneStyle(meshes=1, plain_meshes=share)
        )._drawn.take_or_build_batch(0, 20)
        for share in (0, 0.5)
    )
    before, after = textured[0].meshes, plain[0].meshes
    assert before is not None
    assert after is not None
    assert torch.equal(after.pose, before.pose)
    is_plain = (after.colours[..., 1:4] == 0).all(-1).all(-1)
    assert 0.3 < float(is_plain.float().mean()) < 0.7
    assert torch.equal(after.colours[~is_plain], before.colours[~is_plain])
    shades = after.colours[is_plain][..., 4:7]
    assert float(shades.min()) < 0.1
    assert float(shades.max()) > 0.9
    assert float(shades.std(1).mean()) > 0.1  # materials differ
