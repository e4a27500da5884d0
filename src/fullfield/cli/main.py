"""Entry point: parse the command line, run one verb and turn the user's mistakes into one line and an exit code.

Exit codes: 0 success, 1 an error exceeded its limit, 2 usage or environment error, 3 ``register`` accepted no pose or
left out a cloud or pair, 130 interrupted, 141 the reader of stdout closed it.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import re
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn, TextIO, cast

from fullfield import __version__
from fullfield._check import InputError, format_did_you_mean_hint
from fullfield.cli import argtypes
from fullfield.cli.options import add_command
from fullfield.cli.report import escape_control_characters, print_note

VERBS = (
    "flow", "shot", "follow", "live", "warp", "retime", "view", "score", "convert", "viz", "demo", "evaluate",
    "register", "train", "pairs", "weights", "warm", "export", "doctor",
)  # fmt: skip
"""Names of the verbs, each a module of this package; see :func:`fullfield.cli.options.add_command`."""

DESCRIPTION = "Dense correspondence: flow between frames, its scores and its pictures, and poses of point clouds."

EXAMPLE = "example: fullfield flow frame_0001.png frame_0002.png -o flow.flo --viz flow.png\n\n"

_CONTINUING = ("shot", "follow", "warp", "retime", "evaluate", "pairs")
"""Verbs that continue an interrupted run."""

_QUIET = "FULLFIELD_QUIET"  # read where kernels are compiled

_STDOUT = "stdout"

_PACKAGES = {
    "torch": "torch",
    "numpy": "numpy",
    "numba": "numba",
    "llvmlite": "numba",
    "OpenImageIO": "OpenImageIO",
    "h5py": "h5py",
    "PIL": "pillow",
    "matplotlib": "matplotlib",
    "av": "av",
    "ray": "ray",
    "cv2": "opencv-contrib-python",
}


_METAVARS: dict[object, str] = {
    **dict.fromkeys(
        (
            argtypes.parse_integer,
            argtypes.parse_nonnegative_integer,
            argtypes.parse_positive_integer,
            argtypes.parse_thread_count,
        ),
        "N",
    ),
    **dict.fromkeys((argtypes.parse_finite_number, argtypes.parse_positive_number), "X"),
    argtypes.parse_wxh_as_height_width: "WxH",
}


class _Help(argparse.HelpFormatter):
    """Help that names a value by its type and shows the default of every option without brackets in its help."""

    def _get_default_metavar_for_optional(self, action: argparse.Action) -> str:
        return _METAVARS.get(action.type) or super()._get_default_metavar_for_optional(action)

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        has_value = isinstance(action.default, (str, int, float)) and not isinstance(action.default, bool)
        return text if "[" in text or not has_value or action.default == argparse.SUPPRESS else f"{text} [%(default)s]"


class _HelpWithExamples(_Help, argparse.RawDescriptionHelpFormatter):
    """Help that keeps the line breaks of the examples."""


class Parser(argparse.ArgumentParser):
    """Argument parser whose errors are one line with the nearest known name."""

    example = ""
    """Text at the top of the help."""

    _arguments: Sequence[str] = ()

    def __init__(self, *, epilog: str | None = None, **options: Any) -> None:
        formatter = _Help if epilog is None else _HelpWithExamples
        super().__init__(epilog=epilog, formatter_class=formatter, allow_abbrev=False, **options)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Remember the words for error messages, and parse them."""
        self._arguments = list(sys.argv[1:] if args is None else args)
        return super().parse_known_args(args, namespace)

    def refuse_unknown_arguments(self, unknown: Sequence[str]) -> NoReturn:
        """Raise InputError for arguments that the verb, or this parser, does not know."""
        parser: Parser = self
        words = iter(self._arguments)
        while (below := parser._get_command_parsers()) and (
            verb := next((word for word in words if word in below), None)
        ):
            parser = below[verb]
        files = [word for word in unknown if not word.startswith("-") and Path(word).is_file()]
        hint = "; quote a glob, as in 'plate.*.exr'" if files else ""
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")

    def error(self, message: str) -> NoReturn:
        """Raise InputError with the nearest known name."""
        hints = [
            format_did_you_mean_hint(word.lower() if word.lower() in valid_names else word, valid_names)
            for word, valid_names in _parse_invalid_choice_message(message)
        ]
        if not self._get_command_parsers() or message.startswith("unrecognized"):
            options = [word.partition("=")[0] for word in self._arguments if word.startswith("--") and len(word) > 2]
            valid_names = list(self._option_string_actions)
            hints += [
                format_did_you_mean_hint(option, valid_names, option) for option in options if option not in valid_names
            ]
        raise InputError(f"{message}{''.join(hints)} (see {self.prog} --help)")

    def format_help(self) -> str:
        """Return the help, with the example on top."""
        return self.example + super().format_help()

    def _get_command_parsers(self) -> dict[str, Any]:
        """Return the parsers of the verbs by name."""
        actions = [action for action in self._actions if isinstance(action, argparse._SubParsersAction)]
        return dict(actions[0].choices) if actions else {}


def _parse_invalid_choice_message(message: str) -> list[tuple[str, list[str]]]:
    """Return the name and the valid names if argparse's ``message`` is about a choice."""
    match = re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message)
    return [(match[1], [name.strip("' ") for name in match[2].split(",")])] if match else []


def build_parser() -> Parser:
    """Build the parser of all verbs; imports nothing heavy."""
    parser = Parser(prog="fullfield", description=DESCRIPTION)
    parser.example = EXAMPLE
    parser.add_argument("--version", action="version", version=f"fullfield {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB")
    for name in VERBS:
        add_command(verbs, name, import_module(f"fullfield.cli.{name}"))
    return parser


def console() -> NoReturn:
    """Run :func:`main` as the ``fullfield`` command and exit without waiting for torch's shutdown."""
    gc.set_threshold(20_000)  # imports allocate much and free little
    code = main()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None and processes.active_children():
        sys.exit(code)  # ends them too
    os._exit(code)


def main(argv: Sequence[str] | None = None, build_parser_function: Callable[[], Parser] | None = None) -> int:
    """Run one command line (default: ``sys.argv[1:]``) and return its exit code.

    ``build_parser_function`` returns the parser of another command, as :func:`build_parser` does for this one.
    """
    _make_stdio_discard_if_closed_and_escape()
    with _print_warnings_on_one_line(), _unwind_stack_on_sigterm(), _escape_control_characters_in_stdout():
        try:
            code = _parse_and_run_command(argv, build_parser_function or build_parser)
            sys.stdout.flush()
        except BrokenPipeError:
            _redirect_stdout_to_null()
            return 141
        except KeyboardInterrupt:
            print_note("interrupted", kind="error")
            return 130
        except InputError as error:
            return _print_error_and_return_code(str(error), error.exit_code)
        except OSError as error:
            if error.filename == _STDOUT:
                _redirect_stdout_to_null()
            return _print_error_and_return_code(_describe_os_error(error))
        except ImportError as error:
            package = _PACKAGES.get((error.name or "").partition(".")[0])
            if package is None:
                raise
            return _print_error_and_return_code(
                f"cannot load {package} ({error}); pip install {package}, or see fullfield doctor"
            )
        except (MemoryError, RuntimeError) as error:
            short = ("DefaultCPUAllocator", "CUDA out of memory")
            named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
            if not named and not any(word in str(error) for word in short):
                raise
            return _print_error_and_return_code(_describe_out_of_memory_error(error))
    return code


def _parse_and_run_command(argv: Sequence[str] | None, build_parser_function: Callable[[], Parser]) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = build_parser_function()
    try:
        args, unknown = parser.parse_known_args(arguments)
    except SystemExit as done:  # --help and --version
        return int(done.code or 0)
    if unknown:
        parser.refuse_unknown_arguments(unknown)
    if args.verb is None:
        raise InputError(f"no verb given; one of {', '.join(parser._get_command_parsers())} (see {parser.prog} --help)")
    with _silence_compilation_while_quiet(getattr(args, "quiet", False)):
        try:
            code: int = args.run(args)
        except KeyboardInterrupt as interrupt:
            hint = str(interrupt) or ("the same command continues" if args.verb in _CONTINUING else "")
            print_note(f"interrupted; {hint}" if hint else "interrupted", kind="error")
            return 130
    return code


@contextlib.contextmanager
def _silence_compilation_while_quiet(quiet: bool) -> Iterator[None]:
    """Silence messages about compilation too while ``--quiet`` is in effect."""
    sets = quiet and not os.environ.get(_QUIET)
    if sets:
        os.environ[_QUIET] = "1"
    try:
        yield
    finally:
        if sets:
            del os.environ[_QUIET]


def _make_stdio_discard_if_closed_and_escape() -> None:
    """Make stdout and stderr safe to print to: closed ones discard, narrow encodings escape."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _print_error_and_return_code(message: str, code: int = 2) -> int:
    print_note(message, kind="error")
    return code


def _describe_os_error(error: OSError) -> str:
    reason = error.strerror or str(error) or type(error).__name__
    return f"{os.fsdecode(error.filename)}: {reason}" if isinstance(error.filename, (str, bytes)) else reason


def _describe_out_of_memory_error(error: BaseException) -> str:
    detail = next(iter(str(error).strip().splitlines()), "")
    return "out of memory" + (f": {detail}" if detail else "") + "; use smaller frames or fewer of them at a time"


def _redirect_stdout_to_null() -> None:
    """Redirect stdout to nothing, so that the interpreter's last flush does not fail a second time."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _EscapingStdout:
    """Stream whose errors contain its name, and that escapes control characters."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        return int(self._call_and_name_stream_in_errors(self._stream.write, escape_control_characters(text, "\n\t")))

    def flush(self) -> None:
        self._call_and_name_stream_in_errors(self._stream.flush)

    def _call_and_name_stream_in_errors(self, call: Callable[..., Any], *arguments: str) -> Any:
        try:
            return call(*arguments)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OSError(error.errno, f"cannot write: {error.strerror}", _STDOUT) from error


@contextlib.contextmanager
def _escape_control_characters_in_stdout() -> Iterator[None]:
    stream = sys.stdout
    sys.stdout = cast("TextIO", _EscapingStdout(stream))
    try:
        yield
    finally:
        sys.stdout = stream


@contextlib.contextmanager
def _print_warnings_on_one_line() -> Iterator[None]:
    """Print warnings of the library as one line each, without source and line number."""

    def print_warning(message: Warning | str, *_: Any, **__: Any) -> None:
        print_note(str(message), kind="warning")

    with warnings.catch_warnings():
        warnings.showwarning = print_warning
        warnings.filterwarnings("ignore", "Reading `.npy` or `.npz` file", UserWarning)  # of a file of Python 2
        yield


@contextlib.contextmanager
def _unwind_stack_on_sigterm() -> Iterator[None]:
    """Let SIGTERM unwind the stack, so that a render farm's kill leaves no temporary file behind."""

    def stop(signum: int, _: object) -> NoReturn:
        raise SystemExit(128 + signum)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    console()
