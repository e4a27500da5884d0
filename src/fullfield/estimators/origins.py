"""Where a network's weights come from: a file, an entry of the catalogue, or random numbers. Light: no PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fullfield._check import InputError
from fullfield.estimators.network_config import RANDOM
from fullfield.models.downloads import Progress
from fullfield.models.weights import (
    DEFAULTS,
    WEIGHTS,
    WeightsEntry,
    cached_weights,
    check_fits,
    fetch_weights,
    weights_entry,
)


@dataclass(frozen=True)
class Origin:
    """The weights of a method, before they are loaded.

    ``name`` is the entry's, the file's as it was given, or ``"random"``; ``path`` is None for random numbers, and for
    an entry that is not in the cache yet.
    """

    name: str
    entry: WeightsEntry | None
    path: Path | None

    @property
    def is_random(self) -> bool:
        return self.name == RANDOM

    @property
    def is_missing(self) -> bool:
        """Whether it has to be fetched."""
        return self.entry is not None and self.path is None

    def fetched(self, progress: Progress | None = None) -> Origin:
        """With the file at hand; OSError says what to fetch by hand if it cannot be had."""
        if self.entry is None or self.path is not None:
            return self
        return Origin(self.name, self.entry, fetch_weights(self.entry, progress))

    def stamp(self) -> tuple[object, ...]:
        """Another one means other weights."""
        if self.path is None:
            return (self.name,)
        state = self.path.stat()
        return (str(self.path), state.st_mtime_ns, state.st_size)


def origin_of(method: str, weights: str | None) -> Origin:
    """What ``weights`` stands for; None is the method's own entry.

    Raises:
        InputError: for a file that is not there, or an entry of another method.
    """
    if weights == RANDOM:
        return Origin(RANDOM, None, None)
    name = DEFAULTS[method] if weights is None else weights
    path = Path(name)
    if name not in WEIGHTS:
        if path.is_file():
            return Origin(name, None, path)
        if path.name != name or path.suffix:
            what = "is a folder" if path.is_dir() else "no such file"
            raise InputError(f"weights: {name}: {what}; 'fullfield weights list' names what is published")
    entry = weights_entry(name)
    check_fits(entry, method)
    return Origin(name, entry, cached_weights(entry))
