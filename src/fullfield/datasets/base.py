"""Base classes of the data sets of flow, their records and samples."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, overload

import torch
from torch import Tensor
from torch.utils.data._utils.collate import collate, default_collate_fn_map

from fullfield import _check, io
from fullfield._check import InputError
from fullfield.io.flow import Encoding
from fullfield.io.image import FrameReader
from fullfield.io.masks import read_mask_array
from fullfield.io.names import ARRAY_SUFFIXES
from fullfield.metrics import split_four_values


class PairRecord(Protocol):
    """Record of one pair's files."""

    @property
    def name(self) -> str:
        """Name of the pair, unique within the data set."""

    @property
    def input_files(self) -> tuple[Path, ...]:
        """Files that an estimate depends on."""


RecordType = TypeVar("RecordType", bound=PairRecord)
Sample = TypeVar("Sample")


class PairSequence(Sequence[Sample], Generic[RecordType, Sample]):
    """Pairs that are read on access."""

    name: str
    root: Path
    records: tuple[RecordType, ...]

    pair_kind: str
    """Kind of pairs, as named in messages."""

    def __init__(self, name: str, root: str | os.PathLike[str], records: Sequence[RecordType]) -> None:
        self.name = name
        self.root = Path(_check.convert_path_to_text(root, "root"))
        if not records:
            raise InputError(f"{root}: expected pairs of {self.pair_kind} of {name}, found none")
        self.records = tuple(records)
        seen: set[str] = set()
        for record in self.records:
            if record.name in seen:
                raise InputError(f"{record.input_files[0]}: {name} has two pairs called {record.name}")
            seen.add(record.name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.root)!r}): {self.name}, {len(self)} pairs"

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[Sample]:
        return (self[index] for index in range(len(self)))

    @overload
    def __getitem__(self, index: int) -> Sample: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Sample]: ...

    def __getitem__(self, index: int | slice) -> Sample | Sequence[Sample]:
        """Read one pair; InputError names a file that cannot be used, OSError a missing one."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return self._read_pair(index)

    def _read_pair(self, pair_index: int) -> Sample:
        raise NotImplementedError


class TrueFlow(NamedTuple):
    """True motion of a pair, as far as it is known."""

    flow: Tensor  # [2, H, W] float32, or [4, 2, H, W] with four true values for a pixel; (u, v), pixels
    valid: Tensor  # [H, W] bool: where the truth and the first frame are known
    occluded: Tensor | None  # [H, W] bool: no match in the second frame; None where the data set does not say


class FlowSample(NamedTuple):
    """Pair of frames and its truth.

    >>> sample = open_dataset("sintel", "/data/sintel")[0]  # a FlowSample  # doctest: +SKIP
    >>> sample.frame1.shape, sample.flow.shape, sample.valid.sum()  # doctest: +SKIP
    """

    name: str  # unique within the data set, made of folder and frame: "alley_1/frame_0001"
    frame1: Tensor  # [3, H, W] float32, display-referred, nominally 0 ... 1
    frame2: Tensor  # [3, H, W]
    flow: Tensor | None  # as in Truth; None where the data set keeps it to itself
    valid: Tensor | None
    occluded: Tensor | None

    def __repr__(self) -> str:
        described_fields = [
            f"{field}={None if value is None else _check.describe_value(value)}"
            for field, value in zip(self._fields[1:], self[1:], strict=True)
        ]
        return f"FlowSample({self.name!r}, {', '.join(described_fields)})"


def collate_samples(samples: Sequence[FlowSample], **options: Any) -> FlowSample:
    """Collate as PyTorch does for named tuples, but leave an entry None that no sample has."""
    transformed: list[Any] = []
    for field, values in zip(FlowSample._fields, zip(*samples, strict=True), strict=True):
        without = [sample.name for sample, value in zip(samples, values, strict=True) if value is None]
        if 0 < len(without) < len(samples):
            raise InputError(f"{without[0]}: expected {field} like the other pairs of the batch, got none")
        transformed.append(None if without else collate(list(values), **options))
    return FlowSample(*transformed)


# PyTorch's own place for it: a DataLoader over a data set needs no collate_fn.
default_collate_fn_map[FlowSample] = collate_samples


@dataclass(frozen=True)
class FlowRecord:
    """Files of one pair.

    Attributes:
        name: unique within the data set; usable as a relative path.
        sequence, index: pairs of one sequence follow each other by index; a gap breaks the motion.
    """

    name: str
    frame1: Path
    frame2: Path
    flow: Path | None = None
    occlusion: Path | None = None
    invalid: Path | None = None
    sequence: str = ""
    index: int = 0

    @property
    def input_files(self) -> tuple[Path, Path]:
        """Files that an estimate depends on."""
        return self.frame1, self.frame2

    @property
    def files(self) -> tuple[Path, ...]:
        """Every file of the pair."""
        paths = (self.frame1, self.frame2, self.flow, self.occlusion, self.invalid)
        return tuple(path for path in paths if path is not None)


_ALL = slice(None)
_FLOAT_SUFFIXES = (".exr", ".tif", ".tiff", ".pfm", ".hdr")  # of frames with pixels that are not known


class FlowDataset(PairSequence[FlowRecord, FlowSample]):
    """Pairs of frames with their true flow, read on access.

    Attributes:
        name: name under which results are stored, with split and pass.
        root: the folder.
        records: one :class:`FlowRecord` a pair, in a fixed order.
        doubled: whether the truth has twice the frame's size, four values for each pixel; None: where it has.
        encoding: of true flow in a 16-bit PNG, as for :func:`fullfield.io.read_flow`.

    >>> dataset = open_dataset("sintel", "/data/sintel")  # doctest: +SKIP
    >>> len(dataset), [record.name for record in dataset.records[:2]]  # doctest: +SKIP
    """

    pair_kind = "frames"
    doubled: bool | None = False
    encoding: Encoding | None = None

    def _read_pair(self, pair_index: int) -> FlowSample:
        frame1, frame2 = self.read_frames(pair_index)
        truth = self.read_truth(pair_index)
        flow, valid, occluded = (None, None, None) if truth is None else truth
        return FlowSample(self.records[pair_index].name, frame1, frame2, flow, valid, occluded)

    def read_frames(self, pair_index: int) -> tuple[Tensor, Tensor]:
        """Read the two frames of a pair: [3, H, W] float32, nominally 0 ... 1."""
        record = self.records[pair_index]
        first, second = (self.read_frame(path) for path in (record.frame1, record.frame2))
        if first.shape != second.shape:
            raise InputError(
                f"{record.frame2}: is {_format_size(second)}, but {record.frame1} is {_format_size(first)}"
            )
        return first, second

    def read_truth(self, pair_index: int) -> TrueFlow | None:
        """Read the true motion of a pair, as far as it is known."""
        record = self.records[pair_index]
        if record.flow is None:
            return None
        flow, valid = self.read_flow(record.flow)
        values = flow
        if self.doubled or (self.doubled is None and self._has_double_frame_size(flow, record.frame1)):
            values = split_four_values(flow, valid)
            valid = values.isfinite().all(1).all(0)
        if record.invalid is not None:
            valid = valid & ~self._read_nonblack_mask(record.invalid, valid)
        if record.frame1.suffix.lower() in _FLOAT_SUFFIXES:
            frame_valid = self.read_frame_and_valid_mask(record.frame1)[1]
            if frame_valid is not None and frame_valid.shape == valid.shape:
                valid = valid & frame_valid
        return TrueFlow(values, valid, self.read_occlusion(record, valid))

    def read_frame(self, path: Path) -> Tensor:
        """Read a frame as [3, H, W]; it is 0 where it is not known."""
        return self.read_frame_and_valid_mask(path)[0]

    def read_frame_and_valid_mask(self, path: Path) -> tuple[Tensor, Tensor | None]:
        """Read a frame as [3, H, W], and where it is known, bool [H, W]; None: everywhere.

        It is not known outside an EXR's data window, and where values are NaN or infinite.
        """
        image = FrameReader().read(path)
        if image.note:
            warnings.warn(image.note, stacklevel=2)
        frame = image.frame
        return frame if frame.shape[0] == 3 else frame.expand(3, -1, -1), image.valid

    def read_flow(self, path: Path) -> tuple[Tensor, Tensor]:
        """Read a flow [2, H', W'] in pixels of the frame, and where it is known [H', W']."""
        flow, valid = io.read_flow(path, encoding=self.encoding)
        return flow, valid

    def _has_double_frame_size(self, flow: Tensor, frame: Path) -> bool:
        _, _, width, height = io.read_frame_window(frame).display
        return flow.shape[-2:] == (2 * height, 2 * width)

    def read_occlusion(self, record: FlowRecord, valid: Tensor) -> Tensor | None:
        """Read where a pixel has no match in the second frame: bool, of the shape of ``valid``."""
        return None if record.occlusion is None else self._read_nonblack_mask(record.occlusion, valid)

    def _read_nonblack_mask(self, path: Path, valid: Tensor, channels: slice = _ALL) -> Tensor:
        """Return where the picture is not black in ``channels``; at twice the size, where one of four pixels is not."""
        if path.suffix.lower() in ARRAY_SUFFIXES:
            mask = torch.from_numpy(read_mask_array(path))
        else:
            mask = (io.read_frame(path, transfer="srgb")[channels] > 0).any(0)
        if mask.shape == (2 * valid.shape[0], 2 * valid.shape[1]):
            mask = torch.stack([mask[row::2, column::2] for row in (0, 1) for column in (0, 1)]).any(0)
        if mask.shape != valid.shape:
            raise InputError(f"{path}: is {_format_size(mask)}, but the true flow is {_format_size(valid)}")
        return mask


def _format_size(tensor: Tensor) -> str:
    return f"{tensor.shape[-1]}×{tensor.shape[-2]}"
