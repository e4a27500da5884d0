"""ptlflow's models as small as they come, built without their downloads."""

from __future__ import annotations

import contextlib
import importlib
import io
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch


@pytest.fixture(scope="session")
def build(ptlflow: Any) -> Callable[[str], Any]:
    """``build(name)``: the model in evaluation mode, random weights, few updates."""

    def make(name: str) -> Any:
        from loguru import logger

        logger.remove()
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
            pytest.MonkeyPatch.context() as monkeypatch,
        ):
            warnings.simplefilter("ignore")
            family = importlib.import_module(ptlflow.get_model_reference(name).__module__)
            _without_extensions(name, family, monkeypatch)
            for draw in ("uniform_", "normal_") if name.startswith(_LARGE) else ():
                monkeypatch.setattr(torch.Tensor, draw, _repeated(getattr(torch.Tensor, draw)))
            torch.manual_seed(0)
            # Three levels are enough to see two blocks; with four its frames would have to be four times as large.
            model = ptlflow.get_model_reference(name)(corr_levels=3) if name == "memfof" else ptlflow.get_model(name)
        _few_updates(model)
        _calm(model)
        if name.startswith("flowseek"):
            _stand_in_for_depth(model)
        return model.eval()

    return make


# With backbones of 100 million weights, of which they keep a few.
_LARGE = ("memfof", "streamflow", "videoflow")
_DRAWN = 65_537  # a prime number: no two rows of a weight are the same


def _repeated(draw: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Draws the first values of a large weight alone, and repeats them."""

    def drawn(weight: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
        if weight.numel() <= _DRAWN:
            return draw(weight, *arguments, **options)
        some = draw(weight.new_empty(_DRAWN), *arguments, **options)
        times = -(-weight.numel() // _DRAWN)
        return weight.copy_(some.repeat(times)[: weight.numel()].view_as(weight))

    return drawn


def _without_extensions(name: str, family: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in for what the constructors download or need compiled."""
    if name == "memfof":
        extractor = importlib.import_module(f"{family.__package__}.extractor")
        backbone = extractor.get_model
        monkeypatch.setattr(extractor, "get_model", lambda name, **_: backbone(name))
    if name.startswith("maskflownet"):
        monkeypatch.setattr(family.ops, "DeformConv2d", _Convolution)
    if name == "splatflow":
        monkeypatch.setattr(family, "forward_warping", object())  # only three frames need it
    if name.startswith("matchflow"):
        attention = importlib.import_module(f"{family.__package__}.quadtree_attention")
        monkeypatch.setattr(attention, "QTAttB", _Attention)


class _Convolution(torch.nn.Conv2d):
    """In place of a deformable convolution, whose operator not every torchvision has."""

    def forward(self, x: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
        return super().forward(x + offset.mean(1, keepdim=True))


class _Attention(torch.nn.Module):
    """Full attention for one level, in the interface of QuadTreeAttention."""

    def __init__(self, heads: int, dim: int, **_: Any) -> None:
        super().__init__()
        self.heads, self.dim = heads, dim

    def forward(
        self, queries: list[torch.Tensor], keys: list[torch.Tensor], values: list[torch.Tensor]
    ) -> torch.Tensor:
        q, k, v = (
            x[0].flatten(2).unflatten(1, (self.heads, self.dim)).transpose(2, 3) for x in (queries, keys, values)
        )
        found = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        return found.transpose(1, 2).flatten(2)


def _few_updates(model: Any) -> None:
    updates = 1 if hasattr(model, "flow_head") else 2  # those begin with a flow of their own
    for name in ("iters", "decoder_depth", "num_reg_refine", "iters_s8", "iters_per_level"):
        value = getattr(model, name, None)
        if isinstance(value, (list, tuple)):
            setattr(model, name, [1] * len(value))
        elif isinstance(value, int):
            setattr(model, name, min(value, updates))
    if hasattr(model, "corr_mode"):
        model.corr_mode = "allpairs"  # the other needs an extension


def _calm(model: Any) -> None:
    """Random weights whose flow stays in the frame, and no results kept from one call to the next."""
    if isinstance(getattr(model, "flow_head", None), torch.nn.Sequential):
        with torch.no_grad():
            model.flow_head[-1].weight.mul_(0.01)
    for part in model.modules():
        if hasattr(part, "cache_weights"):
            part.cache_weights = False


def _stand_in_for_depth(model: Any) -> None:
    """For the depth network, which takes most of the time and has no correlation in it."""
    channels = model.merge_head[0].in_channels

    def depth(image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        small = torch.nn.functional.interpolate(image[:, :1], (32, 32))
        return small * torch.linspace(-1, 1, channels).view(1, -1, 1, 1), small

    model.dav2.forward = depth
