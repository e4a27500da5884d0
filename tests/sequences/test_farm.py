"""The job template for render farms: valid by its own package, and its tasks make the shot."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from sequence_shots import CHANGED, QUICK

from fullfield.cli.main import main
from fullfield.io import read_vectors

model: Any = pytest.importorskip("openjd.model", reason="openjd-model is not installed")
TEMPLATE = Path(__file__).resolve().parents[2] / "examples" / "farm" / "openjd.template.yaml"


def tasks(**values: str) -> list[list[str]]:
    """The command line of every task."""
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


def test_the_tasks_of_a_farm_make_the_shot(shot: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commands = tasks(Plates="plate.%04d.png", Output="mv.%04d.exr", Frames="11-18", ChunkSize="3", Preset="fast")
    assert [command[command.index("--frames") + 1] for command in commands] == ["11-13", "14-16", "17-18"]
    assert {command[0] for command in commands} == {"fullfield"}
    for command in reversed(commands):  # farms keep no order
        assert main([*command[1:], *CHANGED]) == 0
        assert capsys.readouterr().out.count("openjd_progress: 100.0") == 1
    assert main(["flow", "plate.%04d.png", "-o", "one.%04d.exr", "--direction", "both", *QUICK]) == 0
    for number in range(11, 19):
        task, alone = (read_vectors(f"{name}.{number:04d}.exr") for name in ("mv", "one"))
        assert all(torch.equal(task[layer], alone[layer]) for layer in alone)
    (shot / "plate.0015.png").write_bytes(b"")
    for name in ("mv.0014.exr", "mv.0015.exr"):
        (shot / name).unlink()
    assert main([*commands[1][1:], *CHANGED]) == 2, "a task that lacks anything fails"
    assert main([*commands[0][1:], *CHANGED]) == 0


@pytest.mark.parametrize("folder", ["a \"b\" 'c'", "$(touch forged);{{Param.Frames}}", "a\nopenjd_fail: forged"])
def test_names_reach_the_command_as_they_are(shot: Path, capsys: pytest.CaptureFixture[str], folder: str) -> None:
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


def test_chunks_that_overlap_may_run_at_once(shot: Path) -> None:
    begun = []
    for frames in ("11-15", "13-18", "11-18"):
        (command,) = tasks(Plates="plate.%04d.png", Output="mv.%04d.exr", Frames=frames, Preset="fast")
        command = [sys.executable, "-m", *command, *CHANGED, "--threads", "1"]
        begun.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True))
    for process in begun:
        _, err = process.communicate()
        assert process.returncode == 0, err
    assert main(["flow", "plate.%04d.png", "-o", "one.%04d.exr", "--direction", "both", *QUICK]) == 0
    for number in range(11, 19):
        task, alone = (read_vectors(f"{name}.{number:04d}.exr") for name in ("mv", "one"))
        assert all(torch.equal(task[layer], alone[layer]) for layer in alone)
    assert not list(shot.glob(".*"))
