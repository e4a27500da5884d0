"""Your own pairs of frames, synthetic pairs, and rendered shots."""

from __future__ import annotations

import json
import os
from pathlib import Path

from fullfield._check import InputError
from fullfield.datasets.base import FlowDataset, FlowRecord
from fullfield.datasets.layout import (
    convert_path_to_relative_pair_name,
    get_folder_if_exists,
    get_name_before_last_number,
    iterate_line_labels_and_words,
    list_consecutive_pairs,
    list_files_with_suffix,
    list_subfolders,
    parse_last_number_or_minus_one,
    require_companion_file,
    require_file_unless_folder_is_none,
    require_folder,
    require_listed_file,
    require_nonempty,
)
from fullfield.io.names import ARRAY_SUFFIXES, FLOW_SUFFIXES, FRAME_SUFFIXES

MASK_SUFFIXES = (*FRAME_SUFFIXES, *ARRAY_SUFFIXES)

LIST = "pairs.txt"
_COLUMNS = ("frame1", "frame2", "flow", "occlusion", "invalid")


class Pairs(FlowDataset):
    """Your own frames, with or without truth.

    A list of pairs::

        ROOT/
          pairs.txt      a pair a line: FRAME1 FRAME2 [FLOW [OCCLUSION [INVALID]]], relative to ROOT; "-" for none,
                         tabs between them where names have spaces; lines that begin with # are skipped

    or a sequence, or several in folders of their own::

        ROOT/
          frames/        shot_0001.png shot_0002.png ...    numbered; each makes a pair with the next
          flow/          shot_0001.flo ...                  optional, named like the first frame, any flow format
          occlusions/    shot_0001.png ...                  optional: not black where a pixel has no match
          invalid/       shot_0001.png ...                  optional: not black where a pixel is not scored

    Masks may be arrays too, ``.npy`` or ``.npz`` [H, W], not 0 where a picture is not black (TartanAir).

    ``name`` is what the set is called in results, by default the folder's name. Flow of twice the frame's size holds
    four true values for each pixel.
    """

    doubled = None

    def __init__(self, root: str | os.PathLike[str], *, name: str | None = None) -> None:
        base = require_folder(root, description="your pairs")
        listing = base / LIST
        if listing.is_file():
            records = _read_listed_flow_records(listing)
        elif (base / "frames").is_dir():
            records = _list_numbered_frame_records(base, "")
        else:
            inner = [path for path in sorted(base.iterdir()) if (path / "frames").is_dir()]
            records = [record for path in inner for record in _list_numbered_frame_records(path, path.name)]
            if not records:
                raise InputError(f"{base}: expected {LIST}, or a folder frames with numbered frames, found neither")
        super().__init__(name or base.resolve().name or "pairs", root, records)


def _read_listed_flow_records(listing: Path) -> list[FlowRecord]:
    records = []
    for line, words in iterate_line_labels_and_words(listing):
        if not 2 <= len(words) <= len(_COLUMNS):
            raise InputError(f"{line} should hold 2 to {len(_COLUMNS)} files, got {len(words)}")
        if "-" in words[:2]:
            raise InputError(f"{line} names no frame")
        frame1, frame2 = (require_listed_file(listing.parent, word, line) for word in words[:2])
        paths = [None if word == "-" else require_listed_file(listing.parent, word, line) for word in words[2:]]
        flow, occlusion, invalid = [*paths, None, None, None][:3]
        if flow is None and (occlusion or invalid):
            raise InputError(f"{line} has a mask but no flow")
        name = convert_path_to_relative_pair_name(words[0])
        records.append(FlowRecord(name, frame1, frame2, flow, occlusion, invalid, sequence=name))
    return records


def _list_numbered_frame_records(base: Path, prefix: str) -> list[FlowRecord]:
    frames = base / "frames"
    optional_folders = {
        kind: {path.stem: path for path in list_files_with_suffix(base / kind, suffixes)}
        if (base / kind).is_dir()
        else None
        for kind, suffixes in (("flow", FLOW_SUFFIXES), ("occlusions", MASK_SUFFIXES), ("invalid", MASK_SUFFIXES))
    }
    records = []
    for first, second in list_consecutive_pairs(list_files_with_suffix(frames, FRAME_SUFFIXES)):
        masks_by_kind: dict[str, Path | None] = {}
        for kind, paths_by_stem in optional_folders.items():
            if paths_by_stem is not None and first.stem not in paths_by_stem:
                raise InputError(f"{base / kind}: expected a file for {first.name}, found none")
            masks_by_kind[kind] = None if paths_by_stem is None else paths_by_stem[first.stem]
        name = f"{prefix}/{first.stem}" if prefix else first.stem
        masks = masks_by_kind["occlusions"], masks_by_kind["invalid"]
        sequence = f"{prefix}/{get_name_before_last_number(first)}"
        records.append(
            FlowRecord(
                name, first, second, masks_by_kind["flow"], *masks, sequence, parse_last_number_or_minus_one(first)
            )
        )
    return records


MANIFEST = "pairs.json"
_FLOW = (".flo", ".png")


class SyntheticPairs(FlowDataset):
    """Synthetic pairs of :class:`fullfield.training.flow.pairs.PairGenerator`.

    ::

        ROOT/
          pairs.json            seed, size, count, style and pictures of the pairs
          licences.md           of the pictures, by file
          frame1/               00000.png ...
          frame2/               00000.png ...
          flow/                 00000.flo ...      or KITTI's .png
          occlusions/           00000.png ...      not black where the second frame does not show the pixel
          invalid/              00000.png ...      not black where the flow is not known
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        base = require_folder(root, description="synthetic pairs")
        flows = list_files_with_suffix(require_folder(base, "flow", description="true flow"), _FLOW)
        count = _read_manifest_pair_count(base / MANIFEST)
        if len(flows) != count:
            raise InputError(
                f"{base / MANIFEST}: lists {count} pairs, found {len(flows)}; "
                "run the same fullfield pairs again to finish"
            )
        records = []
        for flow in flows:
            name = flow.stem
            folders = ("frame1", "frame2", "occlusions", "invalid")
            frame1, frame2, occlusion, invalid = (
                require_companion_file(base / folder / f"{name}.png", flow) for folder in folders
            )
            records.append(FlowRecord(name, frame1, frame2, flow, occlusion, invalid, sequence=name))
        super().__init__("synthetic", root, records)


def _read_manifest_pair_count(manifest: Path) -> int:
    try:
        count = json.loads(manifest.read_text("utf-8"))["count"]
    except FileNotFoundError:
        raise InputError(f"{manifest}: does not exist; expected a folder that fullfield pairs has written") from None
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{manifest}: expected what fullfield pairs writes, got {type(error).__name__}") from error
    if not isinstance(count, int) or count < 1:
        raise InputError(f"{manifest}: expected a count of pairs, got {count!r}")
    return count


CHARGE_SHOTS = {"010_0050": (101, 196), "040_0040": (101, 264), "060_0130": (101, 175)}
"""First and last frame of the shots of Blender's *Charge* that make Charge-8K (Briedis et al. 2026, table 5)."""


class Rendered(FlowDataset):
    """Frames and truth rendered with Blender.

    ::

        ROOT/
          SHOT/
            frames/        frame_0101.png ...            or .exr
            flow/          flow_0101.flo5 ...            twice the frame's size, vectors in pixels of the frame
            invalid/       invalid_0101.png ...          optional: pixels that are not scored; once or twice the size
            occlusions/    occlusion_0101.png ...        optional: not black where the next frame hides the pixel

    ``name`` is what the set is called in results. A frame without truth (the last of a shot) ends a pair, and begins
    none.
    """

    doubled = True

    def __init__(self, root: str | os.PathLike[str], *, name: str = "rendered") -> None:
        base = require_folder(root, description="the rendered shots")
        if (base / "frames").is_dir():
            raise InputError(f"{base}: is a shot, with frames in it; expected the folder that holds the shots")
        records = []
        for shot in require_nonempty(list_subfolders(base), base, "a folder for each shot"):
            frames = require_folder(shot, "frames", description="rendered frames")
            flow = require_folder(shot, "flow", description="rendered flow")
            hidden, unscored = get_folder_if_exists(shot, "occlusions"), get_folder_if_exists(shot, "invalid")
            for first, second in list_consecutive_pairs(list_files_with_suffix(frames, FRAME_SUFFIXES)):
                count = first.stem.rsplit("_", 1)[-1]
                pair, truth = f"{shot.name}/frame_{count}", require_companion_file(flow / f"flow_{count}.flo5", first)
                masks = (
                    require_file_unless_folder_is_none(hidden, f"occlusion_{count}.png", first),
                    require_file_unless_folder_is_none(unscored, f"invalid_{count}.png", first),
                )
                records.append(
                    FlowRecord(
                        pair,
                        first,
                        second,
                        truth,
                        *masks,
                        sequence=shot.name,
                        index=parse_last_number_or_minus_one(first),
                    )
                )
        super().__init__(name, root, records)


class Charge8K(Rendered):
    """The three shots of *Charge* at 8192×3432 (Briedis et al. 2026, section 6.1).

    ``python -m tools render`` renders them. The layout is that of :class:`Rendered`.
    Absent shots are left out.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        super().__init__(root, name="charge-8k")
