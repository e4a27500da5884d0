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
    StoppingBlock,
    backend_for,
    check_lookup,
    lookup_pyramid,
    prepared_features,
    stops_here,
)
from fullfield.integrations.handle import Change, Recogniser
from fullfield.nn import local_correlation_with_flow
from fullfield.ops._positions import positions

TESTED = "0.4.2"

EXACT = "exact"
NOTED = "exact, with a note"
OTHER = "not this operator"


@dataclass(frozen=True)
class Support:
    """Support of some models."""

    models: tuple[str, ...]
    state: str
    note: str = ""


def _of(names: str, state: str, note: str = "") -> Support:
    return Support(tuple(names.split()), state, note)


_WINDOW = "a window of 9×9 in warped features"
_MASKS = "; which pixels its warp keeps depends on the last bit of a sum, so flow moves with any rounding"
_MATCHING = "matching, attention and propagation in linear memory: over the whole map"
SUPPORT = (
    _of("raft raft_small", EXACT),
    _of("sea_raft sea_raft_s sea_raft_m sea_raft_l", EXACT),
    _of("gma", EXACT),
    _of("skflow", EXACT),
    _of("ms_raft_p", EXACT, "two levels at 1/16 to 1/2 of the frame"),
    _of("ccmr ccmr_p", EXACT, "two levels at 1/16 to 1/4 (ccmr_p: 1/2) of the frame"),
    _of("dpflow", EXACT, "its on-demand mode needs no extension"),
    _of("rpknet", EXACT),
    _of("rapidflow rapidflow_it1 rapidflow_it2 rapidflow_it3 rapidflow_it6", EXACT),
    _of("flowseek_t flowseek_m", EXACT, "checked with a stand-in for its depth network"),
    _of("flow_anything", EXACT),
    _of("recover_rn recover_mn recover_cx", EXACT),
    _of("memfof", EXACT, "two blocks, towards the frames before and after"),
    _of("memflow memflow_t", EXACT),
    _of("videoflow_bof videoflow_mof", EXACT, "two blocks each"),
    _of("streamflow", EXACT, "a block for every pair of neighbouring frames"),
    _of("splatflow", EXACT, "checked with two frames; three need cupy"),
    _of(
        "matchflow matchflow_raft",
        NOTED,
        "needs its compiled QuadTreeAttention; checked with a stand-in for that attention",
    ),
    _of(
        "gmflownet gmflownet_mix",
        NOTED,
        "its matching is made of the whole matrix, which is still computed, once and without its pyramid",
    ),
    _of("lcv_raft lcv_raft_small", NOTED, "the learned metric is multiplied into the first features"),
    _of("neuflow2", EXACT, "a global matching, then lookups"),
    _of("unimatch_sc2_ref6 gmflow_p_sc2_ref6", EXACT, _MATCHING + ", local correlation"),
    _of("gmflow", EXACT, _MATCHING),
    _of("gmflow_refine", EXACT, _MATCHING + " and over windows"),
    _of("gmflow_p gmflow_p_sc2 unimatch unimatch_sc2", EXACT, _MATCHING + " and over windows"),
    _of("neuflow", EXACT, "a global matching, then a window of 7×7"),
    _of("flownetc flownetcs flownetcss flownet2", EXACT, "a window of 21×21, every second pixel"),
    _of("pwcnet pwcnet_nodc", EXACT, _WINDOW),
    _of("irr_pwc irr_pwcnet irr_pwcnet_irr", NOTED, _WINDOW + _MASKS),
    _of("scopeflow", EXACT, _WINDOW),
    _of("starflow", NOTED, _WINDOW + _MASKS),
    _of("fastflownet", EXACT, _WINDOW),
    _of("hd3 hd3_ctxt", EXACT, _WINDOW),
    _of("maskflownet maskflownet_s", EXACT, _WINDOW + "; checked with a stand-in for its deformable convolution"),
    _of("liteflownet", NOTED, "windows of 7×7, every pixel or every second" + _MASKS),
    _of("liteflownet2 liteflownet2_pseudoreg", EXACT, "windows of 7×7, every pixel or every second"),
    _of("liteflownet3 liteflownet3_pseudoreg liteflownet3s liteflownet3s_pseudoreg", EXACT, "windows of 7×7 and 9×9"),
    _of("craft", OTHER, "its matrix is a transformer's attention, normalised as a whole"),
    _of("csflow", OTHER, "its volume has a second channel of strip correlations"),
    _of("llaflow llaflow_raft", OTHER, "a second matrix, summed over 25 shifts, is added to the products"),
    _of("separableflow", OTHER, "its volume is filtered before it is read"),
    _of("scv4 scv8", OTHER, "keeps the k best matches of each pixel"),
    _of("flowformer flowformer_pp", OTHER, "encodes the whole volume with a transformer"),
    _of("flow1d", OTHER, "correlates along rows and columns"),
    _of("dip", OTHER, "compares single candidates (PatchMatch)"),
    _of("waft_dav2_a1 waft_dav2_a2 waft_dinov3_a2 waft_twins_a2", OTHER, "warps features and correlates nothing"),
    _of("vcn vcn_small dicl", OTHER, "learns the cost of a fixed window"),
    _of("flownets flownetsd", OTHER, "correlates nothing"),
)

MORE_FRAMES = {"memfof": 3, "streamflow": 4}
"""Models that do not run on two frames."""


def support_of(model: object) -> Support | None:
    """Return the support of this model; None if it is not one of ptlflow's."""
    kind = type(model)
    if not kind.__module__.startswith("ptlflow.models."):
        return None
    names = [k.__name__ for k in kind.__mro__]
    return next((s for s in SUPPORT if any(name in s.models for name in names)), None)


def recognisers(model: torch.nn.Module) -> dict[str, Recogniser]:
    """Return recognisers by the names under which methods of ptlflow's models reach other blocks than RAFT's."""
    return {"^local_correlation_with_flow$": _unimatch} if getattr(model, "reg_refine", False) else {}


def _unimatch(name: str, original: Any, where: str, accompanied: bool, backend: str | None) -> Any:  # noqa: ARG001
    def theirs(fmap1: Tensor, fmap2: Tensor, coords: Tensor, _: int, radius: int) -> Tensor:
        found = original(fmap1, fmap2, coords - _grid(coords), radius)
        side = 2 * radius + 1
        return torch.unflatten(found, 1, (side, side)).transpose(1, 2).flatten(1, 2)  # dx slow

    check_lookup(f"the {name} of {where}", None, theirs, levels=1, known="the local lookup")

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
        first, second, _ = prepared_features(feature0, feature1)
        place = backend_for(feature0.device, backend)
        return local_correlation_with_flow(first, second, flow, local_radius, backend=place)

    return lookup


def _grid(like: Tensor) -> Tensor:
    return positions(like.shape[-2:], like.device)


def neuflow(name: str, block: Any, backend: str | None) -> Change:
    """Return the change of NeuFlow's block, an attribute of its model."""
    kind = type(block)

    def theirs(fmap1: Tensor, fmap2: Tensor, coords: Tensor, levels: int, radius: int) -> Tensor:
        trial = kind(radius, levels)
        batch, _, height, width = coords.shape
        trial.init_bhwd(batch, height, width, coords.device, False)
        found: Tensor = trial(trial.init_corr_pyr(fmap1, fmap2), coords - _grid(coords))
        return found

    check_lookup(name, kind, theirs)

    def init_corr_pyr(self: Any, feature0: Tensor, feature1: Tensor) -> Any:
        return lookup_pyramid(feature0, feature1, self.levels, self.radius, backend)

    def call(self: Any, corr_pyramid: Any, flow: Tensor) -> Tensor:
        found: Tensor = corr_pyramid((self.grid + flow).float())
        return found

    return Change.of(name, block, {"init_corr_pyr": init_corr_pyr, "__call__": call}, PYRAMID)


def lcv(name: str, block: Any, backend: str | None) -> Change:
    """Return the change of LCV's block, whose learned metric is multiplied into the first features."""
    kind = type(block)

    def theirs(fmap1: Tensor, fmap2: Tensor, coords: Tensor, levels: int, radius: int) -> Tensor:
        trial = kind(fmap1.shape[1], levels, radius)  # its metric begins as the identity
        found: Tensor = trial(trial.compute_cost_volume(fmap1, fmap2), coords)
        return found

    stops = check_lookup(name, kind, theirs, may_stop=True)

    def compute_cost_volume(self: Any, fmap1: Tensor, fmap2: Tensor) -> Any:
        one = fmap1[..., :1, :1].contiguous()
        kind.compute_cost_volume(self, one, fmap2[..., :1, :1].contiguous())  # sets W, the metric
        first = torch.einsum("bchw,cd->bdhw", fmap1, self.W.to(fmap1.dtype))
        if stops and stops_here(fmap2, self.num_levels, self.radius):
            return StoppingBlock(first, fmap2, self.num_levels, self.radius, backend)
        layout = torch.channels_last
        return lookup_pyramid(first, fmap2, self.num_levels, self.radius, backend, layout)

    def forward(self: Any, corr_pyramid: Any, coords: Tensor) -> Tensor:  # noqa: ARG001
        found: Tensor = corr_pyramid(coords.float())
        return found

    return Change.of(name, block, {"compute_cost_volume": compute_cost_volume, "forward": forward}, PYRAMID)
