"""Training: a descriptor of points from pairs of clouds, and networks of flow (:mod:`fullfield.training.flow`).

Names are loaded on first use.
"""

from typing import TYPE_CHECKING

from fullfield._lazy import lazy

if TYPE_CHECKING:
    from fullfield.training.config import DescriptorTraining as DescriptorTraining
    from fullfield.training.descriptor import Trained as Trained
    from fullfield.training.descriptor import contrastive_loss as contrastive_loss
    from fullfield.training.descriptor import matching_ratio as matching_ratio
    from fullfield.training.descriptor import train_descriptor as train_descriptor
    from fullfield.training.pairs import cut_pair as cut_pair
    from fullfield.training.pairs import synthetic_scene as synthetic_scene

__all__, __getattr__, __dir__ = lazy(
    __name__,
    {
        "config": "DescriptorTraining",
        "descriptor": "Trained contrastive_loss matching_ratio train_descriptor",
        "pairs": "cut_pair synthetic_scene",
    },
)
