"""Block of torchvision's RAFT: a module of the model, ``corr_block``, that holds the pair between two calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from fullfield.integrations.forms import PYRAMID, check_lookup, lookup_pyramid
from fullfield.integrations.handle import Change


class _Held:
    """Present pair; copies and pickles of the model leave it out."""

    def __init__(self, lookup: Callable[[Tensor], Tensor] | None) -> None:
        self.lookup = lookup

    def __deepcopy__(self, _: dict[int, Any]) -> _Held:
        return _Held(None)

    def __reduce__(self) -> tuple[type, tuple[None]]:
        return _Held, (None,)


def change(name: str, block: Any, backend: str | None) -> Change:
    """Return the change of a block of torchvision's kind."""
    kind = type(block)

    def theirs(fmap1: Tensor, fmap2: Tensor, coords: Tensor, levels: int, radius: int) -> Tensor:
        trial = kind(num_levels=levels, radius=radius)
        trial.build_pyramid(fmap1, fmap2)
        found: Tensor = trial.index_pyramid(centroids_coords=coords)
        return found

    check_lookup(name, kind, theirs)

    def build_pyramid(self: Any, fmap1: Tensor, fmap2: Tensor) -> None:
        self.corr_pyramid = _Held(lookup_pyramid(fmap1, fmap2, self.num_levels, self.radius, backend))

    def index_pyramid(self: Any, centroids_coords: Tensor) -> Tensor:
        return self.corr_pyramid.lookup(centroids_coords.float())  # type: ignore[no-any-return]

    overrides = {"build_pyramid": build_pyramid, "index_pyramid": index_pyramid}
    return Change.of(name, block, overrides, PYRAMID, kept=("corr_pyramid",))
