"""Install a wheel with each optional extra into a separate environment, and use the extra.

python scripts/release/check_extras.py dist/fullfield-*.whl [EXTRA ...]     by default all but dev; minutes for each
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FRAMES = "from fullfield.testing import sample_textured_scene; s = sample_textured_scene(48, 64)"
NVRTC = """
import contextlib, io, json
from fullfield._kernels.nvrtc import load_nvrtc
assert load_nvrtc().version[0] == MAJOR
from fullfield.cli.main import main
with contextlib.redirect_stdout(io.StringIO()) as said:
    assert main(['doctor', '--json']) == 0
assert json.loads(said.getvalue())['extras']['cudaMAJOR']['missing'] == []
"""
USES = {
    "": """
from fullfield.cli.main import main
assert main(['doctor']) == 0
assert main(['demo', '--size', '96x72']) == 0
""",
    "register": """
from fullfield.registration import register
from fullfield.testing import sample_room_scan
assert register(sample_room_scan(5, scan_seed=1) + 1.0, sample_room_scan(5)).success
from fullfield.io import read_point_cloud, write_point_cloud
write_point_cloud('room.laz', sample_room_scan(5))
assert len(read_point_cloud('room.laz')) == len(sample_room_scan(5))
""",
    "video": f"""
{FRAMES}
from fullfield.cli.main import main
from fullfield.io import VideoWriter
video = VideoWriter('clip.mp4', 64, 48, 25)
for n in range(4):
    video.write((255 * (s.frame1, s.frame2)[n % 2]).byte(), n / 25)
video.close()
assert main(['live', 'clip.mp4', '--preset', 'fast', '--rate', 'max', '--viz', 'flow.mp4']) == 0
""",
    "export": """
from fullfield.cli.main import main
assert main(['export', '-o', 'net.onnx', '--method', 'fullfield-s', '--size', '128x128', '--updates', '1']) == 0
import numpy, onnxruntime
frame = numpy.random.rand(1, 3, 128, 128).astype('float32')
(flow,) = onnxruntime.InferenceSession('net.onnx').run(None, {'frame1': frame, 'frame2': frame})
assert flow.shape == (1, 2, 128, 128)
""",
    "ray": f"""
{FRAMES}
from fullfield.cli.main import main
from fullfield.io import read_flow, write_image
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={{'num_cpus': 1, 'include_dashboard': False}})
cluster.add_node(num_cpus=1)
for n in (1, 2, 3):
    write_image(f'p.{{n}}.png', (s.frame1, s.frame2)[n % 2])
assert main(['shot', 'p.%d.png', '-o', 'mv.%d.exr', '--ray', cluster.address, '--preset', 'fast']) == 0
assert float(read_flow('mv.2.exr').flow.abs().max()) > 0.1
cluster.shutdown()
""",
    "bench": """
import os, runpy, sys
sys.path.insert(0, os.environ['FULLFIELD_CHECKOUT'])
import pynvml, skimage
from fullfield.testing import sample_textured_scene
from fullfield.io import write_flow, write_image
s = sample_textured_scene(72, 96)
write_image('a.png', s.frame1); write_image('b.png', s.frame2); write_flow('t.flo', s.flow)
sys.argv = ['benchmarks', 'tvl1', '--pair', 'a.png', 'b.png', 't.flo', '--repeats', '1', '-o', 'found.json']
try:
    runpy.run_module('benchmarks', run_name='__main__', alter_sys=True)
except SystemExit as left:
    assert not left.code, left.code
import json
names = {row['name'] for case in json.load(open('found.json'))['cases'] for row in case['rows'] if 'name' in row}
assert names >= {'opencv', 'scikit-image'}, names
""",
    "cuda12": NVRTC.replace("MAJOR", "12"),
    "cuda13": NVRTC.replace("MAJOR", "13"),
    "docs": """
import os, subprocess, sys
site = os.path.join(os.environ['FULLFIELD_CHECKOUT'], 'scripts', 'docs', 'site.py')
sys.exit(subprocess.run([sys.executable, site, '--quick']).returncode)
""",
}
"""Script that uses each extra, run outside the checkout; the first uses no extra."""


def declared() -> set[str]:
    """Return the extras that pyproject.toml declares."""
    table = (ROOT / "pyproject.toml").read_text("utf-8").split("[project.optional-dependencies]\n")[1].split("\n[")[0]
    return set(re.findall(r"^(\w+) = \[", table, re.MULTILINE))


def check(wheel: Path, extra: str, folder: Path) -> str | None:
    """Install the wheel with an extra and use it; return the problem, or None."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environment["FULLFIELD_CACHE_DIR"] = str(folder / "cache")
    environment["FULLFIELD_CHECKOUT"] = str(ROOT)
    python = folder / "venv" / ("Scripts" if os.name == "nt" else "bin") / "python"
    what = f"{wheel}[{extra}]" if extra else str(wheel)
    for command in (
        [sys.executable, "-m", "venv", str(folder / "venv")],
        [str(python), "-m", "pip", "install", "-q", "-c", str(ROOT / "constraints.txt"), what],
        [str(python), "-m", "pip", "check"],
        [str(python), "-c", USES[extra]],
    ):
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = (done.stderr or done.stdout).strip().splitlines()
            return f"{' '.join(command[1:4])} ...: {' / '.join(lines[-3:])}"
    return None


def main(arguments: list[str]) -> int:
    """Check the extras and return 1 if one does not work."""
    if not arguments or not arguments[0].endswith(".whl"):
        print(__doc__, file=sys.stderr)
        return 2
    wheel, *extras = arguments
    missing = declared() - USES.keys() - {"dev"}
    if missing:
        print(f"no use is known for {', '.join(sorted(missing))}", file=sys.stderr)
        return 1
    worst = 0
    for extra in extras or USES:
        start = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            problem = check(Path(wheel).resolve(), extra, Path(folder))
        print(f"{extra or 'no extra':<10}{problem or 'works'} ({time.perf_counter() - start:.0f} s)", flush=True)
        worst |= problem is not None
    return worst


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
