"""A folder of transforms and the configuration that made them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fullfield._check import InputError
from fullfield.evaluation.run import RunFolder, check_entries, read_json, whole_facts
from fullfield.io import atomic_path
from fullfield.io.arrays import read_npy
from fullfield.io.files import check_readable


class ScanRun(RunFolder):
    """Transforms of one registration method, in one configuration, on one list of pairs.

    ::

        FOLDER/
          config.json              what made the predictions; another configuration is refused
          predictions/NAME.json    a pair's transform, or why there is none; its seconds
          predictions/NAME.npy     its matched points [M, 2, 3], of source and target
          truth/NAME.json          its true pose as it judges, and the moments of the overlap
          result.json              the scores of the last scoring
    """

    def facts(self, name: str) -> dict[str, Any] | None:
        """What was found of a pair; None where it is not there whole."""
        noted = self._noted(name)
        facts = whole_facts(self._matched(name), noted)
        if facts is not None:
            check_entries(noted, facts, success="true or false", reason="text or null", seconds="number")
            check_entries(noted, facts, transform="4 rows of 4" if facts["success"] else "4 rows of 4 or null")
        return facts

    def save(self, name: str, facts: Mapping[str, Any], matched: NDArray[np.float64]) -> None:
        """Store what was found of a pair, and its matched points [M, 2, 3], unless another process was faster."""
        path = self._matched(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with self.alone():
            if self.facts(name) is not None:
                return
            self._noted(name).unlink(missing_ok=True)
            with atomic_path(path) as temporary:
                np.save(temporary, matched)
            self.write(self._noted(name).relative_to(self.folder), {**facts, "bytes": path.stat().st_size})

    def matched(self, name: str) -> NDArray[np.float64]:
        """A pair's matched points [M, 2, 3]."""
        path = self._matched(name)
        points = read_npy(path, check_readable(path), empty=True)
        if points.ndim != 3 or points.shape[1:] != (2, 3):
            raise InputError(f"{path}: expected matched points [M, 2, 3], got {list(points.shape)}")
        return points.astype(np.float64, copy=False)

    def truth(self, name: str, key: str) -> dict[str, Any] | None:
        """What was noted of a pair's truth, where it was made of the same, as ``key`` tells."""
        path = self._true(name)
        stored = read_json(path) if path.is_file() else {}
        if stored.get("key") != key:
            return None
        check_entries(path, stored, pose="4 rows of 4", overlap="number or null")
        check_entries(path, stored, moment="4 rows of 4, each a number or null")
        return stored

    def keep_truth(self, name: str, key: str, content: Mapping[str, Any]) -> None:
        """Note a pair's truth."""
        self.write(self._true(name).relative_to(self.folder), {"key": key, **content})

    def needed(self, name: str) -> dict[str, Any]:
        """:meth:`facts`; InputError where there are none."""
        facts = self.facts(name)
        if facts is None:
            raise InputError(f"{self._noted(name)}: there is no whole prediction of {name}; predict again")
        return facts

    def _noted(self, name: str) -> Path:
        return self.folder / "predictions" / f"{name}.json"

    def _matched(self, name: str) -> Path:
        return self.folder / "predictions" / f"{name}.npy"

    def _true(self, name: str) -> Path:
        return self.folder / "truth" / f"{name}.json"
