"""The documents say what is there."""

from __future__ import annotations

import os
import re
import runpy
import shlex
import subprocess
import sys
import zipfile
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fullfield.cli import main as fullfield
from fullfield.integrations.handle import is_patched
from fullfield.io import write_image
from fullfield.models import cascade
from fullfield.training import flow as flow_training
from tools import __main__ as tools

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    *ROOT.glob("*.md"),
    *(ROOT / "recipe").glob("*.md"),
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "src").rglob("*.md"),
    *(ROOT / "benchmarks").rglob("*.md"),
    *(ROOT / "tools").rglob("*.md"),
    *(ROOT / "scripts").rglob("*.md"),
]


parsers = {"fullfield": cache(fullfield.build_parser), "python -m tools": cache(tools.build_parser)}
FENCE = re.compile(r"^ *```([\w{}-]*)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)


def list_anchors(text: str) -> set[str]:
    """Return the anchors that GitHub gives to a page's headings."""
    times: dict[str, int] = {}
    anchors = set()
    for title in re.findall(r"^#+ +(.*?) *$", FENCE.sub("", text), re.MULTILINE):
        heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title)
        name = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        anchors.add(f"{name}-{times[name]}" if name in times else name)
        times[name] = times.get(name, 0) + 1
    return anchors


def list_broken_links(page: Path) -> list[str]:
    """Return the relative links of a page that lead to no file or to no heading in it."""
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        if "://" in target:
            continue
        if not file.exists() or (anchor and anchor not in list_anchors(file.read_text("utf-8"))):
            broken.append(target)
    return broken


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_pages_have_no_broken_links(page: Path) -> None:
    assert list_broken_links(page) == []


def test_pages_have_at_most_400_lines() -> None:
    assert [page.name for page in PAGES if len(page.read_text("utf-8").splitlines()) > 400] == []


def test_index_links_every_page() -> None:
    docs = ROOT / "docs"
    operators = (ROOT / "src" / "fullfield" / "ops").glob("*/README.md")
    scripts = (ROOT / "examples").glob("*.py")
    for index, pages in (
        (docs / "index.md", [*docs.glob("*.md"), *docs.glob("*/index.md"), *operators, *scripts]),
        (docs / "commands" / "index.md", [*(docs / "commands").glob("*.md")]),
        (docs / "api" / "index.md", [*(docs / "api").glob("*.md")]),
    ):
        text = index.read_text("utf-8")
        for page in pages:
            link = Path(os.path.relpath(page, index.parent)).as_posix()
            assert page == index or f"]({link}" in text, link


def test_api_pages_list_every_public_name(capsys: pytest.CaptureFixture[str]) -> None:
    from test_api_surface import SURFACE

    api = runpy.run_path(str(ROOT / "scripts" / "docs" / "api.py"))
    assert api["main"](["--check"]) == 0, capsys.readouterr().out
    text = "".join(page.read_text("utf-8") for page in (ROOT / "docs" / "api").glob("*.md"))
    for module, names in SURFACE.items():
        section = re.search(rf"^## {re.escape(module)}\n((?:(?!^## ).*\n)*)", text, re.MULTILINE)
        assert section, module
        assert [name for name in names if not re.search(rf"`{name}[`(]", section[1])] == [], module


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_commands_on_pages_parse(page: Path) -> None:
    if page.name == "CHANGELOG.md":
        return  # it tells what was
    blocks = [block for language, block in FENCE.findall(page.read_text("utf-8")) if not language]
    text = re.sub(r"\$\(+.*?\)+", "1", "".join(blocks).replace("\\\n", " "))
    commands = rf"(?:^ *|&& )(?:\S*/)?({'|'.join(parsers)}) ([^|&;>\n]*)"
    for program, command in re.findall(commands, text, re.MULTILINE):
        words = shlex.split(command, comments=True)
        if words[0] != "VERB":
            assert parsers[program]().parse_known_args(words)[1] == [], command


def test_follow_pictures_run_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    script, commands = runpy.run_path(str(ROOT / "scripts" / "docs" / "follow_pictures.py")), []
    script["run_pages"].__globals__["run_command"] = commands.append
    script["run_pages"]()
    assert {f"plate.{number}.exr" for number in script["NUMBERS"]} <= {path.name for path in tmp_path.iterdir()}
    assert [words[0] for words in commands] == ["follow", "warp"]


def test_readme_is_short_and_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "README.md").read_text("utf-8")
    assert len(page.splitlines()) <= 110
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(ROOT / "tests" / "integrations")
    from foreign_network import Network

    from fullfield.io import read_flow, write_image
    from fullfield.testing import sample_textured_scene

    scene = sample_textured_scene(48, 64)
    write_image("frame_0001.png", scene.frame1)
    write_image("frame_0002.png", scene.frame2)
    names: dict[str, Any] = {"model": Network()}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(block, names)
    assert is_patched(names["model"])
    assert read_flow("motion.exr").flow.shape == (2, 48, 64)


def test_package_index_page_has_absolute_links(monkeypatch: pytest.MonkeyPatch) -> None:
    interface = SimpleNamespace(MetadataHookInterface=object)  # hatchling is there only where packages are built
    monkeypatch.setitem(sys.modules, "hatchling.metadata.plugin.interface", interface)
    hook = runpy.run_path(str(ROOT / "hatch_build.py"))["PageOfTheIndex"]()
    hook.root, hook.config = str(ROOT), {}
    found: dict[str, Any] = {"version": "1.2.3"}
    monkeypatch.delenv("GITHUB_REPOSITORY", raising=False)
    hook.update(found)
    assert found["readme"]["text"] == (ROOT / "README.md").read_text("utf-8")
    monkeypatch.setenv("GITHUB_REPOSITORY", "some/body")
    monkeypatch.setenv("GITHUB_SERVER_URL", "https://hub.test")
    hook.update(found)
    text = found["readme"]["text"]
    assert "](https://hub.test/some/body/raw/v1.2.3/docs/images/flow.jpg)" in text
    assert "](https://hub.test/some/body/blob/v1.2.3/docs/index.md)" in text
    assert "git clone https://hub.test/some/body fullfield" in text
    assert all("://" in target for target in re.findall(r"\]\(([^)\s]+)\)", text))
    hook.config = {"repository": "https://hub.test/written/down"}
    hook.update(found)
    assert "git clone https://hub.test/written/down fullfield" in found["readme"]["text"]
    assert found["urls"]["Repository"] == "https://hub.test/written/down"


def test_check_wheel_names_missing_and_unexpected_files(tmp_path: Path) -> None:
    problems = runpy.run_path(str(ROOT / "scripts" / "release" / "check_wheel.py"))["problems"]
    source = ROOT / "src"
    files = [path for path in (source / "fullfield").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    names = [path.relative_to(source).as_posix() for path in files]
    networks = {f"fullfield/models/fullfield_{size}.safetensors" for size in "sm"}
    assert networks | {"fullfield/py.typed"} <= set(names)
    lost_files = {Path(name).suffix: name for name in names if not name.endswith(".md")}.values()
    assert {"fullfield/datasets/three_d_match.json", "fullfield/py.typed"} <= set(lost_files)
    for name, missing, extra, expected in (
        ("whole", None, (), []),
        *((f"without {Path(lost).suffix}", lost, (), [f"{lost}: is missing"]) for lost in lost_files),
        ("full", None, ("benchmarks/runner.py",), ["benchmarks: does not belong into the wheel"]),
    ):
        with zipfile.ZipFile(tmp_path / f"{name}.whl", "w") as wheel:
            for inside in (*names, *extra, "fullfield-0.dist-info/METADATA"):
                if inside != missing:
                    wheel.writestr(inside, "")
        assert problems(tmp_path / f"{name}.whl") == expected


def test_generated_blocks_equal_stored_results(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run every script that writes into pages; it must leave them unchanged."""
    monkeypatch.syspath_prepend(ROOT / "scripts" / "docs")
    tables = runpy.run_path(str(ROOT / "scripts" / "docs" / "tables.py"))
    assert tables["main"](["--check"]) == 0, capsys.readouterr().out
    by_other_scripts = {"options", "support", "measured"}
    for page in PAGES:
        made = tables["PAGES"].get(page.relative_to(ROOT).as_posix(), ())
        known = {begin.removeprefix("<!-- ").removesuffix(": begin -->\n") for begin, _ in made} | by_other_scripts
        assert set(re.findall(r"<!-- ([^>]*): begin -->", page.read_text("utf-8"))) <= known, page


def test_points_page_runs_and_learns() -> None:
    page = (ROOT / "docs" / "points.md").read_text("utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 2
    names: dict[str, object] = {}
    torch.manual_seed(0)
    for block in blocks:
        exec(block, names)
    assert float(names["loss"].detach()) < 0.2  # type: ignore[attr-defined]


def test_training_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "training.md").read_text("utf-8")
    loop, *others = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len([line for line in loop.splitlines() if line.strip()]) <= 20
    monkeypatch.chdir(tmp_path)
    for number, frame in enumerate(torch.rand(2, 3, 24, 32, generator=torch.Generator().manual_seed(1)), 1):
        write_image(f"frame_{number:04d}.png", frame)
    # Exposures of two instants in place of twelve, which take most of the time.
    style = flow_training.SceneStyle(instants=2)
    monkeypatch.setattr(flow_training, "PairGenerator", partial(flow_training.PairGenerator, style=style))
    names: dict[str, Any] = {}
    torch.manual_seed(0)
    for block in (loop, *others):
        exec(block, names)
    torch.manual_seed(0)
    fresh = names["SEARAFT"](names["network"].config).state_dict()
    for network in (names["network"], names["average"].model):
        moved = [key for key, value in network.state_dict().items() if not torch.equal(value, fresh[key])]
        assert len(moved) > 0.9 * len(fresh)
    assert float(names["loss"].detach()) < 10
    assert names["trained"].history[-1].step == 4
    assert (tmp_path / "runs" / "own" / "weights.safetensors").is_file()
    assert names["batch"].frame1.shape == (4, 3, 40, 48)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_realtime_example_runs() -> None:
    command = [sys.executable, str(ROOT / "examples" / "realtime_flow.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "99 flows: " in done.stdout


def test_tvl1_page_memory_formula_equals_solver() -> None:
    from fullfield.ops.tvl1.config import PRESETS
    from fullfield.ops.tvl1.cpu import CpuSolver

    page = (ROOT / "src" / "fullfield" / "ops" / "tvl1" / "README.md").read_text("utf-8")
    height, width = 600, 800
    for name, stated in (("default", "29.5 planes"), ("fast", "21.7 planes")):
        assert stated in page
        solver = CpuSolver(height, width, PRESETS[name])
        arrays = [solver._state, solver._packed, *solver._pyramid1, *solver._pyramid2]
        planes = 2 + sum(array.size for array in arrays) / (height * width)  # and the grey frames, the caller's
        assert planes == pytest.approx(float(stated.split()[0]), rel=0.06)  # rows are padded


def list_missing_paths(page: str) -> list[str]:
    """Return the paths in the table "Where to …" that do not exist."""
    (table,) = re.findall(r"^## Where to …\n(.*?)(?=^## |\Z)", page, re.DOTALL | re.MULTILINE)
    paths = [word for row in table.splitlines() if row.startswith("| ") for word in re.findall(r"`([^`]+)`", row)]
    folders = ROOT, ROOT / "src/fullfield"
    return [path for path in paths if "/" in path and not any((folder / path).exists() for folder in folders)]


@pytest.mark.parametrize("page", ["CHANGELOG.md", "docs/models.md", "docs/commands/options.md"])
def test_pages_have_the_sizes_of_cascades(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    sizes = cascade.THRESHOLD, cascade.MIN_PIXELS, cascade.MIN_COARSE_PIXELS
    assert [size for size in sizes if not re.search(rf"(?<![\d,]){size:,}(?![\d,]*\d)", text)] == []


def test_contributing_table_answers_in_at_most_five_files() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    (table,) = re.findall(r"^## Where to …\n(.*?)(?=^## |\Z)", page, re.DOTALL | re.MULTILINE)
    rows = [row.split(" | ", 1) for row in table.splitlines() if row.startswith("| ")][2:]
    files = {task: set(re.findall(r"`([\w./]+\.(?:py|cuh?))`", answer)) for task, answer in rows}
    assert len(files) > 10
    assert {task: names for task, names in files.items() if len(names) > 5} == {}


def test_contributing_table_names_existing_files() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    assert list_missing_paths(page) == []
    assert list_missing_paths(page.replace("io/flow.py", "io/flows.py")) == ["io/flows.py"]
