"""Frames in and pictures out."""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fullfield._check import InputError, check_choice, check_not_meta, convert_path_to_text, require
from fullfield.io.channels import (
    choose_color_channels_and_warn_if_ambiguous,
    describe_nonfinite_pixels,
    require_uint8_or_uint16_if_integer,
)
from fullfield.io.files import PathLike, refuse_implausible_display_window, write_atomically
from fullfield.io.flow_formats import Mask, plain
from fullfield.io.masks import read_mask
from fullfield.io.names import IMAGE_WRITE_SUFFIXES
from fullfield.io.oiio import (
    Attribute,
    Header,
    ImagePart,
    ImageSource,
    check_name_is_utf8,
    detect_format_and_file_bytes,
    list_inherited_metadata_without_color,
    map_layers_to_channel_indices,
    open_image_source,
    write_and_verify_picture,
)
from fullfield.io.orientation import SIDEWAYS, apply_exif_orientation
from fullfield.io.transfer import (
    Curve,
    Planes,
    build_half_float_table_if_possible,
    choose_inplace_curve_to_srgb_if_needed,
    decode_srgb_inplace,
)
from fullfield.io.windows import Box, FrameWindow, Window, check_window_argument, resolve_window_to_box

Alpha: TypeAlias = Literal["ignore", "apply"]
_Value = TypeVar("_Value", bound=np.generic)

_ALPHAS = ("a", "alpha")
_LOOKED_UP = 1 << 17  # pixels
_LAB = (8, 9, 10)
_DPX_TRANSFERS = {"Printing density": "cineon", "Logarithmic": "cineon", "Linear": "linear"}


def read_frame(
    path: PathLike,
    *,
    transfer: str = "auto",
    part: int | str | None = None,
    layer: str | None = None,
    alpha: Alpha = "ignore",
    window: Window = "display",
) -> Tensor:  # float32 [C, H, W], C = 1 or 3
    """Read a frame of any format in docs/formats.md as display-referred, sRGB-encoded values.

    Grey stays one channel, everything else becomes R, G, B, found by the channels' names. Integers are scaled
    to [0, 1]; highlights of floating-point frames may exceed 1. EXIF orientation is applied.

    Args:
        path: PNG, JPEG, TIFF, OpenEXR, DPX, PPM, PFM, Radiance HDR, BMP or TGA, told by its content.
        transfer: what the stored values are: ``auto`` (by format: EXR, HDR, PFM and floating-point TIFF are
            linear, DPX says so itself, the rest is ``srgb``), ``srgb`` (as stored),
            ``linear``, a camera's curve (:data:`fullfield.io.names.TRANSFERS`) or an OpenColorIO colour space.
        part: part of an EXR or page of a TIFF, by index or name. By default the finished picture by its name (``C``,
            ``rgba``, ``beauty``), else the first with those channels.
        layer: prefix of the channels to take, ``diffuse`` for ``diffuse.R``, ``diffuse.G``, ``diffuse.B``.
        alpha: ``ignore`` takes the colour as stored; ``apply`` composites it over black (which changes only
            files whose colour is not yet multiplied by alpha: PNG, TGA, some TIFF).
        window: of an EXR: ``display`` returns the display window, black outside the data window; ``data``
            returns the stored pixels, overscan and all, wherever they lie: to match two frames, give both the same
            box (x, y, width, height), such as the union of their :func:`read_frame_window`. What a box has beyond the
            picture is black. Other formats are one window, at (0, 0).

    Raises:
        InputError: an unreadable, truncated or implausible file, an unknown part, layer or transfer; one line that
            names the file.
        OSError: a missing file, a folder, or no permission.

    Warns:
        UserWarning: values are NaN or infinite; they become black.
    """
    result = FrameReader(transfer, part, layer, alpha, window).read(path)
    if result.note:
        warnings.warn(result.note, stacklevel=2)
    return result.frame


class FrameWithMetadata(NamedTuple):
    """Frame with the windows and metadata of its file."""

    frame: Tensor
    """As :func:`read_frame` returns it."""
    window: FrameWindow | None = None
    """Of an EXR: its windows."""
    metadata: tuple[Attribute, ...] = ()
    """As :func:`fullfield.io.read_metadata` returns them."""
    valid: Tensor | None = None
    """bool [H, W]: where the picture is known; None: everywhere. It is not known outside the data window, where values
    are NaN or infinite, and where the mask is black. The frame is 0 there, but under the mask."""
    note: str = ""
    """Message on values that are NaN or infinite; empty where there are none."""


@dataclass(frozen=True)
class FrameReader:
    """:func:`read_frame` with its arguments, for many files."""

    transfer: str = "auto"
    part: int | str | None = None
    layer: str | None = None
    alpha: Alpha = "ignore"
    window: Window = "display"
    mask: str | None = None
    """What says where the frame is known: a picture, a channel of an EXR, or ``FILE:CHANNEL``."""
    pinned: bool = False
    """True reads frames into pinned memory, where their format and orientation allow."""

    def read(self, path: PathLike) -> FrameWithMetadata:
        """Read a frame; errors are those of :func:`read_frame`."""
        check_choice(self.alpha, "alpha", ("ignore", "apply"))
        check_window_argument(self.window)
        where = Path(convert_path_to_text(path))
        kind, _ = detect_format_and_file_bytes(where)
        if kind == "pfm":
            _refuse_parts_and_layers_of_pfm(where, self.part, self.layer)
            pixels = _zero_nonfinite_inplace_and_build_pixels(plain.read_pfm_planes(where))
            _apply_curve_inplace_and_require_finite(
                where, choose_inplace_curve_to_srgb_if_needed(self.transfer, "linear"), pixels.planes
            )
            return self._crop_frame_and_combine_valid_masks(where, pixels, None, None, ())
        with open_image_source(where) as source:
            part, colour = choose_color_channels_and_warn_if_ambiguous(source, self.part, self.layer)
            metadata = list_inherited_metadata_without_color(source, part.index)
            if kind == "openexr":
                pixels = _read_display_referred_pixels(source, part, colour, self)
                return self._crop_frame_and_combine_valid_masks(where, pixels, source, part.window, metadata)
            pixels = _read_display_referred_pixels(source, part, colour, replace(self, window="data"))
            return self._crop_frame_and_combine_valid_masks(where, pixels, None, None, metadata)

    def _crop_frame_and_combine_valid_masks(
        self,
        path: Path,
        pixels: _Pixels,
        exr_source: ImageSource | None,
        exr_window: FrameWindow | None,
        metadata: tuple[Attribute, ...],
    ) -> FrameWithMetadata:
        """Return the frame on the window, with what is known of it; ``exr_source`` and ``exr_window`` are an EXR's."""
        planes, valid_mask, dead = pixels
        full = (0, 0, planes.shape[2], planes.shape[1])
        box = resolve_window_to_box(
            self.window, *((full, full) if exr_window is None else (exr_window.data, exr_window.display))
        )
        if exr_window is None and box != full:
            valid_mask = _crop_or_pad_with_zeros(
                np.ones(planes.shape[1:], np.bool_) if valid_mask is None else valid_mask, box
            )
            planes = _crop_or_pad_with_zeros(planes, box)
        if self.mask is not None:
            mask = read_mask(self.mask, exr_source, box, full if exr_window is None else exr_window.display)
            valid_mask = mask if valid_mask is None else valid_mask & mask
        valid = None if valid_mask is None or valid_mask.all() else torch.from_numpy(valid_mask)
        note = "" if dead is None else describe_nonfinite_pixels(str(path), dead)
        return FrameWithMetadata(torch.from_numpy(planes), exr_window, metadata, valid, note)


def read_frame_window(path: PathLike, *, part: int | str | None = None, layer: str | None = None) -> FrameWindow:
    """Return the data window, the display window and the pixel aspect of what :func:`read_frame` reads.

    Both windows of other formats than EXR are the whole picture, upright, at (0, 0). Arguments and errors are those
    of :func:`read_frame`; no pixel is read.

    >>> both = read_frame_window("a.exr").union(read_frame_window("b.exr")).data  # doctest: +SKIP
    >>> a, b = read_frame("a.exr", window=both), read_frame("b.exr", window=both)  # doctest: +SKIP
    """
    where = Path(convert_path_to_text(path))
    kind, _ = detect_format_and_file_bytes(where)
    if kind == "pfm":
        _refuse_parts_and_layers_of_pfm(where, part, layer)
        full_box = (0, 0, *plain.read_pfm_size(where))
        return FrameWindow(full_box, full_box)
    with open_image_source(where) as source:
        selected, _ = choose_color_channels_and_warn_if_ambiguous(source, part, layer)
        if kind == "openexr":
            return selected.window
        width, height = selected.spec.width, selected.spec.height
        if selected.spec.get_int_attribute("Orientation", 1) in SIDEWAYS:
            width, height = height, width
        return FrameWindow((0, 0, width, height), (0, 0, width, height), selected.window.pixel_aspect)


def _crop_or_pad_with_zeros(planes: NDArray[_Value], box: Box) -> NDArray[_Value]:
    """Cut the box out of a picture ``[..., H, W]`` at (0, 0); it is 0 beyond the picture."""
    x, y, width, height = box
    cut = np.zeros((*planes.shape[:-2], height, width), planes.dtype)
    inside = planes[..., max(y, 0) : max(y + height, 0), max(x, 0) : max(x + width, 0)]
    top, left = max(-y, 0), max(-x, 0)
    cut[..., top : top + inside.shape[-2], left : left + inside.shape[-1]] = inside
    return cut


def _refuse_parts_and_layers_of_pfm(path: Path, part: int | str | None, layer: str | None) -> None:
    for name, value in (("part", part), ("layer", layer)):
        if value is not None:
            raise InputError(f"{path}: a PFM file has no {name}s, got {name}={value!r}")


class _Pixels(NamedTuple):
    """Picture, and what is known of it."""

    planes: Planes
    valid_mask: Mask | None = None
    """[H, W]; None: everywhere."""
    nonfinite_mask: Mask | None = None
    """[H, W]: stored values that are NaN or infinite; None: nowhere."""


def _read_display_referred_pixels(
    source: ImageSource, part: ImagePart, color_channels: list[int], reader: FrameReader
) -> _Pixels:
    path, spec, window = source.path, part.spec, reader.window
    if spec.deep:
        raise InputError(f"{path}: part {part.index} holds deep data (several samples a pixel); flatten it first")
    if spec.get_int_attribute("tiff:PhotometricInterpretation") in _LAB:
        raise InputError(f"{path}: the colour is CIE Lab, which is not supported; convert it to RGB")
    forms = {str(spec.channelformats[c]) if spec.channelformats else str(spec.format) for c in color_channels}
    if source.kind == "openexr" and not forms <= {"half", "float"}:
        raise InputError(f"{path}: expected half or float colour, got {', '.join(sorted(forms))}")
    require_uint8_or_uint16_if_integer(path, forms)
    value_type = next(iter(forms)) if forms in ({"uint8"}, {"uint16"}) else "float"
    full = {"uint8": 255, "uint16": 65535}.get(value_type, 1)
    to_display = choose_inplace_curve_to_srgb_if_needed(
        reader.transfer, _choose_auto_transfer(source.kind, spec, forms)
    )

    frame: Box = resolve_window_to_box(window, part.data_window, part.display_window)
    if not isinstance(window, tuple):
        refuse_implausible_display_window(path, frame[2], frame[3], source.size)
    shape = (len(color_channels), frame[3], frame[2])
    # Whether the frame lies inside of what is stored, so that nothing of it has to be zero.
    covered = part.window.union(FrameWindow(frame, frame)).data == part.data_window
    opacity = _find_unpremultiplied_alpha_or_none(part, color_channels) if reader.alpha == "apply" else None
    channels = color_channels if opacity is None else [*color_channels, opacity]
    table = build_half_float_table_if_possible(to_display) if forms == {"half"} and opacity is None else None
    value_type = value_type if table is None else "half"
    planes: Planes | None = None
    valid_mask = None if covered else np.zeros(shape[1:], np.bool_)
    dead: Mask | None = None
    for area, pixels in source.iterate_pixels_in_box(part, channels, frame, value_type):
        if planes is None:  # only now is the size known to be plausible
            new = torch.empty(shape if covered else 0, dtype=torch.float32, device="cpu", pin_memory=reader.pinned)
            planes = new.numpy() if covered else np.zeros(shape, np.float32)
        slab = planes[:, area[0], area[1]]
        if valid_mask is not None:
            valid_mask[area] = True
        if table is not None:
            _fill_planes_from_half_table(table, pixels.view(np.uint16), slab)
            if np.isfinite(slab).all():
                continue
        for channel, plane in enumerate(slab):  # of half floats too, where some are not finite
            if full == 1:
                plane[:] = pixels[..., channel]
            else:
                np.divide(pixels[..., channel], np.float32(full), out=plane, dtype=np.float32)
        if opacity is not None:
            slab *= pixels[..., -1].astype(np.float32) / np.float32(full)
        if full == 1 and not np.isfinite(slab).all():
            dead = np.zeros(shape[1:], np.bool_) if dead is None else dead
            dead[area] = _zero_nonfinite_inplace_and_get_mask(slab)
        _apply_curve_inplace_and_require_finite(path, to_display, slab)
    if planes is None:  # nothing of the picture is in the box
        planes = np.zeros(shape, np.float32)
    if dead is not None:
        valid_mask = ~dead if valid_mask is None else valid_mask & ~dead
    orientation = spec.get_int_attribute("Orientation", 1)
    masks = (None if mask is None else apply_exif_orientation(mask, orientation) for mask in (valid_mask, dead))
    return _Pixels(apply_exif_orientation(planes, orientation), *masks)


def _zero_nonfinite_inplace_and_build_pixels(planes: Planes) -> _Pixels:
    """Set values that are not finite to 0, and mark them."""
    if np.isfinite(planes).all():
        return _Pixels(planes)
    dead = _zero_nonfinite_inplace_and_get_mask(planes)
    return _Pixels(planes, ~dead, dead)


def _zero_nonfinite_inplace_and_get_mask(planes: Planes) -> Mask:  # [C, H, W] -> [H, W]
    """Set pixels with NaN or infinity to 0, in place, and return where they are."""
    dead = ~np.isfinite(planes).all(axis=0)
    planes[:, dead] = 0
    return np.asarray(dead)


def _fill_planes_from_half_table(table: Planes, bits: NDArray[np.uint16], planes_out: Planes) -> None:
    """Set ``planes_out[c, y, x] = table[bits[y, x, c]]``, few rows at a time: NumPy's indices are larger."""
    rows = max(1, _LOOKED_UP // bits.shape[1])
    index = np.empty((min(rows, len(bits)), bits.shape[1]), np.intp)
    for top in range(0, len(bits), rows):
        some = bits[top : top + rows]
        for channel, plane in enumerate(planes_out[:, top : top + rows]):
            index[: len(some)] = some[..., channel]
            np.take(table, index[: len(some)], out=plane, mode="clip")


def _choose_auto_transfer(file_format: str, spec: Any, value_types: set[str]) -> str:
    """Return the transfer that ``auto`` stands for."""
    if file_format == "dpx":
        return _DPX_TRANSFERS.get(spec.get_string_attribute("dpx:Transfer"), "srgb")
    if file_format in ("openexr", "hdr") or value_types & {"half", "float", "double"}:
        return "linear"
    return "srgb"


def _find_unpremultiplied_alpha_or_none(part: ImagePart, colour: list[int]) -> int | None:
    """Return the alpha channel, where the stored colour is not multiplied by it."""
    if not part.spec.get_int_attribute("oiio:UnassociatedAlpha"):
        return None
    for indices in map_layers_to_channel_indices(part.channels).values():
        if colour[0] in indices.values():
            return next((indices[name] for name in _ALPHAS if name in indices), None)
    return None


def _apply_curve_inplace_and_require_finite(path: Path, curve: Curve | None, planes: Planes) -> None:
    if curve is None:
        return
    curve(planes)
    if not np.isfinite(planes).all():
        raise InputError(f"{path}: values too large for this transfer; they become infinite")


def write_image(path: PathLike, image: Tensor | NDArray[Any]) -> None:
    """Write a picture as PNG, JPEG, TIFF or OpenEXR, by the suffix; all of it or nothing.

    Args:
        path: where to; the suffix is one of :data:`fullfield.io.names.IMAGE_WRITE_SUFFIXES`.
        image: ``[C, H, W]`` or ``[H, W, C]`` with C = 1 or 3, or ``[H, W]``. Where both fit, a tensor
            is ``[C, H, W]`` and an array is ``[H, W, C]``. uint8; uint16 (not JPEG); or display-referred
            floating point, which is clamped to [0, 1] and rounded to 8 bits, except in EXR, which stores
            linear float32: :func:`read_frame` returns the values up to rounding, negative ones as 0.

    Raises:
        InputError: an unknown suffix, or an image of another shape or type or with NaN or infinite values.
        OSError: the file cannot be written; what stood there before stays.
    """
    where = Path(convert_path_to_text(path))
    suffix = where.suffix.lower()
    if suffix not in IMAGE_WRITE_SUFFIXES:
        raise InputError(f"{where}: expected a suffix out of {', '.join(IMAGE_WRITE_SUFFIXES)}, got {suffix!r}")
    pixels = _check_and_convert_to_interleaved(image)
    if suffix == ".exr":
        pixels = _convert_srgb_to_linear_float(pixels)
    elif pixels.dtype.kind == "f":
        pixels = (pixels.clip(0, 1) * 255).round().astype(np.uint8)
    if suffix in (".jpg", ".jpeg"):
        require(pixels.dtype == np.uint8, "image", "uint8 or floating point for JPEG", image)
        _write_jpeg(where, pixels)
        return
    check_name_is_utf8(where)
    kind = {".png": "png", ".exr": "openexr"}.get(suffix, "tiff")
    attributes: dict[str, str | int] = {"png:compressionLevel": 4} if kind == "png" else {"compression": "zip"}
    names = ("R", "G", "B") if pixels.shape[2] == 3 else ("Y",)
    with write_atomically(where) as temporary:
        write_and_verify_picture(temporary, kind, pixels, names, Header(attributes))


def _check_and_convert_to_interleaved(image: Tensor | NDArray[Any]) -> NDArray[Any]:
    """Return the picture as ``[H, W, C]``, uint8, uint16 or finite float32."""
    expected = "[C, H, W] or [H, W, C] with C = 1 or 3, or [H, W]"
    require(isinstance(image, (Tensor, np.ndarray)), "image", f"a tensor or array {expected}", image)
    if isinstance(image, Tensor):
        first = True
        image_ = check_not_meta(image, "image").detach().cpu()
        pixels = (image_.float() if image_.is_floating_point() else image_).numpy()
    else:
        first, pixels = False, image
    if pixels.ndim == 2:
        pixels = pixels[..., None]
    require(pixels.ndim == 3 and 0 not in pixels.shape, "image", expected, image)
    axes = [axis for axis in ((0, 2) if first else (2, 0)) if pixels.shape[axis] in (1, 3)]
    require(bool(axes), "image", expected, image)
    if axes[0] == 0 and np.ndim(image) == 3:
        pixels = pixels.transpose(1, 2, 0)
    if pixels.dtype.kind == "f":
        pixels = pixels.astype(np.float32)
        require(bool(np.isfinite(pixels).all()), "image", "finite values", "NaN or infinity")
        return pixels
    require(pixels.dtype in (np.uint8, np.uint16), "image", "uint8, uint16 or floating point", image)
    return pixels


def _convert_srgb_to_linear_float(pixels: NDArray[Any]) -> NDArray[Any]:
    full = {"uint8": 255, "uint16": 65535}.get(str(pixels.dtype), 1)
    light = np.array(pixels, np.float32) / np.float32(full)
    decode_srgb_inplace(light)
    require(bool(np.isfinite(light).all()), "image", "values whose light is finite", "larger ones")
    return light


def _write_jpeg(path: Path, pixels: NDArray[Any]) -> None:
    # libjpeg inside OpenImageIO ends the process when a write fails, so the file is made in memory.
    from PIL import Image

    encoded = io.BytesIO()
    picture = pixels[..., 0] if pixels.shape[2] == 1 else pixels
    try:
        Image.fromarray(np.ascontiguousarray(picture)).save(encoded, "JPEG", quality=95, subsampling=0)
    except OSError as error:
        raise InputError(f"{path}: JPEG holds at most 65535 × 65535 pixels, got {picture.shape[:2]}") from error
    with write_atomically(path) as temporary:
        temporary.write_bytes(encoded.getbuffer())
