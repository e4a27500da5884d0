"""Other projects' correlation blocks: their signatures, the trial that recognises them, and their replacements.

A block is recognised by the names of its parameters and then tried on a small pair: nothing is replaced that gives
other numbers, whatever version it comes from. Princeton's networks build one for every pair, in a method. As in the
originals, features take part in autocast and the result has the dtype that the original's has: float32 under autocast,
else the features'.
"""

from __future__ import annotations

import inspect
import io
import math
import re
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from fullfield._check import InputError
from fullfield.integrations.handle import Recognizer
from fullfield.nn import CorrelationPyramid, RAFTCorrBlock, SEARAFTCorrBlock
from fullfield.ops._launching import explain_not_nvidia_gpu
from fullfield.ops.correlation import correlation_lookup, explain_backends

_TOLERANCE = 1e-4  # of the largest value; float32
# Output and warning filters belong to the process; two threads must not change them at the same time.
_ALONE = threading.RLock()

ALL_PAIRS = "the all-pairs lookup"
PYRAMID = "fullfield's CorrelationPyramid"
# Models that prefer memory over time keep large features themselves: from this many bytes of two maps on, their blocks
# bring them into the kernel's layout for every lookup instead of holding them twice.
LEAN_BYTES = 64 << 20
_LEVELS = ("num_levels", "corr_levels", "levels")
_RADIUS = ("radius", "corr_radius", "corr_range")
# Parameters that choose between blocks which all compute the same.
_IMPLEMENTATION = ("alternate_corr",)
# Height and width of the maps that blocks are tried on, with 3 levels of radius 2: the second is so small that some
# blocks stop pooling.
_TRIALS = ((24, 20), (8, 9))
Lookup: TypeAlias = Callable[[Tensor, Tensor, Tensor, int, int], Tensor]
"""Lookup as a function of fmap1, fmap2, coords, levels and radius."""
# Blocks that need a compiled extension and cannot be tried; they are alternatives to one that was.
_ALTERNATE = r"^(Alternate|OL)CorrBlock$"


@contextmanager
def silence_output_and_warnings() -> Iterator[None]:
    """Drop output and warnings; one thread at a time."""
    said = io.StringIO()
    with _ALONE, warnings.catch_warnings(), redirect_stdout(said), redirect_stderr(said):
        warnings.simplefilter("ignore")
        yield


def check_results_close(
    subject: str,
    original_class: type | None,
    operator: str,
    compute_original_and_own_result: Callable[[], tuple[Tensor, Tensor]],
) -> None:
    """Raise InputError unless ``subject``, which should be ``operator``, passes a trial."""
    reason = describe_difference_or_error_if_any(compute_original_and_own_result)
    if reason is not None:
        raise create_unrecognized_error(subject, original_class, operator, reason)


def describe_difference_or_error_if_any(
    compute_original_and_own_result: Callable[[], tuple[Tensor, Tensor]],
) -> str | None:
    """Return how their result of a trial differs from ours; None if it does not."""
    with torch.no_grad(), torch.device("cpu"), torch.autocast("cpu", enabled=False), silence_output_and_warnings():
        try:
            original_result, own_result = compute_original_and_own_result()
        except Exception as error:  # noqa: BLE001 - foreign code, whatever it raises is the answer
            return f"it raised {type(error).__name__} ({error}) on a trial pair"
    if original_result.shape != own_result.shape:
        return f"on a trial pair it returned {list(original_result.shape)}, ours {list(own_result.shape)}"
    off = float((original_result - own_result).abs().max() / own_result.abs().max().clamp(min=1e-6))
    return None if off <= _TOLERANCE else f"on a trial pair its values differ by up to {off:.2g} times the largest"


def create_unrecognized_error(subject: str, original_class: type | None, operator: str, reason: str) -> InputError:
    """Return the error that ``subject``, an instance of ``original_class``, is not ``operator``."""
    type_name = "" if original_class is None else f" ({original_class.__module__}.{original_class.__qualname__})"
    return InputError(f"model: {subject}{type_name} is not {operator}: {reason}")


class BlockArguments(NamedTuple):
    """Pair that a block is built for."""

    fmap1: Tensor
    fmap2: Tensor
    levels: int
    radius: int
    on_demand: bool
    """Whether an argument chooses the implementation without a volume."""


@dataclass(frozen=True)
class BlockSignature:
    """Parameters of a block's constructor, or of a function that returns one."""

    names: tuple[str, ...]
    defaults: dict[str, Any]
    levels: str | None
    radius: str | None
    arguments: str | None
    """Parameter that holds ``corr_levels`` and ``corr_radius`` (SEA-RAFT's ``args``), if the two are no parameters."""

    def bind_and_check_arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> BlockArguments:
        """Return the pair that a call requests."""
        values = {**self.defaults, **dict(zip(self.names, args, strict=False)), **kwargs}
        if (
            len(args) > len(self.names)
            or len(values) != len(self.names)
            or any(name not in values for name in self.names)
        ):
            raise TypeError(f"expected the arguments {', '.join(self.names)}, got {len(args)} and {sorted(kwargs)}")
        for name, default in self.defaults.items():
            if name not in (self.levels, self.radius, *_IMPLEMENTATION) and values[name] != default:
                raise InputError(
                    f"{name}: expected {default!r}, which is what the patch computes, got {values[name]!r}"
                )
        fmap1, fmap2 = values[self.names[0]], values[self.names[1]]
        on_demand = any(bool(values.get(name)) for name in _IMPLEMENTATION)
        if self.arguments is not None:
            holder = values[self.arguments]
            return BlockArguments(fmap1, fmap2, holder.corr_levels, holder.corr_radius, on_demand)
        return BlockArguments(fmap1, fmap2, values[self.levels or ""], values[self.radius or ""], on_demand)


def parse_signature_or_explain(block: Callable[..., Any]) -> BlockSignature | str:
    """Return the form, or why it is not a known one."""
    parameters = list(inspect.signature(block).parameters.values())
    names = tuple(p.name for p in parameters)
    defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
    listed = f"its parameters are ({', '.join(names)})"
    if len(names) < 3 or any(p.kind not in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) for p in parameters):
        return listed
    levels = next((n for n in names if n in _LEVELS), None)
    radius = next((n for n in names if n in _RADIUS), None)
    arguments = "args" if "args" in names and levels is None and radius is None else None
    if arguments is None and (levels is None or radius is None):
        return listed
    rest = [n for n in names[2:] if n not in (levels, radius, arguments) and n not in defaults]
    return listed if rest else BlockSignature(names, defaults, levels, radius, arguments)


def build_original_lookup(block: Callable[..., Any], signature: BlockSignature) -> Lookup:
    """Return a function that builds a block and looks up in it."""

    def run_original(fmap1: Tensor, fmap2: Tensor, coords: Tensor, levels: int, radius: int) -> Tensor:
        values: dict[str, Any] = {signature.names[0]: fmap1, signature.names[1]: fmap2}
        if signature.arguments is not None:
            values[signature.arguments] = SimpleNamespace(corr_levels=levels, corr_radius=radius)
        else:
            values.update({signature.levels or "": levels, signature.radius or "": radius})
        result: Tensor = block(**values)(coords)
        return result

    return run_original


def detect_if_pooling_stops_or_explain(original_lookup: Lookup, levels: int = 3) -> bool | str:
    """Return whether a block stops pooling once a map's shorter side is at most the window's, or how it differs."""
    rules = [False, True]
    for size in _TRIALS:
        for rule in tuple(rules):
            reason = describe_difference_or_error_if_any(
                partial(_look_up_with_original_and_ours, original_lookup, size, levels, rule)
            )
            if reason is not None:
                rules.remove(rule)
                if not rules:
                    return reason
    return rules == [True]


def check_lookup_and_detect_if_pooling_stops(
    subject: str,
    original_class: type | None,
    original_lookup: Lookup,
    *,
    may_stop_pooling: bool = False,
    levels: int = 3,
    operator: str = ALL_PAIRS,
) -> bool:
    """Return whether the block stops pooling; InputError for another operator, or one that stops but may not."""
    stops = detect_if_pooling_stops_or_explain(original_lookup, levels)
    if isinstance(stops, str):
        raise create_unrecognized_error(subject, original_class, operator, stops)
    if stops and not may_stop_pooling:
        raise create_unrecognized_error(subject, original_class, operator, "it stops pooling where maps are small")
    return stops


def _look_up_with_original_and_ours(
    original_lookup: Lookup, size: tuple[int, int], levels: int, stops_at_window: bool
) -> tuple[Tensor, Tensor]:
    fmap1, fmap2, coords = _draw_features_and_coords(size)
    maps = pool_feature_pyramid(fmap2, levels, 2, stops_at_window)
    return original_lookup(fmap1, fmap2, coords, levels, 2), correlation_lookup(
        fmap1, maps, coords, 2, backend="reference"
    )


def _draw_features_and_coords(size: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
    height, width = size
    generator = torch.Generator().manual_seed(height)
    fmap1, fmap2 = torch.randn(2, 2, 8, height, width, generator=generator, dtype=torch.float32).unbind()
    spread = torch.tensor([width + 4.0, height + 4.0], dtype=torch.float32).view(1, 2, 1, 1)
    coords = torch.rand(2, 2, height, width, generator=generator, dtype=torch.float32) * spread - 2
    return fmap1, fmap2, coords


# ---- replacements


def get_backend_or_cuda_on_nvidia(device: torch.device, backend: str | None) -> str | None:
    """Return the requested backend, or without one an NVIDIA GPU's kernel, which never gives way to a slower one.

    None: the operator chooses, plain PyTorch on devices without kernels.
    """
    if backend is not None or explain_not_nvidia_gpu(device) is not None:
        return backend
    return "cuda"


def check_backend_runs_and_warn_if_slow(device: torch.device, backend: str | None) -> None:
    """Raise InputError unless the device's kernel, or the requested backend, can run; warn where there is no kernel."""
    name = get_backend_or_cuda_on_nvidia(device, backend) or ("cpu" if device.type == "cpu" else None)
    if name is None:
        reason = explain_not_nvidia_gpu(device)
        warnings.warn(f"model: its lookups run in plain PyTorch, as the kernel {reason}", stacklevel=4)
        return
    reason = dict(explain_backends(device=device))[name]
    if reason is not None:
        raise InputError(f"model: the backend {name!r} cannot serve it on {device}: {reason}")


def autocast_features_and_get_result_dtype(fmap1: Tensor, fmap2: Tensor) -> tuple[Tensor, Tensor, torch.dtype]:
    """Return the features as the original's product would see them, and the dtype of its result."""
    kind = fmap1.device.type
    if not torch.is_autocast_enabled(kind) or fmap1.dtype == torch.float64:
        return fmap1, fmap2, fmap1.dtype
    dtype = torch.get_autocast_dtype(kind)
    return fmap1.to(dtype), fmap2.to(dtype), torch.float32


def build_autocast_correlation_pyramid(
    fmap1: Tensor,
    fmap2: Tensor,
    levels: int,
    radius: int,
    backend: str | None,
    memory_format: torch.memory_format = torch.contiguous_format,
) -> CorrelationPyramid:
    """Prepare a pair as the original's block would see it."""
    first, second, dtype = autocast_features_and_get_result_dtype(fmap1, fmap2)
    resolved = get_backend_or_cuda_on_nvidia(fmap1.device, backend)
    return CorrelationPyramid(
        first, second, levels, radius, backend=resolved, out_dtype=dtype, memory_format=memory_format
    )


def has_level_within_window(fmap2: Tensor, levels: int, radius: int) -> bool:
    """Return whether one of the maps to be pooled is no larger than the window."""
    shorter = min(fmap2.shape[-2:])
    return any(shorter >> level <= 2 * radius + 1 for level in range(levels - 1))


def pool_feature_pyramid(fmap2: Tensor, levels: int, radius: int, stops_at_window: bool) -> list[Tensor]:
    """Return ``fmap2`` and its halvings; with ``stops_at_window``, maps no larger than the window stay as they are."""
    maps = [fmap2]
    for _ in range(levels - 1):
        last = maps[-1]
        keep = stops_at_window and min(last.shape[-2:]) <= 2 * radius + 1
        maps.append(last if keep else torch.nn.functional.avg_pool2d(last, 2))
    return maps


class _WithCorrMap:
    """Attribute that GMFlowNet's matching reads of a block."""

    _maps: tuple[Tensor, Tensor]

    @property
    def corrMap(self) -> Tensor:
        """Whole matrix [B, H1·W1, H2·W2], computed on request."""
        fmap1, fmap2 = self._maps
        products: Tensor = fmap1.flatten(2).transpose(1, 2) @ fmap2.flatten(2)
        return products / math.sqrt(fmap1.shape[1])


class CorrMapBlock(_WithCorrMap, RAFTCorrBlock):
    """RAFT's block with the whole matrix on request."""

    def __init__(self, fmap1: Tensor, fmap2: Tensor, levels: int, radius: int, **options: Any) -> None:
        super().__init__(fmap1, fmap2, levels, radius, **options)
        self._maps = (fmap1, fmap2)


class RebuildingBlock(_WithCorrMap):
    """:class:`CorrMapBlock` that prepares the pair again for every lookup and keeps nothing of it in between."""

    def __init__(self, fmap1: Tensor, fmap2: Tensor, levels: int, radius: int, **options: Any) -> None:
        self._maps = (fmap1, fmap2)
        self._build = partial(RAFTCorrBlock, fmap1, fmap2, levels, radius, **options)

    def __call__(self, coords: Tensor) -> Tensor:
        """Look up around ``coords``."""
        return self._build()(coords)


@dataclass
class _Arguments:
    """SEA-RAFT's arguments; the compiler cannot trace a SimpleNamespace."""

    corr_levels: int
    corr_radius: int


class PoolingLimitedBlock:
    """Block that stops pooling at maps no larger than the window."""

    def __init__(self, fmap1: Tensor, fmap2: Tensor, levels: int, radius: int, backend: str | None) -> None:
        self._fmap1, second, self._dtype = autocast_features_and_get_result_dtype(fmap1, fmap2)
        self._maps = pool_feature_pyramid(second, levels, radius, True)
        self._radius = radius
        self._backend = get_backend_or_cuda_on_nvidia(fmap1.device, backend)

    def __call__(self, coords: Tensor) -> Tensor:
        """Look up around ``coords``."""
        at = coords if coords.dtype == self._fmap1.dtype == torch.float64 else coords.float()
        result = correlation_lookup(self._fmap1, self._maps, at, self._radius, backend=self._backend)
        return result.to(self._dtype)


class BlockBuilder:
    """Callable with the original's signature that returns our block."""

    def __init__(
        self, original: Any, signature: BlockSignature, stops: bool, on_demand: bool, backend: str | None
    ) -> None:
        self._signature = signature
        self._stops = stops
        self._on_demand = on_demand
        self._backend = backend
        call = getattr(original, "__call__", None) if isinstance(original, type) else None  # noqa: B004 - its parameters
        self._dilated = "dilation" in inspect.signature(call).parameters if call is not None else False

    def __call__(self, *args: Any, **kwargs: Any) -> Callable[..., Tensor]:
        """Return our block for the pair that the original is called with."""
        fmap1, fmap2, levels, radius, on_demand = self._signature.bind_and_check_arguments(args, kwargs)
        if self._stops and has_level_within_window(fmap2, levels, radius):
            return PoolingLimitedBlock(fmap1, fmap2, levels, radius, self._backend)
        first, second, dtype = autocast_features_and_get_result_dtype(fmap1, fmap2)
        options: dict[str, Any] = {
            "backend": get_backend_or_cuda_on_nvidia(fmap1.device, self._backend),
            "out_dtype": dtype,
        }
        if self._dilated:
            return SEARAFTCorrBlock(first, second, _Arguments(levels, radius), **options)
        large = (first.numel() + second.numel()) * first.element_size() >= LEAN_BYTES
        graph = torch.is_grad_enabled() and (first.requires_grad or second.requires_grad)
        if (self._on_demand or on_demand) and large and first is fmap1 and not graph:
            return RebuildingBlock(first, second, levels, radius, **options)
        return CorrMapBlock(first, second, levels, radius, **options)

    def __str__(self) -> str:
        return "fullfield's " + (SEARAFTCorrBlock if self._dilated else RAFTCorrBlock).__name__


def _verify_block_and_create_builder(
    name: str, original: Any, location: str, has_recognized_sibling: bool, backend: str | None
) -> BlockBuilder:
    signature = parse_signature_or_explain(original)
    if isinstance(signature, str):
        raise create_unrecognized_error(f"the {name} of {location}", None, ALL_PAIRS, signature)
    on_demand = re.search(_ALTERNATE, name) is not None
    if has_recognized_sibling and on_demand:
        return BlockBuilder(original, signature, False, on_demand, backend)
    stops = check_lookup_and_detect_if_pooling_stops(
        f"the {name} of {location}", None, build_original_lookup(original, signature), may_stop_pooling=True
    )
    return BlockBuilder(original, signature, stops, on_demand, backend)


RECOGNIZERS: dict[str, Recognizer] = {
    r"^(?!Alternate|OL).*CorrBlock|^get_corr_block$": _verify_block_and_create_builder,
    _ALTERNATE: _verify_block_and_create_builder,
}
"""Recognisers by the names under which methods reach blocks. Blocks that can be tried come first."""
