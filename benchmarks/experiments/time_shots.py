"""Store the processor seconds of one frame of a shot of 1920x1080 on one CPU thread, both directions, by settings.

python -m benchmarks.experiments.time_shots      writes benchmarks/results/shot_cpu.json

The plates are synthetic. The second frame counts: everything is loaded and compiled by then. Processor time is counted, which other programs on the machine disturb less.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.stored import RESULTS, state_conditions
from fullfield import estimate_sequence
from fullfield.io import write_image
from fullfield.io.files import write_atomically
from fullfield.sequences import ShotSettings
from fullfield.testing.shots import SyntheticShot

HEIGHT, WIDTH, FRAMES = 1080, 1920, 3
SETTINGS: dict[str, dict[str, str]] = {
    "default": {"method": "auto"},
    "scale 1/2": {"method": "auto", "scale": "1/2"},
    "fast": {"method": "auto", "preset": "fast"},
    "fullfield-s": {"method": "fullfield-s"},
    "tvl1 fast": {"method": "tvl1", "preset": "fast"},
    "accurate": {"method": "auto", "preset": "accurate"},
}
SOURCES = (
    "src/fullfield/estimators/network.py",
    "src/fullfield/models/fullfield_*.safetensors",
    "src/fullfield/models/prepared/*.py",
    "src/fullfield/ops/correlation/_cpu_*.py",
    "src/fullfield/ops/tvl1/_*kernels.py",
)


def time_second_frame(plates: str, method: str, preset: str = "default", scale: str = "1") -> float:
    """Return the processor seconds between the results of the first and the second frame."""
    settings = ShotSettings(direction="both", occlusion=True, confidence=True, device="cpu", scale=scale)
    results = estimate_sequence(plates, method, preset=preset, settings=settings)
    next(results)
    start = time.process_time()
    next(results)
    return round(time.process_time() - start, 2)


def main() -> None:
    """Draw the plates, time every setting and store the seconds."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        shot = SyntheticShot(HEIGHT, WIDTH, FRAMES, seed=1, bodies=2)
        for index in range(FRAMES):
            write_image(Path(folder) / f"plate.{1001 + index}.exr", shot.render_frame(index))
        plates = str(Path(folder) / "plate.%04d.exr")
        seconds = {}
        for name, setting in SETTINGS.items():
            seconds[name] = time_second_frame(plates, **setting)
            print(name, seconds[name], flush=True)
    result = {
        "what": "processor seconds of one frame of a shot on one thread: both directions, occlusion and confidence",
        "frames": "synthetic",
        "size": [HEIGHT, WIDTH],
        "threads": 1,
        "command": "python -m benchmarks.experiments.time_shots",
        **state_conditions(*SOURCES),
        "seconds": seconds,
    }
    with write_atomically(RESULTS / "shot_cpu.json") as path:
        path.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
