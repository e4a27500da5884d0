"""Time the refinement of two versions in turns on one device, after a check of each against its own reference.

    git archive COMMIT src | tar -x -C OLD
    python -m benchmarks.experiments.compare_refinement OLD/src --sizes 1920x1080 3840x2160 8192x3432

Each version runs in a process of its own and refines the same flows, those of fullfield-s on a synthetic scene, in
three passes of one round as `auto` does. Printed are milliseconds of a call (median of all rounds), the time of each
kernel, and the mean end-point error. Exit code 1: a check failed, or the new version is not faster.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate

ROOT = Path(__file__).resolve().parents[2]
_CHECKED, _SCENE = (120, 160), (1080, 1920)
_MAX_ERROR_PX, _MEAN_ERROR_PX = 2e-3, 1e-5


class Worker:
    """Process that refines with the package in one ``src`` folder."""

    def __init__(self, source: Path, inputs: Path, device: str) -> None:
        environment = {**os.environ, "PYTHONPATH": os.fspath(source)}
        command = [sys.executable, __file__, "--worker", os.fspath(inputs), "--device", device]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
        )

    def ask(self, request: str) -> Any:
        """Send a request; return the answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(request, file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the worker ended with code {self._process.wait()}")
        return json.loads(line)

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


@functools.cache
def _render_scene(height: int, width: int) -> Any:
    from fullfield.testing import sample_textured_scene

    return sample_textured_scene(height, width, seed=3)


def estimate_inputs(size: tuple[int, int], device: str) -> dict[str, Tensor]:
    """Return frames, the network's flows in both directions, the true flow and where it counts."""
    from fullfield.models.prepared import PreparedFlow
    from fullfield.models.weights import load_weights

    scene_size = _SCENE if size[0] * size[1] > _SCENE[0] * _SCENE[1] else size
    scene = _render_scene(*scene_size)
    planes = torch.cat([scene.frame1, scene.frame2, scene.flow])[None]
    planes = interpolate(planes, size, mode="bilinear", align_corners=False).to(device)
    scale = torch.tensor([size[1] / scene_size[1], size[0] / scene_size[0]], device=device).view(1, 2, 1, 1)
    mask = (scene.valid & ~scene.occluded)[None, None].float()
    is_counted = interpolate(mask, size, mode="nearest")[0, 0].bool().to(device)
    network = PreparedFlow(load_weights("fullfield-s").to(device), *size)
    first, second = (planes[:, part].contiguous() for part in (slice(0, 3), slice(3, 6)))
    with torch.no_grad():
        flow, backward = network(first, second, 4).clone(), network(second, first, 4).clone()
    return {
        "frame1": first, "frame2": second, "flow": flow, "backward": backward,
        "truth": planes[:, 6:] * scale, "counted": is_counted,
    }  # fmt: skip


def serve(inputs: Path, device: str) -> None:
    """Answer requests from stdin: check, load NUMBER, time, profile, error."""
    from fullfield.ops.tvl1 import FlowRefiner
    from fullfield.ops.tvl1 import config as configs
    from fullfield.ops.tvl1.config import RefinementConfig

    config = getattr(configs, "THREE_PASSES", RefinementConfig(passes=3, rounds=1))
    refiner: Any = None
    tensors: dict[str, Tensor] = {}

    def refine() -> Tensor:
        result: Tensor = refiner(tensors["frame1"], tensors["frame2"], tensors["flow"], tensors["backward"])
        return result

    def wait() -> None:
        if device != "cpu":
            torch.cuda.synchronize()

    def time_calls(count: int) -> float:
        wait()
        start = time.perf_counter()
        for _ in range(count):
            refine()
        wait()
        return (time.perf_counter() - start) * 1e3 / count

    def profile() -> dict[str, float]:
        if device == "cpu":
            return {}
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
            refine()
            wait()
        return {event.key: event.self_device_time_total / 1e3 for event in profiler.key_averages()}

    for line in sys.stdin:
        request, *arguments = line.split()
        answer: Any
        if request == "check":
            pair = torch.load(inputs / "check.pt", weights_only=True, map_location="cpu")
            arguments_of = [pair[name] for name in ("frame1", "frame2", "flow", "backward")]
            exact = FlowRefiner(*_CHECKED, config, dtype=torch.float64, backend="reference")
            fast = FlowRefiner(*_CHECKED, config, device=device)
            truth = exact(*(tensor.double() for tensor in arguments_of))
            error = (fast(*(tensor.to(device) for tensor in arguments_of)).cpu() - truth).abs()
            answer = {"backend": fast.backend, "max": float(error.max()), "mean": float(error.mean())}
        elif request == "load":
            tensors = torch.load(inputs / f"{arguments[0]}.pt", weights_only=True, map_location=device)
            refiner = None  # frees the buffers of the last size
            height, width = tensors["flow"].shape[-2:]
            refiner = FlowRefiner(height, width, config, device=device)
            answer = [time_calls(1) for _ in range(3)]
        elif request == "time":
            answer = time_calls(int(arguments[0]))
        elif request == "profile":
            answer = profile()
        else:
            distance = (refine() - tensors["truth"]).norm(dim=1)[0]
            answer = float(distance[tensors["counted"]].mean())
        print(json.dumps(answer), flush=True)


def compare(old: Path, sizes: list[tuple[int, int]], rounds: int, device: str) -> bool:
    """Print the comparison; return whether all checks hold and the new version is faster at every size."""
    good = True
    with tempfile.TemporaryDirectory() as folder:
        inputs = Path(folder)
        torch.save(estimate_inputs(_CHECKED, device), inputs / "check.pt")
        for number, size in enumerate(sizes):
            torch.save(estimate_inputs(size, device), inputs / f"{number}.pt")
        if device != "cpu":
            torch.cuda.empty_cache()
        workers = {"old": Worker(old, inputs, device), "new": Worker(ROOT / "src", inputs, device)}
        for name, worker in workers.items():
            check = worker.ask("check")
            holds = check["max"] < _MAX_ERROR_PX and check["mean"] < _MEAN_ERROR_PX
            good = good and holds
            print(f"{name}: {check['backend']} against the reference in float64: largest {check['max']:.2e} px, "
                  f"mean {check['mean']:.2e} px: {'holds' if holds else 'FAILS'}", flush=True)  # fmt: skip
        for number, (height, width) in enumerate(sizes):
            for worker in workers.values():
                worker.ask(f"load {number}")
            times: dict[str, list[float]] = {name: [] for name in workers}
            for _ in range(rounds):
                for name, worker in workers.items():
                    times[name].append(worker.ask("time 3"))
            medians = {name: statistics.median(values) for name, values in times.items()}
            good = good and medians["new"] < medians["old"]
            ranges = {name: f"{min(values):.2f} to {max(values):.2f}" for name, values in times.items()}
            words = ", ".join(f"{name} {medians[name]:.2f} ms ({ranges[name]})" for name in workers)
            print(f"{width}x{height}: {words}, ratio {medians['new'] / medians['old']:.3f}", flush=True)
            errors = {name: worker.ask("error") for name, worker in workers.items()}
            print(f"  mean end-point error, px: old {errors['old']:.4f}, new {errors['new']:.4f}")
            profiles = {name: worker.ask("profile") for name, worker in workers.items()}
            for kernel in sorted({*profiles["old"], *profiles["new"]}):
                old_ms, new_ms = (profiles[name].get(kernel, 0.0) for name in workers)
                if max(old_ms, new_ms) > 0.005:
                    print(f"  {kernel[:60]:60s} {old_ms:8.3f} {new_ms:8.3f} ms")
        for worker in workers.values():
            worker.close()
    return good


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", nargs="?", type=Path, help="the src folder of the other version")
    parser.add_argument("--sizes", nargs="+", default=["1920x1080", "3840x2160", "8192x3432"], metavar="WxH")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker is not None:
        serve(arguments.worker, arguments.device)
        return 0
    if arguments.old is None:
        parser.error("OLD: expected the src folder of the other version")
    sizes = [(int(height), int(width)) for width, height in (text.split("x") for text in arguments.sizes)]
    return 0 if compare(arguments.old, sizes, arguments.rounds, arguments.device) else 1


if __name__ == "__main__":
    sys.exit(main())
