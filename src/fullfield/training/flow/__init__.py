"""Training networks of optical flow: pairs, losses, augmentation, and the loop.

Names are loaded on first use: the configurations need no PyTorch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fullfield.training.flow.augmentation import Augmentation as Augmentation
    from fullfield.training.flow.augmentation import Augmented as Augmented
    from fullfield.training.flow.augmentation import augment as augment
    from fullfield.training.flow.averaging import AveragedWeights as AveragedWeights
    from fullfield.training.flow.batch import FlowBatch as FlowBatch
    from fullfield.training.flow.batch import PairSource as PairSource
    from fullfield.training.flow.config import FlowTraining as FlowTraining
    from fullfield.training.flow.curves import plot_history as plot_history
    from fullfield.training.flow.loop import FlowRun as FlowRun
    from fullfield.training.flow.loop import TrainedFlow as TrainedFlow
    from fullfield.training.flow.loop import train_flow as train_flow
    from fullfield.training.flow.loss import counted_pixels as counted_pixels
    from fullfield.training.flow.loss import laplace_mixture_loss as laplace_mixture_loss
    from fullfield.training.flow.loss import mean_error as mean_error
    from fullfield.training.flow.loss import sequence_loss as sequence_loss
    from fullfield.training.flow.pairs import PairMaker as PairMaker
    from fullfield.training.flow.sources import DatasetPairs as DatasetPairs
    from fullfield.training.flow.sources import Mixture as Mixture
    from fullfield.training.flow.sources import collate_flow as collate_flow
    from fullfield.training.flow.sources import cut_window as cut_window
    from fullfield.training.flow.stepping import Stepper as Stepper
    from fullfield.training.flow.validation import FlowValidation as FlowValidation

_HOME = {
    "Augmentation": "augmentation",
    "Augmented": "augmentation",
    "AveragedWeights": "averaging",
    "DatasetPairs": "sources",
    "FlowBatch": "batch",
    "FlowRun": "loop",
    "FlowTraining": "config",
    "FlowValidation": "validation",
    "Mixture": "sources",
    "PairMaker": "pairs",
    "PairSource": "batch",
    "Stepper": "stepping",
    "TrainedFlow": "loop",
    "augment": "augmentation",
    "collate_flow": "sources",
    "counted_pixels": "loss",
    "cut_window": "sources",
    "laplace_mixture_loss": "loss",
    "mean_error": "loss",
    "plot_history": "curves",
    "sequence_loss": "loss",
    "train_flow": "loop",
}

__all__ = [
    "Augmentation",
    "Augmented",
    "AveragedWeights",
    "DatasetPairs",
    "FlowBatch",
    "FlowRun",
    "FlowTraining",
    "FlowValidation",
    "Mixture",
    "PairMaker",
    "PairSource",
    "Stepper",
    "TrainedFlow",
    "augment",
    "collate_flow",
    "counted_pixels",
    "cut_window",
    "laplace_mixture_loss",
    "mean_error",
    "plot_history",
    "sequence_loss",
    "train_flow",
]


def __getattr__(name: str) -> object:
    if name in _HOME:
        value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
