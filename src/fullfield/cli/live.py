"""Estimate the flow of a camera, a stream or a video while its frames arrive.

Estimate the flow of the newest pair of frames until SOURCE ends or Ctrl-C. Pairs that arrive too fast are dropped and
counted.
"""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from fullfield import _check, io
from fullfield._check import InputError
from fullfield._read_ahead import iterate_ahead
from fullfield.cli import argtypes, flow_visualization, methods, paths, report
from fullfield.cli.report import print_to_stderr_ignoring_errors, rename_arguments_in_errors
from fullfield.estimators.registry import get_method
from fullfield.io.names import CAMERA, VIDEO_WRITE_SUFFIXES

if TYPE_CHECKING:
    from torch import Tensor

    from fullfield.estimators.live import FramePair, LiveStatistics, OneItemBuffer, PairFlow
    from fullfield.io.video import VideoSource, VideoWriter
    from fullfield.ops.tvl1 import PersistentSolver
    from fullfield.viz.wheel import FlowColors

_STATUS_SECONDS = {True: 0.5, False: 10.0}  # between two lines, on a terminal and elsewhere
_PATIENCE = 5.0
_QUIT_KEYS = (ord("q"), 27)  # and Escape

EPILOG = """\
examples:
  fullfield live clip.mp4 --preset fast --viz flow.mp4
  fullfield live camera:0 --preset fast --device cuda --preview
  fullfield live clip.mp4 --rate max --preset fast --json -q
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``fullfield live``."""
    parser.add_argument("source", metavar="SOURCE", help=f"video file, {CAMERA}0 or the address of a stream")
    parser.add_argument(
        "--rate",
        type=_parse_rate_or_keyword,
        metavar="RATE",
        help="source, max (drop nothing) or frames a second [source]",
    )
    parser.add_argument(
        "--flows", type=argtypes.parse_positive_integer, help="stop after N flows [at the end of SOURCE or Ctrl-C]"
    )
    picture = parser.add_argument_group("picture")
    picture.add_argument("--viz", metavar="FILE", help=f"write a video of the flow: {' '.join(VIDEO_WRITE_SUFFIXES)}")
    flow_visualization.add_max_motion_option(picture)
    picture.add_argument("--preview", action="store_true", help="show the flow in a window (OpenCV); q ends it")
    methods.add_method_option_group(parser, default="tvl1")
    report.add_report_options(parser, has_quiet_option=True)
    methods.add_parameter_options(parser)


def _parse_rate_or_keyword(text: str) -> str | float:
    if text in ("source", "max"):
        return text
    try:
        return argtypes.parse_positive_number(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"expected source, max or a number > 0, got {text!r}") from None


def _check_live_options(args: argparse.Namespace) -> None:
    if args.max_motion is not None and args.viz is None and not args.preview:
        raise InputError("--max-motion: applies to --viz or --preview, which are absent")
    is_file = not args.source.startswith(CAMERA) and "://" not in args.source
    if not is_file and args.rate not in (None, "source"):
        raise InputError(f"--rate: {args.source} has its own rate; leave it out")
    paths.check_files_and_remove_temporaries(
        [("SOURCE", args.source if is_file else None)], [("--viz", args.viz, VIDEO_WRITE_SUFFIXES)]
    )


def run_command(args: argparse.Namespace) -> int:
    """Check the options, estimate until the source ends or the user stops, and report."""
    choice = methods.choose_method(args)
    _check_live_options(args)

    from fullfield.estimators.live import LiveStatistics

    methods.limit_cpu_threads_unless_none(args.threads)
    statistics = LiveStatistics()
    with (
        ExitStack() as stack,
        rename_arguments_in_errors(**methods.map_arguments_to_options(args.method), window="--preview"),
    ):
        source = io.open_video(args.source)
        threads: list[threading.Thread] = []
        stack.callback(_close_source_unless_threads_alive, source, threads)
        screen = _PictureOutputs.open_and_register_closing(args, choice.device, source, stack)
        size = (source.height, source.width)
        compute = _prepare_pair_or_persistent_computation(choice, size)  # compiles before frames come
        status = _Status(args, source)
        interrupted = _show_until_end_and_return_is_interrupted(
            args, source, compute, screen, statistics, status, threads
        )
        if statistics.frames < 2 and not interrupted:
            raise InputError(f"{args.source}: expected two frames or more, got {statistics.frames}")
    _print_report(args, choice, source, compute.backend, screen, statistics, interrupted)
    return 0


def _close_source_unless_threads_alive(source: VideoSource, threads: list[threading.Thread]) -> None:
    """Close the source unless a thread still reads it, which would crash its library; the process ends soon."""
    if not any(thread.is_alive() for thread in threads):
        source.close()


# ---- computing


def _prepare_pair_or_persistent_computation(
    choice: methods.MethodChoice, size: tuple[int, int]
) -> _PairComputation | _PersistentComputation:
    """Return what computes the flow of a pair, prepared for frames of ``size``."""
    make = getattr(choice.estimator, "create_video_solver_if_supported", None)
    solver = make and make(size, _check.resolve_available_device(choice.device, "--device"))
    if solver is not None:
        return _PersistentComputation(solver, size, choice.device)
    choice.load_weights_and_kernels(size, lambda _fraction, _text: None, quiet=True)
    return _PairComputation(choice)


class _PairComputation:
    """Estimator whose frames are uploaded for every pair; the flow is complete when a call returns."""

    def __init__(self, choice: methods.MethodChoice) -> None:
        self._choice = choice
        self._is_grey = get_method(choice.method).luminance_only

    @property
    def backend(self) -> str:
        return str(self._choice.estimator.backend)

    def __call__(self, pair: FramePair) -> Tensor:
        first, second = (self._upload_as_unit_range(captured.frame) for captured in pair)
        return _wait_for_flow(self._choice.estimator(first, second)[0])

    def _upload_as_unit_range(self, frame: Any) -> Tensor:
        pixels: Tensor = frame.read_luma() if self._is_grey else frame.read_rgb()
        return pixels[None].to(self._choice.device).float().div_(255)


class _PersistentComputation:
    """Solver on a GPU: each frame is uploaded once, and a pair that follows the last one starts from its flow."""

    backend = "cuda"

    def __init__(self, solver: PersistentSolver, size: tuple[int, int], device: str) -> None:
        import torch

        self._solver, self._device = solver, device
        self._last: int | None = None
        blank = torch.zeros(1, 1, *size, dtype=torch.uint8, device=device)
        solver(blank, blank)

    def __call__(self, pair: FramePair) -> Tensor:
        first, second = pair
        if first.number == self._last:
            flow = self._solver.step(self._upload_luma(second.frame))
        else:
            flow = self._solver(self._upload_luma(first.frame), self._upload_luma(second.frame))
        self._last = second.number
        assert flow is not None  # step has a previous frame
        return _wait_for_flow(flow[0])

    def _upload_luma(self, frame: Any) -> Tensor:
        return frame.read_luma()[None].to(self._device)  # type: ignore[no-any-return]


def _wait_for_flow(flow: Tensor) -> Tensor:
    if flow.device.type == "cuda":
        import torch

        torch.cuda.current_stream(flow.device).synchronize()
    return flow


# ---- showing


class _PreviewWindow:
    """Window of OpenCV on the screen; use it from one thread, on macOS from the main one.

    Raises InputError where no window can be opened, ModuleNotFoundError without OpenCV.
    """

    def __init__(self, title: str) -> None:
        self._cv2: Any = importlib.import_module("cv2")
        self._title = title
        # Asked before OpenCV is: some of its toolkits end the process where there is no display.
        if sys.platform.startswith("linux") and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
            raise InputError("window: there is no display here (DISPLAY is not set)")
        try:
            self._cv2.namedWindow(title, self._cv2.WINDOW_NORMAL)
        except self._cv2.error as error:
            raise InputError("window: this OpenCV was built without windows (a headless package)") from error

    def show_and_return_is_open(
        self,
        picture: Tensor,  # [3, H, W] uint8
    ) -> bool:
        """Show a picture; return False once the user has pressed q or Escape, or closed the window."""
        if self._cv2.getWindowProperty(self._title, self._cv2.WND_PROP_VISIBLE) < 1:
            return False
        import numpy as np

        rows = np.ascontiguousarray(picture.flip(0).permute(1, 2, 0).cpu().numpy())
        self._cv2.imshow(self._title, rows)
        return self._cv2.waitKey(1) & 0xFF not in _QUIT_KEYS

    def close(self) -> None:
        """Close the window."""
        with suppress(self._cv2.error):  # the user was first
            self._cv2.destroyWindow(self._title)


@dataclass
class _PictureOutputs:
    """Outputs of the pictures: a file, a window, both or none."""

    colors: FlowColors | None
    writer: VideoWriter | None
    window: _PreviewWindow | None
    drawn_count: int = 0

    @classmethod
    def open_and_register_closing(
        cls, args: argparse.Namespace, device: str, source: VideoSource, stack: ExitStack
    ) -> _PictureOutputs:
        from fullfield.viz.wheel import FlowColors

        window = writer = None
        if args.preview:
            window = _PreviewWindow(f"fullfield {args.source}")
            stack.callback(window.close)
        if args.viz is not None:
            writer = io.VideoWriter(args.viz, source.width, source.height, source.frame_rate or 30.0)
            stack.callback(writer.close)  # keeps what was recorded however the run ends
        return cls(FlowColors(args.max_motion, device) if writer or window else None, writer, window)

    def draw_to_outputs_and_return_is_open(self, result: PairFlow) -> bool:
        """Draw a flow; return False once the user closes the window."""
        if self.colors is None:
            return True
        picture = self.colors.draw(result.flow).cpu()
        self.drawn_count += 1
        if self.writer is not None:
            self.writer.write(picture, result.pair.first.frame.time)
        return self.window is None or self.window.show_and_return_is_open(picture)


class _Status:
    """Status line on stderr, printed at intervals."""

    def __init__(self, args: argparse.Namespace, source: VideoSource) -> None:
        self._quiet, self._live = args.quiet, sys.stderr.isatty()
        self._source, self._last = source, time.monotonic()
        self._drawn = False

    def print_status_if_due(self, statistics: LiveStatistics) -> None:
        now = time.monotonic()
        if self._quiet or now - self._last < _STATUS_SECONDS[self._live]:
            return
        self._last, self._drawn = now, self._live
        line = f"fullfield: live: {format_statistics(statistics)}"
        if not self._live:
            print_to_stderr_ignoring_errors(line)
            return
        width = shutil.get_terminal_size().columns - 1
        print_to_stderr_ignoring_errors(f"\r{line[:width]:<{width}}", end="")

    def end_status_line_if_drawn(self) -> None:
        if self._drawn:
            print_to_stderr_ignoring_errors("")


def format_statistics(statistics: LiveStatistics) -> str:
    """Return rates and latency as text."""
    counts = statistics.as_dict()
    latency = counts["latency_s"]
    if latency is None:
        return f"{counts['frames']} frames, no flow yet"
    rate = counts["flows_per_second"]
    missing = f"{counts['missing']} frames missing, " if counts["missing"] else ""
    return (
        f"{counts['flows']} flows of {counts['pairs']} pairs, {counts['dropped']} dropped, {missing}"
        f"{'' if rate is None else f'{rate:.1f} a second, '}capture to flow {1e3 * latency['median']:.1f} ms median, "
        f"{1e3 * latency['p99']:.1f} ms p99"
    )


# ---- running


def _show_until_end_and_return_is_interrupted(
    args: argparse.Namespace,
    source: VideoSource,
    compute: Callable[[FramePair], Tensor],
    picture_outputs: _PictureOutputs,
    statistics: LiveStatistics,
    status: _Status,
    started_threads: list[threading.Thread],
) -> bool:
    """Capture and compute in threads, which are added to ``started_threads``, and show in this one.

    Returns:
        Whether the user interrupted it.
    """
    from fullfield.estimators.live import (
        OneItemBuffer,
        capture_pairs,
        compute_newest_pair_flows,
        iterate_frames_waiting_until_due,
        iterate_with_arrival_times,
    )

    everything = args.rate == "max"
    pairs: OneItemBuffer[FramePair] = OneItemBuffer(wait_until_taken=everything)
    results: OneItemBuffer[PairFlow] = OneItemBuffer(wait_until_taken=everything)
    clock = time.monotonic
    if everything:  # of a file: nothing is dropped, so frames are decoded ahead
        frame_bytes = 3 * source.width * source.height
        frames = iterate_with_arrival_times(iterate_ahead(source, lambda _: frame_bytes), clock)
    elif source.is_live:
        frames = iterate_with_arrival_times(source, clock)
    else:
        own = source.frame_rate or 25.0
        speed = args.rate / own if isinstance(args.rate, float) else 1.0
        frames = iterate_frames_waiting_until_due(
            source, clock, time.sleep, 1 / own, speed, partial(_print_next_frame_wait_unless_quiet, args)
        )
    work = (
        partial(capture_pairs, frames, pairs, statistics),
        partial(compute_newest_pair_flows, pairs, compute, results, statistics, clock, args.flows),
    )
    started_threads += [threading.Thread(target=job, daemon=True) for job in work]
    for thread in started_threads:
        thread.start()
    interrupted = False
    try:
        while (result := results.wait_and_take_item()) is not None:
            is_open = picture_outputs.draw_to_outputs_and_return_is_open(result)
            status.print_status_if_due(statistics)
            if not is_open:
                break
    except KeyboardInterrupt:
        interrupted = True
    finally:
        results.close()
        pairs.close()
        status.end_status_line_if_drawn()
        for thread in started_threads:
            thread.join(_PATIENCE)
    return interrupted


def _print_next_frame_wait_unless_quiet(args: argparse.Namespace, frame_number: int, wait_seconds: float) -> None:
    if not args.quiet:
        due = f"by its time stamps frame {frame_number + 1} is due in {wait_seconds:.1f} s"
        report.print_note(f"{args.source}: {due}; --rate max does not wait")


def _print_report(
    args: argparse.Namespace,
    choice: methods.MethodChoice,
    source: VideoSource,
    backend: str,
    picture_outputs: _PictureOutputs,
    statistics: LiveStatistics,
    interrupted: bool,
) -> None:
    counts = statistics.as_dict()
    picture = None
    if picture_outputs.colors is not None:
        picture = {
            "path": args.viz if picture_outputs.drawn_count else None,
            "shown": picture_outputs.drawn_count,
            "dropped": counts["flows"] - picture_outputs.drawn_count,
            "max_motion": picture_outputs.colors.max_motion,
        }
    rate = "" if source.frame_rate is None else f" at {source.frame_rate:.4g} frames a second"
    description = f"{source.width}x{source.height}{rate}, {choice.title}, on {choice.device} (backend {backend})"
    text = f"{report.escape_control_characters(args.source)}: {description}: {format_statistics(statistics)}"
    if args.viz is not None and picture is not None:
        words = f"{picture_outputs.drawn_count} pictures, {picture['dropped']} flows without one"
        status = words if picture_outputs.drawn_count else "not written, there was no flow"
        text += f"\n{report.escape_control_characters(args.viz)}: {status}"
    requested = "source" if args.rate is None else args.rate
    rates = {"source": source.frame_rate, "requested": requested}
    properties = {
        "source": args.source,
        "size": report.select_attributes(source, "width", "height"),
        "rate": rates,
        **counts,
        "interrupted": interrupted,
        "picture": picture,
        **report.select_attributes(choice, "method", "preset", "device"),
        "parameters": dict(choice.estimator.parameters),
        "backend": backend,
    }
    report.print_report(args, properties, text, has_peak_memory=True)
