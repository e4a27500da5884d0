"""Process that runs Blender, and the shot that it renders."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fullfield._check import InputError, describe_config_differences
from tools.render.truth import average_colors, collect_truth

_SCRIPT = Path(__file__).parent / "blender" / "render.py"
_DONE = re.compile(r"fullfield: frame (\d+) done")
_SCRIPT_MESSAGE = "render.py: "
FAST_SAMPLES = 4
"""Samples of a frame's pixel in a fast render: one for each value of the vectors."""


@dataclass(frozen=True)
class Blender:
    """Command that starts Blender, 4.2 or newer.

    Attributes:
        executable: path or name of Blender.
        python: the Python of an environment with ``bpy``, used in place of Blender. ``bpy`` pins its own NumPy, so it
            is another environment than this one.
    """

    executable: str = "blender"
    python: str | None = None

    def command(self) -> list[str]:
        """Return the command that runs the script, without the script's own arguments.

        Raises:
            InputError: Blender or Python is not installed.
        """
        name = self.executable if self.python is None else self.python
        found = shutil.which(name)
        if found is None:
            how = "install Blender, or name it or the Python of an environment with bpy (pip install bpy)"
            raise InputError(f"{name}: cannot be run; {how}")
        if self.python is not None:
            return [found, os.fspath(_SCRIPT)]
        options = ["--background", "--factory-startup", "-noaudio", "--python-exit-code", "1"]
        return [found, *options, "--python", os.fspath(_SCRIPT), "--"]


@dataclass(frozen=True)
class Shot:
    """Frames to render, and their settings.

    Attributes:
        source: a ``.blend`` file; None for fullfield's own scene.
        first: number of the first frame.
        last: number of the last frame, which is rendered but has no true flow.
        width: width of the frames; the height follows the scene. Vectors are rendered at twice this.
        samples: samples for each pixel of a frame.
        seed: seed of fullfield's own scene.
        thin: number of branches, fans of hairs and grids that are added to fullfield's own scene.
        speed: factor of the motion in fullfield's own scene.
        fast: shade fullfield's own scene by angle, without shadows. The same render then gives colour and vectors:
            a frame's pixel is the mean of its four samples, and ``samples`` must be 4.
        height: height of the frames; None follows the scene.
        gpu: let Cycles use the GPU that Blender's preferences name.
        checks: write positions and matrices too, to test the vectors.
    """

    source: str | os.PathLike[str] | None
    first: int
    last: int
    width: int = 8192
    samples: int = 1024
    seed: int = 0
    thin: int = 0
    speed: float = 1.0
    fast: bool = False
    height: int | None = None
    gpu: bool = False
    checks: bool = False

    def settings(self) -> dict[str, object]:
        """Return the settings that the script stores in ``render.json``, without those that only Blender knows."""
        if self.source is None:
            source: dict[str, object] = {"source": "own scene", "seed": self.seed, "frames": [self.first, self.last]}
            source.update(thin=self.thin, speed=self.speed, fast=self.fast)
        else:
            source = {"source": Path(self.source).name, "bytes": Path(self.source).stat().st_size}
        height = {} if self.height is None else {"height": self.height}
        return {**source, "width": self.width, **height, "samples": self.samples}

    def arguments(self, folder: Path) -> list[str]:
        """Return the arguments of the script."""
        if self.source is None:
            scene = ["--own-scene", str(self.seed), "--thin", str(self.thin), "--speed", str(self.speed)]
            scene += ["--fast"] if self.fast else []
        else:
            scene = ["--blend", os.path.abspath(self.source)]  # noqa: PTH100
        numbers = ["--frames", str(self.first), str(self.last), "--width", str(self.width)]
        numbers += [] if self.height is None else ["--height", str(self.height)]
        rest = ["--samples", str(self.samples), "--device", "GPU" if self.gpu else "CPU"]
        checks = ["--checks"] if self.checks else []
        return [*scene, "--output", os.fspath(folder.absolute()), *numbers, *rest, *checks]


def render_shot(
    shot: Shot,
    folder: str | os.PathLike[str],
    blender: Blender | None = None,
    *,
    progress: Callable[[float, str], None] | None = None,
) -> list[Path]:
    """Render a shot, compute its true flow and return the flow files.

    ``folder`` gets the layout of :class:`fullfield.datasets.Rendered`. Existing frames are kept, so a render that was
    stopped continues. Blender runs in a process of its own.

    Raises:
        InputError: Blender failed, or the folder holds frames with other settings.
    """
    if shot.last <= shot.first:
        raise InputError(f"frames: expected a first before a last, got {shot.first} to {shot.last}")
    if shot.source is not None and not Path(shot.source).is_file():
        raise InputError(f"{shot.source}: expected a .blend file, found nothing")
    if shot.fast and shot.samples != FAST_SAMPLES:
        raise InputError(f"samples: expected {FAST_SAMPLES} with fast, got {shot.samples}")
    target = Path(folder)
    numbers = range(shot.first, shot.last + 1)
    kinds = _FILES[1:] if shot.fast else _FILES  # fast frames are computed from the vectors' colour
    files = [target / kind / f"{name}_{n:04d}.{end}" for n in numbers for kind, name, end in kinds]
    if all(path.is_file() for path in files):
        _refuse_other_settings(shot, target)
    else:
        message = _run([*(blender or Blender()).command(), *shot.arguments(target)], shot, progress)
        missing = next((path for path in files if not path.is_file()), None)
        if missing is not None:
            raise InputError(f"Blender: ended without writing {missing}: {message}")

    def collecting(fraction: float, text: str) -> None:
        if progress is not None:
            progress(0.95 + 0.05 * fraction, text)

    if shot.fast:
        average_colors(target, shot.first, shot.last)
    return collect_truth(target, shot.first, shot.last, progress=collecting)


def _refuse_other_settings(shot: Shot, folder: Path) -> None:
    """Refuse a complete shot with other settings, as the script does for an incomplete one."""
    noted, now = folder / "render.json", shot.settings()
    if not noted.is_file():
        raise InputError(f"{noted}: expected the settings of the frames, found nothing")
    try:
        before = json.loads(noted.read_text("utf-8"))
        stored = {name: before.get(name) for name in now}  # the file has more
    except (ValueError, AttributeError) as error:
        raise InputError(f"{noted}: expected the settings of the frames ({error})") from None
    if changed := describe_config_differences(stored, now):
        raise InputError(f"{folder} was rendered with other settings ({'; '.join(changed)})")


_FILES = (("frames", "frame", "png"), ("vectors", "vectors", "exr"))


def _run(command: list[str], shot: Shot, progress: Callable[[float, str], None] | None) -> str:
    """Run Blender and return its last message; an exception here kills it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env=environment
    ) as process:
        tail: deque[str] = deque(maxlen=50)
        done = 0
        try:
            for line in process.stdout or ():
                tail.append(line.rstrip())
                match = _DONE.search(line)
                if match and progress is not None:
                    done += 1
                    progress(0.95 * done / (shot.last - shot.first + 1), f"rendered frame {match.group(1)}")
        except BaseException:
            process.kill()
            raise
    own = next((line for line in reversed(tail) if line.startswith(_SCRIPT_MESSAGE)), None)
    message = (
        own.removeprefix(_SCRIPT_MESSAGE) if own else next((line for line in reversed(tail) if line), "no message")
    )
    if process.returncode:
        raise InputError(f"Blender: stopped with {process.returncode}: {message}")
    return message
