"""Base class of the configurations that describe a network's shape. Light: imports neither torch nor numpy."""

from __future__ import annotations

from importlib import import_module
from typing import Any, ClassVar

from fullfield._config import Config


class NetworkArchitecture(Config):
    """Shape of a network, and the classes that implement it.

    Attributes:
        network: ``"module:class"`` of the network, a :class:`fullfield.models.network.FlowNetwork`.
        prepared: ``"module:class"`` of its form in half precision, a
            :class:`fullfield.models.prepared.shared.PreparedNetwork`.
        has_learned_start: whether the network regresses an initial flow, and so can run without updates.
        has_mixture: whether it estimates the uncertainty of its flow.
        updates: number of flow updates unless a call sets it.
        max_updates: limit up to which such a call goes on while the flow still moves; None: ``updates``.
        adapts_coarse_starts: whether estimators let it go on so where a flow of a coarser size starts it, too; False:
            it takes ``updates`` there, one fewer at sizes of 4 million pixels or more.
    """

    network: ClassVar[str]
    prepared: ClassVar[str]
    has_learned_start: ClassVar[bool] = False
    has_mixture: ClassVar[bool] = False

    name: str
    levels: int
    radius: int
    updates: int
    max_updates: int | None = None
    adapts_coarse_starts: bool = True
    padding: str

    @property
    def matched_channels(self) -> int:
        """Channels of the features that the correlation compares."""
        raise NotImplementedError

    def import_class(self, attribute_name: str) -> Any:
        """Return the class that ``network`` or ``prepared`` names."""
        module, _, kind = str(getattr(self, attribute_name)).partition(":")
        return getattr(import_module(module), kind)
