"""Options that several verbs share: reading frames and truth, and writing flow."""

from __future__ import annotations

import argparse
import dataclasses
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from fullfield import _check, io
from fullfield._check import InputError
from fullfield._config import Config
from fullfield.cli import argtypes
from fullfield.cli.report import check_same_size, format_size, rename_arguments_in_errors
from fullfield.io.names import EXR_COMPRESSIONS, TRANSFERS
from fullfield.io.windows import Box, merge_frame_windows_or_raise
from fullfield.sequences.names import resolve_mask_for_frame

if TYPE_CHECKING:
    import argparse

    from torch import Tensor

    from fullfield.io.vectors import FlowReadOptions
    from fullfield.io.windows import FrameWindow


def add_command(command_parsers: Any, name: str, module: ModuleType) -> None:
    """Add the verb that a module defines.

    Its docstring is the help: a line for the list of verbs, and the description. It has ``add_arguments(parser)``,
    perhaps ``EPILOG`` with examples and ``USAGE``, and ``run_command(args) -> int`` unless it only has verbs of its
    own, which define it.
    """
    summary, _, description = (module.__doc__ or "").partition("\n\n")
    line = summary[:1].lower() + summary[1:].removesuffix(".")
    epilog = getattr(module, "EPILOG", None)
    usage = getattr(module, "USAGE", None)
    parser = command_parsers.add_parser(
        name, help=line, description=" ".join(description.split()), epilog=epilog, usage=usage
    )
    parser.set_defaults(run=getattr(module, "run_command", None))
    module.add_arguments(parser)


def add_config_options(group: Any, config_class: type[Config]) -> None:
    """Add an option for each field of a configuration that has a help text."""
    fields = [field for field in dataclasses.fields(config_class) if "help" in field.metadata]
    for field in fields:
        option, kind = f"--{field.name.replace('_', '-')}", type(field.default)
        if kind is bool:
            group.add_argument(option, action="store_true", help=field.metadata["help"])
        else:
            parse = {int: argtypes.parse_integer, float: argtypes.parse_finite_number}.get(kind)
            texts = {name: field.metadata[name] for name in ("help", "metavar")}
            group.add_argument(option, type=parse, default=field.default, **texts)


def parse_device_names(text: str | None, default_device: str) -> list[str]:
    """Return the devices that ``--devices`` names; without it ``default_device``."""
    if text is None:
        return [default_device]
    if text == "all":
        import torch

        count = torch.cuda.device_count()
        if count == 0:
            raise InputError("--devices all: expected GPUs, PyTorch finds none")
        return [f"cuda:{index}" for index in range(count)]
    devices = [name.strip() for name in text.split(",")]
    for name in devices:
        _check.resolve_available_device(name, "--devices")
    return devices


def add_frame_reading_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that control how ``read_frame`` reads the frames."""
    group = parser.add_argument_group("reading frames")
    group.add_argument(
        "--input-transfer",
        metavar="NAME",
        help=f"encoding of the stored values: {', '.join(TRANSFERS)}, or an OpenColorIO colour space [auto: by format]",
    )
    group.add_argument("--alpha", choices=("ignore", "apply"), help="apply: composite over black [ignore]")
    group.add_argument("--window", choices=("display", "data"), help="EXR window to work in [display]")
    group.add_argument("--part", metavar="PART", help="EXR part or TIFF page: name or number [the first in colour]")
    group.add_argument("--layer", metavar="NAME", help="EXR layer: NAME.R, NAME.G, NAME.B [R, G, B]")
    group.add_argument(
        "--mask",
        metavar="MASK",
        help="where frames are known: picture, mask.%%04d.png, EXR channel or FILE:CHANNEL; unknown where 0",
    )


READING_WORDS = {
    "transfer": "--input-transfer",
    "alpha": "--alpha",
    "window": "--window",
    "part": "--part",
    "layer": "--layer",
    "mask": "--mask",
}
"""Options of the arguments of ``read_frame``, for :func:`fullfield.cli.report.rename_arguments_in_errors`."""


def get_frame_reading_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of ``read_frame`` that were given."""
    values = {name: getattr(args, option[2:].replace("-", "_")) for name, option in READING_WORDS.items()}
    return {name: value for name, value in values.items() if value is not None}


def list_used_frame_reading_options(args: argparse.Namespace) -> list[str]:
    """Return the reading options that were given, for a command that reads no frame."""
    return [READING_WORDS[name] for name in get_frame_reading_arguments(args)]


def add_layer_options(group: Any, prefix: str, source: str) -> None:
    """Add ``--PREFIX-layer`` and ``--PREFIX-part``, for a flow that is read."""
    group.add_argument(f"--{prefix}-layer", metavar="NAME", help=f"EXR layer of {source} [forward]")
    group.add_argument(
        f"--{prefix}-part", metavar="PART", help=f"EXR part of {source}: name or number [first with flow]"
    )


def get_layer_arguments(args: argparse.Namespace, prefix: str) -> dict[str, str | None]:
    """Return the arguments of ``read_flow`` for these options."""
    return {name: getattr(args, f"{prefix}_{name}") for name in ("layer", "part")}


def refuse_layer_options_without_flow(args: argparse.Namespace, prefix: str, path: str | None, source: str) -> None:
    """Refuse a layer or part of a flow that is absent."""
    for name, value in get_layer_arguments(args, prefix).items():
        if value is not None and path is None:
            raise InputError(f"--{prefix}-{name}: describes {source}, which is absent")


def add_vector_encoding_options(parser: Any, prefix: str = "", source: str = "FLOW") -> None:
    """Add the options that say how the vectors of a renderer are stored; with a prefix for one of several flows."""
    group = parser.add_argument_group(f"reading the vectors of {source}")
    dashed = f"{prefix}-" if prefix else ""
    names = "U,V" if prefix else "U,V[,U,V]"
    backward = "" if prefix else "; and of the backward flow"
    group.add_argument(
        f"--{dashed}channels", type=argtypes.parse_comma_separated_names, metavar=names, help=f"EXR channels{backward}"
    )
    group.add_argument(
        f"--{dashed}y-axis",
        choices=("up", "down"),
        help="where an EXR's stored y axis points [by header, else up]",
    )
    group.add_argument(
        f"--{dashed}encoding", choices=("kitti", "virtual-kitti", "tartanair"), help="of a 16-bit PNG [by its mask]"
    )
    if prefix != "truth":
        group.add_argument(
            f"--{dashed}vector-scale",
            type=argtypes.parse_one_or_two_factors,
            metavar="X[,Y]",
            help="multiply the vectors by X, or u by X and v by Y [1]",
        )


def get_vector_encoding_arguments(args: argparse.Namespace, prefix: str = "") -> dict[str, Any]:
    """Return the arguments of ``read_flow`` for :func:`add_vector_encoding_options`, without layer and part."""
    options = {"channels": "channels", "y_axis": "y_axis", "encoding": "encoding", "scale": "vector_scale"}
    start = f"{prefix}_" if prefix else ""
    values = {name: getattr(args, f"{start}{option}", None) for name, option in options.items()}
    return {name: value for name, value in values.items() if value is not None}


def build_flow_read_options(args: argparse.Namespace, **fields: Any) -> FlowReadOptions:
    """Return the reading of vectors that the options describe."""
    from fullfield.io.vectors import FlowReadOptions

    with rename_arguments_in_errors(channels="--channels"):
        return FlowReadOptions(**get_vector_encoding_arguments(args), **fields)


_COMPRESSIONS = {".exr": EXR_COMPRESSIONS, ".flo5": ("gzip", "none")}


def add_compression_options(group: Any, *, has_half_option: bool = True) -> None:
    """Add ``--compression`` and, with ``has_half_option``, ``--half``, for the flow that is written."""
    names = dict.fromkeys(name for compressions in _COMPRESSIONS.values() for name in compressions)
    if has_half_option:
        group.add_argument("--half", action="store_true", help=".exr: half floats instead of floats")
    group.add_argument(
        "--compression", choices=names, help="of .exr [zip, or none if zip saves little] or .flo5 [gzip]"
    )


def get_compression_arguments_fitting_output(args: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of ``write_flow`` for these options; InputError if the format does not support one."""
    suffix = Path(args.output).suffix.lower()
    packing: dict[str, Any] = {}
    if args.half:
        if suffix != ".exr":
            raise InputError(f"--half: is for .exr, and the output is {args.output}; leave it out")
        packing["dtype"] = "half"
    if args.compression is not None:
        compressions = _COMPRESSIONS.get(suffix, ())
        if args.compression not in compressions:
            expected = f"{suffix} takes {', '.join(compressions)}" if compressions else "is for .exr and .flo5"
            raise InputError(f"--compression {args.compression}: {expected}, and the output is {args.output}")
        packing["compression"] = args.compression
    return packing


class LoadedFrames(NamedTuple):
    """Frames that were read from files."""

    frames: list[Tensor]
    """[C, H, W] each, filled where they are not known."""
    window: FrameWindow | None
    """Window of the first frame, with the data window that was read."""
    valid: list[Tensor | None]
    """bool [H, W]: where the frames are known; None: everywhere."""


def read_frames_and_fill_unknown_pixels(
    args: argparse.Namespace, paths: Sequence[str], data_box: Box | None = None
) -> LoadedFrames:
    """Read frames of one size, and fill their unknown pixels.

    With ``--window data`` that is ``data_box``, or the smallest box that holds every data window, so that a pixel
    has the same position in all frames. Otherwise the window is None unless the first frame is an EXR. A mask that is a
    pattern gets the number in the name of each frame.
    """
    from concurrent.futures import ThreadPoolExecutor

    from fullfield.estimators._frames import fill_unknown_pixels, warn_and_return_if_outside_unit_range
    from fullfield.io.image import FrameReader
    from fullfield.io.oiio import detect_format_and_file_bytes

    reading = get_frame_reading_arguments(args)
    channels = {name: reading[name] for name in ("part", "layer") if name in reading}
    window = None
    if reading.get("window") == "data":
        window = merge_frame_windows_or_raise({frame: io.read_frame_window(frame, **channels) for frame in paths})
        if data_box is not None:
            window = window._replace(data=data_box)
        reading["window"] = window.data
    elif detect_format_and_file_bytes(Path(paths[0]))[0] == "openexr":
        window = io.read_frame_window(paths[0], **channels)
        window = window._replace(data=window.display)
    mask = reading.pop("mask", None)
    masks = {frame: resolve_mask_for_frame(mask, _parse_last_number_or_zero(frame)) for frame in paths}
    with rename_arguments_in_errors(mask=f"--mask {mask}"), ThreadPoolExecutor(len(paths)) as pool:
        results = list(pool.map(lambda frame: FrameReader(**reading, mask=masks[frame]).read(frame), paths))
    for result in results:
        if result.note:
            warnings.warn(result.note, stacklevel=2)
    read = [fill_unknown_pixels(result.frame, result.valid, path) for result, path in zip(results, paths, strict=True)]
    for frame, tensor in zip(paths[1:], read[1:], strict=True):
        check_same_size(read[0], paths[0], tensor, frame)
    if any(warn_and_return_if_outside_unit_range(tensor, frame) for frame, tensor in zip(paths, read, strict=True)):
        warnings.filterwarnings("ignore", ".*: frames are expected in 0 ", UserWarning)  # one warning is enough
    return LoadedFrames(read, window, [result.valid for result in results])


def _parse_last_number_or_zero(path: str) -> int:
    """Return the last number in a file's name; 0 where it has none."""
    numbers = re.findall(r"\d+", Path(path).stem)
    return int(numbers[-1]) if numbers else 0


def add_four_vectors_per_pixel_option(group: Any) -> None:
    """Add ``--four-values``, for truth of twice the frame's size."""
    group.add_argument(
        "--four-values", action="store_true", help="truth of twice the size has four values a pixel; .flo5: always"
    )


def read_truth_and_valid_mask(
    path: str,
    pred: Tensor,
    pred_path: str,
    *,
    vector_scale: float = 1.0,
    has_four_vectors_per_pixel: bool = False,
    **read_arguments: Any,
) -> tuple[Tensor, Tensor]:
    """Return the truth for ``pred`` ``[2, H, W]`` and where it is known (bool ``[H, W]``).

    The truth is ``[2, H, W]``, or ``[4, 2, H, W]`` if the file has twice the size and is a .flo5 or has four
    values.
    ``read_arguments`` goes to ``read_flow``. InputError names both files if their sizes do not fit.
    """
    from fullfield.metrics import split_four_values

    truth, valid = io.read_flow(path, **read_arguments)
    if vector_scale != 1:
        truth = truth * vector_scale
    height, width = pred.shape[-2:]
    twice = truth.shape[-2:] == (2 * height, 2 * width)
    if twice and (has_four_vectors_per_pixel or Path(path).suffix.lower() == ".flo5"):
        values = split_four_values(truth, valid)
        return values, values.isfinite().all(1).all(0)
    if has_four_vectors_per_pixel:
        raise InputError(
            f"--four-values: {path} is {format_size(truth)}, expected twice the size of {pred_path}, "
            f"{format_size(pred)}"
        )
    if truth.shape[-2:] != pred.shape[-2:]:
        hint = "; if it holds four values a pixel, use --four-values" if twice else ""
        raise InputError(
            f"{pred_path}: is {format_size(pred)}, but {path} is {format_size(truth)}; "
            f"they must have the same size{hint}"
        )
    return truth, valid


def count_truth_vectors_per_pixel(truth: Tensor) -> int:
    """Return the number of values that the truth has for a pixel."""
    return 4 if truth.ndim == 4 else 1


FOUR_VALUES = "has twice the size, so four true values for each pixel (Spring); the nearest one counts"
"""Note on truth whose four values follow from its format, not from ``--four-values``."""
