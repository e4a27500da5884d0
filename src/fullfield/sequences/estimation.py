"""Flow of a shot, frame by frame, for Python."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fullfield import _check
from fullfield.estimators import Estimator
from fullfield.estimators._frames import Frame
from fullfield.estimators.estimation import build_or_check_estimator
from fullfield.estimators.flow import Flow
from fullfield.estimators.registry import DEFAULT_METHOD
from fullfield.io.oiio import Attribute
from fullfield.io.vectors import VALID
from fullfield.io.windows import FrameWindow
from fullfield.sequences.engine import ShotEngine
from fullfield.sequences.outputs import move_to_cpu_as_float32
from fullfield.sequences.plates import Plates, open_plates_unless_open
from fullfield.sequences.results import FrameResult, Problem
from fullfield.sequences.settings import ShotSettings

if TYPE_CHECKING:
    from fullfield._config import Config


@dataclass(frozen=True)
class FrameFlows:
    """Result of :func:`estimate_sequence` for one frame.

    Attributes:
        forward, backward: flow to the frame after and before; None where that was not requested, where the shot ends,
            or where ``problems`` say why there is none.
        occlusion, confidence: by direction, [H, W] float32 in [0, 1], where they were requested.
        problems: what could not be read or estimated, each with its path and reason.
        cuts, duplicates: pairs of frames (a, b) across which the shot changes, or whose pictures are the same.
        window, metadata: of the frame's file, where it is an EXR (metadata of a DPX too, the window of a video whose
            pixels are not square).
    """

    number: int
    forward: Flow | None = None
    backward: Flow | None = None
    occlusion: dict[str, Tensor] = field(default_factory=dict)
    confidence: dict[str, Tensor] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    cuts: tuple[tuple[int, int], ...] = ()
    duplicates: tuple[tuple[int, int], ...] = ()
    window: FrameWindow | None = None
    metadata: tuple[Attribute, ...] = ()


def estimate_sequence(
    frames: str | os.PathLike[str] | Sequence[Frame] | Plates,
    method: str | Estimator = DEFAULT_METHOD,
    *,
    preset: str | None = None,
    config: Config | None = None,
    weights: str | os.PathLike[str] | None = None,
    updates: int | None = None,
    cascade: bool | None = None,
    precision: str | None = None,
    backend: str | None = None,
    direction: str = "forward",
    step: int = 1,
    settings: ShotSettings | None = None,
) -> Iterator[FrameFlows]:
    """Yield the flow of every frame of a shot, in order, in memory that does not grow.

    The next frames are read while a pair is estimated, and a frame is read once.

    Args:
        frames: a pattern, folder, glob, video file or list of frames, as :func:`open_plates` takes them, or what that
            function returned: it chooses the frames and says how they are read.
        method: as for :func:`fullfield.estimate`.
        preset: as for :func:`fullfield.estimate`.
        config: as for :func:`fullfield.estimate`.
        weights: as for :func:`fullfield.estimate`.
        updates: as for :func:`fullfield.estimate`.
        cascade: as for :func:`fullfield.estimate`.
        precision: as for :func:`fullfield.estimate`.
        backend: as for :func:`fullfield.estimate`.
        direction: ``forward``, ``backward`` or ``both``.
        step: distance between the two frames of a pair.
        settings: all :class:`ShotSettings` (warm start, refine, device, ...) in place of ``direction`` and ``step``.

    A frame that cannot be read costs its pairs alone: they are None, and ``problems`` says why. Raises InputError for
    a shot that is not there or settings that make no sense, at the first frame requested.

    >>> for flows in estimate_sequence("plate.%04d.exr", preset="fast", direction="both"):  # doctest: +SKIP
    ...     if flows.forward is not None:
    ...         flows.forward.save(f"mv.{flows.number:04d}.exr")
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
    if settings is None:
        settings = ShotSettings(direction, step)
    _check.require(isinstance(settings, ShotSettings), "settings", "a ShotSettings", settings)
    plates = open_plates_unless_open(frames)
    try:
        engine = ShotEngine(plates, plates.numbers, estimator, settings)
        for result in engine:
            yield _build_frame_flows(result, engine.final_estimator)
    finally:
        plates.close()


def _build_frame_flows(result: FrameResult, estimator: Estimator) -> FrameFlows:
    tensors = move_to_cpu_as_float32(result.tensors)
    flows: dict[str, Flow] = {}
    for name in ("forward", "backward"):
        if name in tensors and name not in result.shot_ends and name not in result.missing:
            valid_mask = tensors.get(VALID)
            valid = torch.ones(tensors[name].shape[1:], dtype=torch.bool) if valid_mask is None else valid_mask > 0.5
            description = estimator.method, estimator.backend, dict(estimator.parameters)
            flows[name] = Flow(
                tensors[name],
                valid,
                *description,
                window=result.window,
                occlusion=tensors.get(f"occlusion.{name}"),
                confidence=tensors.get(f"confidence.{name}"),
                bars=result.bars.get(name),
            )

    def select_layers(kind: str) -> dict[str, Tensor]:
        return {name: tensors[f"{kind}.{name}"] for name in flows if f"{kind}.{name}" in tensors}

    return FrameFlows(
        result.number,
        flows.get("forward"),
        flows.get("backward"),
        select_layers("occlusion"),
        select_layers("confidence"),
        tuple(result.problems),
        tuple(result.cuts),
        tuple(result.duplicates),
        result.window,
        () if result.plate is None else result.plate.metadata,
    )
