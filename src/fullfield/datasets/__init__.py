"""Public data sets as they are distributed: frames and true flow, or point clouds and true poses.

>>> from fullfield.datasets import Sintel
>>> pairs = Sintel("/data/sintel", render="final")  # doctest: +SKIP
>>> name, frame1, frame2, flow, valid, occluded = pairs[0]  # doctest: +SKIP
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from fullfield import _check
from fullfield.datasets.base import FlowDataset, FlowSample
from fullfield.datasets.benchmarks import (
    HD1K,
    KITTI2012,
    KITTI2015,
    FlyingChairs,
    FlyingThings3D,
    KubricNK,
    Middlebury,
    Sintel,
    Spring,
)
from fullfield.datasets.own import Charge8K, Pairs, Rendered, SyntheticPairs
from fullfield.datasets.scans import KITTIOdometry, ScanDataset, ScanPairs
from fullfield.datasets.three_d_match import ThreeDMatch

DATASETS: Mapping[str, Callable[[str | os.PathLike[str]], FlowDataset]] = MappingProxyType(
    {
        "sintel-clean": partial(Sintel, render="clean"),
        "sintel-final": partial(Sintel, render="final"),
        "sintel-clean-test": partial(Sintel, render="clean", split="test"),
        "sintel-final-test": partial(Sintel, render="final", split="test"),
        "kitti-2012": KITTI2012,
        "kitti-2012-test": partial(KITTI2012, split="testing"),
        "kitti-2015": KITTI2015,
        "kitti-2015-test": partial(KITTI2015, split="testing"),
        "spring": Spring,
        "spring-bw": partial(Spring, direction="BW"),
        "spring-right": partial(Spring, camera="right"),
        "spring-right-bw": partial(Spring, camera="right", direction="BW"),
        "spring-test": partial(Spring, split="test"),
        "spring-bw-test": partial(Spring, split="test", direction="BW"),
        "spring-right-test": partial(Spring, split="test", camera="right"),
        "spring-right-bw-test": partial(Spring, split="test", camera="right", direction="BW"),
        "hd1k": HD1K,
        "chairs": FlyingChairs,
        "chairs-train": partial(FlyingChairs, split="train"),
        "chairs-val": partial(FlyingChairs, split="val"),
        "things-clean-test": partial(FlyingThings3D, render="clean", split="TEST"),
        "things-final-test": partial(FlyingThings3D, render="final", split="TEST"),
        "middlebury": Middlebury,
        "kubric-1k": partial(KubricNK, resolution="1k"),
        "kubric-2k": partial(KubricNK, resolution="2k"),
        "kubric-4k": partial(KubricNK, resolution="4k"),
        "kubric-8k": partial(KubricNK, resolution="8k"),
        "charge-8k": Charge8K,
        "rendered": Rendered,
        "synthetic": SyntheticPairs,
        "pairs": Pairs,
    }
)
"""Data sets by name, each called with its folder."""


SCANS: Mapping[str, Callable[[str | os.PathLike[str]], ScanDataset]] = MappingProxyType(
    {
        "pairs": ScanPairs,
        "3dmatch": ThreeDMatch,
        **{f"3dmatch-{split}": partial(ThreeDMatch, split=split) for split in ("test", "val", "train")},
        "3dlomatch": partial(ThreeDMatch, benchmark="3dlomatch"),
        "kitti-odometry": KITTIOdometry,
        "kitti-odometry-val": partial(KITTIOdometry, split="val"),
        "kitti-odometry-train": partial(KITTIOdometry, split="train"),
    }
)
"""Lists of pairs of point clouds by name, each called with its folder."""


def open_scans(name: str, root: str | os.PathLike[str]) -> ScanDataset:
    """Open the list ``name`` (one of :data:`SCANS`) in the folder ``root``.

    Raises InputError naming the folder that is missing; the clouds are not read.

    >>> pairs = open_scans("3dmatch", "/data/3dmatch")  # doctest: +SKIP
    >>> len(pairs[0].source.points), pairs[0].truth  # doctest: +SKIP
    """
    _check.check_choice(name, "dataset", SCANS)
    return SCANS[name](root)


def open_dataset(name: str, root: str | os.PathLike[str]) -> FlowDataset:
    """Open the data set ``name`` (one of :data:`DATASETS`) in the folder ``root``.

    Raises InputError naming the folder that is missing or the list of pairs that cannot be used. No frame or flow is
    read.
    """
    _check.check_choice(name, "dataset", DATASETS)
    return DATASETS[name](root)


__all__ = [
    "DATASETS",
    "HD1K",
    "KITTI2012",
    "KITTI2015",
    "SCANS",
    "FlowDataset",
    "FlowSample",
    "FlyingChairs",
    "FlyingThings3D",
    "KubricNK",
    "Middlebury",
    "Pairs",
    "Rendered",
    "Sintel",
    "Spring",
    "open_dataset",
    "open_scans",
]
