"""Sets of synthetic pairs with exact flow, as ``fullfield pairs`` writes them."""

from __future__ import annotations

import json
import os
from pathlib import Path

from fullfield._check import InputError
from fullfield.datasets.base import FlowDataset
from fullfield.datasets.layout import existing, files, folder
from fullfield.datasets.sample import Record

MANIFEST = "made.json"
_FLOW = (".flo", ".png")


class Made(FlowDataset):
    """Synthetic pairs of :class:`fullfield.training.flow.pairs.PairGenerator`.

    ::

        ROOT/
          made.json             seed, size, count, how they were made, the pictures they are made of
          licences.md           of the pictures, by file
          frame1/               00000.png ...
          frame2/               00000.png ...
          flow/                 00000.flo ...      or KITTI's .png
          occlusions/           00000.png ...      not black where the second frame does not show the pixel
          invalid/              00000.png ...      not black where the flow is not known

    Args:
        root: the folder.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        base = folder(Path(root), what="synthetic pairs")
        flows = files(folder(base, "flow", what="true flow"), _FLOW)
        count = _count(base / MANIFEST)
        if len(flows) != count:
            raise InputError(
                f"{base / MANIFEST}: lists {count} pairs, found {len(flows)}; "
                "run the same fullfield pairs again to finish"
            )
        records = []
        for flow in flows:
            name = flow.stem
            parts = ("frame1", "frame2", "occlusions", "invalid")
            frame1, frame2, occlusion, invalid = (existing(base / part / f"{name}.png", flow) for part in parts)
            records.append(Record(name, frame1, frame2, flow, occlusion, invalid, sequence=name))
        super().__init__("made", root, records)


def _count(manifest: Path) -> int:
    try:
        count = json.loads(manifest.read_text("utf-8"))["count"]
    except FileNotFoundError:
        raise InputError(f"{manifest}: does not exist; expected a folder that fullfield pairs has written") from None
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{manifest}: expected what fullfield pairs writes, got {type(error).__name__}") from error
    if not isinstance(count, int) or count < 1:
        raise InputError(f"{manifest}: expected a count of pairs, got {count!r}")
    return count
