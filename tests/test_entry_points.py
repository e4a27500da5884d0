"""What lies around the package for other programs: torch.hub, Nuke, ComfyUI, conda-forge."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import fullfield
from commands import load_file
from fullfield.testing import sample_textured_scene

ROOT = Path(__file__).resolve().parent.parent


def test_torch_hub_lists_networks() -> None:
    entries = vars(load_file("hubconf.py"))
    assert {name for name in entries if callable(entries[name]) and name[0] != "_"} == {
        "Path",
        "fullfield_s",
        "fullfield_m",
        "raft",
        "sea_raft",
    }
    model = torch.hub.load(str(ROOT), "fullfield_s", source="local")
    scene = sample_textured_scene(64, 80, seed=1, max_motion=2.0)
    with torch.inference_mode():
        flow = model(scene.frame1[None], scene.frame2[None])
    expected = fullfield.estimate(scene.frame1, scene.frame2, "fullfield-s", cascade=False).flow
    assert torch.allclose(flow[0], expected, atol=1e-4)
    with pytest.raises(fullfield.InputError, match="weights"):
        torch.hub.load(str(ROOT), "raft", "no-such-weights", source="local")


# Nuke: a stand-in for its module.


class Knob:
    def __init__(self, value: Any) -> None:
        self._value = value

    def value(self) -> Any:
        return self._value

    def setValue(self, value: Any) -> None:
        self._value = value


class Read(dict[str, Knob]):
    def Class(self) -> str:
        return "Read"


class Panel:
    answers: dict[str, Any] = {}  # noqa: RUF012
    shown = True

    def __init__(self, title: str) -> None:
        self.values: dict[str, Any] = {"title": title}

    def _add(self, name: str, value: Any) -> None:
        self.values[name] = value

    addSingleLineInput = addFilenameSearch = addBooleanCheckBox = _add

    def addEnumerationPulldown(self, name: str, choices: str) -> None:
        self.values[name] = choices.split()[0]

    def show(self) -> bool:
        return self.shown

    def value(self, name: str) -> Any:
        return self.answers.get(name, self.values[name])


@pytest.fixture
def nuke(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    progress_events: list[Any] = []

    class Task:
        def __init__(self, title: str) -> None:
            progress_events.append(title)

        def setProgress(self, percent: int) -> None:
            progress_events.append(percent)

        def setMessage(self, message: str) -> None:
            progress_events.append(message)

        def isCancelled(self) -> bool:
            return False

    def make_read(**knobs: Any) -> Read:
        node = Read({name: Knob(value) for name, value in {**knobs, "raw": False}.items()})
        stand_in.made.append(node)
        return node

    stand_in = SimpleNamespace(
        Panel=type("Panel", (Panel,), {"answers": {}}),
        ProgressTask=Task,
        nodes=SimpleNamespace(Read=make_read),
        made=[],
        progress_events=progress_events,
        messages=[],
        executeInMainThread=lambda function, arguments=(): function(*arguments),
        menu=lambda _: SimpleNamespace(addCommand=lambda *words: progress_events.append(words)),
    )
    stand_in.message = stand_in.messages.append
    monkeypatch.setitem(sys.modules, "nuke", stand_in)
    return stand_in


@pytest.fixture
def in_nuke(nuke: SimpleNamespace) -> ModuleType:  # noqa: ARG001 - it is imported
    return load_file("examples/nuke/fullfield_nuke.py")


def plates(folder: Path) -> Read:
    from fullfield.io import write_image

    for number, motion in ((1001, 2.0), (1002, 3.0)):
        write_image(folder / f"plate.{number}.exr", sample_textured_scene(40, 48, seed=1, max_motion=motion).frame1)
    return Read(file=Knob(f"{folder.as_posix()}/plate.%04d.exr"), first=Knob(1001), last=Knob(1002))


def test_nuke_command_estimates_read_node(
    in_nuke: ModuleType, nuke: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FULLFIELD", f"{sys.executable} -m fullfield")
    here = {"PYTHONPATH": "nonsense"} if not os.environ.get("PYTHONPATH") else {}
    for name, value in here.items():
        monkeypatch.setenv(name, value)
    if not here:  # in a checkout that is not installed the child needs it
        monkeypatch.setattr(in_nuke, "NUKES_OWN", ())
    nuke.selectedNode = lambda: plates(tmp_path)
    nuke.Panel.answers = {"occlusion": True}
    thread = in_nuke.flow_of_selected()
    assert nuke.messages == []
    thread.join(120)
    assert nuke.messages == []
    (made,) = nuke.made
    assert made["file"].value() == f"{tmp_path.as_posix()}/vectors/mv.%04d.exr"
    assert made["raw"].value()
    assert any(isinstance(each, int) and each > 0 for each in nuke.progress_events), nuke.progress_events
    from fullfield.io import read_flow_layers

    assert sorted(path.name for path in (tmp_path / "vectors").glob("*.exr")) == ["mv.1001.exr", "mv.1002.exr"]
    assert read_flow_layers(tmp_path / "vectors" / "mv.1001.exr")


def test_nuke_command_reports_errors(
    in_nuke: ModuleType, nuke: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nuke.selectedNode = lambda: SimpleNamespace(Class=lambda: "Blur")
    assert in_nuke.flow_of_selected() is None
    nuke.selectedNode = lambda: plates(tmp_path)
    nuke.Panel.answers = {"frames": "all"}
    assert in_nuke.flow_of_selected() is None
    nuke.Panel.answers = {}
    monkeypatch.setenv("FULLFIELD", "no-such-fullfield")
    in_nuke.flow_of_selected().join(30)
    assert [message.split(":")[0] for message in nuke.messages] == ["select a Read node", "frames", "no-such-fullfield"]
    monkeypatch.setenv("FULLFIELD", f"{sys.executable} -c 'import sys; sys.exit(\"it went wrong\")'")
    in_nuke.flow_of_selected().join(30)
    assert nuke.messages[-1] == "it went wrong"
    nuke.Panel.shown = False
    assert in_nuke.flow_of_selected() is None
    assert nuke.made == []
    with pytest.raises(ValueError, match="expected a sequence"):
        in_nuke.command("one.exr", 1, 2, "out.exr")
    in_nuke.add_menu()
    assert nuke.progress_events[-1][1] is in_nuke.flow_of_selected
    assert threading.active_count() < 50


def test_nuke_command_line_parses(in_nuke: ModuleType) -> None:
    from fullfield.cli.main import build_parser

    words = in_nuke.command("plate.%04d.exr", 1, 9, "mv.%04d.exr", "fullfield-s", refine=True, device="cuda")
    args = build_parser().parse_args(words[1:])
    assert (args.frames, args.method, args.refine, args.device) == ("1-9", "fullfield-s", True, "cuda")
    assert in_nuke.vectors_beside("/shots/a/plate.%06d.dpx") == "/shots/a/vectors/mv.%06d.exr"


def test_comfyui_nodes_estimate() -> None:
    nodes = load_file("examples/comfyui/__init__.py")
    assert nodes.NODE_CLASS_MAPPINGS.keys() == nodes.NODE_DISPLAY_NAME_MAPPINGS.keys()
    scene = sample_textured_scene(64, 80, seed=1, max_motion=2.0)
    first, second = (frame.movedim(0, -1)[None].repeat(2, 1, 1, 1) for frame in (scene.frame1, scene.frame2))
    made = {name: node() for name, node in nodes.NODE_CLASS_MAPPINGS.items()}
    for node in made.values():
        assert set(node.INPUT_TYPES()["required"]) <= set(node.run.__code__.co_varnames)
        assert node.FUNCTION == "run"
        json.dumps(node.INPUT_TYPES())
    (flow,) = made["FullfieldFlow"].run(first, second, "tvl1", refine=False)
    assert flow.shape == (2, 2, 64, 80)
    visible = scene.valid & ~scene.occluded
    assert float((flow[0] - scene.flow).norm(dim=0)[visible].mean()) < 0.5
    (picture,) = made["FullfieldPicture"].run(flow, 0.0)
    assert picture.shape == (2, 64, 80, 3)
    assert 0 <= float(picture.min()) <= float(picture.max()) <= 1
    warped, mask = made["FullfieldWarp"].run(second, flow)
    assert mask.shape == (2, 64, 80)
    still = (second - first).abs().mean(-1)[mask > 0].mean()
    assert (warped - first).abs().mean(-1)[mask > 0].mean() < 0.5 * still
    with pytest.raises(ValueError, match="equal numbers of images"):
        made["FullfieldFlow"].run(first, second[:1], "tvl1", refine=False)


def test_conda_recipe_agrees_with_project() -> None:
    yaml = pytest.importorskip("yaml")
    recipe = yaml.safe_load((ROOT / "recipe" / "recipe.yaml").read_text("utf-8"))
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    assert recipe["context"] == {"name": "fullfield", "version": fullfield.__version__}
    names = {"torch": "pytorch", "OpenImageIO": "py-openimageio"}
    declared = re.findall(
        r'^    "([\w-]+)(>=[\d.]+)",$', project.split("dependencies = [")[1].split("\n]")[0], re.MULTILINE
    )
    wanted = [f"{names.get(name, name)} {least}" for name, least in declared]
    assert recipe["requirements"]["run"][1:] == wanted
    assert "hatchling >=1.25" in recipe["requirements"]["host"]
    assert "hatchling>=1.25" in project
    (script,) = recipe["build"]["python"]["entry_points"]
    name, target = script.split(" = ")
    assert f'{name} = "{target}"' in project
    assert recipe["about"]["license"] in project
    assert all((ROOT / name).is_file() for name in recipe["about"]["license_file"])
