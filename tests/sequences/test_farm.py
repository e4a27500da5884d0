"""Farms: the job template of OpenJD, OpenCue's outline and a Ray cluster; their tasks make the shot.

OpenCue's package is replaced by a stand-in for the one class of it that the outline uses.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from sequence_shots import CHANGED, QUICK, assert_same, loaded, started

from fullfield.cli.main import main

TEMPLATE = Path(__file__).resolve().parents[2] / "examples" / "farm" / "openjd.template.yaml"


def tasks(**values: str) -> list[list[str]]:
    """The command line of every task."""
    model: Any = pytest.importorskip("openjd.model", reason="openjd-model is not installed")
    text = TEMPLATE.read_text("utf-8")
    raw = model.document_string_to_object(document=text, document_type=model.DocumentType.YAML)
    template = model.decode_job_template(template=raw, supported_extensions=["TASK_CHUNKING"])
    here = Path.cwd()
    given = model.preprocess_job_parameters(
        job_template=template, job_parameter_values=values, job_template_dir=here, current_working_dir=here
    )
    job = model.create_job(job_template=template, job_parameter_values=given)
    (step,) = job.steps
    action = step.script.actions.onRun
    symbols = model.SymbolTable()
    for name, value in given.items():
        symbols[f"Param.{name}"] = value.value
    made = []
    for task in model.StepParameterSpaceIterator(space=step.parameterSpace):
        symbols["Task.Param.Frame"] = task["Frame"].value
        made.append([part.resolve(symtab=symbols) for part in (action.command, *action.args)])
    return made


def test_farm_tasks_write_complete_shot(shot: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commands = tasks(Plates="plate.%04d.png", Output="mv.%04d.exr", Frames="11-18", ChunkSize="3", Preset="fast")
    assert [command[command.index("--frames") + 1] for command in commands] == ["11-13", "14-16", "17-18"]
    assert {command[0] for command in commands} == {"fullfield"}
    for command in reversed(commands):  # farms keep no order
        assert main([*command[1:], *CHANGED]) == 0
        assert capsys.readouterr().out.count("openjd_progress: 100.0") == 1
    assert main(["shot", "plate.%04d.png", "-o", "one.%04d.exr", "--direction", "both", *QUICK]) == 0
    assert_same(loaded("mv"), loaded("one"))
    (shot / "plate.0015.png").write_bytes(b"")
    for name in ("mv.0014.exr", "mv.0015.exr"):
        (shot / name).unlink()
    assert main([*commands[1][1:], *CHANGED]) == 2, "a task that lacks anything fails"
    assert main([*commands[0][1:], *CHANGED]) == 0


@pytest.mark.parametrize("folder", ["a \"b\" 'c'", "$(touch forged);{{Param.Frames}}", "a\nopenjd_fail: forged"])
def test_farm_tasks_pass_names_unchanged(shot: Path, capsys: pytest.CaptureFixture[str], folder: str) -> None:
    (shot / folder).mkdir()
    for path in shot.glob("plate.*.png"):
        path.rename(shot / folder / path.name)
    (command,) = tasks(Plates=f"{folder}/plate.%04d.png", Output=f"{folder}/mv.%04d.exr", Frames="11-12", Preset="fast")
    assert main([*command[1:], *CHANGED]) == 0
    assert len(list((shot / folder).glob("mv.*.exr"))) == 2
    printed = capsys.readouterr().out.splitlines()
    assert not [line for line in printed if line.startswith("openjd") and not line.startswith("openjd_progress: ")]
    assert len([line for line in printed if "2 frames written" in line]) == 1
    assert not (shot / "forged").exists()


def test_farm_tasks_of_overlapping_frames_run_concurrently(shot: Path) -> None:
    begun = []
    for frames in ("11-15", "13-18"):
        (command,) = tasks(Plates="plate.%04d.png", Output="mv.%04d.exr", Frames=frames, Preset="fast")
        begun.append(started(shot, [*command[2:], *CHANGED, "--threads", "1"]))
    for process in begun:
        process.join()
        assert process.exitcode == 0
    assert main(["shot", "plate.%04d.png", "-o", "one.%04d.exr", "--direction", "both", *QUICK]) == 0
    assert_same(loaded("mv"), loaded("one"))
    assert not list(shot.glob(".*"))


OUTLINE = Path(__file__).resolve().parents[2] / "examples" / "farm" / "opencue.outline"


def opencue_layer(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
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


@pytest.mark.usefixtures("shot")
def test_opencue_commands_write_complete_shot(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {"PLATES": "plate.%04d.png", "FRAMES": "11-18", "OUTPUT": "mv.%04d.exr", "CHUNK": "3", "PRESET": "fast"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    layer = opencue_layer(monkeypatch)
    commands = layer["commands"]
    assert [command[command.index("--frames") + 1] for command in commands] == ["11-13", "14-16", "17-18"]
    assert not layer.get("gpus")
    for command in reversed(commands):  # farms keep no order
        assert command[0] == "fullfield"
        assert main([*command[1:], *CHANGED]) == 0
    assert main(["shot", "plate.%04d.png", "-o", "one.%04d.exr", "--direction", "both", *QUICK]) == 0
    assert_same(loaded("mv"), loaded("one"))
    monkeypatch.setenv("DEVICE", "cuda")
    assert opencue_layer(monkeypatch)["gpus"] == 1


class Ray(ModuleType):
    """Ray with two nodes, whose actors work in this process; one that gets the frame ``fatal`` dies."""

    RayActorError = RuntimeError

    def __init__(self, fatal: int | None, cpus: float) -> None:
        super().__init__("ray")
        self.exceptions, self.fatal, self.cpus, self.actors = self, fatal, cpus, list[dict[str, Any]]()

    def is_initialized(self) -> bool:
        return True

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": alive, "Resources": {"CPU": self.cpus}} for alive in (True, False, True)]

    def remote(self, kind: Any) -> Any:
        def options(**resources: Any) -> Any:
            self.actors.append(resources)
            return SimpleNamespace(remote=lambda *given: begin(kind(*given)))

        def begin(maker: Any) -> Any:
            return SimpleNamespace(
                write_frames_and_get_outcome_or_refusal=SimpleNamespace(
                    remote=lambda chunk: partial(maker.write_frames_and_get_outcome_or_refusal, chunk)
                )
            )

        return SimpleNamespace(options=options)

    def wait(self, begun: list[Any], num_returns: int) -> tuple[list[Any], list[Any]]:
        return begun[-num_returns:], begun[:-num_returns]

    def get(self, done: Any) -> Any:
        if self.fatal in done.args[0]:
            raise self.RayActorError("it is\ngone")
        return done()


@pytest.mark.parametrize("fatal", [None, 16])
def test_write_shot_flow_on_cluster_with_fake_ray_equals_one_machine(
    shot: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, fatal: int | None
) -> None:
    ray, threads = Ray(fatal, 2.0), list[int]()
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    options = ("--direction", "both", *QUICK)
    code = main(["shot", "plate.%04d.png", "-o", "mv.%04d.exr", *options, "--ray", "auto", "--json"])
    out, err = capsys.readouterr()
    assert ray.actors == [{"num_cpus": 2, "max_restarts": 2, "max_task_retries": 2}] * 2
    assert threads == [2, 2]
    assert code == (0 if fatal is None else 2), err
    assert json.loads(out)["written"] == ("11-18" if fatal is None else "11-14")
    assert fatal is None or "frames 15-18: the actor died again and again (it is gone)" in err
    assert main(["shot", "plate.%04d.png", "-o", "one.%04d.exr", *options]) == 0
    made, whole = loaded("mv"), loaded("one")
    assert_same(made, {number: whole[number] for number in made})
    for path in shot.glob("mv.*.exr"):
        path.unlink()
    ray.cpus = 0.5
    assert main(["shot", "plate.%04d.png", "-o", "mv.%04d.exr", *options, "--ray", "auto"]) == 2
    assert "the cluster has no CPU (--device cpu)" in capsys.readouterr().err
    assert main(["shot", "plate.%04d.png", "-o", "x.%04d.exr", "--ray", "auto", "--devices", "cpu", *QUICK]) == 2
    capsys.readouterr()

    def init(**_: Any) -> None:
        raise Exception("The current node timed out\nduring startup.")  # as Ray does

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init, raising=False)
    assert main(["shot", "plate.%04d.png", "-o", "mv.%04d.exr", *options, "--ray", "local"]) == 2
    assert "--ray local: cannot connect to a cluster (The current node timed out)" in capsys.readouterr().err


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Two nodes of one CPU each."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    nodes.add_node(num_cpus=1)
    yield nodes.address
    nodes.shutdown()


def makers() -> list[int]:
    """The processes of our actors."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if b"ray::ShotActor" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed (pip install 'fullfield[ray]')")
@pytest.mark.long
def test_shot_on_ray_cluster_equals_one_machine(shot: Path, address: str, capsys: pytest.CaptureFixture[str]) -> None:
    killed: list[int] = []

    def kill_one() -> None:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            if list(shot.glob("mv.*.exr")) and makers():
                killed.append(makers()[0])
                os.kill(killed[0], signal.SIGKILL)
                return
            time.sleep(0.01)

    options = ("--direction", "both", "--occlusion", *QUICK)
    thread = threading.Thread(target=kill_one)
    thread.start()
    where = ("shot", f"{shot}/plate.%04d.png", "-o", f"{shot}/mv.%04d.exr")
    code = main([*where, *options, "--ray", address, "--json"])
    thread.join()
    out, err = capsys.readouterr()
    assert code == 0, err
    assert killed
    assert json.loads(out)["written"] == "11-18"
    assert main(["shot", "plate.%04d.png", "-o", "one.%04d.exr", *options]) == 0
    assert_same(loaded("mv"), loaded("one"))
    assert main([*where, "--ray", address, "--device", "cuda", "--overwrite", *QUICK]) == 2
