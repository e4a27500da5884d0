"""Optical flow in one call: :func:`estimate` for a pair of frames, :func:`estimate_batch` for several."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fullfield import _check
from fullfield._check import InputError, SetupError
from fullfield.estimators._devices import (
    check_fork_safety_and_record_use,
    choose_common_device_or_default,
    limit_torch_threads,
    to_device,
)
from fullfield.estimators._frames import Frame, FrameBatches, read_pairs_and_find_bars
from fullfield.estimators._reliability import estimate_occlusion_and_confidence
from fullfield.estimators.bars import find_common_bars_of_frames
from fullfield.estimators.flow import Flow
from fullfield.estimators.protocol import (
    Estimator,
    Progress,
    check_estimator,
    find_queue_method,
    may_receive_unchecked_frames,
)
from fullfield.estimators.refined import (
    SHARED_REFINERS,
    QueuedDirections,
    RefinedDirections,
    choose_refined_estimator_or_none,
)
from fullfield.estimators.registry import (
    DEFAULT_METHOD,
    DEFAULT_PRESET,
    METHODS,
    CustomMethod,
    get_method,
    resolve_method_name,
)
from fullfield.ops._filling import interpolate_unknown_pixels
from fullfield.ops.devices import AUTO, resolve_device
from fullfield.ops.tvl1.frames import QueuedFlow

if TYPE_CHECKING:
    from fullfield._config import Config
    from fullfield.io.windows import FrameWindow

logger = logging.getLogger("fullfield")

_HALF = ("fast", "bfloat16")
# Longest vector of an initial flow, in longer sides of the frame.
_MAX_INITIAL_SIDES = 4
_READING_DEFAULTS: Mapping[str, Any] = {
    "part": None,
    "layer": None,
    "alpha": "ignore",
    "window": "display",
    "mask": None,
}


def build_estimator(
    method: str, preset: str | None = None, config: Config | None = None, backend: str | None = None, **parameters: Any
) -> Estimator:
    """Return the estimator called ``method`` with a preset's parameters or a config's, and changes to them."""
    name = resolve_method_name(method)
    entry = get_method(name)
    kind = entry.import_config_class()
    if config is None:
        presets = entry.load_presets()
        preset = DEFAULT_PRESET if preset is None else preset
        _check.check_choice(preset, "preset", presets)
        config = presets[preset]
    else:
        _check.require(type(config) is kind, "config", f"a {kind.__name__}", _check.describe_value(config))
        _check.require(preset is None, "preset", "None with a config", repr(preset))
    own_parameters = [field.name for field in fields(config)]
    for parameter in parameters:
        if parameter not in own_parameters:
            owners = [
                other
                for other, entry in METHODS.items()
                if parameter in {field.name for field in fields(entry.import_config_class())}
            ]
            came = f"one of method={' or '.join(map(repr, owners))}" if owners else "an unknown one"
            hint = "" if owners else _check.format_did_you_mean_hint(parameter, own_parameters)
            raise InputError(
                f"{parameter}: expected a parameter of {name} ({', '.join(own_parameters)}), got {came}{hint}"
            )
    config = config.replace(**parameters) if parameters else config
    if isinstance(entry, CustomMethod):  # it may keep a state, such as the flow before
        return entry.build_estimator(name, config, backend)
    return _get_or_build_cached_estimator(name, config, backend)


@lru_cache(maxsize=2)
def _get_or_build_cached_estimator(name: str, config: Config, backend: str | None) -> Estimator:
    """Return one of the last two estimators if it is the same, so that a loop does not prepare it every time."""
    return get_method(name).build_estimator(name, config, backend)


def release_memory() -> None:
    """Release what :func:`estimate` keeps between calls: networks, solvers and buffers of the last two methods.

    Estimators that you built yourself keep their own; see their method of the same name.
    """
    _get_or_build_cached_estimator.cache_clear()
    SHARED_REFINERS.release_idle_solvers()


def build_or_check_estimator(
    method: str | Estimator,
    *,
    preset: str | None = None,
    config: Config | None = None,
    weights: str | os.PathLike[str] | None = None,
    updates: int | None = None,
    cascade: bool | None = None,
    precision: str | None = None,
    backend: str | None = None,
) -> Estimator:
    """Return :func:`build_estimator` of a name, or the estimator itself, which takes no parameters."""
    explicit: dict[str, Any] = {"preset": preset, "config": config, "weights": weights, "updates": updates}
    explicit |= {"cascade": cascade, "precision": precision, "backend": backend}
    parameters = {name: value for name, value in explicit.items() if value is not None}
    if weights is not None:
        _check.convert_path_to_text(weights, "weights")
    if isinstance(method, str):
        return build_estimator(method, **parameters)
    check_estimator(method, "method", "a name or an Estimator")
    _check.require(not parameters, ", ".join(parameters), "no parameters with an Estimator", f"{len(parameters)}")
    return method


def estimate(
    frame1: Frame,
    frame2: Frame,
    method: str | Estimator = DEFAULT_METHOD,
    *,
    preset: str | None = None,
    config: Config | None = None,
    weights: str | os.PathLike[str] | None = None,
    updates: int | None = None,
    cascade: bool | None = None,
    precision: str | None = None,
    backend: str | None = None,
    device: str | torch.device = AUTO,
    threads: int | None = None,
    transfer: str = "auto",
    part: int | str | None = None,
    layer: str | None = None,
    alpha: str = "ignore",
    window: str | tuple[int, int, int, int] = "display",
    mask: str | None = None,
    color_order: str = "rgb",
    initial_flow: Flow | Frame | None = None,
    refine: bool = False,
    reliability: bool = False,
    progress: Progress | None = None,
) -> Flow:
    """Estimate the optical flow from ``frame1`` to ``frame2``: where each pixel of the first frame went.

    The frames are read, checked and brought to the device; the flow is estimated, refined and judged there. It stays
    on the device: ``flow.cpu()``, ``flow.numpy()`` and ``flow.save(path)`` copy it to the host. What the last two
    methods prepared stays for the next call; :func:`fullfield.estimators.release_memory` releases it. Bars at the edges
    of both frames, such as letterbox, are not matched (``Flow.bars``); in tensors on a GPU they are not looked for.

    Args:
        frame1: a path, a PIL image, an array [H, W(, C)] (uint8, uint16, half, float) or a tensor [C, H, W]; see
            :func:`fullfield.estimators._frames.read_or_convert_frame`. Only a path is turned by its EXIF orientation.
        frame2: the second frame, of the same size.
        method: a name of :data:`fullfield.estimators.METHODS` (``"ptlflow:dpflow"`` for one of ptlflow's models,
            ``"package.module:Class"`` for an estimator of your own), or an :class:`Estimator`. The parameters up to
            ``backend`` are for a method given by name.
        preset: name of a set of parameters, such as ``"fast"``.
        config: all parameters of the method, in place of a preset.
        weights: file of a network's weights, or name of published ones.
        updates: number of flow updates of a network.
        cascade: whether a network estimates large frames at a smaller size first.
        precision: arithmetic of the method.
        backend: backend to use, or to fail.
        device: device to compute on. ``"auto"`` is the frames' device if they are tensors, else the first GPU with
            kernels, else the CPU.
        threads: number of CPU threads of the whole process during the call; None leaves it.
        transfer: encoding of the frames' values; ``"auto"`` decides by file format.
        part: part of OpenEXR frames or page of TIFFs, as in :func:`fullfield.io.read_frame`; so are ``layer``,
            ``alpha`` and ``window``.
        layer: layer of OpenEXR frames.
        alpha: ``"ignore"`` or ``"apply"``.
        window: ``"display"``, ``"data"`` or a box of OpenEXR frames.
        mask: what says where frames given by path are known: a picture for both, a channel of each OpenEXR, or
            ``FILE:CHANNEL``. Where it is 0, outside a data window and at NaN nothing is known: frames are filled from
            their surroundings before they are matched, and ``Flow.valid`` is False where the first is not known.
        color_order: order of the channels of arrays and tensors, ``"rgb"`` or OpenCV's ``"bgr"``.
        initial_flow: flow to start from: a :class:`Flow`, a path, a tensor [2, H, W] or an array [H, W, 2]. In a
            cascade it starts the smallest size; with ``cascade=False`` the frames' own.
        refine: refine the flow to sub-pixel accuracy (:func:`fullfield.ops.tvl1.refine_flow`), which needs the
            backward flow as well; ``"auto"`` does so anyway, except on the CPU with the precision fast or bfloat16.
        reliability: add the probability that a pixel is hidden in the second frame (``Flow.occlusion``) and that its
            flow is right (``Flow.confidence``), which need the backward flow as well.
        progress: receives the fraction done and the current step.

    Returns:
        The flow. From OpenEXR frames it keeps the first one's windows and pixel aspect.

    Raises:
        InputError: if frames do not match or have values of 0 ... 255 in floating point, or an argument does not fit.
        SetupError: an InputError that no frames can mend: a device, package or kernel is missing, the flow is not
            finite, or this process was forked from one that had computed.
        FileNotFoundError: if a file does not exist.

    >>> flow = estimate("a.png", "b.png", preset="fast")  # doctest: +SKIP
    >>> flow = estimate("a.png", "b.png", "raft", weights="raft-things.pth", device="cuda")  # doctest: +SKIP
    """
    # Build the estimator.
    estimator = build_or_check_estimator(
        method,
        preset=preset,
        config=config,
        weights=weights,
        updates=updates,
        cascade=cascade,
        precision=precision,
        backend=backend,
    )
    reading = _check_mask_and_select_non_default_reading_options(
        part=part, layer=layer, alpha=alpha, window=window, mask=mask
    )
    with limit_torch_threads(threads):
        # Choose the device, read the frames onto it and check that they fit together; read where the flow starts.
        target = _choose_device_and_check_process(device, (frame1, frame2))
        names = ("frame1", "frame2")
        defers = _may_defer_value_check(estimator, target, initial_flow, progress)
        pairs = read_pairs_and_find_bars(
            [frame1], [frame2], names, transfer, target, color_order, defers_value_check=defers, **reading
        )
        start = None if initial_flow is None else _load_stack_and_check_initial_flows([initial_flow], pairs.frames[0])
        frame_window = _read_window_if_exr(frame1, reading)

        # Estimate the flow, refine it, judge it and return it.
        return _estimate_flows_and_check_values(estimator, pairs, start, refine, reliability, progress, frame_window)[0]


def estimate_batch(
    frames1: Tensor | Sequence[Frame],
    frames2: Tensor | Sequence[Frame],
    method: str | Estimator = DEFAULT_METHOD,
    *,
    preset: str | None = None,
    config: Config | None = None,
    weights: str | os.PathLike[str] | None = None,
    updates: int | None = None,
    cascade: bool | None = None,
    precision: str | None = None,
    backend: str | None = None,
    device: str | torch.device = AUTO,
    threads: int | None = None,
    transfer: str = "auto",
    part: int | str | None = None,
    layer: str | None = None,
    alpha: str = "ignore",
    window: str | tuple[int, int, int, int] = "display",
    mask: str | None = None,
    color_order: str = "rgb",
    initial_flow: Tensor | Sequence[Flow | Frame] | None = None,
    refine: bool = False,
    reliability: bool = False,
    progress: Progress | None = None,
) -> list[Flow]:
    """Estimate the flow of several pairs of one size in one call.

    Networks and TV-L1 take all pairs at once, so memory grows with their number. Bars are those that all frames have.
    Arguments that are not listed are as for :func:`estimate`.

    Args:
        frames1: first frames: a tensor [B, C, H, W], which is not copied if it is float32 on ``device``, or a list of
            what :func:`estimate` takes.
        frames2: second frames, as many.
        method: as for :func:`estimate`.
        preset: as for :func:`estimate`.
        config: as for :func:`estimate`.
        weights: as for :func:`estimate`.
        updates: as for :func:`estimate`.
        cascade: as for :func:`estimate`.
        precision: as for :func:`estimate`.
        backend: as for :func:`estimate`.
        device: as for :func:`estimate`.
        threads: as for :func:`estimate`.
        transfer: as for :func:`estimate`.
        part: as for :func:`estimate`.
        layer: as for :func:`estimate`.
        alpha: as for :func:`estimate`.
        window: as for :func:`estimate`.
        mask: as for :func:`estimate`.
        color_order: as for :func:`estimate`.
        initial_flow: flows to start from, one for each pair: a tensor [B, 2, H, W], or a list.
        refine: as for :func:`estimate`.
        reliability: as for :func:`estimate`.
        progress: as for :func:`estimate`.

    Returns:
        One flow per pair. Their tensors share memory; ``seconds`` is the time of the whole call.

    Raises:
        InputError: as for :func:`estimate`.

    >>> flows = estimate_batch(first, second, "fullfield-s", preset="fast", device="cuda")  # doctest: +SKIP
    """
    estimator = build_or_check_estimator(
        method,
        preset=preset,
        config=config,
        weights=weights,
        updates=updates,
        cascade=cascade,
        precision=precision,
        backend=backend,
    )
    listed = [frames for frames in (frames1, frames2) if isinstance(frames, (list, tuple))]
    tensors = [frames for frames in (frames1, frames2) if isinstance(frames, Tensor)]
    reading = _check_mask_and_select_non_default_reading_options(
        part=part, layer=layer, alpha=alpha, window=window, mask=mask
    )
    with limit_torch_threads(threads):
        target = _choose_device_and_check_process(device, (*tensors, *(frame for frames in listed for frame in frames)))
        names = ("frames1", "frames2")
        defers = _may_defer_value_check(estimator, target, initial_flow, progress)
        pairs = read_pairs_and_find_bars(
            frames1, frames2, names, transfer, target, color_order, defers_value_check=defers, **reading
        )
        start = None if initial_flow is None else _load_stack_and_check_initial_flows(initial_flow, pairs.frames[0])
        return _estimate_flows_and_check_values(estimator, pairs, start, refine, reliability, progress)


def estimate_tensors(
    frame1: Tensor,
    frame2: Tensor,
    estimator: Estimator,
    *,
    device: str | torch.device = AUTO,
    initial_flow: Tensor | None = None,
    progress: Progress | None = None,
    refine: bool = False,
    reliability: bool = False,
    valid1: Tensor | None = None,
    valid2: Tensor | None = None,
) -> Flow:
    """Estimate the flow of frames [C, H, W] that were read before; see :func:`estimate`.

    ``valid1`` and ``valid2``, bool [H, W], say where the frames are known; elsewhere they are filled. Bars are looked
    for in frames in the host's memory.
    """
    target = _choose_device_and_check_process(device, ())
    size = f"{frame1.shape[-1]}×{frame1.shape[-2]}"
    _check.require(frame1[0].numel() > 1, "frame1", "more than one pixel", size)
    first, second = (to_device(frame, target)[None] for frame in (frame1, frame2))
    channels = max(first.shape[1], second.shape[1])
    pair = first.expand(-1, channels, -1, -1), second.expand(-1, channels, -1, -1)
    start = None if initial_flow is None else _load_stack_and_check_initial_flows([initial_flow], first)
    masks = (None if valid is None else to_device(valid, target)[None] for valid in (valid1, valid2))
    is_on_host = frame1.device.type == frame2.device.type == "cpu"
    bars = find_common_bars_of_frames(frame1, frame2) if is_on_host else None
    pairs = FrameBatches(pair, (next(masks), next(masks)), bars)
    return _estimate_flows_and_check_values(estimator, pairs, start, refine, reliability, progress)[0]


def _check_mask_and_select_non_default_reading_options(**options: Any) -> dict[str, Any]:
    """Check the mask's type; return the options that differ from the defaults, which arrays and tensors refuse."""
    mask = options["mask"]
    _check.require(mask is None or isinstance(mask, str), "mask", "the name of a file or channel", mask)
    return {name: value for name, value in options.items() if value != _READING_DEFAULTS[name]}


def _choose_device_and_check_process(device: str | torch.device, frames: Sequence[object]) -> torch.device:
    """Return the device to compute on, once it is known that this process can compute there."""
    if torch.get_default_device().type == "meta":
        raise InputError("device: expected a device that holds values, got a torch.device('meta') context")
    is_auto = isinstance(device, str) and device == AUTO
    target = choose_common_device_or_default(frames) if is_auto else resolve_device(device)
    check_fork_safety_and_record_use(target)
    return target


def _may_defer_value_check(
    estimator: Estimator, device: torch.device, initial_flow: object, progress: Progress | None
) -> bool:
    """Return whether the check of the frames' values should and may be read after the flow.

    Until then a GPU computes without waiting for the host. Nobody notices, since the first error stays that of a frame.
    """
    nothing_precedes = initial_flow is None and progress is None
    return device.type == "cuda" and nothing_precedes and may_receive_unchecked_frames(estimator)


def _estimate_flows_and_check_values(
    estimator: Estimator,
    pairs: FrameBatches,  # on the device to compute on
    initial_flow: Tensor | None,  # [B, 2, H, W] on that device
    refine: bool,
    reliability: bool,
    progress: Progress | None,
    window: FrameWindow | None = None,
) -> list[Flow]:
    """Estimate the flow of pairs that were read, refine it and judge it; a bad frame is the first error."""
    try:
        flows = _estimate_flows_without_value_check(
            estimator, pairs, initial_flow, refine, reliability, progress, window
        )
    except Exception:
        if pairs.value_check is not None:
            pairs.value_check.raise_or_warn_if_out_of_range()
        raise
    if pairs.value_check is not None:
        pairs.value_check.raise_or_warn_if_out_of_range()
    return flows


def _estimate_flows_without_value_check(
    estimator: Estimator,
    pairs: FrameBatches,
    initial_flow: Tensor | None,
    refine: bool,
    reliability: bool,
    progress: Progress | None,
    window: FrameWindow | None,
) -> list[Flow]:
    """Do as :func:`_estimate_flows_and_check_values` does, but leave the check of the frames' values to it."""
    for name, value in (("refine", refine), ("reliability", reliability)):
        _check.require(isinstance(value, bool), name, "True or False", value)
    started_at = time.perf_counter()
    bars, pairs = pairs.bars, pairs.crop_bars_if_any()
    if bars is not None and initial_flow is not None:
        initial_flow = bars.crop(initial_flow)

    # Estimate the flow and refine it. The refinement and the reliability need the backward flow as well.
    refiner = choose_refined_estimator_or_none(
        estimator, pairs.frames[0].device, refine=refine, needs_backward=reliability
    )
    source: Estimator = estimator if refiner is None else refiner
    both: QueuedDirections | None = None
    queue = find_queue_method(estimator) if refiner is None else None
    if pairs.value_check is not None and queue is None:
        pairs.value_check.measure_if_needed()
    if queue is not None:
        queued = queue(*pairs.frames, initial_flow=initial_flow, progress=progress)
    elif refiner is None:
        queued = QueuedFlow(estimator(*pairs.frames, initial_flow=initial_flow, progress=progress))
    else:
        both = refiner.estimate_both_and_queue_refinement(
            *pairs.frames, initial_flow=initial_flow, log_scale=reliability, progress=progress
        )
        queued = QueuedFlow(both.directions.forward, both.wait_and_check)
    flow = queued.flow
    if pairs.value_check is not None and queue is not None:
        pairs.value_check.measure_if_needed()  # behind the flow, which the GPU began at once
    flow = _interpolate_invalid_vectors(flow, pairs.valid[0])

    # Judge where the flow is occluded and how probably it is right.
    judged, judging_seconds = None, {}
    if reliability and both is not None:
        both.wait_and_check()
        judging_started_at = time.perf_counter()
        judged = _compute_occlusion_and_confidence(pairs, flow, both.directions)
        judging_seconds["reliability"] = time.perf_counter() - judging_started_at

    # Check the flow. This waits for the device, so what is to be computed there is queued before.
    flow = _check_flow_and_convert_to_float32(flow, source, pairs.frames[0])
    everywhere = torch.ones(flow.shape[2:], dtype=torch.bool, device=flow.device).expand(len(flow), -1, -1)
    extremes = torch.stack(torch.aminmax(flow))
    parameters = dict(source.parameters)
    queued.wait_and_check()
    _check_finite_flow(flow, extremes, source)
    seconds = time.perf_counter() - started_at
    _log_estimation(source, flow, seconds)

    # Return the flow of each pair with how it was computed.
    origin = source.method, source.backend, parameters, seconds, window
    stages = {} if both is None else {**both.directions.seconds, **judging_seconds}
    valid = everywhere if pairs.valid[0] is None else pairs.valid[0]
    if bars is not None:
        flow, valid = bars.pad(flow, 0.0), bars.pad(valid, False)
        judged = judged and (bars.pad(judged[0], 1.0), bars.pad(judged[1], 0.0))
    no_maps: Sequence[Tensor | None] = [None] * len(flow)
    occlusion, confidence = (no_maps, no_maps) if judged is None else map(list, judged)
    return [
        Flow(vectors, is_known, *origin, is_hidden, is_right, stages, bars)
        for vectors, is_known, is_hidden, is_right in zip(flow, valid, occlusion, confidence, strict=True)
    ]


def _interpolate_invalid_vectors(flow: Tensor, valid: Tensor | None) -> Tensor:
    """Return a flow [B, 2, H, W] whose vectors outside ``valid`` [B, H, W] come from their surroundings."""
    if valid is None:
        return flow
    return torch.stack(
        [interpolate_unknown_pixels(vectors.float(), mask) for vectors, mask in zip(flow, valid, strict=True)]
    )


def _compute_occlusion_and_confidence(
    pairs: FrameBatches, flow: Tensor, directions: RefinedDirections
) -> tuple[Tensor, Tensor]:
    """Return the occlusion and the confidence of a flow, float32 [B, H, W] each."""
    occlusion, confidence = estimate_occlusion_and_confidence(
        *pairs.frames, flow, directions.backward, directions.log_scale, valid1=pairs.valid[0], valid2=pairs.valid[1]
    )
    return occlusion.float(), confidence.float()


def _check_flow_and_convert_to_float32(flow: Tensor, estimator: Estimator, frame1: Tensor) -> Tensor:
    """Return a flow of ``frame1`` [B, C, H, W] as float32 [B, 2, H, W] on its device."""
    shape = (len(frame1), 2, *frame1.shape[2:])
    return _check.check_tensor(flow, f"the flow of {estimator.method}", shape).to(frame1.device, torch.float32)


def _check_finite_flow(flow: Tensor, min_and_max: Tensor, estimator: Estimator) -> None:
    """Raise a SetupError if a flow [B, 2, H, W], whose lowest and highest value are ``min_and_max``, is not finite."""
    if np.isfinite(min_and_max.tolist()).all():  # the extremes of values with NaN are NaN
        return
    lost = int((~flow.isfinite()).any(1).sum())
    half = str(estimator.parameters.get("precision")) in _HALF
    reason = "overflowed in half precision (precision='exact' computes in float32), or " if half else ""
    raise SetupError(
        f"method: the flow is NaN or infinite at {lost} pixel{'' if lost == 1 else 's'}; {estimator.method} {reason}"
        "has weights that are not finite, or parameters too far from a preset's"
    )


def _log_estimation(estimator: Estimator, flow: Tensor, seconds: float) -> None:
    size = f"{flow.shape[3]}x{flow.shape[2]} on {flow.device}"
    logger.debug("%s at %s: backend %s, %.3f s", estimator.method, size, estimator.backend, seconds)


def _read_window_if_exr(frame: object, reading: dict[str, Any]) -> FrameWindow | None:
    """Return the place of an OpenEXR frame's flow; None for any other frame."""
    if not isinstance(frame, (str, os.PathLike)) or not os.fspath(frame).lower().endswith(".exr"):
        return None
    from fullfield.io import read_frame_window
    from fullfield.io.windows import resolve_window_to_box

    window = read_frame_window(frame, **{name: reading[name] for name in ("part", "layer") if name in reading})
    return window._replace(data=resolve_window_to_box(reading.get("window", "display"), window.data, window.display))


def _load_stack_and_check_initial_flows(flows: Tensor | Sequence[Flow | Frame], frames: Tensor) -> Tensor:
    """Return initial flows as one checked tensor [B, 2, H, W] on the device of ``frames`` [B, C, H, W]."""
    batch, _, height, width = frames.shape
    if not isinstance(flows, Tensor):
        is_valid = isinstance(flows, (list, tuple)) and len(flows) == batch
        expected = f"a tensor [{batch}, 2, {height}, {width}] or a list of {batch} flow{'' if batch == 1 else 's'}"
        _check.require(is_valid, "initial_flow", expected, flows)
        flows = torch.stack([_load_initial_flow_with_unknown_as_zero(flow, (2, height, width)) for flow in flows])
    start = _check.check_tensor(flows, "initial_flow", (batch, 2, height, width))
    _check.require(start.is_floating_point(), "initial_flow", "a floating dtype", start)
    start = to_device(_check.check_not_meta(start, "initial_flow"), frames.device)
    longest = float(start.abs().amax()) if start.numel() else 0.0  # NaN stays NaN
    _check.require(bool(np.isfinite(longest)), "initial_flow", "finite values", "NaN or infinity")
    limit = _MAX_INITIAL_SIDES * max(height, width)
    expected = f"vectors of at most {limit} px for frames of {width}×{height}"
    _check.require(longest <= limit, "initial_flow", expected, f"one of {longest:.6g} px")
    return start


def _load_initial_flow_with_unknown_as_zero(flow: Flow | Frame, shape: tuple[int, ...]) -> Tensor:
    """Return an initial flow as a tensor [2, H, W], unknown vectors as zeros."""
    if isinstance(flow, (str, os.PathLike)):
        flow = Flow.load(flow)
    if isinstance(flow, Flow):
        flow = torch.where(flow.valid, _check.check_not_meta(flow.flow, "initial_flow"), 0.0)
    elif isinstance(flow, np.ndarray) and flow.ndim == 3:
        flow = torch.from_numpy(np.ascontiguousarray(np.moveaxis(flow, 2, 0), np.float32))
    elif isinstance(flow, Tensor) and flow.ndim == 4 and len(flow) == 1:
        flow = flow[0]
    return _check.check_not_meta(_check.check_tensor(flow, "initial_flow", shape), "initial_flow")
