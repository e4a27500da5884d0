"""Starting Blender, and waiting for it."""

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

from fullfield._check import InputError, differences
from fullfield.rendering.truth import collect_truth

_SCRIPT = Path(__file__).parent / "blender" / "render.py"
_DONE = re.compile(r"fullfield: frame (\d+) done")
_OWN_WORDS = "render.py: "


@dataclass(frozen=True)
class Blender:
    """How to reach Blender, 4.2 or newer.

    Attributes:
        executable: Blender itself, by path or name.
        python: instead, the Python of an environment that has ``bpy`` (it pins its own NumPy, so not this one).
    """

    executable: str = "blender"
    python: str | None = None

    def command(self) -> list[str]:
        """What runs a script; the script's own arguments follow.

        Raises InputError where it is not there.
        """
        name = self.executable if self.python is None else self.python
        found = shutil.which(name)
        if found is None:
            how = "install Blender, or name it, or the Python of an environment with bpy (pip install bpy)"
            raise InputError(f"{name}: cannot be run; {how}")
        if self.python is not None:
            return [found, os.fspath(_SCRIPT)]
        options = ["--background", "--factory-startup", "-noaudio", "--python-exit-code", "1"]
        return [found, *options, "--python", os.fspath(_SCRIPT), "--"]


@dataclass(frozen=True)
class Shot:
    """What to render.

    Attributes:
        source: a ``.blend`` file; None for fullfield's own scene.
        first, last: frame numbers, both rendered; the last has no truth.
        width: of the frames; the height follows the scene. Vectors are rendered at twice this.
        samples: for each pixel of a frame.
        seed: of the own scene.
        gpu: let Cycles use the GPU that Blender's preferences name.
        checks: write positions and matrices too, to test the vectors.
    """

    source: str | os.PathLike[str] | None
    first: int
    last: int
    width: int = 8192
    samples: int = 1024
    seed: int = 0
    gpu: bool = False
    checks: bool = False

    def settings(self) -> dict[str, object]:
        """What the pictures depend on, as the script notes it in ``render.json`` beside what only Blender knows."""
        if self.source is None:
            source: dict[str, object] = {"source": "own scene", "seed": self.seed, "frames": [self.first, self.last]}
        else:
            source = {"source": Path(self.source).name, "bytes": Path(self.source).stat().st_size}
        return {**source, "width": self.width, "samples": self.samples}

    def arguments(self, folder: Path) -> list[str]:
        """Of the script."""
        scene = ["--own-scene", str(self.seed)] if self.source is None else ["--blend", os.path.abspath(self.source)]  # noqa: PTH100
        numbers = ["--frames", str(self.first), str(self.last), "--width", str(self.width)]
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
    """Render a shot into ``folder`` (see :class:`fullfield.datasets.Rendered`) and work out its truth.

    Frames that are there are kept, so a render that was stopped goes on; other settings in the same folder are
    refused. Blender runs in a process of its own.

    Returns the files of flow. Raises InputError with Blender's reason where it fails.
    """
    if shot.last <= shot.first:
        raise InputError(f"frames: expected a first before a last, got {shot.first} to {shot.last}")
    if shot.source is not None and not Path(shot.source).is_file():
        raise InputError(f"{shot.source}: expected a .blend file, found nothing")
    target = Path(folder)
    numbers = range(shot.first, shot.last + 1)
    made = [target / kind / f"{name}_{n:04d}.{end}" for n in numbers for kind, name, end in _FILES]
    if all(path.is_file() for path in made):
        _refuse_other_settings(shot, target)
    else:
        said = _run([*(blender or Blender()).command(), *shot.arguments(target)], shot, progress)
        lacking = next((path for path in made if not path.is_file()), None)
        if lacking is not None:
            raise InputError(f"Blender: ended without writing {lacking}: {said}")

    def collecting(fraction: float, text: str) -> None:
        if progress is not None:
            progress(0.95 + 0.05 * fraction, text)

    return collect_truth(target, shot.first, shot.last, progress=collecting)


def _refuse_other_settings(shot: Shot, folder: Path) -> None:
    """What the script does, where it need not run."""
    noted, now = folder / "render.json", shot.settings()
    if not noted.is_file():
        raise InputError(f"{noted}: expected the settings of the frames beside it, found nothing")
    try:
        before = json.loads(noted.read_text("utf-8"))
        stored = {name: before.get(name) for name in now}  # it notes more
    except (ValueError, AttributeError) as error:
        raise InputError(f"{noted}: expected the settings that Blender noted ({error})") from None
    if changed := differences(stored, now):
        raise InputError(f"{folder} was rendered with other settings ({'; '.join(changed)})")


_FILES = (("frames", "frame", "png"), ("vectors", "vectors", "exr"))


def _run(command: list[str], shot: Shot, progress: Callable[[float, str], None] | None) -> str:
    """The last line it said. It does not outlive this process's interest in it."""
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
    own = next((line for line in reversed(tail) if line.startswith(_OWN_WORDS)), None)
    said = own.removeprefix(_OWN_WORDS) if own else next((line for line in reversed(tail) if line), "no word")
    if process.returncode:
        raise InputError(f"Blender: stopped with {process.returncode}: {said}")
    return said
