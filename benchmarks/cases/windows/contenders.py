"""Who takes part in the windows benchmark."""

from __future__ import annotations

import importlib
import sys
import tempfile
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from torch import Tensor

from benchmarks.harness import Unsupported, first_line
from fullfield.integrations.forms import silence_output_and_warnings
from fullfield.ops.matching import global_matching
from fullfield.ops.spatial_correlation import spatial_correlation

DisplacementWindow = tuple[int, int, int]
"""Patch, dilation of the patch, stride."""
Sampler = Callable[[Tensor, Tensor, DisplacementWindow], Tensor]
"""(fmap1, fmap2, window) → [B, P, P, OH, OW]."""
Matcher = Callable[[Tensor, Tensor], Tensor]
"""(fmap1, fmap2) → flow."""


def ours(fmap1: Tensor, fmap2: Tensor, window: DisplacementWindow, backend: str | None = None) -> Tensor:
    """Our spatial correlation."""
    patch, dilation, stride = window
    return spatial_correlation(fmap1, fmap2, patch, dilation_patch=dilation, stride=stride, backend=backend)


def peers(localcorr: str | None) -> tuple[dict[str, Sampler], dict[str, str]]:
    """By name; and who is not here, with the reason."""
    result: dict[str, Sampler] = {}
    absent: dict[str, str] = {}
    makers: dict[str, Callable[[], Sampler]] = {
        "localcorr (Triton)": partial(_localcorr, localcorr),
        "spatial_correlation_sampler": _compiled,
        "ptlflow's sampler": _ptlflow,
    }
    for name, make in makers.items():
        try:
            with silence_output_and_warnings():
                result[name] = make()
        except (ImportError, OSError, RuntimeError, ValueError) as error:
            absent[name] = first_line(error)
    return result, absent


def _localcorr(path: str | None) -> Sampler:
    if path is not None:
        folder = Path(path)
        if folder.suffix == ".whl":  # Triton reads its functions' source: not from within a zip file
            folder = Path(tempfile.mkdtemp(prefix="localcorr-"))
            with zipfile.ZipFile(path) as archive:
                archive.extractall(folder)
        sys.path.insert(0, str(folder))
    function = importlib.import_module("localcorr.triton").TritonSpatialCorrelationFunction

    def call(fmap1: Tensor, fmap2: Tensor, window: DisplacementWindow) -> Tensor:
        patch, dilation, stride = window
        if stride != 1:
            raise Unsupported("has a stride of 1 only")
        if not fmap1.is_cuda:
            raise Unsupported("runs on a GPU")
        result: Tensor = function.apply(fmap1, fmap2, patch // 2, dilation)
        return result

    return call


def _compiled() -> Sampler:
    sample = importlib.import_module("spatial_correlation_sampler").spatial_correlation_sample

    def call(fmap1: Tensor, fmap2: Tensor, window: DisplacementWindow) -> Tensor:
        patch, dilation, stride = window
        if not fmap1.is_cuda and fmap1.element_size() < 4:  # it would end the process
            raise Unsupported("has no 16-bit features on the CPU")
        result: Tensor = sample(fmap1, fmap2, patch_size=patch, dilation_patch=dilation, stride=stride)
        return result

    return call


def _ptlflow() -> Sampler:
    from fullfield.estimators.ptlflow import import_ptlflow

    import_ptlflow()
    sample = importlib.import_module("ptlflow.utils.correlation").iter_spatial_correlation_sample

    def call(fmap1: Tensor, fmap2: Tensor, window: DisplacementWindow) -> Tensor:
        patch, dilation, stride = window
        if fmap1.element_size() < 4:
            raise Unsupported("computes its positions in the features' type")
        result: Tensor = sample(
            fmap1, fmap2, patch_size=patch, dilation_patch=dilation, stride=stride, chunk_size=patch
        )
        return result

    return call


def matchers() -> dict[str, Matcher]:
    """Ours and the whole matrix, as GMFlow writes it."""
    return {"ours": global_matching, "whole matrix": _whole_matrix}


def _whole_matrix(fmap1: Tensor, fmap2: Tensor) -> Tensor:
    import torch

    batch, channels, height, width = fmap1.shape
    scores = torch.matmul(fmap1.flatten(2).transpose(1, 2), fmap2.flatten(2)) / channels**0.5
    y, x = torch.meshgrid(*(torch.arange(n, device=fmap1.device) for n in (height, width)), indexing="ij")
    grid = torch.stack((x, y)).to(fmap1.dtype)
    result = torch.matmul(scores.softmax(-1), grid.flatten(1).transpose(0, 1))
    return result.transpose(1, 2).view(batch, 2, height, width) - grid
