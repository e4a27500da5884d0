"""``fullfield live SOURCE``: flow while the frames come."""

from __future__ import annotations

import argparse
import shutil
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from fullfield import _check as check
from fullfield._check import InputError
from fullfield.cli import argtypes, methods, paths, pictures, report
from fullfield.cli.errors import naming
from fullfield.cli.report import say
from fullfield.io.names import CAMERA, VIDEO_WRITE_SUFFIXES

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from fullfield.estimators.live import Done, Pair, Slot, Tally
    from fullfield.io.video import VideoSource, VideoWriter
    from fullfield.viz import FlowColors
    from fullfield.viz.window import Window

_STATUS_SECONDS = {True: 0.5, False: 10.0}  # between two of them, on a terminal and elsewhere
_PATIENCE = 5.0

HELP = "estimate the flow of a camera, a stream or a video while its frames come"
DESCRIPTION = (
    "The flow of the newest pair of frames, again and again, until SOURCE or Ctrl-C ends it. Pairs "
    "whose turn does not come are dropped, and counted."
)
EPILOG = """\
examples:
  fullfield live clip.mp4 --preset fast --viz flow.mp4
  fullfield live camera:0 --preset fast --device cuda --preview
  fullfield live clip.mp4 --rate max --preset fast --json -q
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Those of ``fullfield live``."""
    parser.add_argument(
        "source", metavar="SOURCE", help=f"a video file at its own rate, {CAMERA}0 or the address of a stream"
    )
    parser.add_argument(
        "--rate", type=_rate, metavar="RATE", help="of a file: source, max (drop nothing) or frames a second [source]"
    )
    parser.add_argument("--flows", type=argtypes.count, help="end after so many [when SOURCE or Ctrl-C does]")
    picture = parser.add_argument_group("picture")
    picture.add_argument("--viz", metavar="FILE", help=f"write a video of the flow: {' '.join(VIDEO_WRITE_SUFFIXES)}")
    pictures.add_max_motion(picture)
    picture.add_argument("--preview", action="store_true", help="show the flow in a window (OpenCV); q ends it")
    methods.add_method_options(parser, default="tvl1")
    report.add_report_options(parser, progress=True)
    methods.add_parameter_options(parser)


def _rate(text: str) -> str | float:
    if text in ("source", "max"):
        return text
    try:
        return argtypes.positive(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"expected source, max or a number > 0, got {text!r}") from None


def _check(args: argparse.Namespace) -> None:
    if args.max_motion is not None and args.viz is None and not args.preview:
        raise InputError("--max-motion: describes the pictures of --viz or --preview, which are absent")
    is_file = not args.source.startswith(CAMERA) and "://" not in args.source
    if not is_file and args.rate not in (None, "source"):
        raise InputError(f"--rate: {args.source} comes at its own rate; leave it out")
    paths.check_files([("SOURCE", args.source if is_file else None)], [("--viz", args.viz, VIDEO_WRITE_SUFFIXES)])


def run(args: argparse.Namespace) -> int:
    """Check, open, compute until the source or the user ends it, report."""
    chosen = methods.chosen(args)
    _check(args)

    from fullfield.estimators.live import Tally
    from fullfield.io import open_video

    methods.use_threads(args.threads)
    tally = Tally()
    with ExitStack() as stack, naming(**methods.words(args.method), window="--preview"):
        source = open_video(args.source)
        threads: list[threading.Thread] = []
        stack.callback(_close, source, threads)
        screen = _Screen.of(args, chosen.device, source, stack)
        compute = _Persistent(chosen) if _can_persist(chosen) else _Computation(chosen)
        compute.prepare((source.height, source.width))  # nothing is compiled while frames come
        status = _Status(args, source)
        interrupted = _play(args, source, compute, screen, tally, status, threads)
        if tally.frames < 2 and not interrupted:
            raise InputError(f"{args.source}: expected two frames or more, got {tally.frames}")
    _report(args, chosen, source, compute.backend, screen, tally, interrupted)
    return 0


def _close(source: VideoSource, threads: list[threading.Thread]) -> None:
    """Unless a thread is still inside it: libraries do not survive that, and the process ends soon."""
    if not any(thread.is_alive() for thread in threads):
        source.close()


# ---- computing


class _Computation:
    """The flow of a pair, there when the call returns: by an estimator, frames uploaded for every pair."""

    def __init__(self, chosen: methods.Chosen) -> None:
        self._chosen = chosen

    @property
    def backend(self) -> str:
        return str(self._chosen.estimator.backend)

    def prepare(self, size: tuple[int, int]) -> None:
        self._chosen.prepare(size, lambda _fraction, _text: None, quiet=True)

    def __call__(self, pair: Pair) -> Tensor:
        first, second = (self._values(captured.frame) for captured in pair)
        return _finished(self._chosen.estimator(first, second)[0])

    def _values(self, frame: Any) -> Tensor:
        pixels: Tensor = frame.luma() if self._chosen.method == "tvl1" else frame.rgb()
        return pixels[None].to(self._chosen.device).float().div_(255)


class _Persistent:
    """TV-L1 on an NVIDIA GPU: a frame goes up once, and a pair that follows the last starts from its flow."""

    backend = "cuda"

    def __init__(self, chosen: methods.Chosen) -> None:
        self._chosen = chosen
        self._last: int | None = None

    def prepare(self, size: tuple[int, int]) -> None:
        import torch

        from fullfield.ops.tvl1 import PersistentSolver

        self._solver = PersistentSolver((1, 1, *size), self._chosen.config, device=self._chosen.device)
        blank = torch.zeros(1, 1, *size, dtype=torch.uint8, device=self._chosen.device)
        self._solver(blank, blank)

    def __call__(self, pair: Pair) -> Tensor:
        first, second = pair
        if first.number == self._last:
            flow = self._solver.step(self._sent(second.frame))
        else:
            flow = self._solver(self._sent(first.frame), self._sent(second.frame))
        self._last = second.number
        assert flow is not None  # step has a frame before
        return _finished(flow[0])

    def _sent(self, frame: Any) -> Tensor:
        return frame.luma()[None].to(self._chosen.device)  # type: ignore[no-any-return]


def _finished(flow: Tensor) -> Tensor:
    if flow.device.type == "cuda":
        import torch

        torch.cuda.current_stream(flow.device).synchronize()
    return flow


def _can_persist(chosen: methods.Chosen) -> bool:
    device = check.device(chosen.device, "--device")
    if chosen.method != "tvl1" or chosen.config.epsilon > 0 or chosen.backend not in (None, "cuda"):
        return False
    from fullfield.ops.tvl1 import backends

    return dict(backends(device, config=chosen.config))["cuda"] is None


# ---- showing


@dataclass
class _Screen:
    """Where the pictures go: a file, a window, both or nowhere."""

    colors: FlowColors | None
    writer: VideoWriter | None
    window: Window | None
    shown: int = 0

    @classmethod
    def of(cls, args: argparse.Namespace, device: str, source: VideoSource, stack: ExitStack) -> _Screen:
        from fullfield.io import VideoWriter
        from fullfield.viz import FlowColors
        from fullfield.viz.window import Window

        window = writer = None
        if args.preview:
            window = Window(f"fullfield {args.source}")
            stack.callback(window.close)
        if args.viz is not None:
            writer = VideoWriter(args.viz, source.width, source.height, source.rate or 30.0)
            stack.callback(writer.close)  # however the run ends, what was recorded is kept
        return cls(FlowColors(args.max_motion, device) if writer or window else None, writer, window)

    def show(self, done: Done) -> bool:
        """Draw a flow; False once the user closes the window."""
        if self.colors is None:
            return True
        picture = self.colors.draw(done.flow).cpu()
        self.shown += 1
        if self.writer is not None:
            self.writer.write(picture, done.pair.first.frame.time)
        return self.window is None or self.window.show(picture)


class _Status:
    """How it goes, in one line on stderr now and then."""

    def __init__(self, args: argparse.Namespace, source: VideoSource) -> None:
        self._quiet, self._live = args.quiet, sys.stderr.isatty()
        self._source, self._last = source, time.monotonic()
        self._drawn = False

    def tell(self, tally: Tally) -> None:
        now = time.monotonic()
        if self._quiet or now - self._last < _STATUS_SECONDS[self._live]:
            return
        self._last, self._drawn = now, self._live
        line = f"fullfield: live: {summary(tally)}"
        if not self._live:
            say(line)
            return
        width = shutil.get_terminal_size().columns - 1
        say(f"\r{line[:width]:<{width}}", end="")

    def end(self) -> None:
        if self._drawn:
            say("")


def summary(tally: Tally) -> str:
    """Rates and latency in words."""
    told = tally.as_dict()
    latency = told["latency_s"]
    if latency is None:
        return f"{told['frames']} frames, no flow yet"
    rate = told["flows_per_second"]
    missing = f"{told['missing']} frames missing, " if told["missing"] else ""
    return (
        f"{told['flows']} flows of {told['pairs']} pairs, {told['dropped']} dropped, {missing}"
        f"{'' if rate is None else f'{rate:.1f} a second, '}capture to flow {1e3 * latency['median']:.1f} ms median, "
        f"{1e3 * latency['p99']:.1f} ms p99"
    )


# ---- running


def _play(
    args: argparse.Namespace,
    source: VideoSource,
    compute: Callable[[Pair], Tensor],
    screen: _Screen,
    tally: Tally,
    status: _Status,
    threads: list[threading.Thread],
) -> bool:
    """Capture and compute in threads of their own, which are added to ``threads``, show in this one; whether the user
    ended it."""
    from fullfield.estimators.live import Slot, arriving, capture, follow, paced

    everything = args.rate == "max"
    pairs: Slot[Pair] = Slot(wait=everything)
    results: Slot[Done] = Slot(wait=everything)
    clock = time.monotonic
    if source.is_live or everything:
        frames = arriving(source, clock)
    else:
        own = source.rate or 25.0
        speed = args.rate / own if isinstance(args.rate, float) else 1.0
        frames = paced(source, clock, time.sleep, 1 / own, speed, partial(_waiting, args))
    work = (
        partial(capture, frames, pairs, tally),
        partial(follow, pairs, compute, results, tally, clock, args.flows),
    )
    threads += [threading.Thread(target=job, daemon=True) for job in work]
    for thread in threads:
        thread.start()
    interrupted = False
    try:
        while (done := results.take()) is not None:
            going_on = screen.show(done)
            status.tell(tally)
            if not going_on:
                break
    except KeyboardInterrupt:
        interrupted = True
    finally:
        results.close()
        pairs.close()
        status.end()
        for thread in threads:
            thread.join(_PATIENCE)
    return interrupted


def _waiting(args: argparse.Namespace, number: int, seconds: float) -> None:
    if not args.quiet:
        due = f"by its time stamps frame {number + 1} is due in {seconds:.1f} s"
        report.note(f"{args.source}: {due}; --rate max does not wait")


def _report(
    args: argparse.Namespace,
    chosen: methods.Chosen,
    source: VideoSource,
    backend: str,
    screen: _Screen,
    tally: Tally,
    interrupted: bool,
) -> None:
    told = tally.as_dict()
    picture = None
    if screen.colors is not None:
        picture = {
            "path": args.viz if screen.shown else None,
            "shown": screen.shown,
            "dropped": told["flows"] - screen.shown,
            "max_motion": screen.colors.max_motion,
        }
    rate = "" if source.rate is None else f" at {source.rate:.4g} frames a second"
    what = f"{source.width}x{source.height}{rate}, {chosen.title} ({backend})"
    text = f"{report.printable(args.source)}: {what}: {summary(tally)}"
    if args.viz is not None and picture is not None:
        words = f"{screen.shown} pictures, {picture['dropped']} flows without one"
        text += f"\n{report.printable(args.viz)}: {words if screen.shown else 'not written, no picture came'}"
    facts = {
        "source": args.source,
        "size": {"width": source.width, "height": source.height},
        "rate": {"source": source.rate, "asked": "source" if args.rate is None else args.rate},
        **told,
        "interrupted": interrupted,
        "picture": picture,
        "method": chosen.method,
        "preset": chosen.preset,
        "parameters": dict(chosen.estimator.parameters),
        "backend": backend,
        "device": chosen.device,
    }
    report.tell(args, facts, text, memory=True)
