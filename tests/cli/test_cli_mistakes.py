"""A user's mistake: exit code 2, one line that names the file or option, and the previous output untouched."""

from __future__ import annotations

import errno
import os
import shlex
import shutil
import signal
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fullfield.estimators.estimation
import fullfield.io
from fullfield.cli.report import escape_control_characters
from fullfield.datasets import SCANS
from fullfield.estimators import TVL1Estimator
from fullfield.io import PointCloud, VideoWriter, write_flow, write_image, write_point_cloud
from fullfield.models import RAFT, RAFTConfig
from fullfield.testing import sample_room_scan

Refused = Callable[..., str]
FAST = ("--method", "tvl1", "--preset", "fast", "--iterations", "1", "--warps", "1")


TRAINING = "train flow -o run --network raft-small --size 40x32 --batch 2 --steps 2 --updates 1 -q --data pairs:mine"
MISTAKES = {
    "flow a.png b.png -o out.flo --method tvl1": [
        ("--lambda -1", "--lambda: expected a number >"),
        ("--lambda nan", "--lambda: expected NUMBER, got 'nan'"),
        ("--lambda \uff11", "--lambda: expected NUMBER"),
        ("--warps 1_0", "--warps: expected INT"),
        ("--median 4", "--median: expected one of 0, 3, 5"),
        ("--precision float16", "--precision: expected 'float32', or an NVIDIA GPU as device, got 'float16' on cpu"),
        ("--cascade", "--cascade: belongs to --method auto, fullfield-s, fullfield-m, raft, raft-small, sea-raft-s, "),
    ],
    "flow a.png b.png -o out.flo --method raft": [
        ("--weights raft-thing", "did you mean raft-things?"),
        ("--weights none.pth", "--weights: none.pth: no such file; 'fullfield weights list'"),
        ("--weights raft-small", "--weights: expected some for raft, got raft-small"),
        ("--weights w.pth", "w.pth: expected weights of RAFT; it looks like RAFT-small"),
        ("--weights a.png", "a.png: expected weights (a PyTorch or safetensors file)"),
        ("--updates many", "--updates: expected INT|auto, got 'many'"),
        ("--updates -1", "--updates: expected an integer >= 0"),
        ("--coarse-updates 3", "--coarse-updates: expected None without a cascade"),
        ("--precision half", "--precision: expected one of auto, exact, fast, bfloat16"),
        ("--preset paper", "--preset: raft has default, fast, got 'paper'"),
        ("--no-patched", "--patched: belongs to --method ptlflow:NAME, not to raft"),
    ],
    "flow a.png b.png -o out.flo --method": [
        ("craft", "--method: invalid choice: 'craft'"),
        ("fullfeld-s", "did you mean fullfield-s?"),
        ("raft-small --weights w.pth --updates 0", "--updates: expected an integer >= 1"),
        ("sea-raft --padding kitti", "--padding: belongs to --method raft, raft-small, not to"),
        ("raft-small --weights w.pth --backend best", "--backend: expected one of cuda,"),
        ("ptlflow:", "--method: invalid choice: 'ptlflow:'"),
    ],
    "flow a.png b.png -o out.flo --viz v.png": [
        ("--max-motion 0", "--max-motion"),
        ("--max-motion nan", "--max-motion"),
        ("--viz-kind warped --max-motion 5", "--max-motion"),
    ],
    "flow a.png b.png -o out.flo": [
        ("--viz nowhere/v.png", "folder nowhere does not exist"),
        ("--viz v.gif", "v.gif: unknown suffix '.gif'; --viz takes .png"),
        ("--st-map st.png", "st.png: unknown suffix '.png'; --st-map takes .exr"),
        ("--previous b.png", "--previous: expected an .exr output"),
        ("--half", "--half: is for .exr"),
        ("--compression zip", "--compression zip: is for .exr and .flo5"),
        ("--viz-kind flow", "--viz-kind: applies to the picture of --viz"),
        ("--max-motion 5", "--max-motion: applies to the picture of --viz"),
        ("--lam 1", "unrecognized arguments: --lam"),
        ("--preset best", "--preset: invalid choice: 'best'"),
        ("--backend gpu", "--backend: expected one of"),
        ("--device toaster", "--device: expected a device of this machine, got 'toaster'"),
        ("--threads 2147483647", "--threads: expected at most 1024"),
        ("--threads \u0663", "--threads: expected a whole number"),
        ("--st-map ''", "--st-map"),
        ("--initial-layer x", "--initial-layer: describes --initial-flow"),
        ("--threads 0", "--threads"),
        ("--input-transfer nope", "--input-transfer: expected one of auto"),
        ("--layer diffuse", "a.png: no channels diffuse.R"),
        ("--part 9", "a.png: no part '9'; the file has part 0"),
        ("--initial-flow other.flo", "other.flo: is 12x10, but a.png is 64x48"),
        ("--initial-flow magic.flo", "magic.flo: not a .flo file"),
        ("--presett fast", "did you mean --preset instead of --presett? (see fullfield flow --help)"),
        ("--input-transfer logc", "did you mean logc3 or logc4?"),
    ],
    "flow a.png b.png -o out.exr": [
        ("--st-map out.exr", "--st-map out.exr: is also written by --output"),
        ("--previous none.png", "none.png: no such file"),
        ("--previous small.png", "small.png: is 64x40, but a.png is 64x48"),
        ("--backward", "unrecognized arguments: --backward"),
    ],
    "flow": [
        ("missing.png b.png -o out.flo", "missing.png: no such file"),
        ("folder b.png -o out.flo", "folder: is a whole shot; use fullfield shot folder"),
        ("text.png b.png -o out.flo", "text.png"),
        ("empty.png b.png -o out.flo", "empty.png: the file is empty"),
        ("a.png cut.png -o out.flo", "cut.png: truncated"),
        ("a.png small.png -o out.flo", "small.png: is 64x40, but a.png is 64x48"),
        ("pixel.png pixel.png -o out.flo", "pixel.png: expected at least 2 pixels"),
        ("pixel.png pixel.png -o out.flo --method tvl1", "pixel.png: expected more than one pixel"),
        ("a.png b.png -o out.xyz", "out.xyz: unknown suffix '.xyz'; --output takes .flo"),
        ("a.png b.png -o out", "out: no suffix; --output takes .flo"),
        ("a.png b.png -o nowhere/out.flo", "folder nowhere does not exist"),
        ("a.png b.png -o b.png", "--output b.png: is also an input"),
        ("a.png b.png -o ./folder/../b.png", "is also an input"),
        ("a.png b.png -o out.flo5 --compression dwaa", "--compression dwaa: .flo5 takes gzip, none"),
        ("'' b.png -o out.flo", "A: expected the name of a file, got an empty one"),
        ("a.png b.png", "required: -o/--output"),
        ("a.png \udce9.png -o out.flo", "the name is not UTF-8"),
        ("a.png b.png --outptu=x.flo", "required: -o/--output; did you mean --output instead of --outptu?"),
    ],
    "score truth.flo truth.flo": [
        ("--averaging pooled", "--averaging: only two folders"),
        ("--max-error 3", "--max-error: applies to --error-map"),
        ("--truth-scale 0", "--truth-scale"),
        ("--max-epe nan", "--max-epe"),
        ("--valid small.png", "--valid small.png: small.png: expected the frame's size"),
        ("--error-map truth.flo", "unknown suffix '.flo'"),
        ("--truth-layer x", "truth.flo: only OpenEXR files have a layer"),
        ("--four-values", "--four-values: truth.flo is 64x48, expected twice"),
    ],
    "score": [
        ("magic.flo truth.flo", "magic.flo: not a .flo file"),
        ("truth.flo size.flo", "size.flo: corrupt .flo file"),
        ("lying.flo truth.flo", "lying.flo: corrupt .flo file"),
        ("truth.flo other.flo", "truth.flo: is 64x48, but other.flo is 12x10"),
        ("truth.flo missing.flo", "missing.flo: no such file"),
        ("folder truth.flo", "truth.flo: expected a folder"),
        ("folder folder", "folder: expected files of flow"),
    ],
    "convert": [
        ("truth.flo truth.flo", "OUT truth.flo: is also an input"),
        ("magic.flo out.flo", "magic.flo: not a .flo file"),
        ("truth.flo out.npz", "out.npz: unknown suffix '.npz'"),
        ("truth.flo out.flo --st-map", "takes .exr"),
        ("truth.flo st.exr --st-map --half", "an ST map is always float"),
        ("a.png out.flo", "a.png: expected flow in a 16-bit RGB PNG"),
        ("truth.flo out.flo --layer backward", "truth.flo: only OpenEXR files have a layer"),
    ],
    "viz truth.flo -o v.png": [
        ("--kind overlay", "--kind overlay: requires --frame"),
        ("--frame a.png", "--frame: is not used by --kind flow"),
        ("--kind overlay --frame small.png", "small.png: is 64x40"),
        ("--max-error 3", "--max-error: applies to the error"),
        ("--input-transfer slog3", "--input-transfer: applies to frames"),
        ("--part 3", "--part: applies to frames"),
        ("--four-values", "--four-values: describes --truth, which is absent"),
    ],
    "demo": [
        ("--seed 99999999999999999999999", "--seed: expected a whole number"),
        ("--size 99999999x99999999", "--size: expected WxH"),
        ("--size 99999x99999", "--size: expected at most"),
        ("--size 4x4", "--size: expected an integer >= 16"),
        ("-o a.png", "--output: folder a.png is a file; choose another name"),
        ("-o nowhere/demo", "folder nowhere does not exist"),
    ],
    "evaluate fpfh 3dmatch:set": [
        ("--scale 1/2", "--scale: MODEL fpfh registers point clouds; leave it out"),
        ("--samples 2", "expected numbers of at least 3"),
        ("--samples 9,9", "expected different numbers"),
        ("--protocol mine", "--protocol: invalid choice: 'mine'"),
        ("--seed -1", "--seed: expected a whole number >= 0"),
        ("--inlier-ratio 2", "--inlier-ratio: expected a share below 1, got 2"),
        ("--device cuda", "--device: expected cpu"),
        ("--score-only", "there is no run in runs/3dmatch/fpfh/samples-5000"),
        ("--score-only --ransac 9", "--ransac: --score-only registers nothing"),
        ("--weights w", "--weights: MODEL fpfh registers point clouds"),
    ],
    "evaluate learned 3dmatch:set": [
        ("--weights w", "w: no such file"),
        ("--weights set/room/gt.log", "gt.log: expected weights"),
        ("--weights w --score-only", "--weights: --score-only registers nothing"),
    ],
    "evaluate tvl1 pairs:mine": [
        ("--scale 2", "--scale: expected more than 0 and at most 1"),
        ("--updates 2", "--updates: belongs to"),
        ("--submission s", "have sites to submit to"),
        ("-o a.png", "a.png: is a file"),
        ("--device nothing", "--device: expected a device"),
    ],
    "evaluate": [
        ("tvl1 sintl-final:x", "got 'sintl-final:x'; did you mean sintel-final?"),
        ("fpfh 3dmach:x", "got '3dmach:x'; did you mean 3dmatch?"),
        ("nothing pairs:mine", "invalid choice: 'nothing'"),
        ("tvl1 pairs:absent", "absent"),
        ("raft pairs:mine --weights raft-things -o mine", "expected a new folder"),
        ("fpfh sintel-clean:set", f"expected NAME one of {', '.join(SCANS)}"),
        ("tvl1 3dmatch:set", "NAME:FOLDER: 3dmatch has pairs of point clouds, which 'fullfield evaluate' takes"),
        ("tvl1 pairs:set --voxel 1", "--voxel: MODEL tvl1 estimates flow; leave it out"),
        ("tvl1 pairs:set --protocol pointcnnpp", "--protocol: MODEL tvl1 estimates flow; leave it out"),
    ],
    "export --method raft-small --size 72x64": [
        ("-o flow.pth", "flow.pth: unknown suffix '.pth'; -o takes .onnx"),
        ("-o absent/flow.onnx", "folder absent does not exist"),
        ("-o flow.pt2", "flow.pt2: unknown suffix '.pt2'; -o takes .onnx"),
        ("-o flow.onnx --method tvl1", "argument --method: invalid choice: 'tvl1'"),
        ("-o flow.onnx --weights absent.pth", "--weights: absent.pth: no such file"),
        ("-o flow.onnx --weights random --updates 0", "--updates: expected an integer >= 1"),
        ("-o flow.onnx --weights random --dynamic", "--size: expected a multiple of 8 and 128 at least"),
    ],
    "train descriptor -o run": [
        ("--clouds no.npy", "no.npy: no such file"),
        ("--clouds a.png", "a.png: unknown suffix"),
        ("--clouds few.npy", "few.npy: expected at least 1000 finite points"),
        ("--posed-pairs a.npy no.npy p.txt", "no.npy: no such file"),
        ("--posed-pairs a.npy b.npy empty", "empty: the file is empty"),
        ("--minutes 0", "--minutes"),
        ("--pairs 3", "--block: expected a multiple of 3 pairs"),
        ("--channels 2000", "--channels: expected an integer"),
        ("--layers 20", "--layers: expected an integer >= 0"),
        ("--learning-rate 1e38", "--learning-rate: expected a number > 0 and <= 1e+30"),
        ("--synthetic 2", "--synthetic: expected a number"),
        ("--cells 5", "--cells: expected an integer >= 100"),
        ("--seed -1", "--seed: expected a whole number >= 0"),
        ("--device tpu", "--device: expected a device"),
    ],
    TRAINING: [
        ("--correlation fast", "--correlation: expected one of"),
        ("--init page.safetensors", "page.safetensors: expected weights"),
        ("--init no.pth", "no.pth"),
        ("--init page.safetensors --after mine", "--init: the weights come from --after"),
        ("--after nowhere", "--after nowhere: no such folder"),
        ("--after mine", "--after: expected the folder of a run with a checkpoint"),
        ("--data chairs", "--data chairs: a data set needs its folder"),
        ("--data synthetic-figure", "--data synthetic-figure: expected one of usual, small, figures, bodies"),
        ("--data synthetic:mine", "mine"),
        ("--data pairs:mine=0", "--data pairs:mine=0: expected a weight > 0"),
        ("--data films:mine", "--data films:mine: expected one of sintel-clean"),
        ("--data pairs:nowhere", "nowhere"),
        ("--validate pairs:mine=2", "--validate pairs:mine=2: expected NAME[:FOLDER]"),
        ("--validate pairs:mine pairs:mine", "--validate pairs:mine: is given twice"),
        ("--size 40", "--size"),
        ("--pictures no.npz", "no.npz: no such file"),
        ("--minutes 0", "--minutes"),
        ("--schedule cosine", "--schedule: expected one of one-cycle, stable"),
        ("--precision half", "--precision: expected one of float32, bfloat16, float16"),
        ("--loss mixture", "--loss: expected sequence"),
        ("--learning-rate 0", "--learning-rate: expected a number > 0"),
        ("--learning-rate 1e38", "--learning-rate: expected a number > 0 and <= 1e+30"),
        ("--warmup 2", "--warmup: expected a number >= 0 and <= 1"),
        ("--updates -1", "--updates: expected an integer >= 0"),
        ("--compile fast", "--compile: expected one of default"),
        ("--seed -1", "--seed: expected an integer >= 0"),
        ("--workers -1", "--workers: expected a number from 0"),
        ("--device tpu", "--device: expected a device"),
    ],
    "train flow": [
        ("-o run --network raft --data chair:x --steps 1", "got 'chair'; did you mean chairs?"),
        ("-o run", "--network"),
        ("-o run --network gma", "--network: expected one of"),
        ("-o page.safetensors --network raft-small --correlation dense", "page.safetensors: is a file; --output"),
    ],
    "register a.npy b.npy": [
        ("--weights page.safetensors", "page.safetensors: expected weights"),
        ("--weights no.safetensors", "no.safetensors: no such file"),
        ("--descriptor fpfh --weights page.safetensors", "--weights: expected --descriptor learned, got fpfh"),
        ("--init bad.txt", "bad.txt: expected a finite 4\u00d74 matrix"),
        ("-o a.npy", "is also an input"),
        ("-o out.obj", "out.obj: unknown suffix"),
        ("-o no/out.ply", "does not exist"),
        ("--max-error 1", "--max-error: is the scale of --viz"),
        ("--voxel 0", "expected a number > 0"),
        ("--seed -1", "--seed"),
    ],
    "register": [
        ("a.npy missing.ply", "missing.ply: no such file"),
        ("a.npy near.xyz", "near.xyz: no such file"),
        ("a.npy bad.txt", "bad.txt: unknown suffix '.txt'; DST takes .ply"),
        ("nan.npy b.npy", "nan.npy: expected finite points, got 5 points, none of them finite"),
    ],
    "live film.mp4": [
        ("a.png", "unrecognized arguments: a.png"),
        ("-o x.flo", "unrecognized arguments: -o"),
        ("--input-transfer linear", "unrecognized arguments: --input-transfer"),
        ("--viz x.png", "--viz takes .mp4"),
        ("--viz film.mp4", "is also an input"),
        ("--max-motion 3", "--max-motion: applies to --viz"),
    ],
    "live": [
        ("none.mp4", "none.mp4: no such file"),
        ("a.png --rate 0", "--rate: expected source, max or a number > 0, got '0'"),
        ("a.png --method tvl1 --preset fast --viz still.mp4", "a.png: expected two frames or more, got 1"),
        ("camera:0 --rate max", "--rate: camera:0 has its own rate"),
        ("camera:x", "expected camera:NUMBER"),
    ],
    "weights": [
        ("lst", "did you mean list? (see fullfield weights --help)"),
        ("list --jsno", "did you mean --json instead of --jsno? (see fullfield weights list --help)"),
    ],
    "": [
        ("flwo a.png b.png", "did you mean flow? (see fullfield --help)"),
        ("--vresion", "--vresion; did you mean --version instead of --vresion? (see fullfield --help)"),
        ("", "no verb given; one of flow, shot, follow, live"),
        ("train nothing -o run", "invalid choice: 'nothing'"),
        ("train descriptor", "-o/--output"),
        ("train descriptor -o empty", "empty: is a file; --output"),
        ("train", "descriptor|flow"),
    ],
}
PACKAGES = {"evaluate": ("small_gicp",), "register": ("small_gicp",), "live": ("av",), "export": ("onnxscript",)}
"""What a command's mistakes need beyond the dependencies."""


@pytest.fixture(scope="session")
def furnished(_stored: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the scene, inputs of every command, files that are not what they should be, and old outputs."""
    folder = tmp_path_factory.mktemp("mistakes") / "here"
    shutil.copytree(_stored, folder)
    write_image(folder / "small.png", torch.rand(3, 40, 64))
    write_image(folder / "pixel.png", torch.rand(3, 1, 1))
    (folder / "text.png").write_text("no picture")
    (folder / "empty.png").touch()
    whole = (folder / "a.png").read_bytes()
    (folder / "cut.png").write_bytes(whole[: len(whole) // 2])
    values = np.zeros((48, 64, 3), "<f4")
    values[5, 7] = np.nan
    (folder / "nan.pfm").write_bytes(b"PF\n64 48\n-1.0\n" + values.tobytes())
    flo = (folder / "truth.flo").read_bytes()
    (folder / "magic.flo").write_bytes(b"XXXX" + flo[4:])
    (folder / "size.flo").write_bytes(flo[:-8])
    (folder / "lying.flo").write_bytes(flo[:4] + b"\xff\xff\xff\x7f" * 2 + flo[12:])
    (folder / "folder").mkdir()
    write_flow(folder / "other.flo", torch.zeros(2, 10, 12))
    for name in ("out.flo", "out.exr", "out.flo5", "out.xyz", "v.png"):
        (folder / name).write_text("before")
    torch.save(RAFT(RAFTConfig.small()).state_dict(), folder / "w.pth")
    (folder / "page.safetensors").write_text("<html>")
    (folder / "empty").touch()
    (folder / "mine").mkdir()
    for name in ("a.png", "b.png", "truth.flo"):
        shutil.copy(folder / name, folder / "mine")
    (folder / "mine" / "pairs.txt").write_text("a.png b.png truth.flo\n")
    scans = sample_room_scan(3, 4500), sample_room_scan(3, 4500, scan_seed=1)
    home = folder / "set" / "room"
    home.mkdir(parents=True)
    for number, (name, points) in enumerate(zip("ab", scans, strict=True)):
        np.save(folder / f"{name}.npy", points)
        write_point_cloud(home / f"cloud_bin_{number}.ply", PointCloud(points))
    (home / "gt.log").write_text("0 1 2\n1 0 0 0\n0 1 0 0\n0 0 1 0\n0 0 0 1\n")
    np.save(folder / "few.npy", np.zeros((9, 3)))
    np.save(folder / "nan.npy", np.full((5, 3), np.nan))
    (folder / "bad.txt").write_text("1 2 3")
    if find_spec("av") is not None:
        with VideoWriter(folder / "film.mp4", 64, 48, 10.0) as writer:
            for number in range(3):
                writer.write(torch.full((3, 48, 64), 20 * number, dtype=torch.uint8), number / 10)
    return folder


def contents(folder: Path) -> dict[Path, tuple[int, int]]:
    """Return size and time of change of every file."""
    found = {path: path.stat() for path in folder.rglob("*")}
    return {path: (stat.st_size, stat.st_mtime_ns) for path, stat in found.items() if path.is_file()}


@pytest.mark.parametrize(("start", "end", "words"), [(start, *row) for start in MISTAKES for row in MISTAKES[start]])
def test_commands_refuse_bad_input_in_one_line(
    refused: Refused, tmp_path: Path, furnished: Path, monkeypatch: pytest.MonkeyPatch, start: str, end: str, words: str
) -> None:
    """In a folder that all have in common: a mistake changes nothing there."""
    for package in PACKAGES.get(start.split()[0] if start else "", ()):
        pytest.importorskip(package)
    if "raft" in f"{start} {end}":
        monkeypatch.setenv("FULLFIELD_CACHE_DIR", str(tmp_path / "no weights"))
    monkeypatch.setattr(
        "fullfield.models.weights.download_if_missing", lambda *_, **__: pytest.fail("nothing is to be fetched")
    )
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(furnished)
    listed = contents(furnished)
    line = shlex.split(f"{start} {end}")
    assert words in refused(*line, *(["--overwrite"] if line[:1] == ["flow"] else []))
    assert contents(furnished) == listed


def test_flow_refuses_unwritable_folder_before_work(refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", no_room)
    monkeypatch.setattr(fullfield.io, "read_frame", pytest.fail)
    line = refused("flow", "a.png", "b.png", "-o", "out.flo")
    assert "--output out.flo: cannot write in folder . (Permission denied)" in line


def test_commands_report_full_disk_in_one_line(refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "out.flo")

    monkeypatch.setattr(fullfield.io, "write_flow", full)
    assert "out.flo: No space left on device" in refused("flow", "a.png", "b.png", "-o", "out.flo", *FAST)


def test_commands_report_missing_memory_in_one_line(refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    def huge(*_: object, **__: object) -> None:
        torch.empty(2**60)

    monkeypatch.setattr(fullfield.estimators.estimation, "estimate_tensors", huge)
    assert "out of memory" in refused("flow", "a.png", "b.png", "-o", "out.flo")

    def huger(*_: object, **__: object) -> None:
        np.empty(2**50)

    monkeypatch.setattr(fullfield.estimators.estimation, "estimate_tensors", huger)
    assert "out of memory" in refused("flow", "a.png", "b.png", "-o", "out.flo")


def test_commands_report_missing_package_in_one_line(refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object, **__: object) -> None:
        raise ModuleNotFoundError("No module named 'OpenImageIO'", name="OpenImageIO")

    monkeypatch.setattr("fullfield.io.image.FrameReader.read", gone)
    assert "pip install OpenImageIO" in refused("flow", "a.png", "b.png", "-o", "out.flo")


def test_flow_internal_error_raises_with_traceback(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for bug in (RuntimeError("shape mismatch"), KeyError("x"), ImportError("fullfield.nothing")):

        def broken(*_: object, bug: Exception = bug, **__: object) -> None:
            raise bug

        monkeypatch.setattr(fullfield.estimators.estimation, "estimate_tensors", broken)
        with pytest.raises(type(bug)):
            cli("flow", "a.png", "b.png", "-o", "out.flo")


def test_commands_exit_with_130_when_interrupted(cli: Any, scene: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(fullfield.estimators.estimation, "estimate_tensors", interrupt)
    (scene / "out.flo").write_text("before")
    ran = cli("flow", "a.png", "b.png", "-o", "out.flo", "--overwrite")
    assert (ran.code, ran.out) == (130, "")
    assert ran.err.count("\n") == 1
    assert (scene / "out.flo").read_text() == "before"


@pytest.mark.skipif(os.name == "nt", reason="links")
def test_commands_report_looping_link_in_one_line(refused: Refused, scene: Path) -> None:
    (scene / "loop.flo").symlink_to("loop.flo")
    assert "loop.flo: is a link to itself" in refused("flow", "a.png", "b.png", "-o", "loop.flo")
    assert (scene / "loop.flo").is_symlink()


def test_flow_refuses_nonfinite_result(refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = TVL1Estimator.queue

    def queue_nan(*args: Any, **named: Any) -> Any:
        queued = queue(*args, **named)
        queued.flow[0, 0, 0, 0] = torch.nan
        return queued

    monkeypatch.setattr(TVL1Estimator, "queue", queue_nan)
    line = refused("flow", "a.png", "b.png", "-o", "out.flo", *FAST)
    assert "--method tvl1: the flow is NaN or infinite at 1 pixel;" in line
    assert not Path("out.flo").exists()


@pytest.mark.skipif(os.name == "nt", reason="Windows cannot send SIGTERM to itself")
def test_commands_leave_no_temporary_file_when_terminated(cli: Any, scene: Path) -> None:
    def killed(path: Path, *_: object) -> None:
        path.write_text("half of it")
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    names = {path.name for path in scene.iterdir()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fullfield.io.flow_formats.plain.write_flo", killed)
        with pytest.raises(SystemExit) as ended:
            cli("flow", "a.png", "b.png", "-o", "out.flo", *FAST)
    assert ended.value.code == 128 + signal.SIGTERM
    assert {path.name for path in scene.iterdir()} == names
    assert signal.getsignal(signal.SIGTERM) == before


HOSTILE = "a\x1b[2J\r\nfullfield: error: made up\x9b31m\u202eb\x7f"
SHOWN = r"\x1b[2J"


def test_commands_escape_control_characters_in_names(cli: Any, scene: Path) -> None:
    (scene / "truth.flo").rename(scene / f"{HOSTILE}.flo")
    for argv in (
        ("convert", f"{HOSTILE}.flo", f"{HOSTILE}.pfm"),
        ("viz", f"{HOSTILE}.flo", "-o", f"{HOSTILE}.png"),
        ("flow", "a.png", "b.png", "-o", f"{HOSTILE}.exr", *FAST),
        ("score", f"{HOSTILE}.flo", "nothing.flo"),
        ("score", f"{HOSTILE}.flo", "close.flo", "--occlusion", f"{HOSTILE}.png"),
        ("register", f"{HOSTILE}.flo", "b.ply"),
        ("evaluate", "tvl1", f"pairs:{HOSTILE}"),
        (HOSTILE,),
    ):
        ran = cli(*argv)
        for text in (ran.out, ran.err):
            assert not set(text) & set("\x1b\r\x9b\u202e\x7f"), (argv, text)
            assert not any(line.startswith("fullfield: error: made up") for line in text.splitlines()), (argv, text)
        assert SHOWN in ran.out + ran.err or argv[0] in ("score", "register"), (argv, ran)


def test_convert_json_escapes_control_characters_in_names(cli: Any, scene: Path) -> None:
    (scene / "truth.flo").rename(scene / f"{HOSTILE}.flo")
    ran = cli("convert", f"{HOSTILE}.flo", "x.pfm", "--json")
    assert "\x1b" not in ran.out
    assert ran.json["input"] == f"{HOSTILE}.flo"


def test_escape_control_characters_keeps_printable_text() -> None:
    assert escape_control_characters("plain Ünïcode 漢字 👩\u200d🔬 \udcff") == "plain Ünïcode 漢字 👩\u200d🔬 \udcff"
    assert escape_control_characters("a\x1b\x00\x85\u2028\u202e\n\t") == r"a\x1b\x00\x85\u2028\u202e\n\t"
    assert escape_control_characters("a\n\x07", "\n") == "a\n\\x07"


@pytest.mark.filterwarnings("default::UserWarning")
def test_commands_warn_once_about_value_range(cli: Any, scene: Path) -> None:
    for name in ("a", "b"):
        values = np.random.default_rng(1).random((48, 64)).astype("<f4") * 127
        (scene / f"{name}.pfm").write_bytes(b"Pf\n64 48\n-1\n" + values.tobytes())
    ran = cli("flow", "a.pfm", "b.pfm", "-o", "x.flo", "--input-transfer", "srgb", *FAST)
    assert ran.code == 0
    warning_lines = [line for line in ran.err.splitlines() if line.startswith("fullfield: warning: ")]
    assert len(warning_lines) == 1, ran.err
    assert "a.pfm: frames are expected in 0 ... 1, black to white as a display shows them; got 0" in warning_lines[0]


def test_commands_suggest_nothing_for_unlike_names(refused: Refused) -> None:
    assert "did you mean" not in refused("score", "truth.flo", "truth.flo", "--zzz")
    assert "did you mean" not in refused("zzz")


def test_main_help_starts_with_working_example(cli: Callable[..., Any]) -> None:
    first = cli("--help").out.splitlines()[0]
    assert first.startswith("example: fullfield flow ")
    words = first.replace("frame_0001.png", "a.png").replace("frame_0002.png", "b.png").split()[2:]
    assert cli(*words, *FAST).code == 0
    assert Path("flow.flo").is_file()
    assert Path("flow.png").is_file()
