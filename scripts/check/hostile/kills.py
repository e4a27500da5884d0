"""Kill runs and start concurrent ones, seeded.

``python scripts/check/hostile/kills.py --rounds 50 --seed 1`` takes about an hour.

A training is killed by signal 9 at random moments: its workers must end, and no semaphore or folder of sockets may be
left; then it goes on, to the weights of a run that nobody killed. Processes evaluate one folder at the same time: all
must end well, with the totals of one alone. ``fullfield shot``  is killed again and again (twenty times, eight
on several devices): every file that is there is whole at any time, and at the end they are those of an undisturbed run.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

_TRAIN = """
import sys
from fullfield.registration.learned_network import DescriptorConfig
from fullfield.training import DescriptorTraining, train_descriptor
from fullfield.training.flow import PairGenerator
from fullfield.training.flow.pictures import create_procedural_picture_pack
if __name__ == "__main__":
    pairs = PairGenerator((24, 32), pictures=create_procedural_picture_pack(2, 16, shape_count=2), workers=1)
    pairs.prefetch(0, 1, lambda _: 1)
    pairs.batch(0, 1)
    tiny = DescriptorTraining(
        DescriptorConfig(channels=8, layers=1), steps=int(sys.argv[2]), pairs=1, block=2, reuse=2, anchors=64, cells=300
    )
    train_descriptor(
        sys.argv[1],
        tiny,
        device="cpu",
        workers=2,
        checkpoint_every=2,
        progress=lambda done, text: print(text, flush=True),
    )
"""
_EVALUATE = """
import json, sys
from fullfield.datasets import open_dataset
from fullfield.estimators import TVL1Estimator
from fullfield.evaluation import evaluate
from fullfield.ops.tvl1 import TVL1Config
estimator = TVL1Estimator(TVL1Config(warps=1, iterations=1, scales=1))
print(json.dumps(evaluate(estimator, open_dataset("pairs", sys.argv[1]), sys.argv[2])["scores"]))
"""
_MARK = "FULLFIELD_KILLS"


def alive(mark: str) -> list[int]:
    """The processes that were started with ``mark``, zombies aside."""
    result = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            mine = f"{_MARK}={mark}\0".encode() in (entry / "environ").read_bytes()
            if mine and (entry / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
                result.append(int(entry.name))
        except OSError:
            continue
    return result


def kill_a_training(draw: random.Random, folder: Path, steps: int, wait: float = 30.0) -> None:
    """Kill a training of descriptors, which also draws pairs of flow, at a random moment; check what remains.

    Its workers have begun then.
    """
    mark = f"{draw.getrandbits(64):x}"
    own = Path(tempfile.mkdtemp(prefix="ff-"))  # a short name: sockets in it have 108 bytes for theirs
    folder.mkdir(parents=True, exist_ok=True)
    semaphores = set(_semaphores())
    script = folder / "train.py"
    script.write_text(_TRAIN)
    command = [sys.executable, str(script), str(folder / "run"), str(steps)]
    environment = {**os.environ, _MARK: mark, "TMPDIR": str(own), "FULLFIELD_QUIET": "1"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    process.stdout.readline()  # a step is done, so there are workers
    started = len(alive(mark))
    assert started >= 5, f"{started} processes: expected workers of both kinds"
    time.sleep(draw.uniform(0.0, 1.0))
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()  # its workers may still hold the other end
    end = time.monotonic() + wait
    while (left := alive(mark)) and time.monotonic() < end:
        time.sleep(0.1)
    for number in left:
        os.kill(number, signal.SIGKILL)
    assert not left, f"{len(left)} of {started} processes are alive {wait:g} s after their parent was killed"
    retained = [path.name for path in own.iterdir() if path.name.startswith("pymp-")]
    assert not retained, f"left in the temporary folder: {retained}"
    shutil.rmtree(own)
    more = set(_semaphores()) - semaphores - set(_mapped())
    assert not more, f"{len(more)} semaphores are left"


def _semaphores() -> dict[int, str]:
    """By the numbers of their files."""
    place = Path("/dev/shm")
    files = place.glob("sem.mp-*") if place.is_dir() else ()
    result = {}
    for file in files:
        with contextlib.suppress(FileNotFoundError):
            result[file.stat().st_ino] = file.name
    return result


def _mapped() -> Iterator[int]:
    """The numbers of the files of living processes' semaphores: others may work on this machine."""
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            yield from (int(line.split()[4]) for line in maps.read_text().splitlines() if " /dev/shm/sem." in line)


def trained(folder: Path, steps: int) -> bytes:
    """The weights of a run that goes to its end."""
    script = folder / "train.py"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(_TRAIN)
    subprocess.run(
        [sys.executable, str(script), str(folder / "run"), str(steps)], check=True, stdout=subprocess.DEVNULL
    )
    return (folder / "run" / "weights.safetensors").read_bytes()


def evaluate_together(draw: random.Random, folder: Path, processes: int, pairs: int) -> None:
    """All on one folder, started within half a second."""
    data = _pairs(folder / "data", pairs)
    command = [sys.executable, "-c", _EVALUATE, str(data)]
    pipe = subprocess.PIPE
    running = []
    for _ in range(processes):
        running.append(subprocess.Popen([*command, str(folder / "run")], stdout=pipe, stderr=pipe, text=True))
        time.sleep(draw.uniform(0.0, 0.5 / processes))
    ended = [process.communicate() for process in running]
    wrong = [err for process, (_, err) in zip(running, ended, strict=True) if process.returncode]
    assert not wrong, f"{len(wrong)} of {processes} failed: {wrong[0][-2000:]}"
    scores = {out.splitlines()[-1] for out, _ in ended}
    assert len(scores) == 1, scores
    assert json.loads(scores.pop())["images"] == pairs


SHOTS = (
    ("--direction", "both"),
    ("--direction", "both", "--occlusion", "--confidence", "--half"),
    ("--warm-start",),
    ("--direction", "both", "--devices", "cpu,cpu"),
    ("--direction", "both", "--refine", "--confidence"),
)
"""Options of ``flow`` with which shots are killed."""


def kill_a_shot(draw: random.Random, folder: Path, options: tuple[str, ...], kills: int, frames: int = 40) -> int:
    """Kill ``fullfield shot`` at random moments, from its first instruction on; how many files were there then.

    What is there after a kill, and at the end everything, must be what a run gives that nobody disturbs.
    """
    from fullfield.cli.main import main as fullfield

    _plates(folder, frames)
    command = [
        "shot",
        str(folder / "plate.%04d.png"),
        *options,
        "--method",
        "tvl1",
        "--preset",
        "fast",
        "--threads",
        "1",
        "-q",
        "-o",
    ]
    with contextlib.redirect_stdout(io.StringIO()):
        assert fullfield([*command, str(folder / "whole.%04d.exr")]) == 0
    full = {path.name: _content(path) for path in folder.glob("whole.*.exr")}
    assert len(full) == frames
    mark = f"{draw.getrandbits(64):x}"
    environment = {**os.environ, _MARK: mark}
    seen = 0
    for number in range(kills + 1):
        before = set(folder.glob("mv.*.exr"))
        process = subprocess.Popen(
            [sys.executable, "-m", "fullfield", *command, str(folder / "mv.%04d.exr")],
            env=environment,
            stdout=subprocess.DEVNULL,
        )
        if number == kills:
            assert process.wait() == 0
        else:
            requested, end = len(before) + draw.randint(0, 3), time.monotonic() + 60
            while len(list(folder.glob("mv.*.exr"))) < requested and process.poll() is None and time.monotonic() < end:
                time.sleep(0.002)
            time.sleep(draw.uniform(0, 4.0 if requested == len(before) else 0.2))
            process.kill()
            process.wait()
            end = time.monotonic() + 30
            while (left := alive(mark)) and time.monotonic() < end:
                time.sleep(0.05)
            assert not left, f"{len(left)} processes are alive 30 s after the one that began them was killed"
            seen = max(seen, len(set(folder.glob("mv.*.exr")) - before))
        for path in folder.glob("mv.*.exr"):
            assert _content(path) == full[path.name.replace("mv", "whole")], f"{path.name}, kill {number}"
    assert len(list(folder.glob("mv.*.exr"))) == frames
    assert not list(folder.glob(".*.part*")), "pieces are left"
    return seen


def _content(path: Path) -> dict[str, bytes]:
    from fullfield.io import read_flow_layers

    return {name: part.numpy().tobytes() for name, part in read_flow_layers(path).items()}


def _plates(folder: Path, count: int) -> None:
    from fullfield.io import write_image
    from fullfield.testing import sample_textured_scene

    folder.mkdir(parents=True)
    texture = sample_textured_scene(120, 160 + 2 * count, seed=1).frame1
    for number in range(count):
        write_image(folder / f"plate.{number:04d}.png", texture[:, :, 2 * number : 2 * number + 160].contiguous())


def _pairs(folder: Path, count: int) -> Path:
    import torch

    from fullfield.io import write_flow, write_image

    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(0)
    for number in range(count):
        frame = torch.randint(0, 256, (3, 24, 32), dtype=torch.uint8, generator=generator)
        write_image(folder / f"{number:02}_a.png", frame)
        write_image(folder / f"{number:02}_b.png", frame.roll(1, -1))
        write_flow(folder / f"{number:02}.flo", torch.ones(2, 24, 32, dtype=torch.float32))
    lines = [f"{number:02}_a.png {number:02}_b.png {number:02}.flo" for number in range(count)]
    (folder / "pairs.txt").write_text("\n".join(lines) + "\n")
    return folder


def main() -> None:
    """From the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=("training", "evaluation", "shot"), help="one kind alone")
    options = parser.parse_args()
    draw = random.Random(options.seed)
    kinds = (options.only,) if options.only else ("training", "evaluation", "shot")
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        full = trained(Path(folder) / "whole", 64) if "training" in kinds else b""
        for number in range(options.rounds):
            place = Path(folder) / f"{number}"
            if "training" in kinds:
                for _ in range(3):
                    kill_a_training(draw, place / "killed", 64)
                assert trained(place / "killed", 64) == full, f"round {number}: the resumed run gives other weights"
            if "evaluation" in kinds:
                evaluate_together(draw, place / "together", 18, 12)
            if "shot" in kinds:
                flags = SHOTS[number % len(SHOTS)]
                kill_a_shot(draw, place / "shot", flags, 8 if "--devices" in flags else 20)
            shutil.rmtree(place)
            print(f"round {number + 1} of {options.rounds}: fine, {time.monotonic() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
