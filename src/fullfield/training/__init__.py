"""Training: a descriptor of points from pairs of clouds, and networks of flow (:mod:`fullfield.training.flow`).

Names are loaded on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fullfield.training.config import DescriptorTraining as DescriptorTraining
    from fullfield.training.descriptor import Trained as Trained
    from fullfield.training.descriptor import train_descriptor as train_descriptor
    from fullfield.training.loss import contrastive_loss as contrastive_loss
    from fullfield.training.loss import matching_ratio as matching_ratio
    from fullfield.training.pairs import Pair as Pair
    from fullfield.training.pairs import cut_pair as cut_pair
    from fullfield.training.scenes import synthetic_scene as synthetic_scene

_HOME = {
    "DescriptorTraining": "config",
    "Pair": "pairs",
    "Trained": "descriptor",
    "contrastive_loss": "loss",
    "cut_pair": "pairs",
    "matching_ratio": "loss",
    "synthetic_scene": "scenes",
    "train_descriptor": "descriptor",
}

__all__ = [
    "DescriptorTraining",
    "Pair",
    "Trained",
    "contrastive_loss",
    "cut_pair",
    "matching_ratio",
    "synthetic_scene",
    "train_descriptor",
]


def __getattr__(name: str) -> object:
    if name in _HOME:
        value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
