"""The one function most people need."""

from __future__ import annotations

import os
import time
from dataclasses import fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fullfield import _check
from fullfield._check import InputError
from fullfield.estimators.flow import Flow
from fullfield.estimators.frames import Frame, as_frames, label
from fullfield.estimators.network_config import PREFIX
from fullfield.estimators.protocol import Estimator, Progress, check_estimator
from fullfield.estimators.refined import RefinedEstimator, refiner_of
from fullfield.estimators.registry import DEFAULT_METHOD, DEFAULT_PRESET, METHODS, canonical, method_of
from fullfield.estimators.reliability import occlusion_and_confidence
from fullfield.estimators.tvl1 import TVL1Estimator

if TYPE_CHECKING:
    from fullfield.io import FrameWindow


_READING = ("part", "layer", "alpha", "window")
_MAPS = ("occlusion", "confidence")


def build(
    method: str, preset: str | None = None, config: Any = None, backend: str | None = None, **parameters: Any
) -> Estimator:
    """The estimator called ``method`` with the parameters of a preset or a config, and changes to them."""
    name = canonical(method)
    kind = method_of(name).load()
    if config is None:
        presets = method_of(name).presets()
        preset = DEFAULT_PRESET if preset is None else preset
        _check.choice(preset, "preset", presets)
        config = presets[preset]
    else:
        _check.require(type(config) is kind, "config", f"a {kind.__name__}", _check.describe(config))
        _check.require(preset is None, "preset", "none beside a config", repr(preset))
    known = config.as_dict()
    for parameter in parameters:
        if parameter not in known:
            whose = [
                other for other, entry in METHODS.items() if parameter in {field.name for field in fields(entry.load())}
            ]
            came = (
                f"one of method={' or '.join(map(repr, whose))}"
                if whose
                else f"an unknown one{_check.nearest(parameter, [*known])}"
            )
            raise InputError(f"{parameter}: expected a parameter of {name} ({', '.join(known)}), got {came}")
    config = config.replace(**parameters)
    if name == "tvl1":
        return TVL1Estimator(config, backend=backend)
    return _kept(name, config, backend)


@lru_cache(maxsize=1)
def _kept(name: str, config: Any, backend: str | None) -> Estimator:
    """The last network that was named, so that a loop does not load it every time."""
    if name == "auto":
        from fullfield.estimators.auto import AutoEstimator

        return AutoEstimator(config, backend=backend)
    if name.startswith(PREFIX):
        from fullfield.estimators.ptlflow import PtlflowEstimator

        return PtlflowEstimator(name, config, backend=backend)
    from fullfield.estimators.network import NetworkEstimator

    return NetworkEstimator(name, config, backend=backend)


def estimator_of(method: str | Estimator, **parameters: Any) -> Estimator:
    """:func:`build` of a name; an estimator itself, beside which there are no parameters."""
    if isinstance(method, str):
        return build(method, **parameters)
    check_estimator(method, "method", "a name or an Estimator")
    _check.require(not parameters, ", ".join(parameters), "no parameters beside an Estimator", f"{len(parameters)}")
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
    """Optical flow from ``frame1`` to ``frame2``: where each pixel of the first frame went.

    Args:
        frame1, frame2: paths, arrays [H, W(, C)] (uint8, uint16, half, float) or tensors [C, H, W], of one size;
            see :func:`fullfield.estimators.as_frame`.
        method: a name of :data:`fullfield.estimators.METHODS` (``"ptlflow:dpflow"`` for one of ptlflow's models), or
            an :class:`Estimator`, which keeps its buffers between calls. Of the networks that are named, the last one
            is kept with its weights.
        transfer: how the frames' values are encoded; ``"auto"`` decides by file format.
        device: where to compute.
        initial_flow: to start from: a :class:`Flow`, a path, a tensor [2, H, W] or an array [H, W, 2]. Where frames
            cascade, it starts the smallest size; ``cascade=False`` starts the frames' own.
        progress: called with the fraction done and what is being worked on.
        **parameters: for a method given by name: ``preset`` or ``config``, ``backend``, and fields of the
            configuration to change, such as ``weights`` and ``updates`` of a network. For frames given by path
            ``part``, ``layer``, ``alpha`` and ``window``, as for :func:`fullfield.io.read_frame`, of both. With any
            method, both False by default: ``refine`` makes the flow exact (:func:`fullfield.ops.tvl1.refine_flow`);
            ``reliability`` tells how likely each pixel is to be hidden in the second frame (``Flow.occlusion``), and
            its flow to be right (``Flow.confidence``). For either the method is asked for the flow back as well.

    The flow of OpenEXR frames keeps the first one's windows and pixel aspect.

    Returns a :class:`Flow`. Raises InputError for frames that cannot be matched, unknown parameters or a flow that is
    not finite, FileNotFoundError for a missing file.

    >>> flow = estimate("a.png", "b.png", preset="fast")  # doctest: +SKIP
    >>> flow = estimate("a.png", "b.png", "raft", weights="raft-things.pth", device="cuda")  # doctest: +SKIP
    """
    reading = {name: parameters.pop(name) for name in _READING if name in parameters}
    refine, reliability = (_switch(name, parameters.pop(name, False)) for name in ("refine", "reliability"))
    estimator = estimator_of(method, **parameters)
    place = _check.device(device)
    labels = label(frame1, "frame1"), label(frame2, "frame2")
    first, second = _matched(*as_frames((frame1, frame2), labels, transfer, **reading), *labels)
    start_flow = None if initial_flow is None else _initial(initial_flow, (2, *first.shape[1:]))[None].to(place)
    pair = first[None].to(place), second[None].to(place)
    begin = time.perf_counter()
    maker: Estimator = estimator
    stages: dict[str, float] = {}
    maps: dict[str, Tensor] = {}
    both = refiner_of(estimator, place, refine=refine)
    if both is None and reliability:
        both = estimator if isinstance(estimator, RefinedEstimator) else RefinedEstimator(estimator, refine=False)
    if both is not None:
        found = both.directions(*pair, initial_flow=start_flow, progress=progress)
        maker, flow = both, found.forward
        stages.update(found.seconds)
        if reliability:
            begin_maps = time.perf_counter()
            planes = occlusion_and_confidence(*pair, found.forward, found.backward, found.log_scale)
            maps = {name: plane[0].to("cpu", torch.float32) for name, plane in zip(_MAPS, planes, strict=True)}
            stages["reliability"] = time.perf_counter() - begin_maps
    else:
        flow = estimator(*pair, initial_flow=start_flow, progress=progress)
    _check.tensor(flow, f"the flow of {maker.method}", (1, 2, *first.shape[1:]))
    flow = flow[0].to("cpu", torch.float32)
    seconds = time.perf_counter() - begin
    lost = int((~flow.isfinite()).any(0).sum())
    if lost:
        raise InputError(
            f"method: the flow is NaN or infinite at {lost} pixels; {estimator.method} has weights that are not "
            "finite, or parameters too far from a preset's"
        )
    valid = torch.ones(flow.shape[1:], dtype=torch.bool)
    facts = maker.method, maker.backend, dict(maker.parameters), seconds, _window(frame1, reading)
    return Flow(flow, valid, *facts, maps.get("occlusion"), maps.get("confidence"), stages)


def _switch(name: str, value: object) -> bool:
    _check.require(isinstance(value, bool), name, "True or False", value)
    return bool(value)


def _window(frame: object, reading: dict[str, Any]) -> FrameWindow | None:
    """Where the flow of an OpenEXR frame lies; None for any other."""
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
    return _check.values(_check.tensor(flow, "initial_flow", shape), "initial_flow")


def _matched(first: Tensor, second: Tensor, name1: str, name2: str) -> tuple[Tensor, Tensor]:
    """Check the sizes; where only one frame has colour, use grey for both."""
    sizes = [f"{frame.shape[2]}×{frame.shape[1]}" for frame in (first, second)]
    _check.require(sizes[0] == sizes[1], name2, f"{sizes[0]} pixels like {name1}", sizes[1])
    _check.require(first[0].numel() > 1, name1, "more than one pixel", sizes[0])
    if first.shape[0] != second.shape[0]:
        first, second = (f if f.shape[0] == 3 else f.expand(3, -1, -1) for f in (first, second))
    return first, second
