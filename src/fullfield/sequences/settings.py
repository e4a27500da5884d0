"""Settings of a run over a shot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from fullfield import _check
from fullfield.ops.devices import resolve_device

if TYPE_CHECKING:
    from fullfield.sequences.plates import Plates

DIRECTIONS = ("forward", "backward", "both")


@dataclass(frozen=True)
class ShotSettings:
    """Settings that decide which flow a shot gets, and where it is computed.

    Attributes:
        direction: ``forward``: from each frame to the one ``step`` after; ``backward``: to the one before; ``both``.
        step: distance between the two frames of a pair.
        warm_start: start from the flow of the frame before, moved along; not across a cut.
        occlusion, confidence: estimate them too, from both directions
            (:func:`fullfield.estimators._reliability.estimate_occlusion_and_confidence`).
        device: where to compute; ``auto`` is the first GPU with kernels, else the CPU.
        scale: estimate at this fraction of the frames' size, such as ``1/2``, and enlarge the flow
            (:class:`fullfield.estimators.cascaded.ReducedSizeEstimator`).
        refine: refine the flows to sub-pixel accuracy (:func:`fullfield.ops.tvl1.refine_flow`), with the backward
            flow. Estimators that always refine do so without it.

    >>> flows = estimate_sequence("plate.%04d.exr", settings=ShotSettings("both", occlusion=True))  # doctest: +SKIP
    """

    direction: str = "forward"
    step: int = 1
    warm_start: bool = False
    occlusion: bool = False
    confidence: bool = False
    device: str = "auto"
    refine: bool = False
    scale: str = "1"

    def __post_init__(self) -> None:
        _check.check_choice(self.direction, "direction", DIRECTIONS)
        _check.check_number(self.step, "step", integer=True, low=1)

    @property
    def torch_device(self) -> torch.device:
        """Device that computes; InputError if this machine has no such device."""
        return resolve_device(self.device)

    @property
    def offsets_by_direction(self) -> dict[str, int]:
        """Directions, with the distance to the second frame of their pairs."""
        offsets = {"forward": self.step, "backward": -self.step}
        return {name: offset for name, offset in offsets.items() if self.direction in (name, "both")}

    @property
    def forward_or_only_direction(self) -> str:
        """Direction of ST maps and of files that hold one: forward, unless the only one is backward."""
        return next(iter(self.offsets_by_direction))

    @property
    def should_estimate_reliability(self) -> bool:
        """True where occlusion or confidence is requested, which need both directions of a pair."""
        return self.occlusion or self.confidence

    def list_input_frames(self, plates: Plates, number: int) -> list[int]:
        """Return the frames that the result of a frame needs, itself first, ascending otherwise."""
        partners = [number + offset for offset in self.offsets_by_direction.values()]
        return [number, *sorted(partner for partner in partners if plates.is_in_range(partner))]
