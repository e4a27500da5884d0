"""Optical flow in one call: :func:`estimate` for a pair of frames, :func:`estimate_batch` for several."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from dataclasses import fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fullfield import _check
from fullfield._check import InputError
from fullfield.estimators.devices import check_fork, to_device
from fullfield.estimators.flow import Flow
from fullfield.estimators.frames import Frame, as_batches
from fullfield.estimators.protocol import Estimator, Progress, check_estimator
from fullfield.estimators.refined import RefinedEstimator, refiner_of
from fullfield.estimators.registry import DEFAULT_METHOD, DEFAULT_PRESET, METHODS, canonical, method_of
from fullfield.estimators.reliability import occlusion_and_confidence

if TYPE_CHECKING:
    from fullfield.io import FrameWindow

logger = logging.getLogger("fullfield")

_READING = ("part", "layer", "alpha", "window")
_HALF = ("fast", "bfloat16")


def build(
    method: str, preset: str | None = None, config: Any = None, backend: str | None = None, **parameters: Any
) -> Estimator:
    """Return the estimator called ``method`` with a preset's parameters or a config's, and changes to them."""
    name = canonical(method)
    entry = method_of(name)
    kind = entry.load()
    if config is None:
        presets = entry.presets()
        preset = DEFAULT_PRESET if preset is None else preset
        _check.choice(preset, "preset", presets)
        config = presets[preset]
    else:
        _check.require(type(config) is kind, "config", f"a {kind.__name__}", _check.describe(config))
        _check.require(preset is None, "preset", "None with a config", repr(preset))
    known = config.as_dict()
    for parameter in parameters:
        if parameter not in known:
            whose = [
                other for other, entry in METHODS.items() if parameter in {field.name for field in fields(entry.load())}
            ]
            came = f"one of method={' or '.join(map(repr, whose))}" if whose else "an unknown one"
            hint = "" if whose else _check.nearest(parameter, list(known))
            raise InputError(f"{parameter}: expected a parameter of {name} ({', '.join(known)}), got {came}{hint}")
    config = config.replace(**parameters)
    return _kept(name, config, backend) if entry.has_weights else entry.build(name, config, backend)


@lru_cache(maxsize=1)
def _kept(name: str, config: Any, backend: str | None) -> Estimator:
    """Return the network of the last call if it is the same, so that a loop does not load it every time."""
    return method_of(name).build(name, config, backend)


def estimator_of(method: str | Estimator, **parameters: Any) -> Estimator:
    """Return :func:`build` of a name, or the estimator itself, which takes no parameters."""
    if isinstance(method, str):
        return build(method, **parameters)
    check_estimator(method, "method", "a name or an Estimator")
    _check.require(not parameters, ", ".join(parameters), "no parameters with an Estimator", f"{len(parameters)}")
    return method


def estimate(
    frame1: Frame,
    frame2: Frame,
    method: str | Estimator = DEFAULT_METHOD,
    *,
    transfer: str = "auto",
    device: str | torch.device = "cpu",
    initial_flow: Flow | Frame | None = None,
    progress: Progress | None = None,
    **parameters: Any,
) -> Flow:
    """Estimate the optical flow from ``frame1`` to ``frame2``: where each pixel of the first frame went.

    The result stays on ``device``: ``flow.cpu()``, ``flow.numpy()`` and ``flow.save(path)`` copy it to the host. For
    many pairs see :func:`estimate_batch`.

    Args:
        frame1: a path, a PIL image, an array [H, W(, C)] (uint8, uint16, half, float) or a tensor [C, H, W]; see
            :func:`fullfield.estimators.as_frame`.
        frame2: the second frame, of the same size.
        method: a name of :data:`fullfield.estimators.METHODS` (``"ptlflow:dpflow"`` for one of ptlflow's models), or
            an :class:`Estimator`, which keeps its buffers between calls. Of the networks given by name, the last one
            is kept with its weights.
        transfer: encoding of the frames' values; ``"auto"`` decides by file format.
        device: where to compute.
        initial_flow: flow to start from: a :class:`Flow`, a path, a tensor [2, H, W] or an array [H, W, 2]. In a
            cascade it starts the smallest size; with ``cascade=False`` the frames' own.
        progress: receives the fraction done and the current step.
        **parameters: for a method given by name: ``preset`` or ``config``, ``backend``, and fields of the
            configuration to change, such as ``weights`` and ``updates`` of a network. When frames are paths, ``part``,
            ``layer``, ``alpha`` and ``window`` apply to both, as in :func:`fullfield.io.read_frame`. With any
            method, both False by default: ``refine`` refines the flow to sub-pixel accuracy
            (:func:`fullfield.ops.tvl1.refine_flow`); ``reliability`` adds the probability that a pixel is hidden in
            the second frame (``Flow.occlusion``) and that its flow is right (``Flow.confidence``). Either makes the
            method compute the backward flow as well.

    Returns:
        The flow. From OpenEXR frames it keeps the first one's windows and pixel aspect.

    Raises:
        InputError: if frames do not match or have values of 0 ... 255 in floating point, a parameter is unknown, the
            flow is not finite, or this process was forked from one that had computed.
        FileNotFoundError: if a file does not exist.

    >>> flow = estimate("a.png", "b.png", preset="fast")  # doctest: +SKIP
    >>> flow = estimate("a.png", "b.png", "raft", weights="raft-things.pth", device="cuda")  # doctest: +SKIP
    """
    options = _options(parameters)
    estimator = estimator_of(method, **parameters)
    place = _ready(device)
    pair = as_batches([frame1], [frame2], ("frame1", "frame2"), transfer, place, **options.reading)
    start = None if initial_flow is None else _initial(initial_flow, (2, *pair[0].shape[2:]))[None]
    window = _window(frame1, options.reading)
    return _estimated(estimator, pair, start, options, progress, window)[0]


def estimate_batch(
    frames1: Tensor | Sequence[Frame],
    frames2: Tensor | Sequence[Frame],
    method: str | Estimator = DEFAULT_METHOD,
    *,
    transfer: str = "auto",
    device: str | torch.device = "cpu",
    progress: Progress | None = None,
    **parameters: Any,
) -> list[Flow]:
    """Estimate the flow of several pairs of one size in one call.

    Networks and TV-L1 take all pairs at once, so memory grows with their number.

    Args:
        frames1: first frames: a tensor [B, C, H, W], which is not copied if it is float32 on ``device``, or a list of
            what :func:`estimate` takes.
        frames2: second frames, as many.
        method: as for :func:`estimate`.
        transfer: as for :func:`estimate`.
        device: where to compute.
        progress: as for :func:`estimate`.
        **parameters: as for :func:`estimate`.

    Returns:
        One flow per pair. Their tensors share memory; ``seconds`` is the time of the whole call.

    Raises:
        InputError: as for :func:`estimate`.

    >>> flows = estimate_batch(first, second, "fullfield-s", preset="fast", device="cuda")  # doctest: +SKIP
    """
    options = _options(parameters)
    estimator = estimator_of(method, **parameters)
    place = _ready(device)
    pairs = as_batches(frames1, frames2, ("frames1", "frames2"), transfer, place, **options.reading)
    return _estimated(estimator, pairs, None, options, progress)


def estimate_tensors(
    frame1: Tensor,
    frame2: Tensor,
    estimator: Estimator,
    *,
    device: str | torch.device = "cpu",
    initial_flow: Tensor | None = None,
    progress: Progress | None = None,
    refine: bool = False,
    reliability: bool = False,
) -> Flow:
    """Estimate the flow of frames [C, H, W] that :func:`fullfield.io.read_frame` returned; see :func:`estimate`."""
    place = _ready(device)
    size = f"{frame1.shape[-1]}×{frame1.shape[-2]}"
    _check.require(frame1[0].numel() > 1, "frame1", "more than one pixel", size)
    first, second = (to_device(frame, place)[None] for frame in (frame1, frame2))
    channels = max(first.shape[1], second.shape[1])
    pair = first.expand(-1, channels, -1, -1), second.expand(-1, channels, -1, -1)
    start = None if initial_flow is None else initial_flow[None]
    return _estimated(estimator, pair, start, _Options({}, refine, reliability), progress)[0]


class _Options:
    """Requests of the keyword arguments other than the method's parameters."""

    def __init__(self, reading: dict[str, Any], refine: object, reliability: object) -> None:
        for name, value in (("refine", refine), ("reliability", reliability)):
            _check.require(isinstance(value, bool), name, "True or False", value)
        self.reading, self.refine, self.reliability = reading, bool(refine), bool(reliability)


def _options(parameters: dict[str, Any]) -> _Options:
    """Take the options out of ``parameters``."""
    reading = {name: parameters.pop(name) for name in _READING if name in parameters}
    return _Options(reading, parameters.pop("refine", False), parameters.pop("reliability", False))


def _ready(device: str | torch.device) -> torch.device:
    """Return the device with its index, once it is known that this process can compute there."""
    place = torch.empty(0, device=_check.device(device)).device
    check_fork(place)
    return place


def _estimated(
    estimator: Estimator,
    pair: tuple[Tensor, Tensor],  # [B, C, H, W] float32 on the device to compute on
    start: Tensor | None,
    options: _Options,
    progress: Progress | None,
    window: FrameWindow | None = None,
) -> list[Flow]:
    place, shape = pair[0].device, (len(pair[0]), 2, *pair[0].shape[2:])
    start = None if start is None else to_device(start, place)
    begin = time.perf_counter()
    source: Estimator = estimator
    stages: dict[str, float] = {}
    maps: tuple[Tensor, Tensor] | tuple[None, None] = (None, None)
    both = refiner_of(estimator, place, refine=options.refine)
    if both is None and options.reliability:
        both = estimator if isinstance(estimator, RefinedEstimator) else RefinedEstimator(estimator, refine=False)
    if both is not None:
        found = both.directions(*pair, initial_flow=start, progress=progress)
        source, flow = both, found.forward
        stages.update(found.seconds)
        if options.reliability:
            begin_maps = time.perf_counter()
            maps = occlusion_and_confidence(*pair, found.forward, found.backward, found.log_scale)
            maps = maps[0].float(), maps[1].float()
            stages["reliability"] = time.perf_counter() - begin_maps
    else:
        flow = estimator(*pair, initial_flow=start, progress=progress)
    flow = _check.tensor(flow, f"the flow of {source.method}", shape).to(place, torch.float32)
    _check_finite(flow, source)  # waits for the device
    seconds = time.perf_counter() - begin
    where = f"{shape[3]}x{shape[2]} on {place}"
    logger.debug("%s at %s: backend %s, %.3f s", source.method, where, source.backend, seconds)
    valid = torch.ones(shape[2:], dtype=torch.bool, device=flow.device)
    facts = source.method, source.backend, dict(source.parameters), seconds, window
    occlusion, confidence = ([None] * len(flow) if planes is None else planes for planes in maps)
    return [
        Flow(one, valid, *facts, hidden, sure, stages)
        for one, hidden, sure in zip(flow, occlusion, confidence, strict=True)
    ]


def _check_finite(flow: Tensor, source: Estimator) -> None:
    """Refuse a flow that is not finite; one number is copied to the host."""
    if bool(flow.isfinite().all()):
        return
    lost = int((~flow.isfinite()).any(1).sum())
    half = str(source.parameters.get("precision")) in _HALF
    reason = "overflowed in half precision (precision='exact' computes in float32), or " if half else ""
    raise InputError(
        f"method: the flow is NaN or infinite at {lost} pixel{'' if lost == 1 else 's'}; {source.method} {reason}has "
        "weights that are not finite, or parameters too far from a preset's"
    )


def _window(frame: object, reading: dict[str, Any]) -> FrameWindow | None:
    """Return the place of an OpenEXR frame's flow; None for any other frame."""
    if not isinstance(frame, (str, os.PathLike)) or not os.fspath(frame).lower().endswith(".exr"):
        return None
    from fullfield.io import frame_window
    from fullfield.io.windows import select

    found = frame_window(frame, **{name: reading[name] for name in ("part", "layer") if name in reading})
    return found._replace(data=select(reading.get("window", "display"), found.data, found.display))


def _initial(flow: Flow | Frame, shape: tuple[int, ...]) -> Tensor:
    if isinstance(flow, (str, os.PathLike)):
        flow = Flow.load(flow)
    if isinstance(flow, Flow):
        flow = flow.flow
    elif isinstance(flow, np.ndarray) and flow.ndim == 3:
        flow = torch.from_numpy(np.ascontiguousarray(np.moveaxis(flow, 2, 0), np.float32))
    elif isinstance(flow, Tensor) and flow.ndim == 4 and len(flow) == 1:
        flow = flow[0]
    return _check.values(_check.tensor(flow, "initial_flow", shape), "initial_flow")
