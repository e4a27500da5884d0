"""The files of a shot's motion: which are done, how they were made, and writing one."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fullfield._check import InputError, differences
from fullfield.io import atomic_path, read_flow, write_flow, write_st_map
from fullfield.io.flow_formats import Y_NOTE
from fullfield.io.oiio import Header
from fullfield.io.scanlines import Scanlines
from fullfield.io.vectors import ENDS_NOTE, INCOMPLETE_NOTE, read_note, vector_lines, write_vector_lines
from fullfield.sequences.engine import Estimated
from fullfield.sequences.names import Pattern
from fullfield.sequences.ranges import format_frames, parse_frames


@dataclass(frozen=True)
class Output:
    """Where a shot's motion goes.

    Attributes:
        pattern: of the files; the suffix is the format. Of both directions, occlusion and confidence only ``.exr``.
        dtype, compression: as for :func:`fullfield.io.write_flow`.
        y: of an EXR: where y points, ``up`` (Nuke) or ``down``.
        st_map: pattern of ST maps beside them (forward, or backward where that is the only direction).
    """

    pattern: str
    dtype: str | None = None
    compression: str | None = None
    y: str = "up"
    st_map: str | None = None

    @property
    def suffix(self) -> str:
        return Path(self.pattern).suffix.lower()

    def path(self, number: int) -> str:
        return Pattern.parse(self.pattern).path(number)

    @property
    def sidecar(self) -> Path:
        """The small file beside the frames that says how they were made: ``mv.exr.fullfield.json``."""
        folder, name = os.path.split(Pattern.parse(self.pattern).before)
        stem = name.rstrip("._- ")
        return Path(folder) / f"{stem}{'.' if stem else ''}{self.suffix[1:]}.fullfield.json"

    def is_done(self, number: int) -> bool:
        """Whether the frame's file is whole: files appear only whole, and say where a direction is missing."""
        path = Path(self.path(number))
        if not path.is_file() or path.stat().st_size == 0:
            return False
        if self.st_map is not None and not Path(Pattern.parse(self.st_map).path(number)).is_file():
            return False
        try:
            return self.suffix != ".exr" or not read_note(path, INCOMPLETE_NOTE)
        except InputError:
            return False

    def stored(self, first: int, second: int, ways: Mapping[str, int]) -> Tensor | None:
        """The flow between two frames as its file holds it."""
        direction = next((name for name, way in ways.items() if second - first == way), None)
        if direction is None or not self.is_done(first):
            return None
        more = {"layer": direction} if self.suffix == ".exr" else {}
        return read_flow(self.path(first), **more).flow  # type: ignore[arg-type]

    @property
    def is_vectors(self) -> bool:
        """Whether a frame has one file, an EXR, and nothing beside."""
        return self.suffix == ".exr" and self.st_map is None

    def lines(self, parts: Mapping[str, Tensor], room: NDArray[np.uint8] | None = None) -> Scanlines:
        """What an EXR holds of ``parts``, which are on the CPU; ``room`` is memory that may be taken for it."""
        return vector_lines({name: part.numpy() for name, part in parts.items()}, self.dtype, self.y, room)

    def write(self, done: Estimated, parts: Mapping[str, Tensor] | Scanlines, directions: Sequence[str]) -> None:
        """Write a frame's files. ``parts`` are on the CPU; of a frame that is one EXR they may be its lines.

        Errors are those of :func:`fullfield.io.write_vectors`.
        """
        path = self.path(done.number)
        if isinstance(parts, Mapping):
            if self.st_map is not None:
                flow = parts[directions[0]]
                write_st_map(Pattern.parse(self.st_map).path(done.number), flow, window=done.window)
            if self.suffix != ".exr":
                packing: dict[str, Any] = {} if self.compression is None else {"compression": self.compression}
                write_flow(path, parts[directions[0]], **packing)
                return
        notes = {Y_NOTE: self.y, "fullfield/frame": str(done.number)}
        if done.missing:
            notes[INCOMPLETE_NOTE] = ",".join(sorted(set(done.missing)))
        if done.ends:
            notes[ENDS_NOTE] = ",".join(done.ends)
        lines = self.lines(parts) if isinstance(parts, Mapping) else parts
        header = Header(notes, done.window, () if done.plate is None else done.plate.metadata)
        write_vector_lines(path, lines, self.compression, header)

    def sweep(self, numbers: Sequence[int]) -> None:
        """Remove what a killed run left of these frames' files."""
        for number in numbers:
            target = Path(self.path(number))
            for left in target.parent.glob(f".{_plain(target.stem[:64])}.*.part{target.suffix}"):
                with suppress(OSError):
                    left.unlink()

    # ---- how they were made

    def settle(
        self, settings: Mapping[str, Any], numbers: Sequence[int], *, overwrite: bool, source: str = ""
    ) -> list[int]:
        """The frames of ``numbers`` that are to be made; the settings are then noted beside the files.

        Without ``overwrite`` nothing that is there is made again, and files that were made with other settings, or
        nobody knows how, are an InputError. ``source``, where the plates are, is noted for whoever shows the result.
        """
        wanted = json.loads(json.dumps({**settings, **{k: v for k, v in asdict(self).items() if k != "pattern"}}))
        noted = self._noted()
        there = [number for number in numbers if Path(self.path(number)).exists()]
        if noted is None and there and not overwrite:
            raise InputError(
                f"{self.path(there[0])}: is there already, and {self.sidecar} does not say how it was made; use "
                "--overwrite, or another name"
            )
        changed = [] if noted is None else differences(noted.get("settings"), wanted)
        if changed and not overwrite:
            told = f"was begun with other settings ({'; '.join(changed)})"
            raise InputError(f"{self.pattern}: {told}; use --overwrite, or another name")
        stale: dict[str, Any] | None = None if noted is None else noted.get("stale")
        if overwrite and there:
            stale = {"frames": format_frames(there), "before": self._now()}
        if noted is None or noted.get("settings") != wanted or stale != noted.get("stale"):
            with atomic_path(self.sidecar) as temporary:
                temporary.write_text(
                    json.dumps({"settings": wanted, "stale": stale, "source": source}, indent=1), "utf-8"
                )
        old = set() if stale is None else set(parse_frames(stale["frames"]))
        left = [
            number for number in numbers if not self.is_done(number) or (number in old and self._is_old(number, stale))
        ]
        self.sweep(left)
        return left

    def _is_old(self, number: int, stale: Mapping[str, Any] | None) -> bool:
        return stale is not None and Path(self.path(number)).stat().st_mtime_ns <= int(stale["before"])

    def _now(self) -> int:
        """The time by the clock that stamps the files."""
        with tempfile.TemporaryFile(dir=self.sidecar.parent) as file:
            return os.fstat(file.fileno()).st_mtime_ns

    def source(self) -> str | None:
        """Where the plates were, by the notes beside the files."""
        noted = self._noted()
        return None if noted is None or not noted.get("source") else str(noted["source"])

    def _noted(self) -> dict[str, Any] | None:
        try:
            found = json.loads(self.sidecar.read_text("utf-8"))
        except FileNotFoundError:
            return None
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise InputError(f"{self.sidecar}: expected the notes of an earlier run; remove it")
        return found


def _plain(text: str) -> str:
    """A text that globs match as it is."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in text)


def to_cpu(parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors on the CPU, waited for."""
    return {name: part.to("cpu", torch.float32) for name, part in parts.items()}
