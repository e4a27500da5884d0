"""How much memory a long shot takes: ``python tests/sequences/long_shot.py --frames 1000``.

A shot of small frames goes from files to files in this process; told is by how much its memory grows after the first
frames, and what a shot would grow by that kept a frame and a flow of each.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import tempfile
from pathlib import Path

from fullfield.estimators import TVL1Estimator
from fullfield.io import write_image
from fullfield.ops.tvl1.config import PRESETS
from fullfield.sequences import Output, ShotJob, ShotSettings, write_shot_flow
from fullfield.sequences.names import find_frame_files
from fullfield.testing import sample_textured_scene

HEIGHT, WIDTH = 180, 320
_DIFFERENT = 12


def resident() -> float:
    """MiB of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20


def grown(folder: Path, frames: int, settled: int = 30) -> tuple[float, float]:
    """MiB by which the most after the first ``settled`` frames exceeds the most before; MiB of all that comes by."""
    texture = sample_textured_scene(HEIGHT, WIDTH + 2 * _DIFFERENT, seed=4).frame1
    for number in range(frames):
        path = folder / f"plate.{number:05d}.png"
        if number < _DIFFERENT:
            write_image(path, texture[:, :, 2 * number : 2 * number + WIDTH].contiguous())
        else:
            os.link(folder / f"plate.{number % _DIFFERENT:05d}.png", path)
    plates = find_frame_files(str(folder / "plate.%05d.png"))
    output = Output(str(folder / "mv.%05d.exr"))
    job = ShotJob(plates, tuple(plates.files), output, ShotSettings("both"))
    estimator = TVL1Estimator(PRESETS["fast"].replace(iterations=2, warps=1, scales=2))
    seen: list[float] = []

    def tell(number: int) -> None:
        (folder / f"mv.{number:05d}.exr").unlink()  # files in memory would count
        if number % 20 == 0:
            gc.collect()
        seen.append(resident())

    job, _ = job.write_settings_and_get_job_and_plan(estimator, job.open_plates())
    outcome = write_shot_flow(job, range(frames), estimator, job.open_plates(), report=tell)
    assert outcome.is_complete, outcome
    assert len(outcome.written) == frames
    passing = (frames - settled) * HEIGHT * WIDTH * 4 * (3 + 2 * 2) / 2**20
    return max(seen[settled:]) - max(seen[:settled]), passing


def main() -> None:
    """From the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=1000)
    frames = parser.parse_args().frames
    with tempfile.TemporaryDirectory() as folder:
        more, passing = grown(Path(folder), frames)
    report = {"frames": frames, "size": [HEIGHT, WIDTH], "grown_mib": round(more, 1), "passing_mib": round(passing, 1)}
    print(json.dumps({**report, "resident_mib": round(resident(), 1)}))  # noqa: T201


if __name__ == "__main__":
    main()
