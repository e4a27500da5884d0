"""Access to OpenImageIO: opening by content, parts, layers, metadata, bands of rows, writing."""

from __future__ import annotations

import errno
import math
import os
import shutil
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fullfield._check import InputError, convert_path_to_text
from fullfield._switch import SharedSwitch
from fullfield.io.files import (
    PathLike,
    join_to_one_line,
    read_stamp_if_exists,
    refuse_implausible_display_window,
    refuse_implausible_inflated_size,
    refuse_implausible_pixel_count,
    require_nonempty_file_and_get_bytes,
)
from fullfield.io.forks import ALONE, register_thread_pool_stop_at_forks
from fullfield.io.scanlines import HEAD, Scanlines
from fullfield.io.windows import Box, FrameWindow

_MAGIC: tuple[tuple[bytes, str], ...] = (
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"\xff\xd8\xff", "jpeg"),
    (b"\x76\x2f\x31\x01", "openexr"),
    (b"II*\0", "tiff"),
    (b"MM\0*", "tiff"),
    (b"II+\0", "tiff"),
    (b"MM\0+", "tiff"),
    (b"SDPX", "dpx"),
    (b"XPDS", "dpx"),
    (b"#?", "hdr"),
    (b"BM", "bmp"),
    *((b"P%d" % digit, "pnm") for digit in range(1, 7)),
    (b"PF", "pfm"),
    (b"Pf", "pfm"),
)
_PIXELS_PER_BYTE = {"png": 8256, "tiff": 4096, "openexr": 4096, "jpeg": 1024}
_PIXELS_PER_BYTE_UNPACKED = 256
_FORMS = {"uint8": "uint8", "uint16": "uint16", "float16": "half", "float32": "float"}
_MAX_PARTS = 1024
_OPENINGS = 10
_BAND_PIXELS = 1 << 22
_BAND_PIXELS_ALONE = 1 << 17  # of one thread, which works on them in its cache
_BLOCKS = {"none": 1, "rle": 1, "zips": 1, "zip": 16, "piz": 32, "pxr24": 16, "b44": 32, "b44a": 32, "dwaa": 32}
_BLOCK = 256  # of dwab, OpenEXR's highest
"""Rows that OpenEXR packs together."""
_HARMLESS = ("extraneous bytes before marker 0xd9", "unknown JFIF revision", "Invalid SOS parameters")


def _limit_to_one_thread_and_get_restore() -> Callable[[], None]:
    import OpenImageIO as oiio

    def set_attributes(values: Mapping[str, int]) -> None:
        for name, value in values.items():
            oiio.attribute(name, value)

    before = {name: oiio.get_int_attribute(name) for name in ALONE}
    set_attributes(ALONE)
    return lambda: set_attributes(before)


one_thread_a_file = SharedSwitch(_limit_to_one_thread_and_get_restore)
"""Inside, OpenEXR packs and unpacks a file in the thread that asks for it.

For whoever has many files in hand at once: handing rows to the pools of OpenEXR (which packs) and OpenImageIO (which
unpacks) takes a fifth more time of the CPU. The switches are OpenImageIO's, for the whole process.
"""
register_thread_pool_stop_at_forks(one_thread_a_file.forget_threads_in_forked_child)


def detect_format_and_file_bytes(path: Path) -> tuple[str, int]:
    """Return the format of the frame at ``path`` by its first bytes, as OpenImageIO names it, and the file's size."""
    size = require_nonempty_file_and_get_bytes(path)
    with path.open("rb") as file:
        head = file.read(18)
    for magic, kind in _MAGIC:
        if head.startswith(magic):
            return kind, size
    if path.suffix.lower() == ".tga" and _has_targa_header(head):
        return "targa", size
    raise InputError(
        f"{path}: expected a frame (PNG, JPEG, TIFF, OpenEXR, DPX, PPM, PFM, Radiance HDR, BMP or "
        "TGA), got a file that starts like none of them"
    )


def _has_targa_header(head: bytes) -> bool:
    """Return whether a file may be TGA, which has no magic number; OpenImageIO would try all its readers on others."""
    mapped, image_type, depth = (head[1], head[2], head[16]) if len(head) == 18 else (0, 0, 0)
    right = image_type in (2, 3, 10, 11) or (image_type in (1, 9) and mapped == 1)
    return right and mapped in (0, 1) and depth in (8, 15, 16, 24, 32)


@dataclass(frozen=True)
class ImagePart:
    """One image of a file: an OpenEXR part, a TIFF page."""

    index: int
    name: str
    channels: tuple[str, ...]
    spec: Any

    @property
    def data_window(self) -> Box:
        """The stored pixels."""
        return self.spec.x, self.spec.y, self.spec.width, self.spec.height

    @property
    def display_window(self) -> Box:
        """The frame they belong to."""
        return self.spec.full_x, self.spec.full_y, self.spec.full_width, self.spec.full_height

    @property
    def window(self) -> FrameWindow:
        """Both windows, and how wide a pixel is; nonsense there counts as square."""
        aspect = float(self.spec.get_float_attribute("PixelAspectRatio", 1.0))
        return FrameWindow(self.data_window, self.display_window, aspect if 0 < aspect < math.inf else 1.0)


@dataclass
class ImageSource:
    """An open picture file."""

    path: Path
    kind: str
    size: int
    handle: Any

    def iterate_parts(self) -> Iterator[ImagePart]:
        """Yield the images of the file."""
        for index in range(_MAX_PARTS):
            if not self.handle.seek_subimage(index, 0):
                self.handle.geterror()
                return
            spec = self.handle.spec(index, 0)
            name = spec.get_string_attribute("oiio:subimagename") or spec.get_string_attribute("name")
            yield ImagePart(index, name, tuple(spec.channelnames), spec)

    def get_first_part_or_raise(self) -> ImagePart:
        """Return the first image; InputError where there is none."""
        part = next(self.iterate_parts(), None)
        if part is None:
            raise self.build_read_error("it holds no image")
        return part

    def find_part_or_raise(self, index_or_name: int | str) -> ImagePart:
        """Return the part of that index or name; digits are an index where no part has that name."""
        parts = list(self.iterate_parts())
        index = (
            int(index_or_name)
            if isinstance(index_or_name, int) or (index_or_name.isascii() and index_or_name.isdecimal())
            else -1
        )
        matches = [part for part in parts if part.name == index_or_name != ""] or [p for p in parts if p.index == index]
        if matches:
            return matches[0]
        listed = ", ".join(f"{p.index} {join_to_one_line(p.name)!r}" if p.name else str(p.index) for p in parts[:40])
        raise InputError(f"{self.path}: no part {index_or_name!r}; the file has part{'s' * (len(parts) > 1)} {listed}")

    def iterate_row_bands(
        self, part: ImagePart, channels: Sequence[int], row_range: tuple[int, int], value_type: str
    ) -> Iterator[tuple[int, NDArray[Any]]]:
        """Yield (y, ``[rows, width, len(channels)]``) for the rows ``y0 <= y < y1`` of ``row_range``, top down.

        ``value_type`` is the requested element type: ``uint8``, ``uint16``, ``half`` or ``float``.
        """
        spec = part.spec
        if spec.get_string_attribute("compression").startswith("htj2k"):
            # A damaged code stream makes its decoder allocate gigabytes.
            raise InputError(f"{self.path}: HTJ2K compression is not supported; convert the file to ZIP or DWAA")
        per_byte = _PIXELS_PER_BYTE.get(self.kind, _PIXELS_PER_BYTE_UNPACKED)
        refuse_implausible_pixel_count(self.path, spec.width, spec.height, self.size, per_byte)
        step = max(1, (_BAND_PIXELS_ALONE if one_thread_a_file.is_on else _BAND_PIXELS) // spec.width)
        block = _BLOCKS.get(spec.get_string_attribute("compression"), _BLOCK) if self.kind == "openexr" else 1
        unit = max(spec.tile_height, block)
        step = max(step // unit, 1) * unit
        start = spec.y + (row_range[0] - spec.y) // unit * unit
        for top in range(start, row_range[1], step):
            bottom = min(top + step, spec.y + spec.height)
            band = self._read_channel_rows(part, channels, (top, bottom), value_type)
            skip = max(row_range[0] - top, 0)
            yield top + skip, band[skip : row_range[1] - top]

    def iterate_pixels_in_box(
        self, part: ImagePart, channels: Sequence[int], box: Box, value_type: str
    ) -> Iterator[tuple[tuple[slice, slice], NDArray[Any]]]:
        """Yield the stored pixels inside a box, by :meth:`iterate_row_bands`, with their rows and columns in it."""
        x, y, width, height = part.data_window
        left, right = max(x, box[0]), min(x + width, box[0] + box[2])
        top, bottom = max(y, box[1]), min(y + height, box[1] + box[3])
        if left >= right or top >= bottom:
            return
        columns = slice(left - box[0], right - box[0])
        for start, band in self.iterate_row_bands(part, channels, (top, bottom), value_type):
            rows = slice(start - box[1], start - box[1] + len(band))
            yield (rows, columns), band[:, left - x : right - x]

    def read_planes(self, part: ImagePart, channels: Sequence[int], box: Box) -> NDArray[np.float32]:
        """Return channels ``[C, height, width]`` on a box, 0 outside the data window."""
        refuse_implausible_display_window(self.path, box[2], box[3], self.size)
        planes = np.zeros((len(channels), box[3], box[2]), np.float32)
        for (rows, columns), pixels in self.iterate_pixels_in_box(part, channels, box, "float"):
            planes[:, rows, columns] = pixels.transpose(2, 0, 1)
        return planes

    def _read_channel_rows(
        self, part: ImagePart, channels: Sequence[int], row_range: tuple[int, int], value_type: str
    ) -> NDArray[Any]:
        first, last = min(channels), max(channels) + 1
        if last - first <= 2 * len(channels) + 2:
            block = self._read_row_block_in_channel_range(part, row_range, first, last, value_type)
            if channels == list(range(first, last)):
                return block
            return block[..., [c - first for c in channels]]
        return np.concatenate(
            [self._read_row_block_in_channel_range(part, row_range, c, c + 1, value_type) for c in channels], axis=-1
        )

    def _read_row_block_in_channel_range(
        self, part: ImagePart, row_range: tuple[int, int], first: int, last: int, value_type: str
    ) -> NDArray[Any]:
        spec = part.spec
        if spec.tile_width:
            window = (spec.x, spec.x + spec.width, *row_range, 0, 1)
            block = self.handle.read_tiles(part.index, 0, *window, first, last, value_type)
        else:
            block = self.handle.read_scanlines(part.index, 0, *row_range, 0, first, last, value_type)
        message = self.pop_error_message()
        expected = (row_range[1] - row_range[0], spec.width, last - first)
        if block is None or message:
            raise self.build_read_error(message or "its pixels cannot be decoded")
        if block.size != expected[0] * expected[1] * expected[2]:
            raise self.build_read_error(f"its rows have shape {block.shape}")
        return block.reshape(expected)  # type: ignore[no-any-return]

    def read_last_row_of_first_channel(self, part: ImagePart) -> NDArray[Any]:
        """Return the first channel of the last row; only the rows packed with it are decoded."""
        last = part.spec.y + part.spec.height
        return self._read_row_block_in_channel_range(part, (last - 1, last), 0, 1, "float")

    def pop_error_message(self) -> str:
        """Return OpenImageIO's pending messages on one line, without the harmless ones."""
        lines = self.handle.geterror().splitlines()
        return join_to_one_line("; ".join(line for line in lines if not any(word in line for word in _HARMLESS)))

    def build_read_error(self, message: str) -> InputError:
        """Return the InputError for a file that cannot be read."""
        return _build_read_error(self.path, self.kind, message)


def _build_read_error(path: Path, file_format: str, message: str) -> InputError:
    return InputError(f"{path}: unreadable {file_format} file (truncated, corrupt or unsupported): {message}")


def _build_text_error(path: Path, file_format: str) -> InputError:
    return _build_read_error(path, file_format, "it holds text that is not UTF-8")


@contextmanager
def open_image_source(path: Path, expected_format: str | None = None, description: str = "") -> Iterator[ImageSource]:
    """Open a frame by its content. Whatever is wrong with it raises :class:`InputError` naming the file.

    ``expected_format`` is the only accepted format, as :func:`detect_format_and_file_bytes` names it; ``description``
    says what is in it.
    """
    source = _open_while_file_is_unchanged(path, expected_format, description)
    try:
        yield source
    except UnicodeError as error:
        raise _build_text_error(path, source.kind) from error
    finally:
        source.handle.close()


def _open_while_file_is_unchanged(path: Path, expected_format: str | None, description: str) -> ImageSource:
    """Open a frame; open it again if another process replaced the file meanwhile.

    OpenImageIO opens a path and only then looks up its size by the path. A file of another size in between looks
    damaged.
    """
    for _ in range(_OPENINGS - 1):
        stamp = read_stamp_if_exists(path)
        try:
            source = _open_source(path, expected_format, description)
        except InputError:
            if read_stamp_if_exists(path) == stamp:
                raise
            continue
        if read_stamp_if_exists(path) == stamp:
            return source
        source.handle.close()
    return _open_source(path, expected_format, description)


def _open_source(path: Path, expected_format: str | None, description: str) -> ImageSource:
    import OpenImageIO as oiio

    kind, size = detect_format_and_file_bytes(path)
    if expected_format is not None and kind != expected_format:
        raise InputError(f"{path}: expected {description}, got a {kind} file")
    check_name_is_utf8(path)
    if kind == "png":
        check_png_is_complete_and_plausible(path)
    request = oiio.ImageSpec()
    request.attribute("oiio:UnassociatedAlpha", 1)
    try:
        oiio.geterror()
        handle = oiio.ImageInput.open(str(path), request)
        message = "" if handle else join_to_one_line(oiio.geterror()) or "its header makes no sense"
    except UnicodeError as error:
        raise _build_text_error(path, kind) from error
    if handle is None:
        raise _build_read_error(path, kind, message)
    source = ImageSource(path, kind, size, handle)
    if handle.format_name() != kind:
        handle.close()
        raise source.build_read_error(f"it starts like {kind} but is not")
    return source


def check_name_is_utf8(path: Path) -> None:
    """Check that the name is UTF-8: OpenImageIO takes no other."""
    try:
        str(path).encode("utf-8")
    except UnicodeEncodeError:
        name_text = str(path).encode("utf-8", "backslashreplace").decode("utf-8")
        raise InputError(f"{name_text}: the name of the file is not UTF-8; rename it") from None


def check_png_is_complete_and_plausible(path: Path) -> None:
    """Refuse a PNG that is cut short, fails a checksum or claims more pixels than its data can inflate to."""
    size = require_nonempty_file_and_get_bytes(path)
    with path.open("rb") as file:
        file.seek(8)
        header = b""
        data = 0
        while True:
            head = file.read(8)
            if len(head) < 8:
                raise InputError(f"{path}: truncated PNG file: it ends after {size} bytes without an IEND chunk")
            length, name = struct.unpack(">I4s", head)
            if length > size - file.tell() - 4:
                chunk = join_to_one_line(name.decode("latin-1"))
                raise InputError(
                    f"{path}: truncated PNG file: chunk {chunk} says {length} bytes, the file has "
                    f"{max(size - file.tell() - 4, 0)} left"
                )
            body, checksum = _read_png_chunk_start_and_checksum(file, length, zlib.crc32(name))
            if file.read(4) != struct.pack(">I", checksum):
                chunk = join_to_one_line(name.decode("latin-1"))
                raise InputError(f"{path}: corrupt PNG file: wrong checksum in chunk {chunk}")
            if name == b"IHDR" and length == 13 and not header:
                header = body
            elif name == b"IDAT":
                data += length
            elif name == b"IEND":
                break
    if not header:
        raise InputError(f"{path}: corrupt PNG file: it has no IHDR chunk")
    width, height, bits, colour = struct.unpack(">IIBB", header[:10])
    refuse_implausible_pixel_count(path, width, height, size, _PIXELS_PER_BYTE["png"])
    samples = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}.get(colour, 1)
    refuse_implausible_inflated_size(
        path, f"its header ({width} × {height})", width * height * samples * bits // 8, data + 8
    )


def _read_png_chunk_start_and_checksum(file: BinaryIO, length: int, checksum: int) -> tuple[bytes, int]:
    """Read the body of a chunk; return its first bytes and the checksum continued over all of it."""
    body = b""
    while length > 0:
        piece = file.read(min(length, 1 << 20))
        if not piece:
            break
        body = body or piece[:16]
        checksum = zlib.crc32(piece, checksum)
        length -= len(piece)
    return body, checksum


def map_layers_to_channel_indices(channels: Sequence[str]) -> dict[str, dict[str, int]]:
    """Group channels by layer: ``{"diffuse": {"r": 4, "g": 5, "b": 6}, "": {…}}``; names in lower case."""
    grouped: dict[str, dict[str, int]] = {}
    for index, channel in enumerate(channels):
        layer, _, last = channel.rpartition(".")
        grouped.setdefault(layer, {}).setdefault(last.lower(), index)
    return grouped


def describe_part_channels(parts: Sequence[ImagePart]) -> str:
    """Return the channels of a file, part by part, for a message."""
    texts = []
    for part in parts[:12]:
        name = f"part {part.index} {join_to_one_line(part.name)!r}: " if len(parts) > 1 else ""
        listed = [join_to_one_line(channel, 40) for channel in part.channels[:24]]
        texts.append(name + ", ".join(listed) + (", …" if len(part.channels) > 24 else ""))
    return "; ".join(texts) + ("; …" if len(parts) > 12 else "")


class Attribute(NamedTuple):
    """One entry of a header: its name, OpenImageIO's type for it, and its value."""

    name: str
    type: Any
    value: Any


class Header(NamedTuple):
    """Entries of a file before its pixels."""

    attributes: Mapping[str, str | int | float] = MappingProxyType({})
    window: FrameWindow | None = None
    """Of an EXR; the data window has the size of the pixels."""
    metadata: Sequence[Attribute] = ()


_INCOMPLETE = "the file could not be completed"


def write_and_verify_picture(
    path: Path, file_format: str, pixels: NDArray[Any], channels: Sequence[str] = (), header: Header | None = None
) -> None:
    """Write ``[H, W, C]`` as one file of a format, and make sure that all of it arrived.

    Raises :class:`OSError` when it did not: in some formats a full disk shows only in what was written.
    """
    spec = _build_spec(pixels.shape, pixels.dtype.name, channels, header or Header())
    _write_pixels_or_header(path, file_format, spec, np.ascontiguousarray(pixels))
    _verify_last_row(path, file_format, pixels.nbytes)


def write_and_verify_uncompressed_exr(path: Path, lines: Scanlines, header: Header | None = None) -> None:
    """Write an OpenEXR that is not packed, the same file as :func:`write_and_verify_picture` makes of these channels.

    OpenImageIO writes the header, with a table of zeros behind it. The places of the lines go there, and the lines
    themselves, in one piece, behind.
    """
    planes = lines.planes
    height, count, width = planes.shape
    header = header or Header()
    unpacked = header._replace(attributes={**header.attributes, "compression": "none"})
    spec = _build_spec((height, width, count), planes.dtype.name, lines.names, unpacked)
    _write_pixels_or_header(path, "openexr", spec, None)
    rows, size = lines.body.shape
    heads = np.empty((rows, 2), "<i4")
    heads[:, 0], heads[:, 1] = np.arange(spec.y, spec.y + rows), size - HEAD
    lines.body[:, :HEAD] = heads.view(np.uint8)
    with path.open("r+b") as file:
        table_end = file.seek(0, os.SEEK_END)
        file.seek(table_end - 8 * rows)
        file.write((table_end + size * np.arange(rows)).astype("<u8").tobytes())
        file.write(lines.body.data)
    _verify_last_row(path, "openexr", lines.body.nbytes, lines)


def _build_spec(shape: Sequence[int], dtype: str, channels: Sequence[str], header: Header) -> Any:
    import OpenImageIO as oiio

    height, width, count = shape
    spec = oiio.ImageSpec(width, height, count, _FORMS[dtype])
    if channels:
        spec.channelnames = tuple(channels)
    for entry in header.metadata:
        spec.attribute(entry.name, entry.type, entry.value)
    for name, value in header.attributes.items():
        spec.attribute(name, value)
    window = header.window
    if window is not None:
        spec.x, spec.y = window.data[:2]
        spec.full_x, spec.full_y, spec.full_width, spec.full_height = window.display
        spec.attribute("PixelAspectRatio", float(window.pixel_aspect))
    return spec


def _write_pixels_or_header(path: Path, file_format: str, spec: Any, pixels: NDArray[Any] | None) -> None:
    """Write a file; where ``pixels`` is None, its header alone."""
    import OpenImageIO as oiio

    output = oiio.ImageOutput.create(file_format)
    if output is None:
        raise OSError(f"{path}: this OpenImageIO cannot write {file_format}")
    written = output.open(str(path), spec) and (pixels is None or output.write_image(pixels))
    message = output.geterror()
    closed = output.close()
    if not (written and closed) or message:
        reason = message or output.geterror() or _INCOMPLETE
        expected = spec.image_bytes() if pixels is None else pixels.nbytes
        raise _build_disk_full_or_write_error(path, join_to_one_line(reason.replace(f' "{path}"', "")), expected)


def _build_disk_full_or_write_error(path: Path, reason: str, expected_bytes: int) -> OSError:
    """Return the error of a file that is incomplete: "no space" where ``expected_bytes`` do not fit on the disk."""
    if shutil.disk_usage(path.parent).free < expected_bytes:  # OpenImageIO does not report it
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    return OSError(errno.EIO, reason, str(path))


def _verify_last_row(path: Path, file_format: str, pixel_bytes: int, expected_lines: Scanlines | None = None) -> None:
    """Read the last row of a file of ``pixel_bytes``, and compare it with ``expected_lines`` where they are given."""
    try:
        with open_image_source(path) as source:
            part = source.get_first_part_or_raise()
            if file_format == "png":  # whose checksums were looked at
                return
            matches = source.read_last_row_of_first_channel(part).reshape(-1)
    except InputError as error:
        raise _build_disk_full_or_write_error(path, _INCOMPLETE, pixel_bytes) from error
    if expected_lines is not None:
        row = expected_lines.planes[-1, expected_lines.names.index(part.channels[0])].astype(np.float32)
        if not np.array_equal(matches, row, equal_nan=True):
            raise OSError(errno.EIO, "the file holds something else than was written", str(path))


# How pixels are stored, which another file with other pixels says for itself; and claims about them.
_OWN = {
    "compression", "pixelaspectratio", "name", "type", "view", "multiview", "chunkcount", "tiles", "orientation",
    "acesimagecontainerflag", "envmap", "textureformat", "wrapmodes", "averagecolor", "constantcolor", "sha-1",
    "iccprofile", "planarconfiguration", "resolutionunit", "xresolution", "yresolution", "version",
}  # fmt: skip
# How colour is to be shown: it holds for pictures made from the frame, not for vectors, which are data.
_COLOUR = {
    "chromaticities", "whiteluminance", "adoptedneutral", "colorinteropid", "colorspace", "inputcolorspace",
    "renderingtransform", "lookmodtransform",
}  # fmt: skip
_OWN_PREFIXES = ("oiio:", "openexr:", "dpx:", "tiff:", "png:", "exif:", "iptc:", "fullfield/")
_KINDS = ("openexr", "dpx")


def read_metadata(path: PathLike, *, part: int | str | None = None) -> tuple[Attribute, ...]:
    """Return the entries of an OpenEXR or DPX header that hold for other files made from the frame.

    Time code, key code, frame rate, camera, ``nuke/*`` and other notes; not how its pixels are stored, and not their
    colour space, which does not hold for vectors. Empty for other formats. Errors are those of
    :func:`fullfield.io.read_frame`.

    >>> names = [attribute.name for attribute in read_metadata("plate.1001.exr")]  # doctest: +SKIP
    """
    where = Path(convert_path_to_text(path))
    if detect_format_and_file_bytes(where)[0] not in _KINDS:
        return ()
    with open_image_source(where) as source:
        return list_inherited_metadata_without_color(source, part)


def list_inherited_metadata_without_color(source: ImageSource, part: int | str | None = None) -> tuple[Attribute, ...]:
    """Return the entries of :func:`read_metadata` from an open file."""
    if source.kind not in _KINDS:
        return ()
    entries = list_inherited_attributes(
        (source.get_first_part_or_raise() if part is None else source.find_part_or_raise(part)).spec
    )
    return tuple(entry for entry in entries if entry.name.lower() not in _COLOUR)


def list_inherited_attributes(spec: Any) -> tuple[Attribute, ...]:
    """Return the entries that pictures made from this part keep, colour space included."""
    entries = []
    for entry in spec.extra_attribs:
        name = entry.name.lower()
        if name not in _OWN and not name.startswith(_OWN_PREFIXES):
            entries.append(Attribute(entry.name, entry.type, entry.value))
    return tuple(entries)
