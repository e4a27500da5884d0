"""3DMatch and 3DLoMatch: fragments of indoor scenes, with the benchmark's lists of pairs."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor

from fullfield import _check
from fullfield._check import InputError
from fullfield.datasets import layout
from fullfield.datasets.scans import ScanDataset, ScanRecord, require_rigid_pose

_BENCHMARKS = {"3dmatch": "3DMatch", "3dlomatch": "3DLoMatch"}
_SUFFIXES = (".ply", ".pcd", ".npy")
_LISTS = json.loads(files(__package__).joinpath("three_d_match.json").read_text("utf-8"))
SCENES: Mapping[str, tuple[str, ...]] = MappingProxyType({split: tuple(names) for split, names in _LISTS.items()})
"""3DMatch's 62 scenes by split, as FCGF's lists have them: 48, 6 and 8.

Papers write 46, 8 and 8. GeoTransformer's list has 8 names for validation because it cuts ``bundlefusion-office0`` into
three parts.
"""


class ThreeDMatch(ScanDataset):
    """Pairs of fragments (Zeng et al., CVPR 2017; 3DLoMatch: Huang et al., CVPR 2021).

    ::

        ROOT/
          7-scenes-redkitchen/cloud_bin_0.ply ...          .pcd and .npy too
          7-scenes-redkitchen/gt.log, gt.info              or 7-scenes-redkitchen-evaluation/
          benchmarks/3DMatch/7-scenes-redkitchen/gt.log    or here, as in Predator's repository
          benchmarks/3DLoMatch/7-scenes-redkitchen/gt.log  3DLoMatch's are always here

    A pose of ``gt.log`` with the numbers I, J moves ``cloud_bin_J`` (the source) onto ``cloud_bin_I`` (the target).
    ``gt.info`` in the same folder, if it exists, weighs the error as the benchmark does. Pairs that follow each other
    (J = I + 1) do not count for the recall.

    Args:
        benchmark: ``"3dmatch"`` (overlap above 30 %) or ``"3dlomatch"`` (10 to 30 %).
        split: a key of :data:`SCENES`, for a folder with scenes of several: others are left out. A part of a scene,
            such as ``bundlefusion-apt0_2``, belongs to its split. None takes every scene in the folder.
    """

    def __init__(self, root: str | os.PathLike[str], *, benchmark: str = "3dmatch", split: str | None = None) -> None:
        _check.check_choice(benchmark, "benchmark", _BENCHMARKS)
        if split is not None:
            _check.check_choice(split, "split", SCENES)
        self._lists, self._split = _BENCHMARKS[benchmark], split
        top = layout.require_folder(root, description="3DMatch")
        self._require_clouds_of_listed_scenes(top)
        records = [
            record
            for scene, log in self._iterate_scenes_and_pair_lists(top)
            for record in _iterate_log_records(top / scene, log)
        ]
        super().__init__(benchmark if split is None else f"{benchmark}-{split}", root, records)

    def _require_clouds_of_listed_scenes(self, top: Path) -> None:
        """Require clouds of every scene that has a list; without one the recall would be another benchmark's."""
        suffix = "-evaluation"
        lists = {log.parent.name: log for log in sorted((top / "benchmarks" / self._lists).glob("*/gt.log"))}
        if self._lists == "3DMatch":
            lists |= {log.parent.name.removesuffix(suffix): log for log in sorted(top.glob(f"*{suffix}/gt.log"))}
        for scene, log in lists.items():
            if self._is_in_split(scene) and not any((top / scene).glob("cloud_bin_*")):
                raise InputError(f"{top / scene}: expected clouds (cloud_bin_0.ply ...), as {log} lists pairs of them")

    def _is_in_split(self, scene: str) -> bool:
        """Return whether a scene, or the scene that it is a part of, belongs to the split."""
        if self._split is None:
            return True
        candidates = [scene]
        while (content := re.sub(r"_\d+$", "", candidates[-1])) != candidates[-1]:
            candidates.append(content)
        return any(name in SCENES[self._split] for name in candidates)

    def _iterate_scenes_and_pair_lists(self, top: Path) -> Iterator[tuple[str, Path]]:
        for folder in layout.list_subfolders(top):
            if not self._is_in_split(folder.name) or not any(folder.glob("cloud_bin_*")):
                continue
            folders = [top / "benchmarks" / self._lists / folder.name]
            if self._lists == "3DMatch":
                folders = [folder, top / f"{folder.name}-evaluation", *folders]
            match = next((candidate / "gt.log" for candidate in folders if (candidate / "gt.log").is_file()), None)
            if match is None:
                line_text = " or ".join(str(candidate / "gt.log") for candidate in folders)
                raise InputError(f"{folder}: expected its list of pairs in {line_text}")
            yield folder.name, match


def _iterate_log_records(folder: Path, log: Path) -> Iterator[ScanRecord]:
    weights = {}
    if log.with_name("gt.info").is_file():
        weights = dict(_iterate_log_numbers_and_matrices(log.with_name("gt.info"), 6))
    for (first, second), pose in _iterate_log_numbers_and_matrices(log, 4):
        if weights and (first, second) not in weights:
            raise InputError(f"{log.with_name('gt.info')}: has no block {first} {second}, which gt.log has")
        yield ScanRecord(
            f"{folder.name}/{first}_{second}",
            _find_cloud_file_or_raise(folder, second),
            _find_cloud_file_or_raise(folder, first),
            require_rigid_pose(pose, f"{log}: pose {first} {second}"),
            weights.get((first, second)),
            folder.name,
            counted=second != first + 1,
        )


def _find_cloud_file_or_raise(folder: Path, number: int) -> Path:
    names = [folder / f"cloud_bin_{number}{suffix}" for suffix in _SUFFIXES]
    match = next((path for path in names if path.is_file()), None)
    if match is None:
        raise InputError(f"{names[0]}: does not exist, but gt.log lists it")
    return match


def _iterate_log_numbers_and_matrices(path: Path, row_count: int) -> Iterator[tuple[tuple[int, int], Tensor]]:
    """Yield two numbers of fragments, and the matrix of ``row_count`` rows below them."""
    lines = [line.split() for line in layout.read_text_lines(path) if line.strip()]
    if len(lines) % (row_count + 1):
        raise InputError(f"{path}: expected blocks of {row_count + 1} lines, got {len(lines)} lines")
    for at in range(0, len(lines), row_count + 1):
        try:
            first, second = (int(word) for word in lines[at][:2])
            matrix = torch.tensor(
                [[float(word) for word in line] for line in lines[at + 1 : at + 1 + row_count]], dtype=torch.float64
            )
        except ValueError:
            matrix = torch.empty(0)
        if matrix.shape != (row_count, row_count) or not bool(matrix.isfinite().all()):
            raise InputError(
                f"{path}: block {at // (row_count + 1) + 1}: expected two numbers and {row_count} rows of {row_count}"
            )
        yield (first, second), matrix
