"""Training: pairs of clouds cut from real and made-up scenes, and the descriptor that learns from them."""

from fullfield.training.config import DescriptorTraining
from fullfield.training.descriptor import Trained, train_descriptor
from fullfield.training.loss import contrastive_loss, matching_ratio
from fullfield.training.pairs import Pair, cut_pair
from fullfield.training.scenes import synthetic_scene

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
