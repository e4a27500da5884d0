"""Loss of a convex up-sampled flow, forward and backward in one pass that stores nothing of the frames' size."""

from fullfield.training.flow.convex_loss.op import convex_mixture_loss_and_error
from fullfield.training.flow.convex_loss.reference import mixture_negative_log_likelihood

__all__ = ["convex_mixture_loss_and_error", "mixture_negative_log_likelihood"]
