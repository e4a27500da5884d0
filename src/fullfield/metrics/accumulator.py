"""Metrics of a whole data set, accumulated image by image."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fullfield import _check
from fullfield.metrics.distance import compute_boundary_distance
from fullfield.metrics.pixels import (
    MEASURES,
    Comparison,
    check_flow_pair,
    check_mask,
    compare_rows,
    iterate_row_blocks,
    raise_naming_nonfinite_predictions,
)

AVERAGING = ("pooled", "per_image")

# Classes of pixels; the last five need an occlusion map.
CLASSES = ("all", "lm", "s0_10", "s10_40", "s40_plus", "matched", "unmatched", "d0_10", "d10_60", "d60_140")

# Key of compute(): class and measure.
KEYS = {
    **{measure: ("all", measure) for measure in MEASURES},
    **{f"lm_{measure}": ("lm", measure) for measure in ("epe", "px1")},
    **{name: (name, "epe") for name in ("s0_10", "s10_40", "s40_plus")},
    **{f"epe_{name}": (name, "epe") for name in ("matched", "unmatched")},
    **{name: (name, "epe") for name in ("d0_10", "d10_60", "d60_140")},
}

_UNIT_BITS = 64  # totals are whole multiples of 2⁻⁶⁴


class FlowMetrics:
    """Accumulator of the flow metrics of many images.

    Args:
        averaging: ``"pooled"`` takes the mean over all pixels of all images (Spring, KITTI, Sintel);
            ``"per_image"`` takes the mean over images of each image's mean, where an image without pixels of a
            class does not count for that class.
        lm_threshold: ``lm_*`` are over pixels whose true motion exceeds this many pixels.

    An image's sums are taken in float64 on the device of its tensors; totals over images are exact integers, so
    neither the order of the images nor their distribution over processes changes a bit.
    """

    def __init__(self, *, averaging: str = "pooled", lm_threshold: float = 128.0) -> None:
        _check.check_choice(averaging, "averaging", AVERAGING)
        _check.check_number(lm_threshold, "lm_threshold", low=0)
        self.averaging = averaging
        self.lm_threshold = float(lm_threshold)
        self._images = 0
        self._pixels = 0
        self._counts = dict.fromkeys(CLASSES, 0)
        self._sums = {name: dict.fromkeys(MEASURES, 0) for name in CLASSES}

    @torch.no_grad()
    def update(self, pred: Tensor, truth: Tensor, valid: Tensor | None = None, occluded: Tensor | None = None) -> None:
        """Add one image, or a batch of images.

        Args:
            pred: ``[2, H, W]`` or ``[B, 2, H, W]``, (u, v), pixels.
            truth: of the shape of ``pred``, or ``[4, 2, H, W]`` / ``[B, 4, 2, H, W]`` with four true values for a
                pixel. Pixels whose truth is unknown (NaN, infinite, beyond 1e9) are not scored.
            valid: bool ``[H, W]`` or ``[B, H, W]``; False pixels are not scored.
            occluded: bool ``[H, W]`` or ``[B, H, W]``; True where the pixel has no match in the second image.
                Without it the image does not count for the matched, unmatched and d classes.

        Raises:
            InputError: shapes, types or devices that do not go together; or a prediction that is NaN or infinite
                on a scored pixel. Nothing of the image or batch is then added.
        """
        batched = isinstance(pred, Tensor) and pred.ndim == 4
        if not batched:
            images = [self._compute_class_counts_and_sums(pred, truth, valid, occluded)]
        else:
            others = {"truth": truth, "valid": valid, "occluded": occluded}
            for name, value in others.items():
                is_valid = value is None or (isinstance(value, Tensor) and value.shape[:1] == pred.shape[:1])
                _check.require(is_valid, name, f"a batch of {len(pred)} like pred", value)
            images = []
            for i in range(len(pred)):
                masks = [None if mask is None else mask[i] for mask in (valid, occluded)]
                images.append(self._compute_class_counts_and_sums(pred[i], truth[i], *masks))
        for counts, sums in images:
            self._add_image(counts, sums)

    def merge(self, other: FlowMetrics) -> None:
        """Add the images of ``other``, as if they had been given to this one."""
        _check.require(isinstance(other, FlowMetrics), "other", "FlowMetrics", other)
        for name in ("averaging", "lm_threshold"):
            mine, its = getattr(self, name), getattr(other, name)
            _check.require(mine == its, "other", f"{name} {mine}", f"{name} {its}")
        self._images += other._images
        self._pixels += other._pixels
        for name in CLASSES:
            self._counts[name] += other._counts[name]
            for measure in MEASURES:
                self._sums[name][measure] += other._sums[name][measure]

    def compute(self) -> dict[str, float]:
        """Return all metrics. A metric over no pixels is NaN; with no images every one is.

        ``epe`` px · ``aae`` degrees · ``px1``, ``px3``, ``px5`` % of pixels with an error above 1, 3, 5 px ·
        ``fl_all`` % · ``wauc`` % · ``lm_epe``, ``lm_px1`` over large motion · ``s0_10``, ``s10_40``, ``s40_plus``
        EPE by true motion (below 10, 10 to below 40, from 40 px) · ``epe_matched``, ``epe_unmatched`` ·
        ``d0_10``, ``d10_60``, ``d60_140`` EPE by distance to the nearest occlusion boundary (below 10, 10 to
        below 60, 60 to below 140 px) · ``pixels`` scored · ``images`` given.
        """
        values = {key: self._compute_mean_measure(*image_index) for key, image_index in KEYS.items()}
        return {**values, "pixels": self._pixels, "images": self._images}

    def compute_by_class(self) -> dict[str, dict[str, float]]:
        """Return every measure over every class: ``compute_by_class()["s40_plus"]["px1"]``; NaN over no pixels."""
        return {name: {measure: self._compute_mean_measure(name, measure) for measure in MEASURES} for name in CLASSES}

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain dicts, strings, floats and (long) integers, for JSON or another process."""
        return {
            "averaging": self.averaging,
            "lm_threshold": self.lm_threshold,
            "images": self._images,
            "pixels": self._pixels,
            "counts": dict(self._counts),
            "sums": {name: dict(sums) for name, sums in self._sums.items()},
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> FlowMetrics:
        """Rebuild the accumulator that :meth:`state_dict` described."""
        try:
            result = cls(averaging=state["averaging"], lm_threshold=state["lm_threshold"])
            result._images = _get_whole_number_or_raise(state["images"])
            result._pixels = _get_whole_number_or_raise(state["pixels"])
            for name in CLASSES:
                result._counts[name] = _get_whole_number_or_raise(state["counts"][name])
                for measure in MEASURES:
                    result._sums[name][measure] = _get_whole_number_or_raise(state["sums"][name][measure])
        except (KeyError, TypeError) as error:
            raise _check.InputError(
                f"state: expected a state_dict() of FlowMetrics, got one without {error}"
            ) from error
        return result

    def _compute_class_counts_and_sums(
        self, pred: Tensor, truth: Tensor, valid: Tensor | None, occluded: Tensor | None
    ) -> tuple[list[float], list[list[float]]]:
        """Return the number of pixels of each class, and the sum of each measure over them."""
        check_flow_pair(pred, truth, valid)
        check_mask(occluded, "occluded", pred)
        distance = None if occluded is None else compute_boundary_distance(occluded)
        total: Tensor | None = None
        for rows in iterate_row_blocks(pred.shape[-2], pred.shape[-1], pred.device):
            block = compare_rows(pred, truth, valid, rows)
            bad = ~block.epe.isfinite()
            pixel_count = block.valid & ~bad
            columns = block.epe.new_empty(len(MEASURES) + 2, *block.epe.shape)
            columns[0], columns[-1] = 1.0, bad
            for column, (part, _, _) in zip(columns[1:-1], MEASURES.values(), strict=True):
                column.copy_(part(block)).masked_fill_(~pixel_count, 0.0)
            maps = [None if plane is None else plane[rows].to(bad.device) for plane in (occluded, distance)]
            members = self._stack_class_masks(block, *maps)
            # Row by row, so that the sums do not depend on the number of threads.
            sums = (members.to(columns.dtype).transpose(0, 1) @ columns.permute(1, 2, 0)).sum(0)
            total = sums if total is None else total + sums
        if total is None:
            return [0.0] * len(CLASSES), [[0.0] * len(MEASURES)] * len(CLASSES)
        table: list[list[float]] = total.tolist()
        if table[0][-1]:
            raise_naming_nonfinite_predictions(pred, truth, valid)
        return [row[0] for row in table], [row[1:-1] for row in table]

    def _stack_class_masks(
        self, comparison: Comparison, occluded: Tensor | None, occlusion_distance: Tensor | None
    ) -> Tensor:
        """Return which pixels are in which class: bool ``[classes, rows, W]``."""
        scored, motion = comparison.valid, comparison.mean_motion
        slow, fast = motion < 10, motion >= 40
        masks = [
            scored,
            scored & (motion > self.lm_threshold),
            scored & slow,
            scored & ~slow & ~fast,
            scored & fast,
        ]
        if occluded is None or occlusion_distance is None:
            masks += [torch.zeros_like(scored)] * 5
        else:
            masks += [scored & ~occluded, scored & occluded]
            masks += [
                scored & (occlusion_distance >= low) & (occlusion_distance < high)
                for low, high in ((0, 10), (10, 60), (60, 140))
            ]
        return torch.stack(masks)

    def _add_image(self, pixel_counts: list[float], measure_sums: list[list[float]]) -> None:
        self._images += 1
        self._pixels += int(pixel_counts[0])
        for name, count, row in zip(CLASSES, pixel_counts, measure_sums, strict=True):
            if not count:
                continue
            per_image = self.averaging == "per_image"
            self._counts[name] += 1 if per_image else int(count)
            for measure, value in zip(MEASURES, row, strict=True):
                self._sums[name][measure] += int(math.ldexp(value / count if per_image else value, _UNIT_BITS))

    def _compute_mean_measure(self, class_name: str, measure: str) -> float:
        count = self._counts[class_name]
        _, times, over = MEASURES[measure]
        return times * self._sums[class_name][measure] / ((over * count) << _UNIT_BITS) if count else math.nan


def _get_whole_number_or_raise(value: object) -> int:
    _check.require(type(value) is int and value >= 0, "state", "whole numbers from 0 up", value)
    return value  # type: ignore[return-value]  # a plain int, or the line above had raised
