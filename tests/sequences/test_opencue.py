"""The outline for OpenCue: its commands make the shot. With the package itself where it is installed
(``pip install opencue-pyoutline``), else with a stand-in for the one class of it that the outline uses."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from sequence_shots import CHANGED, QUICK

from fullfield.cli.main import main
from fullfield.io import read_vectors

OUTLINE = Path(__file__).resolve().parents[2] / "examples" / "farm" / "opencue.outline"


def by_stand_in(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the layer is made of. Names of the module are not seen from functions, as where OpenCue runs it."""
    made: list[dict[str, Any]] = []
    shell = ModuleType("outline.modules.shell")
    shell.ShellSequence = lambda name, **arguments: made.append({"name": name, **arguments})  # type: ignore[attr-defined]
    for name, module in {
        "outline": ModuleType("outline"),
        "outline.modules": ModuleType("m"),
        shell.__name__: shell,
    }.items():
        monkeypatch.setitem(sys.modules, name, module)
    exec(compile(OUTLINE.read_text("utf-8"), OUTLINE, "exec"), {}, {})
    (layer,) = made
    return layer


def by_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    if find_spec("outline") is None:
        pytest.skip("opencue-pyoutline is not installed")
    monkeypatch.setenv("HOME", str(tmp_path))  # where it keeps its sessions
    import outline

    (layer,) = outline.load_outline(str(OUTLINE)).get_layers()
    assert layer.get_frame_range() == "1-3"
    return {"name": layer.get_name(), **layer.get_args()}


@pytest.mark.parametrize("by", ["stand-in", "package"])
def test_the_commands_of_the_layer_make_the_shot(by: str, shot: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"PLATES": "plate.%04d.png", "FRAMES": "11-18", "OUTPUT": "mv.%04d.exr", "CHUNK": "3", "PRESET": "fast"}
    for name, value in asked.items():
        monkeypatch.setenv(name, value)
    layer = by_stand_in(monkeypatch) if by == "stand-in" else by_package(monkeypatch, shot)
    commands = layer["commands"]
    assert [command[command.index("--frames") + 1] for command in commands] == ["11-13", "14-16", "17-18"]
    assert not layer.get("gpus")
    for command in reversed(commands):  # farms keep no order
        assert command[0] == "fullfield"
        assert main([*command[1:], *CHANGED]) == 0
    assert main(["flow", "plate.%04d.png", "-o", "one.%04d.exr", "--direction", "both", *QUICK]) == 0
    for number in range(11, 19):
        task, alone = (read_vectors(f"{name}.{number:04d}.exr") for name in ("mv", "one"))
        assert all(torch.equal(task[layer], alone[layer]) for layer in alone)
    monkeypatch.setenv("DEVICE", "cuda")
    if by == "stand-in":
        assert by_stand_in(monkeypatch)["gpus"] == 1
