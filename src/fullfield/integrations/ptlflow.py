"""Support of ptlflow's models, and the blocks that only its models have.

:mod:`fullfield.integrations.forms` finds blocks of RAFT's kind, which most models have. Here are the others, and the
support of every model of the tested version.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fullfield._check import InputError
from fullfield.integrations.forms import (
    PYRAMID,
    PoolingLimitedBlock,
    autocast_features_and_get_result_dtype,
    build_autocast_correlation_pyramid,
    check_lookup_and_detect_if_pooling_stops,
    get_backend_or_cuda_on_nvidia,
    has_level_within_window,
)
from fullfield.integrations.handle import Change, Recognizer
from fullfield.nn import local_correlation_with_flow
from fullfield.ops._positions import create_pixel_grid

TESTED = "0.4.2"

EXACT = "exact"
EXACT_WITH_NOTE = "exact, with a note"
OTHER = "not this operator"


@dataclass(frozen=True)
class ModelSupport:
    """Support of some models."""

    models: tuple[str, ...]
    state: str
    note: str = ""


def _create_model_support(names: str, state: str, note: str = "") -> ModelSupport:
    return ModelSupport(tuple(names.split()), state, note)


_WINDOW = "a window of 9×9 in warped features"
_MASKS = "; which pixels its warp keeps depends on the last bit of a sum, so flow moves with any rounding"
_MATCHING = "matching, attention and propagation in linear memory: over the whole map"
SUPPORT = (
    _create_model_support("raft raft_small", EXACT),
    _create_model_support("sea_raft sea_raft_s sea_raft_m sea_raft_l", EXACT),
    _create_model_support("gma", EXACT),
    _create_model_support("skflow", EXACT),
    _create_model_support("ms_raft_p", EXACT, "two levels at 1/16 to 1/2 of the frame"),
    _create_model_support("ccmr ccmr_p", EXACT, "two levels at 1/16 to 1/4 (ccmr_p: 1/2) of the frame"),
    _create_model_support("dpflow", EXACT, "its on-demand mode needs no extension"),
    _create_model_support("rpknet", EXACT),
    _create_model_support("rapidflow rapidflow_it1 rapidflow_it2 rapidflow_it3 rapidflow_it6", EXACT),
    _create_model_support("flowseek_t flowseek_m", EXACT, "checked with a stand-in for its depth network"),
    _create_model_support("flow_anything", EXACT),
    _create_model_support("recover_rn recover_mn recover_cx", EXACT),
    _create_model_support("memfof", EXACT, "two blocks, towards the frames before and after"),
    _create_model_support("memflow memflow_t", EXACT),
    _create_model_support("videoflow_bof videoflow_mof", EXACT, "two blocks each"),
    _create_model_support("streamflow", EXACT, "a block for every pair of neighbouring frames"),
    _create_model_support("splatflow", EXACT, "checked with two frames; three need cupy"),
    _create_model_support(
        "matchflow matchflow_raft",
        EXACT_WITH_NOTE,
        "needs its compiled QuadTreeAttention; checked with a stand-in for that attention",
    ),
    _create_model_support(
        "gmflownet gmflownet_mix",
        EXACT_WITH_NOTE,
        "its matching is made of the whole matrix, which is still computed, once and without its pyramid",
    ),
    _create_model_support(
        "lcv_raft lcv_raft_small", EXACT_WITH_NOTE, "the learned metric is multiplied into the first features"
    ),
    _create_model_support("neuflow2", EXACT, "a global matching, then lookups"),
    _create_model_support("unimatch_sc2_ref6 gmflow_p_sc2_ref6", EXACT, _MATCHING + ", local correlation"),
    _create_model_support("gmflow", EXACT, _MATCHING),
    _create_model_support("gmflow_refine", EXACT, _MATCHING + " and over windows"),
    _create_model_support("gmflow_p gmflow_p_sc2 unimatch unimatch_sc2", EXACT, _MATCHING + " and over windows"),
    _create_model_support("neuflow", EXACT, "a global matching, then a window of 7×7"),
    _create_model_support("flownetc flownetcs flownetcss flownet2", EXACT, "a window of 21×21, every second pixel"),
    _create_model_support("pwcnet pwcnet_nodc", EXACT, _WINDOW),
    _create_model_support("irr_pwc irr_pwcnet irr_pwcnet_irr", EXACT_WITH_NOTE, _WINDOW + _MASKS),
    _create_model_support("scopeflow", EXACT, _WINDOW),
    _create_model_support("starflow", EXACT_WITH_NOTE, _WINDOW + _MASKS),
    _create_model_support("fastflownet", EXACT, _WINDOW),
    _create_model_support("hd3 hd3_ctxt", EXACT, _WINDOW),
    _create_model_support(
        "maskflownet maskflownet_s", EXACT, _WINDOW + "; checked with a stand-in for its deformable convolution"
    ),
    _create_model_support("liteflownet", EXACT_WITH_NOTE, "windows of 7×7, every pixel or every second" + _MASKS),
    _create_model_support("liteflownet2 liteflownet2_pseudoreg", EXACT, "windows of 7×7, every pixel or every second"),
    _create_model_support(
        "liteflownet3 liteflownet3_pseudoreg liteflownet3s liteflownet3s_pseudoreg", EXACT, "windows of 7×7 and 9×9"
    ),
    _create_model_support("craft", OTHER, "its matrix is a transformer's attention, normalised as a whole"),
    _create_model_support("csflow", OTHER, "its volume has a second channel of strip correlations"),
    _create_model_support(
        "llaflow llaflow_raft", OTHER, "a second matrix, summed over 25 shifts, is added to the products"
    ),
    _create_model_support("separableflow", OTHER, "its volume is filtered before it is read"),
    _create_model_support("scv4 scv8", OTHER, "keeps the k best matches of each pixel"),
    _create_model_support("flowformer flowformer_pp", OTHER, "encodes the whole volume with a transformer"),
    _create_model_support("flow1d", OTHER, "correlates along rows and columns"),
    _create_model_support("dip", OTHER, "compares single candidates (PatchMatch)"),
    _create_model_support(
        "waft_dav2_a1 waft_dav2_a2 waft_dinov3_a2 waft_twins_a2", OTHER, "warps features and correlates nothing"
    ),
    _create_model_support("vcn vcn_small dicl", OTHER, "learns the cost of a fixed window"),
    _create_model_support("flownets flownetsd", OTHER, "correlates nothing"),
)

FRAME_COUNTS = {"memfof": 3, "streamflow": 4}
"""Models that do not run on two frames."""


def find_model_support_or_none(model: object) -> ModelSupport | None:
    """Return the support of this model; None if it is not one of ptlflow's."""
    kind = type(model)
    if not kind.__module__.startswith("ptlflow.models."):
        return None
    names = [k.__name__ for k in kind.__mro__]
    return next((s for s in SUPPORT if any(name in s.models for name in names)), None)


def get_unimatch_recognizers_if_refining(model: torch.nn.Module) -> dict[str, Recognizer]:
    """Return recognisers by the names under which methods of ptlflow's models reach other blocks than RAFT's."""
    return (
        {"^local_correlation_with_flow$": _verify_and_build_unimatch_lookup_function}
        if getattr(model, "reg_refine", False)
        else {}
    )


def _verify_and_build_unimatch_lookup_function(
    name: str,
    original: Any,
    location: str,
    has_recognized_sibling: bool,  # noqa: ARG001
    backend: str | None,
) -> Any:
    def run_original(fmap1: Tensor, fmap2: Tensor, coords: Tensor, _: int, radius: int) -> Tensor:
        result = original(fmap1, fmap2, coords - _create_pixel_grid_like(coords), radius)
        side = 2 * radius + 1
        return torch.unflatten(result, 1, (side, side)).transpose(1, 2).flatten(1, 2)  # dx slow

    check_lookup_and_detect_if_pooling_stops(
        f"the {name} of {location}", None, run_original, levels=1, operator="the local lookup"
    )

    def lookup(
        feature0: Tensor,
        feature1: Tensor,
        flow: Tensor,
        local_radius: int,
        padding_mode: str = "zeros",
        dilation: int = 1,
    ) -> Tensor:
        """Correlate with the window of ``feature1`` around where ``flow`` leads."""
        if padding_mode != "zeros" or dilation != 1:
            raise InputError(f"{name}: expected padding_mode 'zeros' and dilation 1, got {padding_mode!r}, {dilation}")
        first, second, _ = autocast_features_and_get_result_dtype(feature0, feature1)
        resolved = get_backend_or_cuda_on_nvidia(feature0.device, backend)
        return local_correlation_with_flow(first, second, flow, local_radius, backend=resolved)

    return lookup


def _create_pixel_grid_like(like: Tensor) -> Tensor:
    return create_pixel_grid(like.shape[-2:], like.device)


def verify_and_build_neuflow_change(name: str, block: Any, backend: str | None) -> Change:
    """Return the change of NeuFlow's block, an attribute of its model."""
    kind = type(block)

    def run_original(fmap1: Tensor, fmap2: Tensor, coords: Tensor, levels: int, radius: int) -> Tensor:
        trial = kind(radius, levels)
        batch, _, height, width = coords.shape
        trial.init_bhwd(batch, height, width, coords.device, False)
        result: Tensor = trial(trial.init_corr_pyr(fmap1, fmap2), coords - _create_pixel_grid_like(coords))
        return result

    check_lookup_and_detect_if_pooling_stops(name, kind, run_original)

    def init_corr_pyr(self: Any, feature0: Tensor, feature1: Tensor) -> Any:
        return build_autocast_correlation_pyramid(feature0, feature1, self.levels, self.radius, backend)

    def call(self: Any, corr_pyramid: Any, flow: Tensor) -> Tensor:
        result: Tensor = corr_pyramid((self.grid + flow).float())
        return result

    return Change.from_overrides(name, block, {"init_corr_pyr": init_corr_pyr, "__call__": call}, PYRAMID)


def verify_and_build_lcv_change(name: str, block: Any, backend: str | None) -> Change:
    """Return the change of LCV's block, whose learned metric is multiplied into the first features."""
    kind = type(block)

    def run_original(fmap1: Tensor, fmap2: Tensor, coords: Tensor, levels: int, radius: int) -> Tensor:
        trial = kind(fmap1.shape[1], levels, radius)  # its metric begins as the identity
        result: Tensor = trial(trial.compute_cost_volume(fmap1, fmap2), coords)
        return result

    stops = check_lookup_and_detect_if_pooling_stops(name, kind, run_original, may_stop_pooling=True)

    def compute_cost_volume(self: Any, fmap1: Tensor, fmap2: Tensor) -> Any:
        one = fmap1[..., :1, :1].contiguous()
        kind.compute_cost_volume(self, one, fmap2[..., :1, :1].contiguous())  # sets W, the metric
        first = torch.einsum("bchw,cd->bdhw", fmap1, self.W.to(fmap1.dtype))
        if stops and has_level_within_window(fmap2, self.num_levels, self.radius):
            return PoolingLimitedBlock(first, fmap2, self.num_levels, self.radius, backend)
        layout = torch.channels_last
        return build_autocast_correlation_pyramid(first, fmap2, self.num_levels, self.radius, backend, layout)

    def forward(self: Any, corr_pyramid: Any, coords: Tensor) -> Tensor:  # noqa: ARG001
        result: Tensor = corr_pyramid(coords.float())
        return result

    return Change.from_overrides(name, block, {"compute_cost_volume": compute_cost_volume, "forward": forward}, PYRAMID)
