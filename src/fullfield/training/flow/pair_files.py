"""Synthetic pairs as files: frames, flow, masks, and a manifest of how to make them again."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fullfield import _check
from fullfield._ledger.settings import SettingsFile
from fullfield.io import write_flow, write_image
from fullfield.io.files import remove_abandoned_temporary_files, write_atomically
from fullfield.training.flow.pairs import PairGenerator
from fullfield.training.flow.pictures import format_licences, read_pack_manifest

MANIFEST, LICENCES = "pairs.json", "licences.md"
FLOW_FORMATS = ("flo", "png")
_PICTURE_FOLDERS = ("frame1", "frame2", "occlusions", "invalid")
_KITTI = 511.5  # px, the most that KITTI's files hold

Progress = Callable[[float, str], None]


class WrittenPairs(NamedTuple):
    """Result of :func:`write_missing_pairs`."""

    folder: Path
    written_count: int  # pairs written now
    existing_count: int  # that were there


def write_missing_pairs(
    folder: str | Path,
    pairs: PairGenerator,
    count: int,
    *,
    textures: str | Path | None = None,
    flow_format: str = "flo",
    pairs_per_batch: int = 4,
    progress: Progress | None = None,
) -> WrittenPairs:
    """Write pairs 0 ... count-1 as a data set that :class:`fullfield.datasets.own.SyntheticPairs` reads.

    Pairs that are there already are kept, so that a run that was stopped goes on where it was, and a set can grow.
    InputError if the folder holds pairs of another seed, size, style, format or other pictures.

    Args:
        folder: where to; made if it is not there.
        pairs: what makes them.
        count: how many.
        textures: the picture pack that ``pairs`` uses: its licence list is written beside the pairs. None: pictures
            drawn from a seed.
        flow_format: ``"flo"``, or ``"png"`` (KITTI: to 1/64 px; longer motion than 511 px counts as unknown).
        pairs_per_batch: pairs made in one go.
        progress: called with the part done and what is being done.
    """
    _check.check_number(count, "count", integer=True, low=1)
    _check.check_number(pairs_per_batch, "pairs_per_batch", integer=True, low=1)
    _check.check_choice(flow_format, "flow_format", FLOW_FORMATS)
    base = Path(folder)
    manifest = _build_manifest(pairs, textures, flow_format)
    file = SettingsFile(
        base / MANIFEST,
        "the settings of synthetic pairs",
        entries={"count": "count"},
        select_binding_settings=_copy_without_pair_count,
    )
    settings = {**manifest, "count": count}
    before = file.write_or_check_and_return_previous(
        settings, has_results=lambda: _has_files_beyond_manifest(base), advice="use another folder"
    )
    if before is not None and before["count"] < count:
        file.write(settings)
    for name in (*_PICTURE_FOLDERS, "flow"):
        (base / name).mkdir(exist_ok=True)
        remove_abandoned_temporary_files(base / name)
    if textures is not None:
        with write_atomically(base / LICENCES) as temporary:
            temporary.write_text(format_licences(read_pack_manifest(textures)), "utf-8")
    written = 0
    for start in range(0, count, pairs_per_batch):
        numbers = [
            n for n in range(start, start + pairs_per_batch) if not _get_flow_path(base, n, flow_format).exists()
        ]
        is_full = len(numbers) == pairs_per_batch and start + pairs_per_batch <= count
        for first, size in [(start, pairs_per_batch)] if is_full else [(n, 1) for n in numbers if n < count]:
            if progress is not None:
                progress(first / count, f"pair {first + 1} of {count}")
            batch = pairs.batch(first // size, size)
            for index in range(size):
                _write_pair(base, first + index, [tensor[index].cpu() for tensor in batch], flow_format)
            written += size
    return WrittenPairs(base, written, count - written)


def _write_pair(base: Path, number: int, tensors: list[Tensor], flow_format: str) -> None:
    """Write the files of a pair; the flow comes last, so that a pair with flow is complete."""
    frame1, frame2, flow, valid, occluded = tensors
    if flow_format == "png":
        valid = valid & (flow.abs().amax(0) < _KITTI)
    pictures = (frame1.float(), frame2.float(), _convert_mask_to_image(occluded), _convert_mask_to_image(~valid))
    for name, picture in zip(_PICTURE_FOLDERS, pictures, strict=True):
        write_image(base / name / f"{number:05d}.png", picture)
    write_flow(_get_flow_path(base, number, flow_format), flow, valid)


def _convert_mask_to_image(mask: Tensor) -> Tensor:
    return mask.to(torch.uint8)[None] * 255


def _get_flow_path(base: Path, number: int, flow_format: str) -> Path:
    return base / "flow" / f"{number:05d}.{flow_format}"


def _build_manifest(pairs: PairGenerator, textures: str | Path | None, flow_format: str) -> dict[str, Any]:
    """Return everything that decides what the pairs look like."""
    height, width = pairs.size
    atlas = pairs.atlas
    pictures: dict[str, Any] = {"from": "drawn from a seed", "pictures": atlas.count, "silhouettes": len(atlas.shapes)}
    if textures is not None:
        pictures |= {"from": Path(textures).name, "sha256": hashlib.sha256(Path(textures).read_bytes()).hexdigest()}
        pictures["licences"] = LICENCES
    return {
        "made_by": "fullfield pairs",
        "format": 1,
        "seed": pairs.seed,
        "width": width,
        "height": height,
        "flow": flow_format,
        "style": asdict(pairs.style),
        "compressed": pairs.compressed,
        "textures": pictures,
    }


def _copy_without_pair_count(manifest: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in manifest.items() if name != "count"}


def _has_files_beyond_manifest(base: Path) -> bool:
    """Return whether the folder holds pairs, or files of others."""
    return any(path.is_file() and path.name not in (MANIFEST, LICENCES) for path in base.rglob("*"))
