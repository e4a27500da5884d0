"""ptlflow's networks in every form that a user may run: eager, channels-last, compiled, and with other lookups."""

from __future__ import annotations

import copy
import importlib
import sys
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from benchmarks.cases.correlation.contenders import DENSE_ELEMENTS
from benchmarks.cases.networks.forms import PeerForm
from benchmarks.harness import TooLarge, Unsupported
from fullfield.integrations.forms import silence_output_and_warnings
from fullfield.models.framing import STRIDE

Flow = Callable[[Tensor, Tensor, int], Tensor]
"""From two frames and a number of updates to the flow."""

HALF = {"cuda": torch.float16, "cpu": torch.bfloat16}


def load_peer(name: str) -> Any:
    """Return a network of ptlflow."""
    with silence_output_and_warnings():
        return importlib.import_module("ptlflow").get_model(name)


def build_peer_flow(peer: Any, form: PeerForm, size: tuple[int, int]) -> Flow:
    """Return the network in this form; raise TooLarge or Unsupported where that cannot be."""
    if form.lookup is not None:
        return _run_with_localcorr(peer, form)
    pixels = -(-size[0] // STRIDE) * -(-size[1] // STRIDE)
    if pixels * pixels > DENSE_ELEMENTS:
        raise TooLarge(f"the volume has {pixels * pixels:.2g} elements; pooling takes at most 2^31")
    return _run_form(peer, form)


def build_extension_flow(peer: Any, extension: Any, form: PeerForm) -> Flow:
    """Return the network with RAFT's compiled extension in place of the volume."""
    module = sys.modules[type(peer).__module__]
    corr = vars(sys.modules[module.get_corr_block.__module__])
    if "alt_cuda_corr" not in corr:
        raise RuntimeError("this version of ptlflow does not use RAFT's compiled extension")
    flow = _run_form(peer, form, alternate=True)
    lookup = _cast_features(extension) if form.half else extension

    def run_with_extension(first: Tensor, second: Tensor, updates: int) -> Tensor:
        corr["alt_cuda_corr"] = lookup
        return flow(first, second, updates)

    return run_with_extension


def _cast_features(extension: Any) -> Any:
    """Return RAFT's extension with features cast to float32, as RAFT's own code does under autocast."""

    def forward(first: Tensor, second: Tensor, *rest: Any) -> Any:
        return extension.forward(first.float(), second.float(), *rest)

    return SimpleNamespace(forward=forward)


def _run_form(peer: Any, form: PeerForm, alternate: bool = False) -> Flow:
    network = copy.deepcopy(peer).to(memory_format=torch.channels_last) if form.channels_last else peer
    run = torch.compile(network, mode="reduce-overhead", dynamic=False) if form.compiled else network

    def estimate(first: Tensor, second: Tensor, updates: int) -> Tensor:
        network.alternate_corr, network.iters = alternate, updates
        images = torch.stack((first, second), 1).flip(2)  # it takes blue, green, red
        if form.compiled:
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]  # the flow before is read no more
        dtype = HALF[first.device.type] if form.half else None
        with torch.autocast(first.device.type, dtype, enabled=form.half):
            result: Tensor = run({"images": images})["flows"][:, 0]
        return result.float()

    return estimate


def _run_with_localcorr(peer: Any, form: PeerForm) -> Flow:
    """Return the network with localcorr's block in place of ptlflow's, in float32."""
    try:
        blocks = importlib.import_module("localcorr.blocks")
    except ImportError as error:
        raise Unsupported("needs localcorr: pip install localcorr") from error
    if form.lookup == "localcorr_cuda" and blocks.get_cuda_pyramid_library() is None:
        raise Unsupported("needs localcorr's compiled library in localcorr/cuda_pyramid/build")
    module = sys.modules[type(peer).__module__]
    flow = _run_form(peer, form)
    build = partial(_build_localcorr_block, blocks.get_localcorr_block, form.lookup)

    def run_with_block(first: Tensor, second: Tensor, updates: int) -> Tensor:
        with mock.patch.object(module, "get_corr_block", build):
            return flow(first, second, updates)

    return run_with_block


def _build_localcorr_block(
    build: Any, mode: str | None, fmap1: Tensor, fmap2: Tensor, radius: int, num_levels: int, **_: Any
) -> Any:
    return build(fmap1, fmap2, num_levels=num_levels, radius=radius, corr_mode=mode)
