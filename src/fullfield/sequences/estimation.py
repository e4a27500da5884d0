"""Flow of a shot, frame by frame, for Python."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fullfield import _check
from fullfield.estimators import Estimator, Flow
from fullfield.estimators.estimation import estimator_of
from fullfield.estimators.frames import Frame
from fullfield.estimators.registry import DEFAULT_METHOD
from fullfield.io import FrameWindow
from fullfield.io.oiio import Attribute
from fullfield.sequences.engine import Engine, Estimated, Problem, Setting
from fullfield.sequences.outputs import to_cpu
from fullfield.sequences.plates import Plates, open_plates


@dataclass(frozen=True)
class FrameFlows:
    """Result of :func:`estimate_sequence` for one frame.

    Attributes:
        forward, backward: flow to the frame after and before; None where that was not requested, where the shot ends,
            or where ``problems`` say why there is none.
        occlusion, confidence: by direction, [H, W] float32 in [0, 1], where they were requested.
        problems: what could not be read or estimated, each with its path and reason.
        cuts, held: pairs of frames (a, b) across which the shot changes, or whose pictures are the same.
        window, metadata: of the frame's file, where it is an EXR (metadata of a DPX too).
    """

    number: int
    forward: Flow | None = None
    backward: Flow | None = None
    occlusion: dict[str, Tensor] = field(default_factory=dict)
    confidence: dict[str, Tensor] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    cuts: tuple[tuple[int, int], ...] = ()
    held: tuple[tuple[int, int], ...] = ()
    window: FrameWindow | None = None
    metadata: tuple[Attribute, ...] = ()


def estimate_sequence(
    frames: str | os.PathLike[str] | Sequence[Frame] | Plates,
    method: str | Estimator = DEFAULT_METHOD,
    *,
    direction: str = "forward",
    step: int = 1,
    setting: Setting | None = None,
    **parameters: Any,
) -> Iterator[FrameFlows]:
    """Yield the flow of every frame of a shot, in order, in memory that does not grow.

    The next frames are read while a pair is estimated, and a frame is read once.

    Args:
        frames: a pattern, folder, glob, video file or list of frames, as :func:`open_plates` takes them, or what that
            function returned: it chooses the frames and says how they are read.
        method: as for :func:`fullfield.estimate`.
        direction: ``forward``, ``backward`` or ``both``.
        step: how many frames apart the frames of a pair are.
        setting: the whole :class:`Setting` (warm start, refine, device, ...) in place of ``direction`` and ``step``.
        **parameters: for a method given by name: ``preset`` or ``config``, ``backend``, fields of the configuration.

    A frame that cannot be read costs its pairs alone: they are None, and ``problems`` says why. Raises InputError for
    a shot that is not there or settings that make no sense, at the first frame requested.

    >>> for flows in estimate_sequence("plate.%04d.exr", preset="fast", direction="both"):  # doctest: +SKIP
    ...     if flows.forward is not None:
    ...         flows.forward.save(f"mv.{flows.number:04d}.exr")
    """
    estimator = estimator_of(method, **parameters)
    chosen = Setting(direction, step) if setting is None else setting
    _check.require(isinstance(chosen, Setting), "setting", "a Setting", chosen)
    listed = isinstance(frames, (str, os.PathLike, list, tuple))
    plates: Plates = open_plates(frames) if listed else frames  # type: ignore[arg-type,assignment]
    try:
        engine = Engine(plates, plates.numbers, estimator, chosen)
        for done in engine:
            yield _frame_flows(done, engine.maker)
    finally:
        plates.close()


def _frame_flows(done: Estimated, estimator: Estimator) -> FrameFlows:
    parts = to_cpu(done.parts)
    flows: dict[str, Flow] = {}
    for name in ("forward", "backward"):
        if name in parts and name not in done.ends and name not in done.missing:
            known = torch.ones(parts[name].shape[1:], dtype=torch.bool)
            facts = estimator.method, estimator.backend, dict(estimator.parameters)
            flows[name] = Flow(parts[name], known, *facts, window=done.window)

    def planes(what: str) -> dict[str, Tensor]:
        return {name: parts[f"{what}.{name}"] for name in flows if f"{what}.{name}" in parts}

    return FrameFlows(
        done.number,
        flows.get("forward"),
        flows.get("backward"),
        planes("occlusion"),
        planes("confidence"),
        tuple(done.problems),
        tuple(done.cuts),
        tuple(done.held),
        done.window,
        () if done.plate is None else done.plate.metadata,
    )
