"""Predictions in the layouts that the benchmark sites accept."""

from __future__ import annotations

import os
from pathlib import Path

from fullfield._check import InputError
from fullfield.datasets import KITTI2012, KITTI2015, FlowDataset, Sintel, Spring
from fullfield.evaluation.run import Run
from fullfield.io import write_flow

_FORMS: dict[type[FlowDataset], str] = {Sintel: "sintel", KITTI2012: "kitti", KITTI2015: "kitti", Spring: "spring"}


def check_submission(dataset: FlowDataset) -> str:
    """Return the layout of a data set's site; InputError for a set without one."""
    form = _FORMS.get(type(dataset))
    if form is None:
        names = ", ".join(kind.__name__ for kind in _FORMS)
        raise InputError(f"{dataset.name}: expected one of {names}, which have sites to submit to")
    return form


def write_submission(dataset: FlowDataset, run: Run, folder: str | os.PathLike[str]) -> list[Path]:
    """Write the predictions of a test set in the layout of its site.

    - Sintel: ``FOLDER/clean/SCENE/frame_0001.flo`` (or ``final``), for the site's bundler;
    - KITTI: ``FOLDER/flow/000000_10.png``;
    - Spring: ``FOLDER/SEQUENCE/flow_FW_left/flow_FW_left_0001.flo5``, for the site's subsampling tool.

    Nothing is written unless every pair has its prediction. Returns the files.

    Raises:
        InputError: a set without a site, a pair that was not predicted, or motion beyond KITTI's ±512 px.
    """
    form = check_submission(dataset)
    lacking = [record.name for record in dataset.records if run.facts(record.name) is None]
    if lacking:
        raise InputError(
            f"{run.folder}: has no prediction of {lacking[0]} and {len(lacking) - 1} more; predict them first"
        )
    written = []
    for record in dataset.records:
        if form == "sintel":
            target = Path(folder) / dataset.name.split("-")[1] / f"{record.name}.flo"
        elif form == "kitti":
            target = Path(folder) / "flow" / f"{record.name}.png"
        else:
            scene, file = record.name.split("/")
            target = Path(folder) / scene / file.rsplit("_", 1)[0] / f"{file}.flo5"
        target.parent.mkdir(parents=True, exist_ok=True)
        flow, _ = run.read(record.name)
        write_flow(target, flow)
        written.append(target)
    return written
