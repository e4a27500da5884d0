"""Training: a descriptor of points from pairs of clouds, and networks of flow (:mod:`fullfield.training.flow`).

Names are loaded on first use.
"""

from typing import TYPE_CHECKING

from fullfield._lazy import create_lazy_all_getattr_and_dir

if TYPE_CHECKING:
    from fullfield.training.config import DescriptorTraining as DescriptorTraining
    from fullfield.training.descriptor import train_descriptor as train_descriptor

__all__, __getattr__, __dir__ = create_lazy_all_getattr_and_dir(
    __name__,
    {
        "config": "DescriptorTraining",
        "descriptor": "train_descriptor",
    },
)
