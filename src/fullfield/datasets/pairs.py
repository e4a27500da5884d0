"""Plain folder of pairs."""

from __future__ import annotations

import os
from pathlib import Path

from fullfield._check import InputError
from fullfield.datasets.base import FlowDataset
from fullfield.datasets.layout import consecutive, files, folder, listed, named, number, plain, series
from fullfield.datasets.sample import Record
from fullfield.io.names import FLOW_SUFFIXES, FRAME_SUFFIXES

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

    Args:
        root: the folder.
        name: what the set is called in results; by default the folder's name.

    Flow of twice the frame's size holds four true values for each pixel.
    """

    doubled = None

    def __init__(self, root: str | os.PathLike[str], *, name: str | None = None) -> None:
        base = folder(Path(root), what="your pairs")
        listing = base / LIST
        if listing.is_file():
            records = _listed(listing)
        elif (base / "frames").is_dir():
            records = _numbered(base, "")
        else:
            inner = [path for path in sorted(base.iterdir()) if (path / "frames").is_dir()]
            records = [record for path in inner for record in _numbered(path, path.name)]
            if not records:
                raise InputError(f"{base}: expected {LIST}, or a folder frames with numbered frames, found neither")
        super().__init__(name or base.resolve().name or "pairs", root, records)


def _listed(listing: Path) -> list[Record]:
    records = []
    for line, words in listed(listing):
        if not 2 <= len(words) <= len(_COLUMNS):
            raise InputError(f"{line} should hold 2 to {len(_COLUMNS)} files, got {len(words)}")
        if "-" in words[:2]:
            raise InputError(f"{line} names no frame")
        frame1, frame2 = (named(listing.parent, word, line) for word in words[:2])
        paths = [None if word == "-" else named(listing.parent, word, line) for word in words[2:]]
        flow, occlusion, invalid = [*paths, None, None, None][:3]
        if flow is None and (occlusion or invalid):
            raise InputError(f"{line} has a mask but no flow")
        name = plain(words[0])
        records.append(Record(name, frame1, frame2, flow, occlusion, invalid, sequence=name))
    return records


def _numbered(base: Path, prefix: str) -> list[Record]:
    frames = base / "frames"
    optional_folders = {
        kind: {path.stem: path for path in files(base / kind, suffixes)} if (base / kind).is_dir() else None
        for kind, suffixes in (("flow", FLOW_SUFFIXES), ("occlusions", FRAME_SUFFIXES), ("invalid", FRAME_SUFFIXES))
    }
    records = []
    for first, second in consecutive(files(frames, FRAME_SUFFIXES)):
        found: dict[str, Path | None] = {}
        for kind, known in optional_folders.items():
            if known is not None and first.stem not in known:
                raise InputError(f"{base / kind}: expected a file for {first.name}, found none")
            found[kind] = None if known is None else known[first.stem]
        name = f"{prefix}/{first.stem}" if prefix else first.stem
        masks = found["occlusions"], found["invalid"]
        sequence = f"{prefix}/{series(first)}"
        records.append(Record(name, first, second, found["flow"], *masks, sequence, number(first)))
    return records
