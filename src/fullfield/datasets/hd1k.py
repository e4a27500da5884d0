"""HD1K (Kondermann et al., CVPR Workshops 2016)."""

from __future__ import annotations

import os
from pathlib import Path

from fullfield.datasets.base import FlowDataset
from fullfield.datasets.layout import consecutive, files, folder, number
from fullfield.datasets.sample import Record


class HD1K(FlowDataset):
    """HD1K: 36 driving sequences with truth, 2560×1080, sparse.

    ::

        ROOT/
          hd1k_input/image_2/       000000_0000.png 000000_0001.png ...    sequence, frame
          hd1k_flow_gt/flow_occ/    000000_0000.png ...

    Args:
        root: the folder that holds ``hd1k_input`` and ``hd1k_flow_gt``.

    Pairs without a file of truth are left out.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        frames = folder(Path(root), "hd1k_input", "image_2", what="HD1K's frames")
        truth = folder(Path(root), "hd1k_flow_gt", "flow_occ", what="HD1K's true flow")
        records = []
        for first, second in consecutive(files(frames, (".png",))):
            flow, sequence = truth / first.name, first.stem.rsplit("_", 1)[0]
            if flow.is_file():
                records.append(Record(first.stem, first, second, flow, sequence=sequence, index=number(first)))
        super().__init__("hd1k", root, records)
