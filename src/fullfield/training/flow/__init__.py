"""Training of networks of optical flow: pairs, losses, augmentation, and the loop.

Names are loaded on first use: the configurations need no PyTorch.
"""

from typing import TYPE_CHECKING

from fullfield._lazy import create_lazy_all_getattr_and_dir

if TYPE_CHECKING:
    from fullfield.training.flow.augmentation import Augmentation as Augmentation
    from fullfield.training.flow.augmentation import AugmentedPairs as AugmentedPairs
    from fullfield.training.flow.augmentation import augment as augment
    from fullfield.training.flow.batch import DatasetPairs as DatasetPairs
    from fullfield.training.flow.batch import Mixture as Mixture
    from fullfield.training.flow.batch import collate_flow as collate_flow
    from fullfield.training.flow.batch import cut_or_pad_random_window as cut_or_pad_random_window
    from fullfield.training.flow.config import FlowTraining as FlowTraining
    from fullfield.training.flow.config import SceneStyle as SceneStyle
    from fullfield.training.flow.loop import FlowRun as FlowRun
    from fullfield.training.flow.loop import train_flow as train_flow
    from fullfield.training.flow.loss import laplace_mixture_loss as laplace_mixture_loss
    from fullfield.training.flow.loss import loss_mask as loss_mask
    from fullfield.training.flow.loss import sequence_loss as sequence_loss
    from fullfield.training.flow.pairs import PairGenerator as PairGenerator
    from fullfield.training.flow.stepping import AveragedWeights as AveragedWeights
    from fullfield.training.flow.validation import FlowValidation as FlowValidation

__all__, __getattr__, __dir__ = create_lazy_all_getattr_and_dir(
    __name__,
    {
        "augmentation": "Augmentation AugmentedPairs augment",
        "batch": "DatasetPairs Mixture collate_flow cut_or_pad_random_window",
        "config": "FlowTraining SceneStyle",
        "loop": "FlowRun train_flow",
        "loss": "loss_mask laplace_mixture_loss sequence_loss",
        "pairs": "PairGenerator",
        "stepping": "AveragedWeights",
        "validation": "FlowValidation",
    },
)
