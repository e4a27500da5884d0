"""Products that the lookups of a pair keep for those that follow: how much, where, and which lookups may touch them."""

from __future__ import annotations

import ctypes
import threading
from dataclasses import dataclass

import torch
from torch import Tensor

from fullfield.ops.correlation.cuda.config import KEPT_BYTES, Config
from fullfield.ops.correlation.cuda.structs import CLASSES, captured_by
from fullfield.ops.correlation.protocol import Request

# Columns and rows that a patch has beside the window, by level: as many as pay and, products of more bytes, as take
# half as much memory again at most.
_MARGINS, _TIGHT_MARGINS = (3, 2, 2, 1), (2, 2, 2, 1)
# Source pixels whose patches lie together: those of one tile, or of two side by side.
GROUP = 128
# A map's positions and what a patch's origin may lie before them are 16-bit numbers.
LARGEST_SIDE = (1 << 16) - 256


def patch_sides(config: Config, levels: int) -> list[int]:
    """Of every level's patches."""
    margins = _MARGINS if KEPT_BYTES[config.kept] == 2 else _TIGHT_MARGINS
    return [2 * config.radius + 2 + margins[min(level, len(margins) - 1)] for level in range(levels)]


def patch_bytes(config: Config, levels: int) -> list[int]:
    """Of the patches that lie together, on every level."""
    return [side * side * GROUP * KEPT_BYTES[config.kept] for side in patch_sides(config, levels)]


class Patches:
    """The patches of one pair and one kind of result; nothing is in them at first.

    ``tiles``: of the lookup of this configuration; ``groups``: of those that lie together.
    """

    def __init__(self, request: Request, config: Config, tiles: int, groups: int, like: Tensor) -> None:
        pixels, slots, sizes = 64 * config.groups, tiles * request.levels, patch_bytes(config, request.levels)
        self._sizes, self._sides = sizes, patch_sides(config, request.levels)
        self._entries = slots
        lengths = [8, CLASSES * slots, slots, slots * pixels // 32, slots * pixels // 32, slots * pixels]
        self.patches = torch.empty(groups * sum(sizes), dtype=torch.uint8, device=like.device)
        self.notes = torch.zeros(sum(lengths), dtype=torch.int32, device=like.device)
        self._begins = [4 * sum(lengths[:i]) for i in range(len(lengths))]

    def fill(self, kept: ctypes.Structure, stamp: int, empty: bool) -> None:
        """Tell a lookup where everything is; ``stamp``: the address of the preparation's number; ``empty``: nothing is
        in the patches, so it computes all windows."""
        kept.patches = self.patches.data_ptr()
        notes = self.notes.data_ptr()
        for name, begin in zip(
            ("counts", "entries", "stamps", "filled", "wanted", "origins"), self._begins, strict=True
        ):
            setattr(kept, name, notes + begin)
        if empty:
            kept.entries = None
        kept.stamp, kept.group_bytes, kept.most_entries = stamp, sum(self._sizes), self._entries
        for level, side in enumerate(self._sides):
            kept.side[level] = side
            kept.offset[level] = sum(self._sizes[:level])


@dataclass
class _Context:
    """The lookups of a pair that run one after another: those outside of graphs, or those of one graph."""

    stream: int
    kind: object
    empty: bool
    """Whether nothing can be in the patches: the pair was prepared among them, and none of them has kept anything."""
    lookups: int = 0
    patches: Patches | None = None


class Keeper:
    """Decides which lookups of a pair keep products.

    Outside of graphs, and in every graph that is captured, those of one stream and of one kind of result: the first
    that come. Patches that were made with the pair, while a graph was captured, go to the first captured lookups: the
    replays of their graph then find what those before have left. Others are made, and noted to be empty, where they are
    first used; while a graph is captured, each replay finds what it has left itself. Lookups beside them compute
    everything, with the same result. ``stream``: of the preparation.
    """

    def __init__(self, at_once: bool, stream: int) -> None:
        self._at_once = at_once  # the first lookup keeps, too
        self.prepared_in = captured_by(stream)
        self._contexts: dict[int, _Context] = {}
        self._offered: tuple[object, Patches] | None = None
        self._lock = threading.Lock()

    def offer(self, kind: object, patches: Patches) -> None:
        """Patches for the first captured lookups of this kind, made where the pair's preparation is captured: only its
        replay notes them to be empty."""
        self._offered = kind, patches

    def take(self, stream: int, kind: object) -> _Context | None:
        """The context whose patches this lookup may use, or None."""
        graph = captured_by(stream)
        context = self._contexts.get(graph)
        if context is None:
            with self._lock:
                new = _Context(stream, kind, graph == self.prepared_in)
                if graph and self._offered is not None and self._offered[0] == kind:
                    new.patches, self._offered = self._offered[1], None
                context = self._contexts.setdefault(graph, new)
        if context.stream != stream or context.kind != kind:
            return None
        context.lookups += 1
        return context if self._at_once or context.lookups > 1 else None
