"""Replacement of a network's correlation blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fullfield import _check
from fullfield._check import InputError
from fullfield.integrations import forms, matching, ptlflow, windows
from fullfield.integrations.forms import (
    PYRAMID,
    build_autocast_correlation_pyramid,
    check_backend_runs_and_warn_if_slow,
    check_lookup_and_detect_if_pooling_stops,
)
from fullfield.integrations.handle import Change, Handle, find_and_check_method_changes, is_patched
from fullfield.ops.correlation.protocol import BACKENDS


class _CurrentPair:
    """Present pair; copies and pickles of the model leave it out."""

    def __init__(self, lookup: Callable[[Tensor], Tensor] | None) -> None:
        self.lookup = lookup

    def __deepcopy__(self, _: dict[int, Any]) -> _CurrentPair:
        return _CurrentPair(None)

    def __reduce__(self) -> tuple[type, tuple[None]]:
        return _CurrentPair, (None,)


def _verify_and_build_torchvision_change(name: str, block: Any, backend: str | None) -> Change:
    """Return the change of torchvision's block: a module of the model that holds the pair between two calls."""
    kind = type(block)

    def run_original(fmap1: Tensor, fmap2: Tensor, coords: Tensor, levels: int, radius: int) -> Tensor:
        trial = kind(num_levels=levels, radius=radius)
        trial.build_pyramid(fmap1, fmap2)
        result: Tensor = trial.index_pyramid(centroids_coords=coords)
        return result

    check_lookup_and_detect_if_pooling_stops(name, kind, run_original)

    def build_pyramid(self: Any, fmap1: Tensor, fmap2: Tensor) -> None:
        self.corr_pyramid = _CurrentPair(
            build_autocast_correlation_pyramid(fmap1, fmap2, self.num_levels, self.radius, backend)
        )

    def index_pyramid(self: Any, centroids_coords: Tensor) -> Tensor:
        return self.corr_pyramid.lookup(centroids_coords.float())  # type: ignore[no-any-return]

    overrides = {"build_pyramid": build_pyramid, "index_pyramid": index_pyramid}
    return Change.from_overrides(name, block, overrides, PYRAMID, preserved=("corr_pyramid",))


# Functions that patch a part of a model that has these methods, or an attribute of a part that has this one.
_MODULE_CHANGES = {
    ("build_pyramid", "index_pyramid"): _verify_and_build_torchvision_change,
    ("compute_cost_volume",): ptlflow.verify_and_build_lcv_change,
    ("q_proj", "k_proj", "forward_local_window_attn"): matching.verify_and_build_propagation_change,
}
_ATTRIBUTES = {
    "init_corr_pyr": ptlflow.verify_and_build_neuflow_change,
    "global_correlation_softmax": matching.verify_and_build_matcher_change,
}
_RECOGNIZERS = {**forms.RECOGNIZERS, **matching.RECOGNIZERS, **windows.RECOGNIZERS}


def patch(model: torch.nn.Module, *, backend: str | None = None) -> Handle:
    """Run a network's correlation on our operators: exact, in linear memory, trainable.

    ::

        handle = fullfield.patch(model)   # from here on model(...) runs on our operators
        print(handle.replaced)
        handle.restore()                  # or: with fullfield.patch(model): ...

    It knows RAFT and SEA-RAFT as princeton published them and checkouts like them, torchvision's RAFT, and the models
    of ptlflow that ``integrations/README.md`` lists, among them those that compare a fixed window or match by a
    softmax; also inside DataParallel and other wrappers. It tries blocks on a small pair before it replaces them,
    and refuses one that computes something else, whatever its name; an ``AlternateCorrBlock`` or ``OLCorrBlock`` beside
    another block is not tried.

    The patch belongs to this model object: other models, of the same class too, and the modules' names stay as they
    are, so that threads do not see each other's patches. Weights, hooks and attributes are not touched. A deep copy of
    a patched model is patched; a pickle holds it unpatched. Results keep the dtype and layout of those they replace;
    levels of side one, where the originals return NaN, are finite.

    Args:
        model: the network, on the device it will run on.
        backend: backend of the lookups and fixed windows; None takes the device's kernel. Matching by a softmax has no
            choice.

    Raises:
        InputError: if the model is patched already, if it has no correlation block that we know, or if the device's
            kernel (or ``backend``) cannot run here.
    """
    _check.require(isinstance(model, torch.nn.Module), "model", "a torch.nn.Module", model)
    if backend is not None:
        _check.check_choice(backend, "backend", BACKENDS)
    if any(is_patched(module) for module in model.modules()):
        raise InputError("model: it is patched already; restore() its handle first")
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    check_backend_runs_and_warn_if_slow(device, backend)
    for module in model.modules():
        support = ptlflow.find_model_support_or_none(module)
        if support is not None and support.state == ptlflow.OTHER:
            raise InputError(
                f"model: ptlflow's {type(module).__name__} has no correlation that is known ({support.note})"
            )
    recognizers = {**_RECOGNIZERS, **ptlflow.get_unimatch_recognizers_if_refining(model)}
    changes = [
        *_find_and_check_changes_by_method_names(model, backend),
        *windows.find_and_check_window_changes(model, backend),
        *find_and_check_method_changes(model, recognizers, backend),
    ]
    changed_ids = [id(change.target) for change in changes]
    for name, module in model.named_modules():
        if "CorrBlock" in type(module).__name__ and id(module) not in changed_ids:
            raise InputError(f"model: its {name} ({type(module).__qualname__}) is not known to be an all-pairs lookup")
    if not changes:
        kind = f"{type(model).__module__}.{type(model).__qualname__}"
        raise InputError(
            "model: expected a network with RAFT's correlation block (RAFT, SEA-RAFT, torchvision's RAFT, or a model "
            f"of ptlflow {ptlflow.TESTED}: see docs/integrations.md), found none in {kind}; "
            "for a lookup in code of your own there is fullfield.nn.CorrelationPyramid"
        )
    return Handle(model, changes, backend)


def _find_and_check_changes_by_method_names(model: torch.nn.Module, backend: str | None) -> list[Change]:
    """Return the changes of the parts and attributes whose methods are in the tables."""
    changes = []
    for path, module in model.named_modules():
        for names, change in _MODULE_CHANGES.items():
            if all(callable(getattr(module, name, None)) for name in names):
                changes.append(change(path, module, backend))
        for name, value in vars(module).items():
            for method, change in _ATTRIBUTES.items():
                if callable(getattr(value, method, None)):
                    changes.append(change(f"{path}.{name}".lstrip("."), value, backend))
    return changes
