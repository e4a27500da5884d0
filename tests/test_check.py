"""What scripts/check/run.py runs where."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest
import torch

from commands import ROOT, load_file


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    return load_file("scripts/check/run.py")


def test_check_commands_run_alone_tests_first_on_gpu(check: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "GPU", False)
    (every,) = check.commands("tests", ["-k", "tvl1"])
    assert every[-4:] == ["-m", "not long", "-k", "tvl1"]
    assert check.commands("long", [])[0][-2:] == ["-m", "long"]
    monkeypatch.setattr(check, "GPU", True)
    alone, others = check.commands("tests", ["-k", "tvl1"])
    assert alone == ["-m", "pytest", *check.LIMIT, "-m", "alone", "-k", "tvl1"]
    assert others[-4:] == ["-m", "not alone and not long", "-k", "tvl1"]
    assert "--dist=worksteal" in others
    assert len(check.commands("tests", ["-m", "slow"])) == 1


def test_check_stages_compile_kernels_before_tests(check: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    source = ROOT / "src" / "fullfield"
    made = [path for path in source.rglob("*.py") if 'KernelModule(f"{__package__}.' in path.read_text("utf-8")]
    assert sorted(sum(check.KERNELS, ())) == sorted(
        ".".join(path.relative_to(source).with_suffix("").parts) for path in made
    )
    monkeypatch.setattr(check, "GPU", False)
    checks, at_once = check.stages(check.STEPS, [])
    assert [command[1] for command in checks] == ["mypy", *[check.COMPILE] * 2, "ruff", "codespell_lib", "ruff"]
    assert [Path(command[0]).name for command in at_once] == ["site.py", "-m"]
    monkeypatch.setattr(check, "GPU", True)
    assert [len(jobs) for jobs in check.stages(check.STEPS, [])] == [6, 1, 1, 1], "nothing runs beside measured tests"


def test_check_main_stops_at_failed_step(check: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []

    def run(command: list[str]) -> tuple[int, str]:
        begun.append(command[1])
        return (3 if command[1] == "mypy" else 0), "said"

    monkeypatch.setattr(check, "run", run)
    assert check.main([]) == 3
    assert "pytest" not in begun
    assert check.main(["types"]) == 3
    assert check.main(["lint"]) == 0


def test_check_gpu_stores_counts_and_environment(
    check: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert check.main(["gpu", str(tmp_path / "x.json"), "more"]) == 2
    report = '<testsuites><testsuite tests="7" failures="1" errors="0" skipped="2"/></testsuites>'
    codes = iter((0, 1))

    def run(command: list[str]) -> tuple[int, str]:
        Path(command[-1].removeprefix("--junit-xml=")).write_text(report)
        return next(codes), "said"

    monkeypatch.setattr(check, "GPU", True)
    monkeypatch.setattr(check, "run", run)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA made up")
    monkeypatch.setenv("FULLFIELD_COMMIT", "abc")
    assert check.main(["gpu", str(tmp_path / "gpu.json")]) == 1
    stored = json.loads((tmp_path / "gpu.json").read_text())
    assert stored["environment"]["gpu"] == "NVIDIA made up"
    assert stored["environment"]["commit"] == "abc"
    assert [part["exit_code"] for part in stored["parts"]] == [0, 1]
    assert [(part["passed"], part["failed"], part["skipped"]) for part in stored["parts"]] == [(4, 1, 2)] * 2
    assert [path.name for path in tmp_path.iterdir()] == ["gpu.json"]


def test_unit_marks_cover_every_package() -> None:
    files = [path for path in (ROOT / "tests").rglob("test_*.py") if path.parent != ROOT / "tests"]
    folders = {path.relative_to(ROOT / "tests").parts[0] for path in files}
    marked = {path.relative_to(ROOT / "tests").parts[0] for path in files if "mark.unit" in path.read_text("utf-8")}
    assert len(folders) > 15
    assert folders - marked == set()
