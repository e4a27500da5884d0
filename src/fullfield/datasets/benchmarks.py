"""Public benchmarks of optical flow as they are distributed."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import torch
from torch import Tensor

from fullfield import _check, io
from fullfield._check import InputError
from fullfield.datasets.base import FlowDataset, FlowRecord
from fullfield.datasets.layout import (
    get_folder_if_exists,
    list_consecutive_pairs,
    list_files_with_suffix,
    list_subfolders,
    parse_last_number_or_minus_one,
    read_text_lines,
    require_companion_file,
    require_file_unless_folder_is_none,
    require_folder,
    require_nonempty,
)
from fullfield.io.flow import Encoding


class Sintel(FlowDataset):
    """MPI Sintel (Butler et al., ECCV 2012): 23 training and 12 test sequences, 1024×436.

    ::

        ROOT/
          training/
            clean/ final/ albedo/   SCENE/frame_0001.png ...
            flow/                   SCENE/frame_0001.flo ...
            occlusions/             SCENE/frame_0001.png ...    optional; with it matched and unmatched are scored
            invalid/                SCENE/frame_0001.png ...    optional; pixels that are not scored
          test/
            clean/ final/           SCENE/frame_0001.png ...

    ``split`` is ``"training"`` or ``"test"`` (no truth), ``render`` is ``"clean"``, ``"final"`` or, in training,
    ``"albedo"``. Pixels of the ``invalid`` maps are left out, as Sintel's own evaluation does; without the folder all
    are scored.
    """

    SPLITS = ("training", "test")
    RENDERS = ("clean", "final", "albedo")

    def __init__(self, root: str | os.PathLike[str], *, split: str = "training", render: str = "clean") -> None:
        _check.check_choice(split, "split", self.SPLITS)
        _check.check_choice(render, "render", self.RENDERS if split == "training" else self.RENDERS[:2])
        base = Path(_check.convert_path_to_text(root, "root"))
        frames = require_folder(base, split, render, description="Sintel's frames")
        flow = require_folder(base, split, "flow", description="Sintel's true flow") if split == "training" else None
        maps = [None if flow is None else get_folder_if_exists(base, split, name) for name in ("occlusions", "invalid")]
        records = []
        for scene in require_nonempty(list_subfolders(frames), frames, "a folder for each scene"):
            for first, second in list_consecutive_pairs(list_files_with_suffix(scene, (".png",))):
                name = f"{scene.name}/{first.stem}"
                truth = require_file_unless_folder_is_none(flow, f"{name}.flo", first)
                hidden, unscored = (
                    require_file_unless_folder_is_none(map_folder, f"{scene.name}/{first.name}", first)
                    for map_folder in maps
                )
                records.append(
                    FlowRecord(
                        name, first, second, truth, hidden, unscored, scene.name, parse_last_number_or_minus_one(first)
                    )
                )
        super().__init__(f"sintel-{render}" if split == "training" else f"sintel-{render}-test", root, records)


class _KITTI(FlowDataset):
    SPLITS = ("training", "testing")
    encoding: Encoding | None = "kitti"
    year: str
    frame_folders: tuple[str, ...]

    def __init__(self, root: str | os.PathLike[str], *, split: str = "training") -> None:
        _check.check_choice(split, "split", self.SPLITS)
        base = Path(_check.convert_path_to_text(root, "root"))
        frames_name = next(
            (name for name in self.frame_folders if (base / split / name).is_dir()), self.frame_folders[0]
        )
        frames = require_folder(base, split, frames_name, description=f"KITTI {self.year}'s frames")
        truth = (
            require_folder(base, split, "flow_occ", description="KITTI's true flow") if split == "training" else None
        )
        visible = None if truth is None else get_folder_if_exists(base, split, "flow_noc")
        records = []
        for first in list_files_with_suffix(frames, (".png",)):
            if not first.stem.endswith("_10"):
                continue
            second = require_companion_file(frames / first.name.replace("_10.", "_11."), first)
            flow, seen = (
                require_file_unless_folder_is_none(map_folder, first.name, first) for map_folder in (truth, visible)
            )
            records.append(
                FlowRecord(
                    first.stem,
                    first,
                    second,
                    flow,
                    seen,
                    sequence=first.stem,
                    index=parse_last_number_or_minus_one(first),
                )
            )
        name = f"kitti-{self.year}"
        super().__init__(name if split == "training" else f"{name}-test", root, records)

    def read_occlusion(self, record: FlowRecord, valid: Tensor) -> Tensor | None:
        if record.occlusion is None:
            return None
        _, visible = self.read_flow(record.occlusion)
        return valid & ~visible


class KITTI2015(_KITTI):
    """KITTI flow 2015 (Menze and Geiger, CVPR 2015): 200 training and 200 test pairs, about 1242×375, sparse truth.

    ::

        ROOT/
          training/
            image_2/    000000_10.png 000000_11.png ...
            flow_occ/   000000_10.png ...    all pixels
            flow_noc/   000000_10.png ...    optional: those that stay in sight; gives matched and unmatched
          testing/
            image_2/    ...

    ``split`` is ``"training"`` or ``"testing"`` (no truth).

    >>> sample = KITTI2015("/data/kitti2015")[0]  # doctest: +SKIP
    """

    year = "2015"
    frame_folders = ("image_2",)


class KITTI2012(_KITTI):
    """KITTI flow 2012 (Geiger et al., CVPR 2012): 194 training and 195 test pairs, about 1226×370, sparse truth.

    ::

        ROOT/
          training/
            colored_0/  000000_10.png 000000_11.png ...    or image_0/, grey
            flow_occ/   000000_10.png ...
            flow_noc/   000000_10.png ...    optional
          testing/
            colored_0/  ...

    ``split`` is ``"training"`` or ``"testing"`` (no truth).

    >>> sample = KITTI2012("/data/kitti2012")[0]  # doctest: +SKIP
    """

    year = "2012"
    frame_folders = ("colored_0", "image_0")


class Spring(FlowDataset):
    """Spring (Mehl et al., CVPR 2023): 37 training and 10 test sequences, 1920×1080.

    The truth has twice the size: four values for a pixel.

    ::

        ROOT/
          train/0001/
            frame_left/     frame_left_0001.png ...           and frame_right/
            flow_FW_left/   flow_FW_left_0001.flo5 ...        and flow_BW_left/, flow_FW_right/, flow_BW_right/
            maps/matchmap_flow_FW_left/   matchmap_flow_FW_left_0001.png ...    optional: unmatched where red or green
          test/0003/
            frame_left/ ...

    ``split`` is ``"train"`` or ``"test"`` (no truth), ``camera`` is ``"left"`` or ``"right"``, ``direction`` is
    ``"FW"``, to the next frame, or ``"BW"``, to the one before. Vectors are in pixels of the frame. Of a match map blue
    says nothing, as in Spring's own evaluation; in a map of twice the frame's size one of four values makes a pixel
    unmatched.
    """

    doubled = True
    SPLITS = ("train", "test")
    CAMERAS = ("left", "right")
    DIRECTIONS = ("FW", "BW")

    def __init__(
        self, root: str | os.PathLike[str], *, split: str = "train", camera: str = "left", direction: str = "FW"
    ) -> None:
        _check.check_choice(split, "split", self.SPLITS)
        _check.check_choice(camera, "camera", self.CAMERAS)
        _check.check_choice(direction, "direction", self.DIRECTIONS)
        scenes = require_folder(root, split, description="Spring's sequences")
        stem = f"flow_{direction}_{camera}"
        records = []
        for scene in require_nonempty(list_subfolders(scenes), scenes, "a folder for each sequence"):
            frames = require_folder(scene, f"frame_{camera}", description="Spring's frames")
            flow = require_folder(scene, stem, description="Spring's true flow") if split == "train" else None
            matches = None if flow is None else get_folder_if_exists(scene, "maps", f"matchmap_{stem}")
            sequence = f"{scene.name}/{stem}"
            for first, second in list_consecutive_pairs(
                list_files_with_suffix(frames, (".png",)), backward=direction == "BW"
            ):
                name = f"{stem}_{parse_last_number_or_minus_one(first):04d}"
                truth, match = (
                    require_file_unless_folder_is_none(flow, f"{name}.flo5", first),
                    require_file_unless_folder_is_none(matches, f"matchmap_{name}.png", first),
                )
                index = (
                    parse_last_number_or_minus_one(first)
                    if direction == "FW"
                    else -parse_last_number_or_minus_one(first)
                )
                records.append(FlowRecord(f"{scene.name}/{name}", first, second, truth, match, None, sequence, index))
        tail = "".join(f"-{word}" for word, usual in ((camera, "left"), (direction.lower(), "fw")) if word != usual)
        super().__init__(f"spring{tail}" if split == "train" else f"spring{tail}-test", root, records)

    def read_occlusion(self, record: FlowRecord, valid: Tensor) -> Tensor | None:
        """Read where a pixel has no match, from the match maps of the data set."""
        return None if record.occlusion is None else self._read_nonblack_mask(record.occlusion, valid, slice(2))


class HD1K(FlowDataset):
    """HD1K (Kondermann et al., CVPR Workshops 2016): 36 driving sequences with sparse truth, 2560×1080.

    ::

        ROOT/
          hd1k_input/image_2/       000000_0000.png 000000_0001.png ...    sequence, frame
          hd1k_flow_gt/flow_occ/    000000_0000.png ...

    Pairs without a file of truth are left out.
    """

    encoding: Encoding | None = "kitti"

    def __init__(self, root: str | os.PathLike[str]) -> None:
        frames = require_folder(root, "hd1k_input", "image_2", description="HD1K's frames")
        truth = require_folder(root, "hd1k_flow_gt", "flow_occ", description="HD1K's true flow")
        records = []
        for first, second in list_consecutive_pairs(list_files_with_suffix(frames, (".png",))):
            flow, sequence = truth / first.name, first.stem.rsplit("_", 1)[0]
            if flow.is_file():
                records.append(
                    FlowRecord(
                        first.stem, first, second, flow, sequence=sequence, index=parse_last_number_or_minus_one(first)
                    )
                )
        super().__init__("hd1k", root, records)


# First frame, second frame, flow: the official names, and those of a mirror.
_NAMES = (("_img1.ppm", "_img2.ppm", "_flow.flo"), ("-img0.ppm", "-img1.ppm", "-gt.flo"))


class FlyingChairs(FlowDataset):
    """FlyingChairs (Dosovitskiy et al., ICCV 2015): 22,872 pairs of 512×384.

    ::

        ROOT/
          data/                         or the files in ROOT itself
            00001_img1.ppm 00001_img2.ppm 00001_flow.flo ...
          FlyingChairs_train_val.txt    a 1 (training) or 2 (validation) a line; needed for a split

    ``split`` is ``"all"``, ``"train"`` or ``"val"``, by the lines of ``FlyingChairs_train_val.txt``.
    """

    SPLITS = ("all", "train", "val")

    def __init__(self, root: str | os.PathLike[str], *, split: str = "all") -> None:
        _check.check_choice(split, "split", self.SPLITS)
        base = Path(_check.convert_path_to_text(root, "root"))
        data = base / "data" if (base / "data").is_dir() else base
        if not data.is_dir():
            raise InputError(f"{data}: expected the folder of FlyingChairs, but it does not exist")
        records = []
        for path in list_files_with_suffix(data, (".ppm",)):
            for first, second, flow in _NAMES:
                if path.name.endswith(first):
                    stem = path.name.removesuffix(first)
                    frame2, truth = (require_companion_file(data / f"{stem}{end}", path) for end in (second, flow))
                    records.append(
                        FlowRecord(
                            stem, path, frame2, truth, sequence=stem, index=parse_last_number_or_minus_one(Path(stem))
                        )
                    )
        if split != "all":
            records = _select_records_listed_in_split(records, base / "FlyingChairs_train_val.txt", split)
        super().__init__("chairs" if split == "all" else f"chairs-{split}", root, records)


def _select_records_listed_in_split(records: list[FlowRecord], listing: Path, split: str) -> list[FlowRecord]:
    if not listing.is_file():
        raise InputError(f"{listing}: does not exist, but the split {split} is written there")
    marks = " ".join(read_text_lines(listing)).split()
    expected = {"train": "1", "val": "2"}[split]
    if set(marks) - {"1", "2"}:
        raise InputError(f"{listing}: expected a 1 or 2 a line, got {sorted(set(marks) - {'1', '2'})[0]!r}")
    if any(not 1 <= record.index <= len(marks) for record in records):
        raise InputError(f"{listing}: has {len(marks)} lines, too few for the pairs in its folder")
    return [record for record in records if marks[record.index - 1] == expected]


class FlyingThings3D(FlowDataset):
    """FlyingThings3D (Mayer et al., CVPR 2016): 2,247 sequences for training, of ten frames, 960×540.

    ::

        ROOT/
          frames_cleanpass/TRAIN/A/0000/left/0006.png ...           and frames_finalpass/; TEST; B, C; right
          optical_flow/TRAIN/A/0000/into_future/left/OpticalFlowIntoFuture_0006_L.pfm ...
                                    into_past/left/OpticalFlowIntoPast_0006_L.pfm ...

    ``split`` is ``"TRAIN"`` or ``"TEST"``, which both have truth, ``render`` is ``"clean"`` or ``"final"``, ``camera``
    is ``"left"`` or ``"right"``, ``direction`` is ``"future"``, to the next frame, or ``"past"``, to the one before.

    >>> dataset = FlyingThings3D("/data/flyingthings3d", split="TEST", render="final")  # doctest: +SKIP
    """

    SPLITS = ("TRAIN", "TEST")
    RENDERS = ("clean", "final")
    CAMERAS = ("left", "right")
    DIRECTIONS = ("future", "past")

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        split: str = "TRAIN",
        render: str = "clean",
        camera: str = "left",
        direction: str = "future",
    ) -> None:
        _check.check_choice(split, "split", self.SPLITS)
        _check.check_choice(render, "render", self.RENDERS)
        _check.check_choice(camera, "camera", self.CAMERAS)
        _check.check_choice(direction, "direction", self.DIRECTIONS)
        passes = require_folder(root, f"frames_{render}pass", split, description="FlyingThings3D's frames")
        flows = require_folder(root, "optical_flow", split, description="FlyingThings3D's true flow")
        records = []
        for letter in require_nonempty(list_subfolders(passes), passes, "the folders A, B, C"):
            for scene in list_subfolders(letter):
                frames = require_folder(scene, camera, description="FlyingThings3D's frames")
                folders = letter.name, scene.name, f"into_{direction}", camera
                flow = require_folder(flows, *folders, description="FlyingThings3D's true flow")
                sequence = f"{letter.name}/{scene.name}/{camera}_{direction}"
                for first, second in list_consecutive_pairs(
                    list_files_with_suffix(frames, (".png", ".webp")), backward=direction == "past"
                ):
                    file = f"OpticalFlowInto{direction.capitalize()}_{first.stem}_{camera[0].upper()}.pfm"
                    name, truth = f"{sequence}_{first.stem}", require_companion_file(flow / file, first)
                    index = (
                        parse_last_number_or_minus_one(first)
                        if direction == "future"
                        else -parse_last_number_or_minus_one(first)
                    )
                    records.append(FlowRecord(name, first, second, truth, None, None, sequence, index))
        words = [("-test", split == "TEST"), ("-right", camera == "right"), ("-past", direction == "past")]
        super().__init__(f"things-{render}" + "".join(word for word, said in words if said), root, records)


_COLOURS = ("color-allframes", "color-twoframes", "data", "gray-allframes", "gray-twoframes")
_FRAMES = tuple(f"other-{name}" for name in _COLOURS)


class Middlebury(FlowDataset):
    """Middlebury's training scenes ("other"; Baker et al., IJCV 2011); unknown vectors are marked in the files.

    ::

        ROOT/
          other-color-allframes/other-data/    or other-color-twoframes/..., other-data/, other-gray-...
            Dimetrodon/    frame10.png frame11.png
          other-gt-flow/
            Dimetrodon/    flow10.flo

    or everything of a scene in one folder::

        ROOT/
          Dimetrodon/      frame10.png frame11.png flow10.flo

    Scenes without truth are left out.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        base = require_folder(root, description="Middlebury's scenes")
        truth = base / "other-gt-flow"
        frames = base
        if truth.is_dir():
            frames = next((base / name for name in _FRAMES if (base / name).is_dir()), base / _FRAMES[0])
            frames = require_folder(frames, description="Middlebury's frames")
            if (frames / "other-data").is_dir():
                frames = frames / "other-data"
        else:
            truth = base
        records = []
        for scene in list_subfolders(frames):
            first, flow = scene / "frame10.png", truth / scene.name / "flow10.flo"
            if first.is_file() and flow.is_file():
                second = require_companion_file(scene / "frame11.png", first)
                records.append(FlowRecord(scene.name, first, second, flow, sequence=scene.name))
        super().__init__("middlebury", root, records)


class KubricNK(FlowDataset):
    """Kubric-NK (Morimitsu et al., DPFlow, CVPR 2025) as its authors distribute it.

    8k is the paper's Kubric-8K (7680 pixels wide).

    ::

        ROOT/
          8k/                           and 1k/, 2k/, 4k/
            000/
              rgba_00000.png rgba_00001.png ...
              forward_flow_00000.png ...    16 bit; red is y, green is x, scaled to the range of
              data_ranges.json              {"forward_flow": {"min": ..., "max": ...}}, or config.json with the same
            001/ ...

    ``resolution`` is ``"1k"``, ``"2k"``, ``"4k"`` or ``"8k"``.

    >>> dataset = KubricNK("/data/kubric-nk", resolution="4k")  # doctest: +SKIP
    """

    RESOLUTIONS = ("1k", "2k", "4k", "8k")

    def __init__(self, root: str | os.PathLike[str], *, resolution: str = "8k") -> None:
        _check.check_choice(resolution, "resolution", self.RESOLUTIONS)
        base = require_folder(root, resolution, description=f"Kubric-NK at {resolution}")
        records = []
        for scene in require_nonempty(list_subfolders(base), base, "a folder for each scene"):
            frames = [path for path in list_files_with_suffix(scene, (".png",)) if path.name.startswith("rgba_")]
            for first, second in list_consecutive_pairs(frames):
                count = first.stem.removeprefix("rgba_")
                flow = require_companion_file(scene / f"forward_flow_{count}.png", first)
                name = f"{scene.name}/rgba_{count}"
                records.append(
                    FlowRecord(
                        name, first, second, flow, sequence=scene.name, index=parse_last_number_or_minus_one(first)
                    )
                )
        super().__init__(f"kubric-{resolution}", root, records)

    def read_flow(self, path: Path) -> tuple[Tensor, Tensor]:
        """Read a flow from 16-bit colours, scaled by the range in the scene's JSON file."""
        low, high = _read_flow_value_range(path.parent)
        image = io.read_frame(path, transfer="srgb")
        if image.shape[0] != 3:
            raise InputError(f"{path}: expected 16-bit red and green, got {image.shape[0]} channel")
        flow = image[[1, 0]].to(torch.float64).mul_(high - low).add_(low).to(torch.float32)
        return flow, torch.ones(flow.shape[1:], dtype=torch.bool)


def _read_flow_value_range(scene: Path) -> tuple[float, float]:
    """Return the values that 0 and 65535 stand for."""
    for path in (scene / "data_ranges.json", scene / "config.json"):
        if not path.is_file():
            continue
        try:
            entry = json.loads(path.read_text("utf-8"))["forward_flow"]
            low, high = float(entry["min"]), float(entry["max"])
        except (ValueError, KeyError, TypeError):
            continue
        if math.isfinite(low) and math.isfinite(high) and low < high:
            return low, high
        raise InputError(f"{path}: expected forward_flow with min < max, got {entry!r}")
    raise InputError(f"{scene}: expected data_ranges.json (or config.json) with the range of forward_flow, found none")
