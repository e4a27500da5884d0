"""Pairs from data sets, mixtures of them, and what validates."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import pytest
import torch
from flow_parts import Plain, Scenes, network, until
from torch import Tensor
from torch.utils.data import DataLoader

from fullfield.datasets import FlowSample, Pairs
from fullfield.io import write_flow, write_image
from fullfield.testing import sample_textured_scene
from fullfield.training.flow import (
    Augmentation,
    AugmentedPairs,
    DatasetPairs,
    FlowRun,
    FlowTraining,
    FlowValidation,
    Mixture,
    collate_flow,
    cut_or_pad_random_window,
    train_flow,
)
from fullfield.training.flow.batch import FlowBatch
from refusals import refuses

NUMBER, HEIGHT, WIDTH = 5, 40, 48


def stored_scene(root: Path, seed: int, size: tuple[int, int] = (HEIGHT, WIDTH)) -> str:
    """Write a pair and its truth; return its line of pairs.txt."""
    scene = sample_textured_scene(*size, seed=seed, max_motion=3.0)
    write_image(root / f"a{seed}.png", scene.frame1)
    write_image(root / f"b{seed}.png", scene.frame2)
    write_flow(root / f"f{seed}.flo", scene.flow)
    write_image(root / f"o{seed}.png", scene.occluded.float().expand(3, -1, -1))
    return f"a{seed}.png b{seed}.png f{seed}.flo o{seed}.png"


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Pairs:
    """Five pairs with truth; the red of a frame's first pixel tells which. One pair more has no truth."""
    root = tmp_path_factory.mktemp("pairs")
    lines = [stored_scene(root, seed) for seed in range(NUMBER)]
    (root / "pairs.txt").write_text("\n".join([*lines, "b0.png a1.png"]))
    return Pairs(root)


def found_in(frame: Tensor, dataset: Pairs) -> tuple[int, int, int]:
    """Which pair's first frame a window is of, and where it begins."""
    rows, columns = frame.shape[-2:]
    for index in range(NUMBER):
        whole = dataset.read_frames(index)[0]
        windows = whole.unfold(1, rows, 1).unfold(2, columns, 1)
        same = (windows - frame[:, None, None]).abs().amax((0, 3, 4)) < 1e-5
        if same.any():
            top, left = same.nonzero()[0].tolist()
            return index, top, left
    raise AssertionError("the window is of no pair")


def test_dataset_pairs_cuts_windows_with_truth(dataset: Pairs) -> None:
    source = DatasetPairs(dataset, (24, 32), seed=1)
    batch = source.batch(3, 4)
    assert batch.frame1.shape == (4, 3, 24, 32)
    seen = []
    for pair in range(4):
        index, top, left = found_in(batch.frame1[pair], dataset)
        seen.append((index, top, left))
        part = (..., slice(top, top + 24), slice(left, left + 32))
        sample = dataset[index]
        assert torch.equal(batch.frame2[pair], sample.frame2[part])
        assert torch.equal(batch.flow[pair], sample.flow[part])
        y, x = torch.meshgrid(torch.arange(24.0), torch.arange(32.0), indexing="ij")
        x, y = x + batch.flow[pair, 0], y + batch.flow[pair, 1]
        out = (x < 0) | (x > 31) | (y < 0) | (y > 23)
        assert torch.equal(batch.occluded[pair], sample.occluded[part] | out)
    assert len({index for index, *_ in seen}) == 4  # none twice
    assert len({place for _, *place in map(list, seen) for place in [tuple(place)]}) > 1
    again = DatasetPairs(dataset, (24, 32), seed=1).batch(3, 4)
    assert all(torch.equal(one, two) for one, two in zip(batch, again, strict=True))
    other = DatasetPairs(dataset, (24, 32), seed=2).batch(3, 4)
    assert not torch.equal(other.frame1, batch.frame1)


@pytest.mark.parametrize("workers", [0, 2])
def test_dataset_pairs_read_ahead_equal_direct_reads(dataset: Pairs, workers: int) -> None:
    random = torch.get_rng_state()  # which workers do not take: a run that stopped would go on with others
    plain = DatasetPairs(dataset, (24, 32))
    ahead = DatasetPairs(dataset, (24, 32), workers=workers)
    ahead.prefetch(4, 3, lambda index: index % 2 + 1)
    read: list[int] = []
    make = ahead._windows._make  # what is not announced is read by this process
    ahead._windows._make = lambda index, count: read.append(index) or make(index, count)  # type: ignore[func-returns-value]
    for index in (4, 7, 10):
        one, two = ahead.batch(index, index % 2 + 1), plain.batch(index, index % 2 + 1)
        assert all(torch.equal(first, second) for first, second in zip(one, two, strict=True))
    assert read == ([] if workers else [4, 7, 10])
    assert torch.equal(ahead.batch(5, 2).frame1, plain.batch(5, 2).frame1)  # was not announced
    assert read[-1] == 5
    assert torch.equal(ahead.batch(13, 2).frame1, plain.batch(13, 2).frame1)
    assert torch.equal(torch.get_rng_state(), random)


def test_window_pads_small_frames_as_invalid(dataset: Pairs) -> None:
    window = cut_or_pad_random_window(dataset[0], (50, 40), (1,))
    assert window.frame1.shape == (3, 50, 40)
    assert window.valid[:HEIGHT].all()
    assert not window.valid[HEIGHT:].any()
    assert torch.equal(window.frame1[:, HEIGHT:], window.frame1[:, HEIGHT - 1 : HEIGHT].expand(-1, 10, -1))


def test_dataset_pairs_shrinks_windows_to_small_frames(dataset: Pairs) -> None:
    """So nothing is added before a part is cut at random, as the command does it."""
    padded = DatasetPairs(dataset, (60, 64)).batch(0, 4)
    assert padded.frame1.shape[-2:] == (60, 64)
    assert not padded.valid.all()
    for least, size in (((24, 32), (40, 48)), ((48, 32), (48, 48))):
        batch = DatasetPairs(dataset, (60, 64), min_size=least).batch(0, 4)
        assert batch.frame1.shape[-2:] == size
        assert batch.valid[:, :HEIGHT].all()
        assert not batch.valid[:, HEIGHT:].any()
    source = AugmentedPairs(DatasetPairs(dataset, (60, 64), min_size=(36, 40)), Augmentation.as_in_raft((36, 40)))
    assert all(source.batch(index, 4).valid.all() for index in range(10))
    refuses(
        "min_size: expected an integer >= 8 and <= 24, got int 25", DatasetPairs, dataset, (24, 32), min_size=(25, 32)
    )


def test_dataset_pairs_uses_smallest_frame_size(tmp_path: Path) -> None:
    lines = [stored_scene(tmp_path, seed, size) for seed, size in enumerate(((40, 48), (30, 80)))]
    (tmp_path / "pairs.txt").write_text("\n".join(lines))
    batch = DatasetPairs(Pairs(tmp_path), (64, 64), min_size=(16, 16)).batch(0, 2)
    assert batch.frame1.shape[-2:] == (30, 48)
    assert batch.valid.all()


def test_window_averages_true_values_and_marks_holes() -> None:
    frames = torch.zeros(2, 3, 8, 8)
    flow = torch.ones(4, 2, 8, 8)
    flow[0] = 3.0
    flow[1, 0, 2, 2] = float("nan")
    valid = torch.ones(8, 8, dtype=torch.bool)
    valid[0, 0] = False
    batch = collate_flow([FlowSample("a", frames[0], frames[1], flow, valid, None)] * 2)
    assert batch.flow[0, 0, 4, 4] == 1.5
    assert batch.flow.isfinite().all()
    holes = (~batch.valid[1]).nonzero().tolist()
    assert holes == [[0, 0], [2, 2]]
    assert not batch.occluded.any()


def test_collate_flow_works_in_dataloader(dataset: Pairs) -> None:
    loader = DataLoader(torch.utils.data.Subset(dataset, [2, 0]), batch_size=2, collate_fn=collate_flow)  # type: ignore[arg-type]
    [batch] = list(loader)
    assert isinstance(batch, FlowBatch)
    assert torch.equal(batch.frame1[1], dataset[0].frame1)
    refuses("has no true flow to train on", collate_flow, [dataset[NUMBER]])
    small = cut_or_pad_random_window(dataset[0], (24, 24))
    refuses("expected one size, got 24×24, 48×40", collate_flow, [small, dataset[0]])


class Numbered:
    """Pairs that tell which source they are of."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.told: list[int] = []

    def prefetch(self, first_batch_index: int, stride: int, count_pairs: object) -> None:
        self.told = [count_pairs(first_batch_index + stride * n) for n in range(4)]  # type: ignore[operator]

    def batch(self, batch_index: int, pair_count: int) -> FlowBatch:
        del batch_index
        frames = torch.full((pair_count, 3, 8, 8), float(self.number))
        mask = torch.ones(pair_count, 8, 8, dtype=torch.bool)
        return FlowBatch(frames, frames, frames[:, :2], mask, ~mask)


@pytest.mark.parametrize("count", [1, 3, 8])
def test_mixture_keeps_weights(count: int) -> None:
    parts = [(Numbered(0), 6.0), (Numbered(1), 3.0), (Numbered(2), 1.0)]
    mixture = Mixture(parts)
    seen: Counter[int] = Counter()
    for index in range(400):
        batch = mixture.batch(index, count)
        numbers = batch.frame1[:, 0, 0, 0].int().tolist()
        assert len(numbers) == count
        assert numbers == sorted(numbers)
        seen.update(numbers)
        for number, weight in ((0, 0.6), (1, 0.3), (2, 0.1)):
            assert abs(numbers.count(number) - weight * count) < 1 + 1e-9
    for number, weight in ((0, 0.6), (1, 0.3), (2, 0.1)):
        assert seen[number] / (400 * count) == pytest.approx(weight, abs=0.01)
    mixture.prefetch(5, 2, lambda _: count)
    for number, (source, _) in enumerate(parts):
        asked = [math.ceil(round((0.6, 0.3, 0.1)[number] * count, 9)) for _ in range(4)]
        some = [mixture.count_pairs_by_source(5 + 2 * n, count)[number] for n in range(4)]
        assert source.told == [most if there else 0 for most, there in zip(asked, some, strict=True)]
    refuses("sources: expected a number > 0", Mixture, [(Numbered(0), 0.0)])


@pytest.mark.parametrize(
    ("weights", "count"), [((0.4, 0.3, 0.3), 32), ((0.7, 0.3), 8), ((0.5, 0.5), 2), ((9.0, 1.0), 3)]
)
def test_mixture_repeats_no_pair(weights: tuple[float, ...], count: int) -> None:
    class Counted(Numbered):
        """Numbers its pairs as ``PairGenerator`` does."""

        def batch(self, batch_index: int, pair_count: int) -> FlowBatch:
            batch = super().batch(batch_index, pair_count)
            return batch._replace(
                frame1=batch.frame1
                + torch.arange(batch_index * pair_count, (batch_index + 1) * pair_count)[:, None, None, None]
            )

    mixture = Mixture([(Counted(10_000 * place), weight) for place, weight in enumerate(weights)])
    shown = [number for index in range(200) for number in mixture.batch(index, count).frame1[:, 0, 0, 0].tolist()]
    assert len(set(shown)) == len(shown) == 200 * count


def test_flow_validation_returns_mean_over_pairs_and_sets(dataset: Pairs, scenes: Scenes) -> None:
    model = network(Plain).eval()

    def error(index: int) -> float:
        sample = dataset[index]
        with torch.no_grad():
            found = model.predictions(sample.frame1[None], sample.frame2[None])[-1][0]
        return float((found - sample.flow).norm(dim=0).mean())

    errors = [error(index) for index in range(NUMBER)]
    validation = FlowValidation({"all": dataset})
    assert validation(model) == pytest.approx(sum(errors) / NUMBER, rel=1e-5)
    assert FlowValidation({"two": dataset}, pairs=2)(model) == pytest.approx((errors[0] + errors[2]) / 2, rel=1e-5)
    both = FlowValidation({"all": dataset, "made": scenes}, pairs=8)
    lines: list[tuple[float, str]] = []
    error_px = both(model, progress=lambda fraction, text: lines.append((fraction, text)))
    assert error_px == pytest.approx(sum(both.errors.values()) / 2)
    assert [text for _, text in lines[-2:]] == [
        f"{NUMBER + 4} of {NUMBER + 8} pairs",
        f"{NUMBER + 8} of {NUMBER + 8} pairs",
    ]
    assert lines[-1][0] == 1.0
    assert set(both.errors) == {"all", "made"}
    assert scenes.asked[-2:] == [(0, 4), (1, 4)]
    FlowValidation({"made": scenes}, pairs=6)(model)
    assert scenes.asked[-3:] == [(0, 4), (4, 1), (5, 1)]


def test_train_flow_on_mixture_continues_stopped_run(dataset: Pairs, tmp_path: Path) -> None:
    def go(folder: str, scenes: Scenes) -> bytes:
        augmented = AugmentedPairs(DatasetPairs(dataset, (28, 36)), Augmentation.as_in_raft((24, 32)), 1)
        training = FlowTraining(steps=6, batch=3, average=0.5, learning_rate=1e-3)
        mixture = Mixture([(augmented, 2.0), (scenes, 1.0)])
        train_flow(tmp_path / folder, network(), mixture, training, run=FlowRun(checkpoint_every=2))
        return (tmp_path / folder / "weights.safetensors").read_bytes()

    whole = go("whole", Scenes())
    with pytest.raises(KeyboardInterrupt):
        go("stopped", until(4))
    assert go("stopped", Scenes()) == whole


def test_dataset_pairs_refuses_datasets_without_truth(dataset: Pairs, tmp_path: Path) -> None:
    for name in ("a0.png", "b0.png"):
        (tmp_path / name).write_bytes((dataset.root / name).read_bytes())
    (tmp_path / "pairs.txt").write_text("a0.png b0.png")
    bare = Pairs(tmp_path, name="mine")
    refuses("mine has no true flow to train on", DatasetPairs, bare, (24, 32))
    refuses("bare: has no true flow to validate with", FlowValidation, {"bare": bare})
