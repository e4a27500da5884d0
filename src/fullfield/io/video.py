"""Video in and out: files and streams through PyAV, cameras through OpenCV, both loaded when they are used."""

from __future__ import annotations

import importlib
import math
import re
import struct
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fullfield._check import InputError, SetupError, check_choice, convert_path_to_text
from fullfield.io.files import (
    PathLike,
    describe_error,
    refuse_implausible_pixel_count,
    require_nonempty_file_and_get_bytes,
    write_atomically,
)
from fullfield.io.names import CAMERA, VIDEO_CODECS

# Of the time stamps of written frames: divisible by the usual rates, and fine enough for any other.
_TICKS = 90_000
_ENCODINGS: dict[str, tuple[tuple[str, ...], str, dict[str, str]]] = {
    "h264": (("libx264", "libopenh264", "mpeg4"), "yuv420p", {}),
    "prores": (("prores_ks", "prores"), "yuv422p10le", {"profile": "3"}),
    "dnxhr": (("dnxhd",), "yuv422p10le", {"profile": "dnxhr_hqx"}),
}
"""Encoders, pixel format and options by codec."""
_LONGEST_GAP = 600.0  # seconds from frame to frame; time stamps further apart are taken for broken
_PATIENCE = 10.0  # seconds that a network address may say nothing
_PIXELS_ALWAYS, _PIXELS_PER_BYTE = 1 << 25, 1 << 14  # a black frame of 4096×2160 in AV1 holds 14,000 pixels a byte
_SHORTER_FRAMES, _SHORTER = 2.5, 0.02  # frames, or share of all, that a file may end before its header says
_SHORTER_ASF_S = 1.0  # seconds in a WMV, whose header has the time of the longest stream, also of sound
_PIXELS_LATER = 1 << 24  # that a frame may have, whatever the header says


class VideoFrame(Protocol):
    """Frame of a video. Its pixels are converted on request, so a frame that is skipped costs little."""

    @property
    def time(self) -> float:
        """Return the seconds since the first frame."""

    def read_luma(self) -> Tensor:  # [1, H, W] uint8, 0 ... 255
        """Return the brightness."""

    def read_rgb(self) -> Tensor:  # [3, H, W] uint8
        """Return the colours as the video stores them."""


class VideoSource(Protocol):
    """Frames of a video in order, each decoded when the iterator reaches it."""

    width: int
    height: int
    frame_rate: float | None
    """Frames a second, where the source says so."""
    is_live: bool
    """True where frames arrive at their own times (camera, network), False where they are read on request (file)."""

    def __iter__(self) -> Iterator[VideoFrame]: ...

    def close(self) -> None:
        """Close the file, stream or camera."""


def open_video(source: PathLike) -> VideoSource:
    """Open a video file, the address of a stream (``rtsp://...``) or ``camera:0``.

    Raises FileNotFoundError, InputError for what is no video or has no picture, ModuleNotFoundError (``av``, ``cv2``)
    where the library that reads it is not installed.
    """
    name = convert_path_to_text(source, "source")
    return CameraSource(name) if name.startswith(CAMERA) else FileSource(name)


class DisplayRotation(NamedTuple):
    """Rotation or reflection that brings stored pixels to the position in which players show them."""

    transposed: bool = False
    """Swap rows and columns, before anything is flipped."""
    flipped_x: bool = False
    flipped_y: bool = False

    def rotate_and_flip_pixels(self, pixels: NDArray[Any]) -> NDArray[Any]:
        """Return ``[H, W, ...]`` turned, without copying."""
        pixels = pixels.swapaxes(0, 1) if self.transposed else pixels
        pixels = pixels[:, ::-1] if self.flipped_x else pixels
        return pixels[::-1] if self.flipped_y else pixels


_QUARTERS = {
    0: DisplayRotation(),
    90: DisplayRotation(transposed=True, flipped_y=True),
    180: DisplayRotation(flipped_x=True, flipped_y=True),
    270: DisplayRotation(transposed=True, flipped_x=True),
}
"""Turns without a mirror, by PyAV's rotation in degrees, counter-clockwise."""


def parse_display_matrix_if_right_angle(matrix: bytes) -> DisplayRotation | None:
    """Return the turn of a display matrix: nine int32, of which the first, second, fourth and fifth turn.

    A stored pixel (x, y) is shown at (a x + c y, b x + d y), up to a shift. None for angles between the quarters.
    """
    a, b, _, c, d = struct.unpack_from("=5i", matrix)
    across, along = max(abs(a), abs(d)), max(abs(b), abs(c))
    if min(across, along) > 0.02 * max(across, along):
        return None
    if across >= along:
        return DisplayRotation(False, a < 0, d < 0)
    return DisplayRotation(True, c < 0, b < 0)


def _read_display_rotation_if_right_angle(frame: Any) -> DisplayRotation | None:
    """Return the turn of PyAV's frame."""
    try:
        for entry in frame.side_data:
            if entry.type.name == "DISPLAYMATRIX":
                return parse_display_matrix_if_right_angle(bytes(entry))
    except ValueError:  # PyAV refuses all entries where it does not know the kind of one
        return _QUARTERS.get(getattr(frame, "rotation", 0) % 360)
    return DisplayRotation()


class _DecodedFrame:
    """Frame of PyAV."""

    def __init__(self, frame: Any, turn: DisplayRotation, seconds: float, name: str) -> None:
        self._frame, self._turn, self._name = frame, turn, name
        self.time = seconds

    def read_luma(self) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(self._convert_to_upright_array("gray")))[None]

    def read_rgb(self) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(self._convert_to_upright_array("rgb24"))).permute(2, 0, 1)

    def _convert_to_upright_array(self, pixel_format: str) -> NDArray[Any]:
        av = importlib.import_module("av")
        try:
            pixels: NDArray[Any] = self._frame.to_ndarray(format=pixel_format)
        except (av.error.FFmpegError, OSError, ValueError) as error:
            raise InputError(
                f"{self._name}: its pixels cannot be converted ({_strip_ffmpeg_message(error)})"
            ) from error
        return self._turn.rotate_and_flip_pixels(pixels)

    def convert_to_float_rgb(self) -> Tensor:
        """Return float32 [3, H, W] in [0, 1], with all the bits that the video has; InputError for a damaged frame."""
        if self._frame.is_corrupt:
            raise InputError(f"{self._name}: is damaged")
        deep = any(component.bits > 8 for component in self._frame.format.components)
        pixels = self._convert_to_upright_array("rgb48le" if deep else "rgb24")
        planes = np.ascontiguousarray(pixels.transpose(2, 0, 1), np.float32)
        return torch.from_numpy(planes).div_(65535.0 if deep else 255.0)


class FileSource:
    """First video stream of a file or of a network address, decoded by PyAV on several threads.

    Frames are turned and mirrored as the file says and players show them (phones). An address that sends nothing for
    ten seconds raises InputError. Time stamps that jump by more than ten minutes, forwards or back, are warned about,
    and the jump is left out. Interlaced frames are warned about once.
    """

    def __init__(self, path: PathLike) -> None:
        self._path = str(path)
        self.is_live = "://" in self._path
        self._bytes = 0 if self.is_live else require_nonempty_file_and_get_bytes(Path(self._path))
        av = importlib.import_module("av")
        self._silence, self._broken = av.error.ExitError, av.error.FFmpegError
        try:
            self._container = av.open(self._path, timeout=_PATIENCE if self.is_live else None)
        except self._silence as error:
            raise InputError(f"{self._path}: no video came within {_PATIENCE:g} s") from error
        except (av.error.FFmpegError, OSError, ValueError) as error:
            raise InputError(
                f"{self._path}: expected a video, and PyAV cannot read it ({_strip_ffmpeg_message(error)})"
            ) from error
        try:
            self._open_video_stream_and_read_properties()
        except BaseException:
            self._container.close()
            raise

    def _open_video_stream_and_read_properties(self) -> None:
        if not self._container.streams.video:
            raise InputError(f"{self._path}: expected a video, and there is no picture in it")
        self._stream = self._container.streams.video[0]
        if self._stream.codec_context is None:
            raise InputError(f"{self._path}: expected a video, and this FFmpeg has no decoder for what is in it")
        self._stream.thread_type = "AUTO"
        self.width, self.height = int(self._stream.width), int(self._stream.height)
        if self.width < 1 or self.height < 1:
            raise InputError(f"{self._path}: expected a video, and its pictures are {self.width}×{self.height}")
        if not self.is_live:
            refuse_implausible_pixel_count(
                Path(self._path), self.width, self.height, self._bytes, _PIXELS_PER_BYTE, _PIXELS_ALWAYS
            )
        # Codecs round sizes up.
        max_pixels = max(_PIXELS_LATER, (self.width + 256) * (self.height + 256))
        self._stream.codec_context.options = {"max_pixels": str(max_pixels)}
        self.pixel_aspect = Fraction(self._stream.sample_aspect_ratio or 1)
        """Width of a pixel as it is shown, relative to its height."""
        rate = float(self._stream.average_rate or self._stream.guessed_rate or 0)
        self.frame_rate = rate if 1 / _LONGEST_GAP < rate < _TICKS else None
        self._demuxed: Iterator[Any] = iter(self._container.demux(self._stream))
        self._first_packets: list[Any] = []
        self._first_frames: list[Any] = []
        self._first_error: Exception | None = None
        self._decode_and_store_first_frame_or_error()
        if self._first_frames:
            turn = _read_display_rotation_if_right_angle(self._first_frames[0])
            if turn is not None and turn.transposed:
                self.width, self.height = self.height, self.width
                self.pixel_aspect = 1 / self.pixel_aspect

    def _decode_and_store_first_frame_or_error(self) -> None:
        """Decode the first frame, which alone says how the video is turned; an error waits for the iteration."""
        try:
            for packet in self._demuxed:
                self._first_packets.append(packet)
                if not self._is_cut_off(packet):
                    self._first_frames += packet.decode()
                if self._first_frames:
                    return
        except (self._silence, self._broken, OSError, ValueError) as error:
            self._first_error = error

    def __iter__(self) -> Iterator[VideoFrame]:
        interval = 1 / (self.frame_rate or 25.0)
        last, shift, is_warned = -interval, 0.0, False
        for number, frame in enumerate(self._iterate_raising_input_errors(self._iterate_decoded_frames(), "frame")):
            # A stream without time stamps runs at its rate.
            stamp = frame.time if frame.time is not None else number * interval
            shift = -stamp if number == 0 else shift
            seconds = stamp + shift
            if abs(seconds - last) > _LONGEST_GAP:
                warnings.warn(
                    f"{self._path}: the time stamps jump by {seconds - last:.6g} s after frame {number}; the next "
                    f"frame counts as {interval:.4g} s later",
                    stacklevel=2,
                )
                shift += last + interval - seconds
                seconds = last + interval
            last = seconds
            turn = _read_display_rotation_if_right_angle(frame)
            size = (frame.height, frame.width) if turn is not None and turn.transposed else (frame.width, frame.height)
            if size != (self.width, self.height):
                raise InputError(
                    f"{self._path}: expected frames of {self.width}×{self.height} throughout, got "
                    f"{size[0]}×{size[1]} after {seconds:.2f} s"
                )
            if not is_warned:
                is_warned = self._warn_if_interlaced_or_tilted(frame, turn)
            yield _DecodedFrame(frame, turn or DisplayRotation(), seconds, f"{self._path}, frame {number + 1}")

    def _warn_if_interlaced_or_tilted(self, frame: Any, turn: DisplayRotation | None) -> bool:
        """Warn of a frame that is not as players show it, and return whether it is one."""
        problem = ""
        if frame.interlaced_frame:
            problem = "is interlaced, and both fields are read as one picture; deinterlace it first (ffmpeg -vf bwdif)"
        elif turn is None:
            problem = "is turned by an angle that is no multiple of 90°; it is read as stored"
        if problem:
            warnings.warn(f"{self._path}: {problem}", stacklevel=4)
        return bool(problem)

    def _iterate_complete_packets(self) -> Iterator[Any]:
        """Yield the packets of the stream, without one that the end of a truncated file cuts off."""
        yield from (packet for packet in self._first_packets if not self._is_cut_off(packet))
        yield from self._iterate_later_packets()

    def _iterate_later_packets(self) -> Iterator[Any]:
        """Yield the packets behind the first frame's."""
        if self._first_error is not None:
            raise self._first_error
        for packet in self._demuxed:
            if not self._is_cut_off(packet):
                yield packet

    def _is_cut_off(self, packet: Any) -> bool:
        return bool(packet.is_corrupt and 0 < self._bytes <= (packet.pos or 0) + packet.size)

    def _iterate_decoded_frames(self) -> Iterator[Any]:
        yield from self._first_frames
        self._first_frames = []
        for packet in self._iterate_later_packets():
            yield from packet.decode()

    def _iterate_raising_input_errors(self, source: Iterator[Any], kind: str) -> Iterator[Any]:
        """Yield the items of ``source``; InputError where FFmpeg fails, with how many came before."""
        number = 0
        try:
            for item in source:
                number += 1
                yield item
        except self._silence as error:
            raise InputError(f"{self._path}: nothing came for {_PATIENCE:g} s after {kind} {number}") from error
        except (self._broken, OSError, ValueError) as error:
            raise InputError(f"{self._path}: broken after {kind} {number} ({_strip_ffmpeg_message(error)})") from error

    def count_frames_and_warn_if_truncated(self) -> int:
        """Return how many frames there are, by the packets of the whole file; iterate over a source of its own.

        A file that ends before the time that its header says is warned about.
        """
        number, start, end = 0, math.inf, -math.inf
        for packet in self._iterate_raising_input_errors(self._iterate_complete_packets(), "packet"):
            number += packet.size > 0
            stamp = packet.dts if packet.pts is None else packet.pts
            if stamp is not None:
                start, end = min(start, stamp), max(end, stamp + (packet.duration or 0))
        declared, measured = self._compute_header_and_packet_seconds(start, end)
        is_asf = self._container.format.name == "asf"
        slack = _SHORTER_ASF_S if is_asf else _SHORTER_FRAMES / (self.frame_rate or 25.0)
        if declared - measured > max(slack, _SHORTER * declared):
            warnings.warn(
                f"{self._path}: its header says {declared:.2f} s, but {measured:.2f} s are there ({number} frames); "
                "the file is cut off or damaged",
                stacklevel=2,
            )
        return number

    def _compute_header_and_packet_seconds(self, start: float, end: float) -> tuple[float, float]:
        """Return the seconds of pictures by the header, 0 where it does not say, and as the packets' stamps have them.

        Both are counted from 0 where the header's are.
        """
        unit = float(self._stream.time_base)
        if math.isinf(start):
            start = end = 0
        if self._container.format.name == "avi" and self.frame_rate:  # FFmpeg shortens the duration to the bytes there
            return float(self._stream.frames / self.frame_rate), end * unit
        if self._stream.duration:
            return self._stream.duration * unit, (end - start) * unit
        tag = re.fullmatch(r"(\d+):(\d\d):(\d\d(?:\.\d+)?)", self._stream.metadata.get("DURATION", ""))
        if tag is None:
            return 0.0, 0.0
        return int(tag[1]) * 3600 + int(tag[2]) * 60 + float(tag[3]), end * unit

    def close(self) -> None:
        """Close the file."""
        self._container.close()


class _CameraFrame:
    """Picture of OpenCV, [H, W, 3], blue first."""

    def __init__(self, picture: Any, seconds: float) -> None:
        self._picture = picture
        self.time = seconds

    def read_luma(self) -> Tensor:
        cv2: Any = importlib.import_module("cv2")
        return torch.from_numpy(cv2.cvtColor(self._picture, cv2.COLOR_BGR2GRAY))[None]

    def read_rgb(self) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(self._picture[:, :, ::-1])).permute(2, 0, 1)


class CameraSource:
    """Camera by its number, through OpenCV."""

    is_live = True

    def __init__(self, source: str, clock: Callable[[], float] = time.monotonic) -> None:
        number = source.removeprefix(CAMERA)
        if not (number.isascii() and number.isdigit()):
            raise InputError(f"{source}: expected {CAMERA}NUMBER, such as {CAMERA}0")
        cv2: Any = importlib.import_module("cv2")
        self._source, self._clock = source, clock
        level = cv2.utils.logging.getLogLevel()
        cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)  # the complaint below says what it would
        self._camera = cv2.VideoCapture(int(number))
        cv2.utils.logging.setLogLevel(level)
        if not self._camera.isOpened():
            where = f"/dev/video{number} " if sys.platform.startswith("linux") else ""
            raise InputError(f"{source}: no such camera, or it is in use ({where}cannot be opened)")
        # Old frames that wait in a queue are no use here.
        self._camera.set(cv2.CAP_PROP_BUFFERSIZE, 1)
        self.width, self.height = (
            int(self._camera.get(side)) for side in (cv2.CAP_PROP_FRAME_WIDTH, cv2.CAP_PROP_FRAME_HEIGHT)
        )
        rate = float(self._camera.get(cv2.CAP_PROP_FPS))
        self.frame_rate = rate if rate > 0 else None

    def __iter__(self) -> Iterator[VideoFrame]:
        first: float | None = None
        while True:
            is_read, picture = self._camera.read()
            if not is_read:  # unplugged, or closed from another thread
                return
            now = self._clock()
            first = now if first is None else first
            yield _CameraFrame(picture, now - first)

    def close(self) -> None:
        """Close the camera."""
        self._camera.release()


def check_codec_matches_suffix(path: PathLike, codec: str) -> None:
    """Raise InputError if a video file cannot hold the codec."""
    check_choice(codec, "codec", VIDEO_CODECS)
    suffix = Path(convert_path_to_text(path)).suffix.lower()
    if (codec != "h264" and suffix == ".mp4") or (codec == "dnxhr" and suffix != ".mov"):
        expected = "h264 or prores" if suffix == ".mkv" else "h264"
        raise InputError(f"codec: expected {expected} for {path}, got {codec}; write .mov")


class VideoWriter:
    """Writer of a video file, in H.264 where FFmpeg has it. The file appears when :meth:`close` has run.

    Until then an old file stays; it stays for good where no picture was written.

    Args:
        path: the suffix picks the container (``.mp4``, ``.mkv``, ``.mov``).
        width, height: of the pictures. An odd side gets one more row or column, since codecs want even ones.
        frame_rate: frames a second that players are told; the pictures keep their own times.
        codec: ``h264``, or for editing ``prores`` (422 HQ; ``.mov`` or ``.mkv``) and ``dnxhr`` (HQX; ``.mov``).
        pixel_aspect: width of a pixel as players show it, relative to its height.

    >>> with VideoWriter("clip.mp4", 64, 48, frame_rate=25) as video:  # doctest: +SKIP
    ...     video.write(torch.zeros(3, 48, 64, dtype=torch.uint8), 0.0)
    """

    def __init__(
        self, path: PathLike, width: int, height: int, frame_rate: float, codec: str = "h264", pixel_aspect: float = 1.0
    ) -> None:
        check_codec_matches_suffix(path, codec)
        if codec == "dnxhr" and (width < 256 or height < 120):
            raise InputError(f"codec: expected 256x120 or more for dnxhr, got {width}x{height}; choose prores")
        encoders, pixel_format, options = _ENCODINGS[codec]
        av = importlib.import_module("av")
        self._av, self._size, self._last = av, (height, width), -1
        with ExitStack() as stack:
            temporary = stack.enter_context(write_atomically(path))
            self._container = av.open(str(temporary), "w")
            encoder = next((name for name in encoders if name in av.codecs_available), None)
            if encoder is None:
                raise SetupError(f"{path}: this FFmpeg writes none of {', '.join(encoders)}; install av from PyPI")
            self._stream = self._container.add_stream(encoder, rate=Fraction(frame_rate).limit_denominator(1001))
            self._stream.width, self._stream.height = width + width % 2, height + height % 2
            self._stream.pix_fmt = pixel_format
            aspect = Fraction(pixel_aspect).limit_denominator(255)
            self._stream.codec_context.sample_aspect_ratio = aspect
            if aspect != 1 and codec == "prores" and Path(path).suffix.lower() == ".mkv":  # PyAV cannot write it
                warnings.warn(f"{path}: players will show square pixels; write .mov to keep their width", stacklevel=2)
            self._stream.time_base = self._stream.codec_context.time_base = Fraction(1, _TICKS)
            self._stream.options = {"preset": "veryfast", "crf": "18"} if encoder == "libx264" else options
            self._stack = stack.pop_all()

    def write(
        self,
        picture: Tensor,  # [3, H, W] uint8, or int32 of 16 bits
        seconds: float,
    ) -> None:
        """Add a picture that is shown from ``seconds`` on, later than the one before."""
        height, width = self._size
        rows: NDArray[Any] = picture.permute(1, 2, 0).numpy()
        is_deep = picture.dtype == torch.int32
        rows = rows.astype(np.uint16) if is_deep else rows
        rows = np.pad(rows, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
        frame = self._av.VideoFrame.from_ndarray(np.ascontiguousarray(rows), format="rgb48le" if is_deep else "rgb24")
        self._last = max(self._last + 1, round(seconds * _TICKS))
        frame.pts, frame.time_base = self._last, Fraction(1, _TICKS)
        self._container.mux(self._stream.encode(frame))

    def close(self) -> None:
        """Write what the encoder holds, and give the file its name if it has a picture."""
        if self._last < 0:
            self._close_and_discard_file(_NoPictureWrittenError())
            return
        with self._stack:
            self._container.mux(self._stream.encode(None))
            self._container.close()

    def __enter__(self) -> VideoWriter:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is None:
            self.close()
        else:
            self._close_and_discard_file(error)

    def _close_and_discard_file(self, error: BaseException) -> None:
        with suppress(self._av.error.FFmpegError, OSError):
            self._container.close()
        self._stack.__exit__(type(error), error, error.__traceback__)


class _NoPictureWrittenError(Exception):
    """End of a film to which no picture was written."""


def _strip_ffmpeg_message(error: Exception) -> str:
    """Return FFmpeg's message without the number and the name of the file."""
    return getattr(error, "strerror", None) or describe_error(error)
