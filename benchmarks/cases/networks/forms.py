"""Forms in which networks are measured, by what the options call them. Imports no library."""

from __future__ import annotations

from dataclasses import dataclass

FORMS = {
    "fast": "fast",
    "module": "module",
    "module-half": "module, half",
    "module-compiled": "module, compiled",
    "compiled": "compiled, half",
    "optimized": "module, optimized",
}
"""What rows of results call our forms: prepared in half precision; the plain module in float32 and in half precision;
both through ``torch.compile``; the module as estimators run it on a CPU."""
DEFAULT_FORMS = ("fast", "module")
COMPILED_FORMS = ("module-compiled", "compiled")


@dataclass(frozen=True)
class PeerForm:
    """One way to run a network of ptlflow."""

    name: str
    """As rows of results are called."""
    half: bool = False
    """Under autocast."""
    channels_last: bool = False
    """Weights in channels-last."""
    compiled: bool = False
    """Through ``torch.compile``, with CUDA graphs on a GPU."""
    lookup: str | None = None
    """Mode of localcorr's block in place of the volume."""


PEER_FORMS = {
    "dense": PeerForm("ptlflow, dense"),
    "dense-half": PeerForm("ptlflow, dense, half", half=True),
    "channels-last": PeerForm("ptlflow, dense, channels-last", channels_last=True),
    "channels-last-half": PeerForm("ptlflow, dense, channels-last, half", half=True, channels_last=True),
    "compiled": PeerForm("ptlflow, dense, compiled", compiled=True),
    "compiled-half": PeerForm(
        "ptlflow, dense, channels-last, compiled, half", half=True, channels_last=True, compiled=True
    ),
    "localcorr": PeerForm("ptlflow, localcorr", lookup="localcorr_cuda"),
    "localcorr-triton": PeerForm("ptlflow, localcorr (Triton)", lookup="localcorr_triton"),
}
"""By what ``--peer-forms`` calls them."""
DEFAULT_PEER_FORMS = ("dense", "dense-half")
EXTENSION_FORMS = {
    "float32": PeerForm("ptlflow, alt_cuda_corr"),
    "half": PeerForm("ptlflow, alt_cuda_corr, half", half=True),
}
"""Precisions of the peer with RAFT's compiled extension."""
