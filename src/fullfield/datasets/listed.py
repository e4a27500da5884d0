"""Base class of lists of pairs, of frames or of point clouds."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Generic, Protocol, TypeVar, overload

from fullfield._check import InputError


class Recorded(Protocol):
    """Record of one pair's files."""

    @property
    def name(self) -> str:
        """Name of the pair, unique within the data set."""

    @property
    def inputs(self) -> tuple[Path, ...]:
        """Files that an estimate depends on."""


Where = TypeVar("Where", bound=Recorded)
Sample = TypeVar("Sample")


class Listed(Sequence[Sample], Generic[Where, Sample]):
    """Pairs that are read on access."""

    name: str
    root: Path
    records: tuple[Where, ...]

    of: str
    """What they are pairs of."""

    def __init__(self, name: str, root: str | os.PathLike[str], records: Sequence[Where]) -> None:
        self.name = name
        self.root = Path(root)
        if not records:
            raise InputError(f"{root}: expected pairs of {self.of} of {name}, found none")
        self.records = tuple(records)
        seen: set[str] = set()
        for record in self.records:
            if record.name in seen:
                raise InputError(f"{record.inputs[0]}: {name} has two pairs called {record.name}")
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
        return self._sample(index)

    def _sample(self, index: int) -> Sample:
        raise NotImplementedError
