"""A user's mistake: exit code 2, one line that names the file or option, and the previous output untouched."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fullfield.estimators.estimation
import fullfield.io
from fullfield.cli.report import printable
from fullfield.estimators import TVL1Estimator
from fullfield.io import write_flow, write_image

Refused = Callable[..., str]
FAST = ("--method", "tvl1", "--preset", "fast", "--iterations", "1", "--warps", "1")


def _small(folder: Path) -> None:
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


FLOW = [
    (("missing.png", "b.png", "-o", "out.flo"), "missing.png: no such file"),
    (("a.png", "missing.png", "-o", "out.flo"), "missing.png: no such file"),
    (("folder", "b.png", "-o", "out.flo"), "folder: is a folder"),
    (("text.png", "b.png", "-o", "out.flo"), "text.png"),
    (("empty.png", "b.png", "-o", "out.flo"), "empty.png: the file is empty"),
    (("a.png", "cut.png", "-o", "out.flo"), "cut.png: truncated"),
    (("a.png", "small.png", "-o", "out.flo"), "small.png: is 64x40, but a.png is 64x48"),
    (("pixel.png", "pixel.png", "-o", "out.flo"), "pixel.png: expected at least 2 pixels"),
    (("pixel.png", "pixel.png", "-o", "out.flo", "--method", "tvl1"), "pixel.png: expected more than one pixel"),
    (("nan.pfm", "a.png", "-o", "out.flo"), "nan.pfm: 1 pixel is NaN or infinite, the first at x = 7"),
    (("a.png", "b.png", "-o", "out.xyz"), "out.xyz: unknown suffix '.xyz'; --output takes .flo"),
    (("a.png", "b.png", "-o", "out"), "out: no suffix; --output takes .flo"),
    (("a.png", "b.png", "-o", "nowhere/out.flo"), "folder nowhere does not exist"),
    (("a.png", "b.png", "-o", "out.flo", "--viz", "nowhere/v.png"), "folder nowhere does not exist"),
    (("a.png", "b.png", "-o", "out.flo", "--viz", "v.gif"), "v.gif: unknown suffix '.gif'; --viz takes .png"),
    (("a.png", "b.png", "-o", "out.flo", "--st-map", "st.png"), "st.png: unknown suffix '.png'; --st-map takes .exr"),
    (("a.png", "b.png", "-o", "b.png"), "--output b.png: is also an input"),
    (("a.png", "b.png", "-o", "./folder/../b.png"), "is also an input"),
    (("a.png", "b.png", "-o", "out.exr", "--st-map", "out.exr"), "--st-map out.exr: is also written by --output"),
    (("a.png", "b.png", "-o", "out.flo", "--previous", "b.png"), "--previous: expected an .exr output"),
    (("a.png", "b.png", "-o", "out.exr", "--previous", "none.png"), "none.png: no such file"),
    (("a.png", "b.png", "-o", "out.exr", "--previous", "small.png"), "small.png: is 64x40, but a.png is 64x48"),
    (("a.png", "b.png", "-o", "out.exr", "--backward"), "unrecognized arguments: --backward"),
    (("a.png", "b.png", "-o", "out.flo", "--half"), "--half: is for .exr"),
    (("a.png", "b.png", "-o", "out.flo", "--compression", "zip"), "--compression zip: is for .exr and .flo5"),
    (("a.png", "b.png", "-o", "out.flo5", "--compression", "dwaa"), "--compression dwaa: .flo5 takes gzip, none"),
    (("a.png", "b.png", "-o", "out.flo", "--viz-kind", "flow"), "--viz-kind: applies to the picture of --viz"),
    (("a.png", "b.png", "-o", "out.flo", "--max-motion", "5"), "--max-motion: applies to the picture of --viz"),
    (("a.png", "b.png", "-o", "out.flo", "--viz", "v.png", "--max-motion", "0"), "--max-motion"),
    (("a.png", "b.png", "-o", "out.flo", "--viz", "v.png", "--max-motion", "nan"), "--max-motion"),
    (
        ("a.png", "b.png", "-o", "out.flo", "--viz", "v.png", "--viz-kind", "warped", "--max-motion", "5"),
        "--max-motion",
    ),
    (
        ("a.png", "b.png", "-o", "out.flo", "--method", "tvl1", "--lambda", "much"),
        "--lambda: expected NUMBER, got 'much'",
    ),
    (("a.png", "b.png", "-o", "out.flo", "--method", "tvl1", "--lambda", "-1"), "--lambda: expected a number >"),
    (
        ("a.png", "b.png", "-o", "out.flo", "--method", "tvl1", "--lambda", "nan"),
        "--lambda: expected NUMBER, got 'nan'",
    ),
    (("a.png", "b.png", "-o", "out.flo", "--method", "tvl1", "--lambda", "\uff11"), "--lambda: expected NUMBER"),
    (("a.png", "b.png", "-o", "out.flo", "--method", "tvl1", "--warps", "1_0"), "--warps: expected INT"),
    (("a.png", "b.png", "-o", "out.flo", "--method", "tvl1", "--warps", "1.5"), "--warps: expected INT"),
    (("a.png", "b.png", "-o", "out.flo", "--method", "tvl1", "--median", "4"), "--median: expected one of 0, 3, 5"),
    (("a.png", "b.png", "-o", "out.flo", "--lam", "1"), "unrecognized arguments: --lam"),
    (("a.png", "b.png", "-o", "out.flo", "--preset", "best"), "--preset: invalid choice: 'best'"),
    (("a.png", "b.png", "-o", "out.flo", "--method", "craft"), "--method: invalid choice: 'craft'"),
    (("a.png", "b.png", "-o", "out.flo", "--backend", "gpu"), "--backend: expected one of"),
    (
        ("a.png", "b.png", "-o", "out.flo", "--device", "toaster"),
        "--device: expected a device of this machine, got 'toaster'",
    ),
    (("a.png", "b.png", "-o", "out.flo", "--device", "meta"), "--device: expected a device of this machine"),
    (("a.png", "b.png", "-o", "out.flo", "--threads", "999999999999999999999"), "--threads: expected a whole number"),
    (("a.png", "b.png", "-o", "out.flo", "--threads", "2147483647"), "--threads: expected at most 1024"),
    (("a.png", "b.png", "-o", "out.flo", "--threads", "\u0663"), "--threads: expected a whole number"),
    (("", "b.png", "-o", "out.flo"), "A: expected the name of a file, got an empty one"),
    (("a.png", "b.png", "-o", "out.flo", "--st-map", ""), "--st-map"),
    (("a.png", "b.png", "-o", "out.flo", "--initial-layer", "x"), "--initial-layer: describes --initial-flow"),
    (("a.png", "b.png", "-o", "out.flo", "--threads", "0"), "--threads"),
    (("a.png", "b.png", "-o", "out.flo", "--input-transfer", "nope"), "--input-transfer: expected one of auto"),
    (("a.png", "b.png", "-o", "out.flo", "--layer", "diffuse"), "a.png: no channels diffuse.R"),
    (("a.png", "b.png", "-o", "out.flo", "--part", "9"), "a.png: no part '9'"),
    (("a.png", "b.png", "-o", "out.flo", "--initial-flow", "other.flo"), "other.flo: is 12x10, but a.png is 64x48"),
    (("a.png", "b.png", "-o", "out.flo", "--initial-flow", "magic.flo"), "magic.flo: not a .flo file"),
    (("a.png", "b.png"), "required: -o/--output"),
    (("a.png", "\udce9.png", "-o", "out.flo"), "the name is not UTF-8"),
]

NEAREST = [
    (("flwo", "a.png", "b.png"), "did you mean flow? (see fullfield --help)"),
    (("--vresion",), "--vresion; did you mean --version instead of --vresion? (see fullfield --help)"),
    (
        ("flow", "a.png", "b.png", "-o", "out.flo", "--presett", "fast"),
        "did you mean --preset instead of --presett? (see fullfield flow --help)",
    ),
    (("flow", "a.png", "b.png", "--outptu=x.flo"), "required: -o/--output; did you mean --output instead of --outptu?"),
    (("flow", "a.png", "b.png", "-o", "out.flo", "--preset", "fst"), "did you mean fast?"),
    (("flow", "a.png", "b.png", "-o", "out.flo", "--method", "TVL1"), "did you mean tvl1?"),
    (("flow", "a.png", "b.png", "-o", "out.flo", "--method", "fullfeld-s"), "did you mean fullfield-s?"),
    (("evaluate", "tvl1", "sintl-final:x"), "got 'sintl-final:x'; did you mean sintel-final?"),
    (("evaluate", "tvl1", "sintel:x"), "got 'sintel:x'; did you mean sintel-clean or sintel-final?"),
    (("flow", "a.png", "b.png", "-o", "out.flo", "--method", "TVL1"), "did you mean tvl1?"),
    (("flow", "a.png", "b.png", "-o", "out.flo", "--input-transfer", "logc"), "did you mean logc3 or logc4?"),
    (("evaluate", "fpfh", "3dmach:x"), "got '3dmach:x'; did you mean 3dmatch?"),
    (
        ("train", "flow", "-o", "run", "--network", "raft", "--data", "chair:x", "--steps", "1"),
        "got 'chair'; did you mean chairs?",
    ),
    (
        ("flow", "a.png", "b.png", "-o", "out.flo", "--method", "raft", "--weights", "raft-thing"),
        "did you mean raft-things?",
    ),
    (("weights", "lst"), "did you mean list? (see fullfield weights --help)"),
    (("weights", "list", "--jsno"), "did you mean --json instead of --jsno? (see fullfield weights list --help)"),
]

OTHERS = [
    ((), "no verb given; one of flow, live"),
    (("fly",), "invalid choice: 'fly'"),
    (("score", "magic.flo", "truth.flo"), "magic.flo: not a .flo file"),
    (("score", "truth.flo", "size.flo"), "size.flo: corrupt .flo file"),
    (("score", "lying.flo", "truth.flo"), "lying.flo: corrupt .flo file"),
    (("score", "truth.flo", "other.flo"), "truth.flo: is 64x48, but other.flo is 12x10"),
    (("score", "truth.flo", "missing.flo"), "missing.flo: no such file"),
    (("score", "truth.flo", "a.txt"), "a.txt: no such file"),
    (("score", "folder", "truth.flo"), "truth.flo: expected a folder"),
    (("score", "folder", "folder"), "folder: expected files of flow"),
    (("score", "truth.flo", "truth.flo", "--averaging", "pooled"), "--averaging: only two folders"),
    (("score", "truth.flo", "truth.flo", "--max-error", "3"), "--max-error: applies to --error-map"),
    (("score", "truth.flo", "truth.flo", "--truth-scale", "0"), "--truth-scale"),
    (("score", "truth.flo", "truth.flo", "--max-epe", "nan"), "--max-epe"),
    (("score", "truth.flo", "truth.flo", "--valid", "small.png"), "--valid small.png: is 64x40"),
    (("score", "truth.flo", "truth.flo", "--error-map", "truth.flo"), "unknown suffix '.flo'"),
    (("score", "truth.flo", "truth.flo", "--truth-layer", "x"), "truth.flo: only OpenEXR files have a layer"),
    (("score", "truth.flo", "truth.flo", "--four-values"), "--four-values: truth.flo is 64x48, expected twice"),
    (("convert", "truth.flo", "truth.flo"), "OUT truth.flo: is also an input"),
    (("convert", "magic.flo", "out.flo"), "magic.flo: not a .flo file"),
    (("convert", "truth.flo", "out.npz"), "out.npz: unknown suffix '.npz'"),
    (("convert", "truth.flo", "out.flo", "--st-map"), "takes .exr"),
    (("convert", "truth.flo", "st.exr", "--st-map", "--half"), "an ST map is always float"),
    (("convert", "a.png", "out.flo"), "a.png: expected flow in a 16-bit RGB PNG"),
    (("convert", "truth.flo", "out.flo", "--layer", "backward"), "truth.flo: only OpenEXR files have a layer"),
    (("viz", "truth.flo", "-o", "v.png", "--kind", "overlay"), "--kind overlay: requires --frame"),
    (("viz", "truth.flo", "-o", "v.png", "--frame", "a.png"), "--frame: is not used by --kind flow"),
    (("viz", "truth.flo", "-o", "v.png", "--kind", "overlay", "--frame", "small.png"), "small.png: is 64x40"),
    (("viz", "truth.flo", "-o", "v.png", "--max-error", "3"), "--max-error: applies to the error"),
    (("viz", "truth.flo", "-o", "v.png", "--input-transfer", "slog3"), "--input-transfer: applies to frames"),
    (("viz", "truth.flo", "-o", "v.png", "--alpha", "ignore"), "--alpha: applies to frames"),
    (("viz", "truth.flo", "-o", "v.png", "--part", "3"), "--part: applies to frames"),
    (("viz", "truth.flo", "-o", "v.png", "--truth-part", "3"), "--truth-part: describes --truth, which is absent"),
    (("viz", "truth.flo", "-o", "v.png", "--four-values"), "--four-values: describes --truth, which is absent"),
    (("demo", "--seed", "99999999999999999999999"), "--seed: expected a whole number"),
    (("demo", "--size", "99999999x99999999"), "--size: expected WxH"),
    (("demo", "--size", "99999x99999"), "--size: expected at most"),
    (("demo", "--size", "big"), "--size: expected WxH"),
    (("demo", "--size", "4x4"), "--size: expected an integer >= 16"),
    (("demo", "-o", "a.png"), "--output: folder a.png does not exist"),
    (("demo", "-o", "nowhere/demo"), "folder nowhere does not exist"),
]


@pytest.mark.parametrize(("argv", "words"), [(("flow", *argv, "--overwrite"), words) for argv, words in FLOW] + OTHERS)
def test_mistakes(refused: Refused, scene: Path, argv: tuple[str, ...], words: str) -> None:
    _small(scene)
    for name in ("out.flo", "out.exr", "out.flo5", "out.xyz", "v.png"):
        (scene / name).write_text("before")
    listed = {path: path.read_bytes() for path in scene.rglob("*") if path.is_file()}
    assert words in refused(*argv)
    assert {path: path.read_bytes() for path in scene.rglob("*") if path.is_file()} == listed


def test_an_unwritable_folder_is_found_before_the_work(refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", no_room)
    monkeypatch.setattr(fullfield.io, "read_frame", pytest.fail)
    line = refused("flow", "a.png", "b.png", "-o", "out.flo")
    assert "--output out.flo: cannot write in folder . (Permission denied)" in line


def test_a_full_disk(refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "out.flo")

    monkeypatch.setattr(fullfield.io, "write_flow", full)
    assert "out.flo: No space left on device" in refused("flow", "a.png", "b.png", "-o", "out.flo", *FAST)


def test_memory_that_is_not_there(refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    def huge(*_: object, **__: object) -> None:
        torch.empty(2**60)

    monkeypatch.setattr(fullfield.estimators.estimation, "estimate_tensors", huge)
    assert "out of memory" in refused("flow", "a.png", "b.png", "-o", "out.flo")

    def huger(*_: object, **__: object) -> None:
        np.empty(2**50)

    monkeypatch.setattr(fullfield.estimators.estimation, "estimate_tensors", huger)
    assert "out of memory" in refused("flow", "a.png", "b.png", "-o", "out.flo")


def test_a_package_that_is_not_there(refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object, **__: object) -> None:
        raise ModuleNotFoundError("No module named 'OpenImageIO'", name="OpenImageIO")

    monkeypatch.setattr(fullfield.io, "read_frame", gone)
    assert "pip install OpenImageIO" in refused("flow", "a.png", "b.png", "-o", "out.flo")


def test_a_bug_keeps_its_traceback(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for bug in (RuntimeError("shape mismatch"), KeyError("x"), ImportError("fullfield.nothing")):

        def broken(*_: object, bug: Exception = bug, **__: object) -> None:
            raise bug

        monkeypatch.setattr(fullfield.estimators.estimation, "estimate_tensors", broken)
        with pytest.raises(type(bug)):
            cli("flow", "a.png", "b.png", "-o", "out.flo")


def test_interrupted(cli: Any, scene: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(fullfield.estimators.estimation, "estimate_tensors", interrupt)
    (scene / "out.flo").write_text("before")
    ran = cli("flow", "a.png", "b.png", "-o", "out.flo", "--overwrite")
    assert (ran.code, ran.out) == (130, "")
    assert ran.err.count("\n") == 1
    assert (scene / "out.flo").read_text() == "before"


@pytest.mark.skipif(os.name == "nt", reason="links")
def test_a_link_to_itself(refused: Refused, scene: Path) -> None:
    (scene / "loop.flo").symlink_to("loop.flo")
    assert "loop.flo: is a link to itself" in refused("flow", "a.png", "b.png", "-o", "loop.flo")
    assert (scene / "loop.flo").is_symlink()


def test_flow_that_is_not_finite(refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    compute = TVL1Estimator.__call__

    def nan(*args: Any, **named: Any) -> Any:
        found = compute(*args, **named)
        found[0, 0, 0, 0] = torch.nan
        return found

    monkeypatch.setattr(TVL1Estimator, "__call__", nan)
    line = refused("flow", "a.png", "b.png", "-o", "out.flo", *FAST)
    assert "--method tvl1: the flow is NaN or infinite at 1 pixel;" in line
    assert not Path("out.flo").exists()


@pytest.mark.skipif(os.name == "nt", reason="Windows cannot send SIGTERM to itself")
def test_terminated_while_writing_leaves_no_temporary_file(cli: Any, scene: Path) -> None:
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


def test_names_cannot_steer_a_terminal_or_forge_a_line(cli: Any, scene: Path) -> None:
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


def test_names_in_json_and_tables_are_escaped_too(cli: Any, scene: Path) -> None:
    (scene / "truth.flo").rename(scene / f"{HOSTILE}.flo")
    ran = cli("convert", f"{HOSTILE}.flo", "x.pfm", "--json")
    assert "\x1b" not in ran.out
    assert ran.json["input"] == f"{HOSTILE}.flo"


def test_printable() -> None:
    assert printable("plain Ünïcode 漢字 👩\u200d🔬 \udcff") == "plain Ünïcode 漢字 👩\u200d🔬 \udcff"
    assert printable("a\x1b\x00\x85\u2028\u202e\n\t") == r"a\x1b\x00\x85\u2028\u202e\n\t"
    assert printable("a\n\x07", "\n") == "a\n\\x07"


@pytest.mark.filterwarnings("default::UserWarning")
def test_frames_of_another_range_are_questioned_once(cli: Any, scene: Path) -> None:
    for name in ("a", "b"):
        values = np.random.default_rng(1).random((48, 64)).astype("<f4") * 127
        (scene / f"{name}.pfm").write_bytes(b"Pf\n64 48\n-1\n" + values.tobytes())
    ran = cli("flow", "a.pfm", "b.pfm", "-o", "x.flo", "--input-transfer", "srgb", *FAST)
    assert ran.code == 0
    told = [line for line in ran.err.splitlines() if line.startswith("fullfield: warning: ")]
    assert len(told) == 1, ran.err
    assert "a.pfm: frames are expected in 0 ... 1, black to white as a display shows them; got 0" in told[0]


@pytest.mark.parametrize(("argv", "said"), NEAREST)
def test_an_unknown_name_brings_the_nearest_one(refused: Refused, argv: tuple[str, ...], said: str) -> None:
    assert said in refused(*argv)


def test_a_name_that_is_near_to_nothing_brings_no_other(refused: Refused) -> None:
    assert "did you mean" not in refused("score", "truth.flo", "truth.flo", "--zzz")
    assert "did you mean" not in refused("zzz")


def test_the_help_starts_with_an_example_that_runs(cli: Callable[..., Any]) -> None:
    first = cli("--help").out.splitlines()[0]
    assert first.startswith("example: fullfield flow ")
    words = first.replace("frame_0001.png", "a.png").replace("frame_0002.png", "b.png").split()[2:]
    assert cli(*words, *FAST).code == 0
    assert Path("flow.flo").is_file()
    assert Path("flow.png").is_file()
