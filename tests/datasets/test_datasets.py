"""Every data set on a small tree of the real file formats, and batches of samples."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from fullfield import InputError
from fullfield.datasets import (
    DATASETS,
    HD1K,
    KITTI2012,
    KITTI2015,
    FlowDataset,
    FlowSample,
    FlyingChairs,
    FlyingThings3D,
    KubricNK,
    Middlebury,
    Pairs,
    Rendered,
    Sintel,
    Spring,
    open_dataset,
)
from fullfield.datasets.own import Charge8K
from fullfield.io import write_flow
from refusals import refuses

pytestmark = pytest.mark.unit

H, W = 6, 8


def saved(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def where(mask: Tensor | None) -> list[list[int]]:
    assert mask is not None
    return mask.nonzero().tolist()


def picture(path: Path, value: int, size: tuple[int, int] = (H, W), *, grey: bool = False) -> None:
    pixels = np.full(size if grey else (*size, 3), value, np.uint8)
    pixels[0, 0] = 255 - value
    saved(path, pixels)


def flow_of(value: float, size: tuple[int, int] = (H, W)) -> Tensor:
    flow = torch.full((2, *size), float(value))
    flow[1] = -value
    return flow


def flow_file(path: Path, value: float, valid: Tensor | None = None, size: tuple[int, int] = (H, W)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_flow(path, flow_of(value, size), valid)


def mask(path: Path, set_at: list[tuple[int, int]], size: tuple[int, int] = (H, W)) -> None:
    pixels = np.zeros(size, np.uint8)
    pixels[tuple(zip(*set_at, strict=True))] = 255
    saved(path, pixels)


def flo5(path: Path, values: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        file["flow"] = values.astype(np.float32)


def sintel(root: Path) -> None:
    for name in ("clean", "final", "albedo"):
        for scene, count in (("alley_1", 3), ("cave_2", 2)):
            for i in range(1, count + 1):
                picture(root / "training" / name / scene / f"frame_{i:04d}.png", 10 * i)
    for scene, count in (("alley_1", 2), ("cave_2", 1)):
        for i in range(1, count + 1):
            flow_file(root / "training" / "flow" / scene / f"frame_{i:04d}.flo", i)
            mask(root / "training" / "occlusions" / scene / f"frame_{i:04d}.png", [(1, 2)])
            mask(root / "training" / "invalid" / scene / f"frame_{i:04d}.png", [(3, 4), (1, 2)])
    for i in (1, 2):
        picture(root / "test" / "clean" / "market_1" / f"frame_{i:04d}.png", 10 * i)


def test_sintel_lists_pairs_and_reads_truth(tmp_path: Path) -> None:
    sintel(tmp_path)
    pairs = Sintel(tmp_path)
    assert (pairs.name, len(pairs)) == ("sintel-clean", 3)
    assert [r.name for r in pairs.records] == ["alley_1/frame_0001", "alley_1/frame_0002", "cave_2/frame_0001"]
    assert [(r.sequence, r.index) for r in pairs.records] == [("alley_1", 1), ("alley_1", 2), ("cave_2", 1)]
    name, frame1, frame2, flow, valid, occluded = pairs[1]
    assert name == "alley_1/frame_0002"
    assert frame1.shape == (3, H, W)
    assert float(frame1[0, 1, 1]) == pytest.approx(20 / 255)
    assert float(frame2[0, 1, 1]) == pytest.approx(30 / 255)
    assert torch.equal(flow, flow_of(2))
    assert where(~valid) == [[1, 2], [3, 4]]
    assert where(occluded) == [[1, 2]]
    assert pairs[-1].name == "cave_2/frame_0001"
    assert [sample.name for sample in pairs[:2]] == [r.name for r in pairs.records[:2]]


def test_sintel_test_split_has_no_truth(tmp_path: Path) -> None:
    sintel(tmp_path)
    pairs = open_dataset("sintel-clean-test", tmp_path)
    assert pairs.name == "sintel-clean-test"
    assert pairs[0][3:] == (None, None, None)
    refuses("render: expected one of clean, final", Sintel, tmp_path, split="test", render="albedo")
    for folder in ("occlusions", "invalid"):
        (tmp_path / "training" / folder).rename(tmp_path / folder)
    sample = Sintel(tmp_path)[0]
    assert sample.valid.all()
    assert sample.occluded is None
    (tmp_path / "training" / "clean" / "alley_1" / "frame_0002.png").unlink()
    assert [r.name for r in Sintel(tmp_path).records] == ["cave_2/frame_0001"]


def kitti(root: Path, folder: str = "image_2") -> Tensor:
    known = torch.ones(H, W, dtype=torch.bool)
    known[0, 0] = False
    seen = known.clone()
    seen[2, 3] = False
    for i in (10, 11):
        picture(root / "training" / folder / f"000007_{i}.png", i, grey=folder == "image_0")
        picture(root / "testing" / folder / f"000000_{i}.png", i)
    picture(root / "training" / folder / "000007_12.png", 12)
    flow_file(root / "training" / "flow_occ" / "000007_10.png", 3.5, known)
    flow_file(root / "training" / "flow_noc" / "000007_10.png", 3.5, seen)
    return known


@pytest.mark.parametrize(("year", "folder"), [("2015", "image_2"), ("2012", "colored_0"), ("2012", "image_0")])
def test_kitti_lists_pairs_and_reads_truth(tmp_path: Path, year: str, folder: str) -> None:
    known = kitti(tmp_path, folder)
    pairs: FlowDataset = {"2015": KITTI2015, "2012": KITTI2012}[year](tmp_path)
    assert (pairs.name, len(pairs)) == (f"kitti-{year}", 1)
    sample = pairs[0]
    assert sample.name == "000007_10"
    assert sample.frame1.shape == (3, H, W)
    assert torch.equal(sample.flow[:, known], flow_of(3.5)[:, known])
    assert torch.equal(sample.valid, known)
    assert where(sample.occluded) == [[2, 3]]
    assert DATASETS[f"kitti-{year}-test"](tmp_path)[0].flow is None


def spring(root: Path, *, camera: str = "left") -> np.ndarray:
    truth = np.arange(2 * H * 2 * W * 2, dtype=np.float32).reshape(2 * H, 2 * W, 2) / 100
    truth[5, 6] = np.nan
    scene = root / "train" / "0001"
    for i in (1, 2, 3):
        picture(scene / f"frame_{camera}" / f"frame_{camera}_{i:04d}.png", 10 * i)
        flo5(scene / f"flow_FW_{camera}" / f"flow_FW_{camera}_{i:04d}.flo5", truth + i)
        flo5(scene / f"flow_BW_{camera}" / f"flow_BW_{camera}_{i:04d}.flo5", truth - i)
    return truth


def test_spring_lists_pairs_and_reads_truth(tmp_path: Path) -> None:
    truth = spring(tmp_path)
    for i in (1, 2):
        name = f"matchmap_flow_FW_left_{i:04d}.png"
        mask(tmp_path / "train/0001/maps/matchmap_flow_FW_left" / name, [(3, 3)], (2 * H, 2 * W))
    pairs = Spring(tmp_path)
    assert (pairs.name, len(pairs)) == ("spring", 2)
    sample = pairs[1]
    assert sample.name == "0001/flow_FW_left_0002"
    assert sample.flow.shape == (4, 2, H, W)
    for value, (row, column) in enumerate(((0, 0), (0, 1), (1, 0), (1, 1))):
        assert np.array_equal(sample.flow[value].numpy().transpose(1, 2, 0), truth[row::2, column::2] + 2, True)
    assert where(~sample.valid) == [[2, 3]]
    assert where(sample.occluded) == [[1, 1]]


def test_spring_ignores_blue_of_match_maps(tmp_path: Path) -> None:
    spring(tmp_path)
    for i in (1, 2):
        pixels = np.zeros((H, W, 3), np.uint8)
        for channel in range(3):
            pixels[channel, channel + 1, channel] = 255
        pixels[4, 4] = 0, 255, 255
        saved(tmp_path / f"train/0001/maps/matchmap_flow_FW_left/matchmap_flow_FW_left_{i:04d}.png", pixels)
    assert where(Spring(tmp_path)[0].occluded) == [[0, 1], [1, 2], [4, 4]]


def test_spring_backward_pairs_lead_to_previous_frame(tmp_path: Path) -> None:
    truth = spring(tmp_path, camera="right")
    pairs = open_dataset("spring-right-bw", tmp_path)
    assert pairs.name == "spring-right-bw"
    assert [(r.frame1.stem[-1], r.frame2.stem[-1]) for r in pairs.records] == [("3", "2"), ("2", "1")]
    assert [r.index for r in pairs.records] == [-3, -2]
    flow = pairs[0].flow
    assert np.array_equal(flow[0].numpy().transpose(1, 2, 0), truth[::2, ::2] - 3, True)


def test_hd1k_lists_pairs_and_reads_truth(tmp_path: Path) -> None:
    for i in range(3):
        picture(tmp_path / "hd1k_input/image_2" / f"000000_{i:04d}.png", 10 * i)
        picture(tmp_path / "hd1k_input/image_2" / f"000001_{i:04d}.png", 10 * i)
    for name in ("000000_0000", "000000_0001", "000000_0002", "000001_0001"):
        flow_file(tmp_path / "hd1k_flow_gt/flow_occ" / f"{name}.png", 2)
    pairs = HD1K(tmp_path)
    assert [r.name for r in pairs.records] == ["000000_0000", "000000_0001", "000001_0001"]
    assert pairs.records[2].sequence == "000001"
    assert pairs[2].flow is not None


def chairs(root: Path, names: tuple[str, str, str]) -> None:
    for stem in ("00001", "00002", "00003"):
        for end, value in zip(names[:2], (1, 2), strict=True):
            picture(root / f"{stem}{end}", value)
        flow_file(root / f"{stem}{names[2]}", int(stem))


@pytest.mark.parametrize("names", [("_img1.ppm", "_img2.ppm", "_flow.flo"), ("-img0.ppm", "-img1.ppm", "-gt.flo")])
def test_chairs_lists_splits(tmp_path: Path, names: tuple[str, str, str]) -> None:
    chairs(tmp_path / "data", names)
    (tmp_path / "FlyingChairs_train_val.txt").write_text("1\n2\n1\n")
    assert [r.name for r in FlyingChairs(tmp_path).records] == ["00001", "00002", "00003"]
    assert [r.name for r in FlyingChairs(tmp_path, split="val").records] == ["00002"]
    splits = (open_dataset(f"chairs-{split}", tmp_path) for split in ("train", "val"))
    assert [len(split) for split in splits] == [2, 1]
    sample = FlyingChairs(tmp_path, split="train")[1]
    assert torch.equal(sample.flow, flow_of(3))
    assert not torch.equal(sample.frame1, sample.frame2)
    for lines, message in (
        ("1\n2\n", "has 2 lines, too few"),
        ("1\n2\n7\n", "got '7'"),
        (None, r"FlyingChairs_train_val\.txt: does not exist"),
    ):
        listing = tmp_path / "FlyingChairs_train_val.txt"
        listing.unlink() if lines is None else listing.write_text(lines)
        refuses(message, FlyingChairs, tmp_path, split="val")


def test_things_lists_pairs_and_reads_truth(tmp_path: Path) -> None:
    for i in (6, 7):
        picture(tmp_path / "frames_finalpass/TEST/A/0000/left" / f"{i:04d}.png", i)
        for direction, word, sign in (("into_future", "Future", 1), ("into_past", "Past", -1)):
            name = f"OpticalFlowInto{word}_{i:04d}_L.pfm"
            flow_file(tmp_path / "optical_flow/TEST/A/0000" / direction / "left" / name, sign * i)
    pairs = open_dataset("things-final-test", tmp_path)
    assert (pairs.name, len(pairs)) == ("things-final-test", 1)
    assert torch.equal(pairs[0].flow, flow_of(6))
    past = FlyingThings3D(tmp_path, split="TEST", render="final", direction="past")
    assert past.name == "things-final-test-past"
    assert (past.records[0].frame1.stem, past.records[0].frame2.stem) == ("0007", "0006")
    assert torch.equal(past[0].flow, flow_of(-7))


@pytest.mark.parametrize("layout", ["official", "official, two frames", "together"])
def test_middlebury_lists_both_layouts(tmp_path: Path, layout: str) -> None:
    frames, truth = {
        "official": (tmp_path / "other-data", tmp_path / "other-gt-flow"),
        "official, two frames": (tmp_path / "other-color-twoframes/other-data", tmp_path / "other-gt-flow"),
        "together": (tmp_path, tmp_path),
    }[layout]
    valid = torch.ones(H, W, dtype=torch.bool)
    valid[1, 1] = False
    for name in ("Venus", "Grove2"):
        for i in (10, 11):
            picture(frames / name / f"frame{i}.png", i)
        flow_file(truth / name / "flow10.flo", 1.5, valid)
    picture(frames / "Beanbags" / "frame10.png", 1)
    picture(frames / "Beanbags" / "frame11.png", 1)
    pairs = Middlebury(tmp_path)
    assert [r.name for r in pairs.records] == ["Grove2", "Venus"]
    assert torch.equal(pairs[0].valid, valid)


def kubric(root: Path, listing: str = "data_ranges.json") -> Path:
    cv2 = pytest.importorskip("cv2")
    scene = root / "8k" / "000"
    u, v = np.full((H, W), 12.5), np.full((H, W), -3.25)
    low, high = -20.0, 30.0
    for i in range(3):
        picture(scene / f"rgba_{i:05d}.png", i)
        stored = np.zeros((H, W, 3), np.uint16)  # blue, green, red
        stored[..., 1] = np.round((u - low) / (high - low) * 65535)
        stored[..., 2] = np.round((v - low) / (high - low) * 65535)
        assert cv2.imwrite(str(scene / f"forward_flow_{i:05d}.png"), stored)
    (scene / listing).write_text(json.dumps({"forward_flow": {"min": low, "max": high}}))
    return scene


@pytest.mark.parametrize("listing", ["data_ranges.json", "config.json"])
def test_kubric_lists_pairs_and_reads_truth(tmp_path: Path, listing: str) -> None:
    scene = kubric(tmp_path, listing)
    pairs = KubricNK(tmp_path)
    assert (pairs.name, len(pairs)) == ("kubric-8k", 2)
    flow = pairs[0].flow
    assert torch.allclose(flow[0], torch.tensor(12.5), atol=50 / 65535)
    assert torch.allclose(flow[1], torch.tensor(-3.25), atol=50 / 65535)
    (scene / listing).write_text('{"forward_flow": {"min": 2, "max": 1}}')
    with pytest.raises(InputError, match="min < max"):
        _ = KubricNK(tmp_path)[0]
    (scene / listing).unlink()
    with pytest.raises(InputError, match=r"expected data_ranges\.json"):
        _ = KubricNK(tmp_path)[0]


def charge(root: Path) -> None:
    values = np.ones((2 * H, 2 * W, 2))
    values[0, 1] = np.nan
    for shot in ("010_0050", "040_0040"):
        for i in (101, 102):
            picture(root / shot / "frames" / f"frame_{i:04d}.png", 7)
        flo5(root / shot / "flow" / "flow_0101.flo5", values)
        mask(root / shot / "invalid" / "invalid_0101.png", [(4, 4)], (2 * H, 2 * W))
        mask(root / shot / "occlusions" / "occlusion_0101.png", [(1, 1)])


def test_rendered_lists_pairs_and_reads_truth(tmp_path: Path) -> None:
    charge(tmp_path)
    pairs = Charge8K(tmp_path)
    assert (pairs.name, len(pairs)) == ("charge-8k", 2)
    sample = pairs[0]
    assert sample.name == "010_0050/frame_0101"
    assert sample.flow.shape == (4, 2, H, W)
    assert where(~sample.valid) == [[0, 0], [2, 2]]
    assert where(sample.occluded) == [[1, 1]]
    assert Rendered(tmp_path).name == "rendered"
    refuses("is a shot, with frames in it; expected the folder that holds the shots", Rendered, tmp_path / "010_0050")


def test_pairs_lists_numbered_frames(tmp_path: Path) -> None:
    for shot in ("a", "b"):
        for i in (9, 10, 11, 13):
            picture(tmp_path / "mine" / shot / "frames" / f"x_{i}.png", i)
        flow_file(tmp_path / "mine" / shot / "flow" / "x_9.flo", 1)
        flow_file(tmp_path / "mine" / shot / "flow" / "x_10.flo5", 2, size=(2 * H, 2 * W))
    pairs = Pairs(tmp_path / "mine")
    assert pairs.name == "mine"
    assert [r.name for r in pairs.records] == ["a/x_9", "a/x_10", "b/x_9", "b/x_10"]
    assert [tuple(sample.flow.shape) for sample in pairs if sample.flow is not None] == [
        (2, H, W),
        (4, 2, H, W),
        (2, H, W),
        (4, 2, H, W),
    ]
    (tmp_path / "mine" / "b" / "flow" / "x_10.flo5").unlink()
    refuses(r"flow: expected a file for x_10\.png", Pairs, tmp_path / "mine")


def test_pairs_lists_no_pair_across_gap(tmp_path: Path) -> None:
    for name in ("x_1", "x_2", "x_3", "x_7", "x_8", "y_8", "y_9"):
        picture(tmp_path / "frames" / f"{name}.png", 1)
    pairs = Pairs(tmp_path)
    places = {record.name: (record.sequence, record.index) for record in pairs.records}
    assert list(places) == ["x_1", "x_2", "x_7", "y_8"]
    sequence, index = places["x_1"]
    assert places["x_2"] == (sequence, index + 1)
    assert places["x_7"][1] > index + 2
    assert places["y_8"][0] != sequence


@pytest.mark.parametrize("make", ["sintel", "things", "rendered"])
def test_folder_datasets_accept_unusual_numbers(tmp_path: Path, make: str) -> None:
    folder = {"sintel": "test/clean/a", "things": "frames_cleanpass/TEST/A/0000/left", "rendered": "a/frames"}[make]
    for i in (6, 7):
        picture(tmp_path / folder / f"img{i:04d}x.png", i)
    if make == "sintel":
        assert [record.index for record in Sintel(tmp_path, split="test").records] == [6]
        return
    (tmp_path / "optical_flow/TEST/A/0000/into_future/left").mkdir(parents=True)
    (tmp_path / "a" / "flow").mkdir(parents=True)
    refuses("does not exist", open_dataset, {"things": "things-clean-test"}.get(make, make), tmp_path)


def test_pairs_reads_list(tmp_path: Path) -> None:
    for name in ("a.png", "b.png", "with space.png"):
        picture(tmp_path / name, 3)
    flow_file(tmp_path / "a.flo", 1)
    mask(tmp_path / "bad.png", [(0, 5)])
    text = "# first second flow\na.png b.png a.flo - bad.png\n\nwith space.png\tb.png\n"
    (tmp_path / "pairs.txt").write_text(text)
    pairs = Pairs(tmp_path, name="mine")
    assert [r.name for r in pairs.records] == ["a", "with space"]
    valid = pairs[0].valid
    assert where(~valid) == [[0, 5]]
    assert pairs[1].flow is None
    for line, message in (
        ("a.png", "line 1 should hold 2 to 5 files, got 1"),
        ("a.png c.png", r"line 1 names .*c\.png, which does not exist"),
        ("a.png -", "line 1 names no frame"),
        ("a.png b.png - bad.png", "line 1 has a mask but no flow"),
    ):
        (tmp_path / "pairs.txt").write_text(line + "\n")
        refuses(message, Pairs, tmp_path)


@pytest.mark.parametrize("name", DATASETS)
def test_open_dataset_names_missing_folder(tmp_path: Path, name: str) -> None:
    refuses("absent", open_dataset, name, tmp_path / "absent")


def test_open_dataset_names_mismatched_files(tmp_path: Path) -> None:
    refuses("sintel-clean", open_dataset, "sintel", tmp_path)
    picture(tmp_path / "frames" / "a_1.png", 3)
    picture(tmp_path / "frames" / "a_2.png", 3, (H, W + 1))
    pairs = Pairs(tmp_path)
    with pytest.raises(InputError, match=r"a_2\.png: is 9×6, but .*a_1\.png is 8×6"):
        _ = pairs[0]


@pytest.mark.parametrize("make", [KITTI2015, HD1K, Middlebury, FlyingChairs])
def test_open_dataset_refuses_empty_folder(tmp_path: Path, make: Callable[[Path], FlowDataset]) -> None:
    for folder in ("training/image_2", "training/flow_occ", "hd1k_input/image_2", "hd1k_flow_gt/flow_occ"):
        (tmp_path / folder).mkdir(parents=True)
    refuses("found none", make, tmp_path)


def test_open_dataset_reads_real_samples(data_dir: Path) -> None:
    assert [r.name for r in Middlebury(data_dir / "flow" / "middlebury").records] == [
        "Dimetrodon",
        "Grove2",
        "Grove3",
        "RubberWhale",
        "Urban2",
        "Venus",
    ]
    sample = FlyingChairs(data_dir / "flow" / "flyingchairs")[0]
    assert sample.frame1.shape == (3, 384, 512)
    assert float(sample.flow.abs().mean()) > 1


def test_flow_sample_repr_is_short_and_batches_collate() -> None:
    flow = torch.zeros(2, 300, 400)
    sample = FlowSample("a/1", torch.zeros(3, 300, 400), torch.zeros(3, 300, 400), flow, None, None)
    assert "\n" not in str(sample)
    assert str(sample).startswith("FlowSample('a/1', frame1=float32 tensor [3, 300, 400] on cpu, ")
    assert str(sample).endswith("valid=None, occluded=None)")
    whole = FlowSample("a", *torch.zeros(2, 3, 4, 5), torch.zeros(2, 4, 5), torch.ones(4, 5) > 0, None)
    with pytest.raises(InputError, match="b: expected flow like the other pairs of the batch, got none"):
        torch.utils.data.default_collate([whole, whole._replace(name="b", flow=None)])
