"""Made-up pairs: the same number is the same pair, and the flow leads to where things are."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from fullfield import InputError
from fullfield.training.flow.pairs import PairMaker
from fullfield.training.flow.pictures import PicturePack, procedural_pictures
from fullfield.training.flow.scene import SceneStyle, draw_scenes

SIZE = (40, 56)
SMALL = (20, 28)  # for what is about which pair it is
STYLE = SceneStyle(blur=0, noise=0, gamma=1, fog=0)


@pytest.fixture(scope="module")
def pictures() -> PicturePack:
    return procedural_pictures(6, 64, shapes=8)


@pytest.fixture(scope="module")
def maker(pictures: PicturePack) -> PairMaker:
    return PairMaker(SIZE, seed=3, pictures=pictures, style=STYLE, compressed=0)


def test_a_number_is_a_pair(pictures: PicturePack) -> None:
    maker = PairMaker(SMALL, seed=3, pictures=pictures, style=STYLE, compressed=0)
    together, second = maker.batch(0, 4), maker.batch(1, 2)
    for whole, part in zip(together, second, strict=True):
        assert torch.allclose(whole[2:].float(), part.float(), atol=1e-6)
    other = PairMaker(SMALL, seed=4, pictures=pictures).batch(0, 2)
    assert not torch.allclose(other.flow, together.flow[:2])
    assert together.frame1.shape == (4, 3, *SMALL)
    assert float(together.frame1.min()) >= 0
    assert float(together.frame1.max()) <= 1


def test_scenes_made_up_ahead_are_the_same(pictures: PicturePack) -> None:
    here, ahead = (PairMaker(SMALL, seed=3, pictures=pictures, compressed=0.5, workers=workers) for workers in (0, 1))
    ahead.ahead(4, 3, lambda _: 2)
    drawn: list[int] = []
    make = ahead._drawn._make  # what is not announced is drawn by this process
    ahead._drawn._make = lambda index, count: drawn.append(index) or make(index, count)  # type: ignore[func-returns-value]
    for index in (4, 7, 5, 10):
        assert all(torch.equal(one, two) for one, two in zip(here.batch(index, 2), ahead.batch(index, 2), strict=True))
    assert drawn == [5]


def test_the_flow_leads_to_the_same_colours(maker: PairMaker) -> None:
    """Where nothing is hidden the second frame, looked up along the flow, is the first, up to resampling and light."""
    batch = maker.batch(0, 8)
    height, width = SIZE
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    at = torch.stack(((x + batch.flow[:, 0]) / (width - 1), (y + batch.flow[:, 1]) / (height - 1)), -1) * 2 - 1
    warped = functional.grid_sample(batch.frame2, at, align_corners=True)
    seen = batch.valid & ~batch.occluded
    away = (warped - batch.frame1).abs().mean(1)
    still = (batch.frame2 - batch.frame1).abs().mean(1)
    moving = seen & (batch.flow.norm(dim=1) > 2)
    assert float(away[moving].median()) < 0.4 * float(still[moving].median())
    assert 0.02 < float(batch.occluded.float().mean()) < 0.6


def test_scenes_have_the_motion_that_is_asked_for() -> None:
    numbers = range(200)
    kwargs = {"seed": 0, "pictures": 5, "shapes": 5}

    def shift(style: SceneStyle) -> float:
        scenes = draw_scenes(numbers, (368, 496), style=style, **kwargs)
        middle = torch.tensor([0.0, 0.0, 1.0])
        there = scenes.to_frame @ middle
        here = torch.linalg.inv(scenes.to_card[:, 0, 0].double()).float() @ middle
        away = (there[..., :2] / there[..., 2:] - here[..., :2] / here[..., 2:]).norm(dim=-1)
        live = torch.arange(away.shape[1]) < scenes.counts[:, None]
        return float(away[live].median())

    assert (
        2.5
        < shift(SceneStyle(camera_motion=18, object_motion=22))
        / shift(SceneStyle(camera_motion=4.5, object_motion=5.5))
        < 6
    )


def test_mistakes_are_named(pictures: PicturePack) -> None:
    for arguments, word in (
        ({"size": (4, 40)}, "size"),
        ({"seed": -1}, "seed"),
        ({"compressed": 2.0}, "compressed"),
    ):
        with pytest.raises(InputError, match=f"^{word}: expected"):
            PairMaker(**{"size": SIZE, "pictures": pictures, **arguments})  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"^blur: expected"):
        SceneStyle(blur=2)
    with pytest.raises(InputError, match=r"^count: expected"):
        PairMaker(SIZE, pictures=pictures).batch(0, 0)
