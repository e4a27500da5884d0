"""Pictures of a flow with its frames, for the verbs that draw them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fullfield import viz
from fullfield._check import InputError
from fullfield.cli.argtypes import parse_positive_number
from fullfield.io.names import has_exr_suffix

if TYPE_CHECKING:
    from torch import Tensor

INPUTS_BY_KIND: dict[str, tuple[str, ...]] = {
    "flow": (),
    "overlay": ("frame1",),
    "warped": ("frame2",),
    "error": ("truth",),
    "sheet": (),
}
"""Kinds of picture, and what each requires besides the flow. A sheet shows everything that is given."""

_GAIN = 4
_SAMPLED_FRAMES = 20  # frames whose longest vector ends the colour scale of a shot


def add_max_motion_option(group: Any) -> None:
    """Add ``--max-motion``, the end of the colour scale."""
    group.add_argument(
        "--max-motion",
        type=parse_positive_number,
        metavar="PX",
        help="end of the colour scale [the longest, of a shot in at most 39 frames; live: follows the motion]",
    )


def measure_max_motion_in_sampled_frames(
    frame_numbers: Sequence[int], read_flows: Callable[[int], Iterable[tuple[Tensor, Tensor | None]]]
) -> float:
    """Return the length of the longest vector in about twenty frames; ``read_flows`` returns flows and valid masks."""
    longest = 0.0
    for number in frame_numbers[:: max(1, len(frame_numbers) // _SAMPLED_FRAMES)]:
        with suppress(InputError, OSError):
            longest = max([longest, *(viz.measure_max_motion(flow, valid) for flow, valid in read_flows(number))])
    return longest


@dataclass
class FlowVisualization:
    """Flow with its frames and truth, as far as they are given; tensors on the CPU, all of one size."""

    flow: Tensor  # [2, H, W]
    valid: Tensor  # bool [H, W]
    frame1: Tensor | None = None  # [1 or 3, H, W]
    frame2: Tensor | None = None  # [1 or 3, H, W]
    truth: Tensor | None = None  # [2, H, W] or [4, 2, H, W]
    truth_valid: Tensor | None = None  # bool [H, W], where the truth is known
    max_motion: float | None = None  # scale of the colours, px; None: the longest vector
    max_error: float | None = None  # scale of the error, px; None: the default of draw_error_map
    maps: Mapping[str, Tensor] = field(default_factory=dict)  # occlusion and confidence, [H, W]

    @cached_property
    def color_scale_px(self) -> float:
        """Motion at the end of the colour scale, px."""
        return viz.measure_max_motion(self.flow, self.valid) if self.max_motion is None else self.max_motion

    def get_scale_maxima_px(self, kind: str) -> dict[str, float | None]:
        """Return the ends of the picture's scales, px: ``max_motion`` and ``max_error``, None for an absent one."""
        from fullfield.viz.errors import DEFAULT_MAX_ERROR

        moving = kind in ("flow", "overlay", "sheet")
        error = kind == "error" or (kind == "sheet" and self.truth is not None)
        return {
            "max_motion": self.color_scale_px if moving else None,
            "max_error": (self.max_error or DEFAULT_MAX_ERROR) if error else None,
        }

    def format_legend(self, kind: str) -> str:
        """Return the kind of the picture and its scales as text."""
        scales = self.get_scale_maxima_px(kind)
        words = [kind]
        if scales["max_motion"] is not None:
            words.append(f"colour scale: 0 to {scales['max_motion']:.4g} px")
        if scales["max_error"] is not None:
            words.append(f"error scale: 0 to {scales['max_error']:.4g} px")
        return ", ".join(words)

    def draw_picture(self, kind: str) -> Tensor:
        """Return the picture of that kind, uint8 ``[3, H', W']``."""
        drawn: Tensor = getattr(self, f"_draw_{kind}")()
        return drawn

    def _get_field_or_raise(self, name: str) -> Tensor:
        value: Tensor | None = getattr(self, name)
        if value is None:
            raise InputError(f"{name}: required for this picture")
        return value

    def _draw_flow(self) -> Tensor:
        return viz.flow_to_image(self.flow, self.valid, max_motion=self.color_scale_px or None)

    def _draw_overlay(self) -> Tensor:
        return viz.draw_overlay(
            self.flow,
            self._get_field_or_raise("frame1"),
            valid=self.valid,
            max_motion=self.color_scale_px or None,
        )

    def _warp_second_frame_and_mark_valid(self) -> tuple[Tensor, Tensor]:
        from fullfield.sequences import warp_image

        return warp_image(self._get_field_or_raise("frame2"), self.flow.masked_fill(~self.valid, float("nan")))

    def draw_picture_or_floats_for_file(self, kind: str, path: str) -> Tensor:
        """Return :meth:`draw_picture`, or floats: a map, and the frame's own for the kind ``warped`` in an EXR."""
        if kind in self.maps:
            return self.maps[kind]
        return (
            self._warp_second_frame_and_mark_valid()[0]
            if kind == "warped" and has_exr_suffix(path)
            else self.draw_picture(kind)
        )

    def _draw_warped(self) -> Tensor:
        return viz.frame_to_image(self._warp_second_frame_and_mark_valid()[0])

    def _draw_difference(self) -> Tensor:
        """Return |first frame - warped second frame|, brightened; black where the motion leaves the frame."""
        warped, inside = self._warp_second_frame_and_mark_valid()
        return viz.frame_to_image((self._get_field_or_raise("frame1") - warped).abs_().mul_(inside).mul_(_GAIN))

    def _draw_error(self) -> Tensor:
        valid = self.valid if self.truth_valid is None else self.valid & self.truth_valid
        return viz.draw_error_map(self.flow, self._get_field_or_raise("truth"), valid, max_error=self.max_error)

    def _draw_sheet(self) -> Tensor:
        from fullfield.viz.errors import draw_error_legend

        key = viz.draw_wheel_legend(256, self.color_scale_px)
        panels: list[Any] = []
        if self.frame1 is not None:
            panels.append(("first frame", viz.frame_to_image(self.frame1)))
        panels.append(("flow", self._draw_flow(), key))
        if self.frame1 is not None:
            panels.append(("flow over first frame", self._draw_overlay(), key))
        if self.frame2 is not None:
            panels.append(("second frame", viz.frame_to_image(self.frame2)))
            panels.append(("second frame, warped back", self._draw_warped()))
        if self.frame1 is not None and self.frame2 is not None:
            panels.append((f"difference to first frame, times {_GAIN}", self._draw_difference()))
        if self.truth is not None:
            panels.append(("end-point error", self._draw_error(), draw_error_legend(512, max_error=self.max_error)))
        return viz.draw_sheet(panels)
