"""Conversion of what users pass as frames (paths, arrays, PIL images, tensors) to tensors."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fullfield import _check
from fullfield._check import InputError
from fullfield.estimators._devices import to_device
from fullfield.estimators.bars import Bars, ConstantLines, find_common_bars, measure_constant_lines_per_side
from fullfield.ops._splatting import fill_unknown_vectors


class PilImage(Protocol):
    """Image of PIL."""

    @property
    def mode(self) -> str:
        """PIL's name of the pixel format."""

    def convert(self, mode: str, /) -> Any:
        """Return the image in another pixel format."""


Frame: TypeAlias = str | os.PathLike[str] | NDArray[Any] | Tensor | PilImage

# Linear highlights, sRGB-encoded, reach about 100 (half's maximum), but not on average. Resampling undershoots black.
_BRIGHTEST, _BRIGHT_ON_AVERAGE, _DARKEST = 128.0, 1.0, -0.1
_WHITE = {torch.uint8: 255.0, torch.uint16: 65535.0}
_ARRAY_TYPES = ("uint8", "uint16", "float16", "float32", "float64")
_COLOR_ORDERS = ("rgb", "bgr")
_PIL_MODES = ("L", "RGB", "RGBA", "I", "I;16", "I;16B", "F")


def read_or_convert_frame(
    frame: Frame, name: str = "frame", *, transfer: str = "auto", color_order: str = "rgb", **reading: Any
) -> Tensor:
    """Return a frame as a tensor: float32 [C, H, W], C = 1 or 3, display-referred, nominally 0 ... 1.

    Args:
        frame: a path of an image file; an array [H, W], [H, W, 1] or [H, W, 3] (a fourth channel, alpha, is ignored);
            a PIL image, as its pixels lie; or a tensor [C, H, W] with C = 1 or 3. Arrays and tensors may have a batch
            dimension of one in front. Integers are uint8 or uint16 and divided by their maximum; floats (half, single,
            double) are taken as they are and must be finite.
        name: name of the frame in messages.
        transfer: encoding of the values, as for :func:`fullfield.io.read_frame`; for arrays and tensors ``"auto"`` is
            ``"srgb"``.
        color_order: order of the channels of arrays, PIL images and tensors: ``"rgb"`` or OpenCV's ``"bgr"``.
        **reading: ``part``, ``layer``, ``alpha`` and ``window`` of a path, as for :func:`fullfield.io.read_frame`.

    Raises:
        InputError: if the frame is anything else, or its values are those of 0 ... 255 in floating point.
        FileNotFoundError: if the file does not exist.

    Warns:
        UserWarning: if values cannot be meant as 0 ... 1.
    """
    sources = _check_and_list_sources([frame], name, transfer, color_order, reading)
    device = frame.device if isinstance(frame, Tensor) else torch.device("cpu")
    values = _stack_as_unit_range_rgb_on_device(
        sources, [source.read_or_convert_with_constant_lines() for source in sources], device
    )
    ValueCheck([(values, sources)]).raise_or_warn_if_out_of_range()
    return values[0]


class FrameBatches(NamedTuple):
    """First and second frames of several pairs on one device."""

    frames: tuple[Tensor, Tensor]
    """[B, C, H, W] float32 each; unknown pixels are filled from their surroundings."""
    valid: tuple[Tensor | None, Tensor | None]
    """bool [B, H, W] each: where the frames are known; None: everywhere."""
    bars: Bars | None = None
    """Bars that all of these frames have."""
    value_check: ValueCheck | None = None
    """Check of the values that is still to be reported; None: the values are checked."""

    def crop_bars_if_any(self) -> FrameBatches:
        """Return the batches without the bars."""
        if self.bars is None:
            return self
        first, second = (self.bars.crop(frames) for frames in self.frames)
        valid1, valid2 = (None if valid is None else self.bars.crop(valid) for valid in self.valid)
        return FrameBatches((first, second), (valid1, valid2), value_check=self.value_check)


def read_pairs_and_find_bars(
    first_frames: Tensor | Sequence[Frame],
    second_frames: Tensor | Sequence[Frame],
    argument_names: tuple[str, str],
    transfer: str,
    device: torch.device,
    color_order: str = "rgb",
    *,
    defers_value_check: bool = False,
    **reading: Any,
) -> FrameBatches:
    """Return first and second frames as two batches [B, C, H, W] float32 on ``device``, of one size.

    The values of all frames are checked on the device, with one copy of a few numbers to the host;
    ``defers_value_check`` leaves that to the caller (``value_check``). If only one of the two has colour, the other is
    expanded to three channels. Bars are looked for unless a frame is on a GPU.
    """
    sources1, sources2 = (
        _check_and_list_sources(frames, name, transfer, color_order, reading)
        for frames, name in zip((first_frames, second_frames), argument_names, strict=True)
    )
    if len(sources1) == len(sources2) == 1 and sources1[0].is_file and sources2[0].is_file:
        # Decoding releases the GIL. Copies to the device stay in this thread, whose current stream they belong to.
        with ThreadPoolExecutor(2) as pool:
            frames = list(pool.map(_FrameSource.read_or_convert_with_constant_lines, (*sources1, *sources2)))
    else:
        frames = [source.read_or_convert_with_constant_lines() for source in (*sources1, *sources2)]
    frames1, frames2 = frames[: len(sources1)], frames[len(sources1) :]
    first, second = (
        _stack_as_unit_range_rgb_on_device(sources1, frames1, device),
        _stack_as_unit_range_rgb_on_device(sources2, frames2, device),
    )
    _check.require(
        len(first) == len(second), argument_names[1], f"{len(first)} frames like {argument_names[0]}", f"{len(second)}"
    )
    sizes = [f"{frame.shape[3]}×{frame.shape[2]}" for frame in (first, second)]
    _check.require(sizes[0] == sizes[1], sources2[0].name, f"{sizes[0]} pixels like {sources1[0].name}", sizes[1])
    _check.require(first[0, 0].numel() > 1, sources1[0].name, "more than one pixel", sizes[0])
    value_check = ValueCheck([(first, sources1), (second, sources2)])
    if not defers_value_check:
        value_check.raise_or_warn_if_out_of_range()
    if first.shape[1] != second.shape[1]:
        first, second = (frame.expand(-1, 3, -1, -1) for frame in (first, second))
    bars = find_common_bars(first.shape[2:], [lines for frame in frames for lines in frame.lines])
    valid = _stack_valid_masks_if_any(frames1, device), _stack_valid_masks_if_any(frames2, device)
    return FrameBatches((first, second), valid, bars, value_check if defers_value_check else None)


def fill_unknown_pixels(
    frame: Tensor, valid: Tensor | None, name: str
) -> Tensor:  # [C, H, W], bool [H, W] -> [C, H, W]
    """Return the frame with unknown pixels filled from their surroundings; InputError where no pixel is known.

    It is filled ring by ring.
    """
    if valid is None:
        return frame
    _check.require(bool(valid.any()), name, "a frame with a known pixel", "none")
    pairs = [frame[[first, min(first + 1, len(frame) - 1)]] for first in range(0, len(frame), 2)]
    return torch.cat([fill_unknown_vectors(pair, valid) for pair in pairs])[: len(frame)]


def get_frame_name_for_messages(frame: object, argument: str) -> str:
    """Return the name of a frame in messages: its path, or the name of its argument."""
    return os.fspath(frame) if isinstance(frame, (str, os.PathLike)) else argument


def check_frame_pair(frame1: Tensor, frame2: Tensor) -> None:
    """Check that two frames are [B, 1 or 3, H, W] of one size on one device; InputError names the frame."""
    _check.check_tensor(frame1, "frame1", ("B", "C", "H", "W"))
    _check.require(frame1.shape[1] in (1, 3), "frame1", "1 or 3 channels", frame1)
    _check.check_tensor(frame2, "frame2", frame1.shape, device=frame1.device)


def warn_and_return_if_outside_unit_range(frame: Tensor, name: str) -> bool:
    """Warn if the values of a frame [C, H, W] cannot be meant as 0 ... 1, and return whether it did."""
    return _warn_and_return_if_min_max_mean_outside(
        torch.stack(_compute_min_max_and_brightest_mean(frame[None])).tolist(), name, 4
    )


class _ReadFrame(NamedTuple):
    """Frame, or batch of frames, where its memory is: read from a file in the host's, else the user's own."""

    values: Tensor
    """[C, H, W] or [B, C, H, W], display-referred; integers are not scaled yet. Filled where it is not known."""
    valid: Tensor | None
    """bool [H, W]: where the frame is known; None: everywhere."""
    lines: Sequence[tuple[ConstantLines, ...]]
    """:func:`measure_constant_lines_per_side` of each frame; an empty tuple for one on a GPU."""


def _stack_valid_masks_if_any(frames: Sequence[_ReadFrame], device: torch.device) -> Tensor | None:
    """Return where frames are known, bool [B, H, W]; None: everywhere."""
    if all(frame.valid is None for frame in frames):
        return None
    everywhere = torch.ones(frames[0].values.shape[1:], dtype=torch.bool)
    return torch.stack([everywhere if frame.valid is None else frame.valid for frame in frames]).to(device)


class _FrameSource(NamedTuple):
    """Frame as the user passed it, with PIL images as arrays and without a batch dimension of one."""

    frame: Any
    name: str
    transfer: str
    color_order: str
    reading: dict[str, Any]

    @property
    def is_file(self) -> bool:
        return isinstance(self.frame, (str, os.PathLike))

    @property
    def is_integer_without_transfer(self) -> bool:
        """True if the values are integers, which cannot leave 0 ... 1 unless a transfer changes them."""
        if self.transfer not in ("auto", "srgb"):
            return False
        if isinstance(self.frame, np.ndarray):
            return bool(self.frame.dtype.kind == "u")
        return isinstance(self.frame, Tensor) and self.frame.dtype in _WHITE

    @property
    def is_float_array_without_transfer(self) -> bool:
        """True if these are floats that no option or file marks as linear light."""
        return self.transfer in ("auto", "srgb") and not self.is_file and not self.is_integer_without_transfer

    def read_or_convert_with_constant_lines(self) -> _ReadFrame:
        """Read a file into the host's memory, or check and convert an array or tensor."""
        if self.is_file:
            from fullfield.io.image import FrameReader

            result = FrameReader(self.transfer, **self.reading).read(self.frame)
            if result.note:
                warnings.warn(result.note, stacklevel=2)
            values = fill_unknown_pixels(result.frame, result.valid, self.name)
            return _ReadFrame(values, result.valid, [measure_constant_lines_per_side(values)])
        values = self._check_and_convert_to_display_referred()
        if values.device.type != "cpu":
            return _ReadFrame(values, None, [()])
        frames = values if values.ndim == 4 else values[None]
        return _ReadFrame(values, None, [measure_constant_lines_per_side(frame) for frame in frames])

    def _check_and_convert_to_display_referred(self) -> Tensor:
        """Return an array or tensor as a checked tensor; see :class:`_ReadFrame`."""
        frame = self.frame
        for option in self.reading:
            _check.require(False, option, "None for an array or tensor", repr(self.reading[option]))
        if isinstance(frame, np.ndarray):
            frame = _convert_array_to_tensor(frame, self.name)
        if not isinstance(frame, Tensor):
            raise InputError(
                f"{self.name}: expected a path, an array, a PIL image or a tensor, got {_check.describe_value(frame)}"
            )
        _check.require(frame.numel() > 0, self.name, "at least one pixel", frame)
        return _apply_display_curve_on_cpu_if_needed(
            _check.check_not_meta(frame.detach(), self.name), self.name, self.transfer
        )


def _check_and_unwrap_into_source(
    frame: Any, name: str, transfer: str, color_order: str, reading: dict[str, Any]
) -> _FrameSource:
    if type(frame).__module__.partition(".")[0] == "PIL" and hasattr(frame, "mode"):
        frame = _convert_pil_image_to_array(frame, name)
    if isinstance(frame, (np.ndarray, Tensor)) and frame.ndim == 4:
        count = frame.shape[0]
        _check.require(count == 1, name, "one frame (estimate_batch takes several)", f"a batch of {count}")
        frame = frame[0]
    if isinstance(frame, Tensor):
        _check.require(frame.ndim == 3 and frame.shape[0] in (1, 3), name, "a tensor [1 or 3, H, W]", frame)
    is_file = isinstance(frame, (str, os.PathLike))
    _check.require(not is_file or color_order == "rgb", "color_order", "'rgb' for a file", repr(color_order))
    return _FrameSource(frame, name, transfer, color_order, reading)


def _convert_pil_image_to_array(image: PilImage, name: str) -> NDArray[Any]:
    """Return a PIL image as an array [H, W(, C)]; a file that it has opened is decoded now."""
    try:
        if image.mode not in _PIL_MODES:
            image = image.convert("L" if image.mode in ("1", "LA", "La") else "RGB")
        return np.asarray(image)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - PIL raises almost any kind for damaged files
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{name}: expected a PIL image that can be decoded, got an error of PIL ({reason})") from None


def _apply_display_curve_on_cpu_if_needed(pixel_values: Tensor, name: str, transfer: str) -> Tensor:
    """Return the values themselves if they are display-referred, else float32 values in the host's memory."""
    is_valid = pixel_values.is_floating_point() or pixel_values.dtype in _WHITE
    _check.require(is_valid, name, "dtype uint8, uint16 or floating", pixel_values)
    to_display = None
    if transfer != "auto":
        from fullfield.io.transfer import choose_inplace_curve_to_srgb_if_needed

        to_display = choose_inplace_curve_to_srgb_if_needed(transfer, auto_transfer="srgb")
    if to_display is None:
        return pixel_values
    converted = _scale_integers_to_unit_range(pixel_values.cpu()).clone()  # the curves work on arrays
    _check.require(bool(converted.isfinite().all()), name, "finite values", "NaN or infinity")
    for frame in converted.view(-1, *converted.shape[-3:]):
        to_display(frame.numpy())
    return converted


_Batch: TypeAlias = "tuple[Tensor, list[_FrameSource]]"


def _check_and_list_sources(
    frames: Tensor | Sequence[Frame], name: str, transfer: str, color_order: str, reading: dict[str, Any]
) -> list[_FrameSource]:
    """Return the frames with their names; a tensor [B, C, H, W] is one source."""
    _check.check_choice(color_order, "color_order", _COLOR_ORDERS)
    if isinstance(frames, Tensor):
        is_valid = frames.ndim == 4 and frames.shape[1] in (1, 3)
        _check.require(is_valid, name, "a batch [B, 1 or 3, H, W] or a list of frames", frames)
        return [_FrameSource(frames, name, transfer, color_order, reading)]
    is_valid = isinstance(frames, (list, tuple)) and len(frames) > 0
    _check.require(is_valid, name, "a batch [B, 1 or 3, H, W] or a list of frames", frames)
    names = [name] if len(frames) == 1 else [f"{name}[{number}]" for number in range(len(frames))]
    return [
        _check_and_unwrap_into_source(frame, get_frame_name_for_messages(frame, one), transfer, color_order, reading)
        for frame, one in zip(frames, names, strict=True)
    ]


def _stack_as_unit_range_rgb_on_device(
    sources: Sequence[_FrameSource], frames: Sequence[_ReadFrame], device: torch.device
) -> Tensor:
    """Return frames as one tensor float32 [B, C, H, W] on ``device``; their values are not checked."""
    tensors = [_scale_integers_to_unit_range(to_device(frame.values, device)) for frame in frames]
    if sources[0].color_order == "bgr":
        tensors = [tensor.flip(-3) if tensor.shape[-3] == 3 else tensor for tensor in tensors]
    if tensors[0].ndim == 4:
        return tensors[0]
    for frame, source in zip(tensors[1:], sources[1:], strict=True):
        size, expected = (f"{one.shape[2]}×{one.shape[1]}" for one in (frame, tensors[0]))
        _check.require(size == expected, source.name, f"{expected} pixels like {sources[0].name}", size)
    if len(tensors) == 1:
        return tensors[0][None]
    channels = max(frame.shape[0] for frame in tensors)
    return torch.stack([frame.expand(channels, -1, -1) for frame in tensors])


def _convert_array_to_tensor(array: NDArray[Any], name: str) -> Tensor:
    is_valid = array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (1, 3, 4))
    _check.require(is_valid, name, "an array [H, W], [H, W, 1], [H, W, 3] or [H, W, 4]", array)
    _check.require(array.dtype.name in _ARRAY_TYPES, name, f"dtype {', '.join(_ARRAY_TYPES)}", array)
    masked_count = int(np.ma.getmask(array).sum())  # of other arrays it is one False
    _check.require(masked_count == 0, name, "an array without masked values", f"{masked_count} of {array.size}")
    planes = array[None] if array.ndim == 2 else np.moveaxis(array, 2, 0)[: 1 if array.shape[2] == 1 else 3]
    native = planes.astype(planes.dtype.newbyteorder("="), copy=False)
    if not native.flags.writeable:  # PyTorch would warn
        native = native.copy()
    return torch.from_numpy(np.ascontiguousarray(native))


def _scale_integers_to_unit_range(tensor: Tensor) -> Tensor:
    if tensor.dtype in _WHITE:
        return tensor.to(torch.float32).div_(_WHITE[tensor.dtype])
    return tensor.to(torch.float32)


def _compute_min_max_and_brightest_mean(batch: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return lowest, highest and mean value, the mean of the brightest item, on the batch's device."""
    low, high = torch.aminmax(batch)
    return low, high, batch.mean() if len(batch) == 1 else batch.flatten(1).mean(1).amax()


class ValueCheck:
    """Check of frames' values, whose numbers a GPU can compute while the host does something else."""

    def __init__(self, batches: Sequence[_Batch]) -> None:
        self._batches = [
            (batch, sources)
            for batch, sources in batches
            if not all(source.is_integer_without_transfer for source in sources)
        ]
        self._ranges: Tensor | None = None

    def measure_if_needed(self) -> None:
        """Compute the numbers on the frames' device."""
        if self._batches and self._ranges is None:
            self._ranges = torch.stack(
                [value for batch, _ in self._batches for value in _compute_min_max_and_brightest_mean(batch)]
            )

    def raise_or_warn_if_out_of_range(self) -> None:
        """Refuse frames that are not finite or have values of 0 ... 255, and warn once of others beyond 0 ... 1."""
        self.measure_if_needed()
        if self._ranges is None:
            return
        ranges = self._ranges.view(-1, 3).tolist()  # the one copy to the host
        warned = False
        for (_, sources), values in zip(self._batches, ranges, strict=True):
            name = sources[0].name
            _check.require(bool(np.isfinite(values).all()), name, "finite values", "NaN or infinity")
            if _is_too_bright(values) and any(source.is_float_array_without_transfer for source in sources):
                raise InputError(
                    f"{name}: expected values of 0 ... 1, got {_format_min_max_mean(values)}; divide by 255 or pass "
                    "uint8, or name the transfer of linear light or of a camera's curve"
                )
            warned = warned or _warn_and_return_if_min_max_mean_outside(values, name, 5)


def _is_too_bright(min_max_mean: Sequence[float]) -> bool:
    _, high, mean = min_max_mean
    return high > _BRIGHTEST or mean > _BRIGHT_ON_AVERAGE


def _format_min_max_mean(min_max_mean: Sequence[float]) -> str:
    low, high, mean = min_max_mean
    return f"{low:g} to {high:g}, {mean:.3g} on average"


def _warn_and_return_if_min_max_mean_outside(min_max_mean: Sequence[float], name: str, stack_level: int) -> bool:
    if min_max_mean[0] >= _DARKEST and not _is_too_bright(min_max_mean):
        return False
    warnings.warn(
        f"{name}: frames are expected in 0 ... 1, black to white as a display shows them; "
        f"got {_format_min_max_mean(min_max_mean)}. "
        "Bring them to that range, or pass uint8 or uint16; name the transfer of linear light or of a camera's curve",
        stacklevel=stack_level,
    )
    return True
