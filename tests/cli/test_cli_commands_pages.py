"""docs/commands has a page for every verb, with the options that the parsers have."""

from __future__ import annotations

import argparse
import shutil
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def commands() -> ModuleType:
    spec = spec_from_file_location("commands", ROOT / "scripts" / "commands.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_pages_say_what_the_parsers_say(commands: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.main(["--check"]) == 0, capsys.readouterr().out


def test_every_verb_has_a_page_and_every_option_stands_on_it(commands: ModuleType) -> None:
    parsers = dict(commands.verbs())
    assert {"flow", "train flow", "weights fetch", "doctor"} <= set(parsers)
    index = (commands.PAGES / "index.md").read_text("utf-8")
    everywhere = commands.page_of("flow").read_text("utf-8")
    for verb, parser in parsers.items():
        page = commands.page_of(verb).read_text("utf-8")
        assert f"({commands.page_of(verb).name})" in index, verb
        assert page.startswith(f"# fullfield {verb}\n"), verb
        for action in parser._actions:
            for option in action.option_strings if action.help != argparse.SUPPRESS else ():
                there = page if "As for [`flow`]" not in page else page + everywhere
                assert option in ("-h", "--help") or f"`{option}`" in there, f"{verb} {option}"
    pages = {page.name for page in commands.PAGES.glob("*.md")}
    assert pages == {"index.md", *(commands.page_of(verb).name for verb in parsers)}


def test_what_is_missing_is_found_and_written(
    commands: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "commands"
    shutil.copytree(commands.PAGES, copy)
    monkeypatch.setattr(commands, "PAGES", copy)
    (copy / "warp.md").unlink()
    changed = (copy / "flow.md").read_text("utf-8").replace("`--warm-start`", "`--cold-start`")
    (copy / "flow.md").write_text(changed, "utf-8")
    assert commands.main(["--check"]) == 1
    assert capsys.readouterr().out == "flow.md, warp.md: run scripts/commands.py\n"
    assert commands.main([]) == 0
    assert "`--warm-start`" in (copy / "flow.md").read_text("utf-8")
    assert commands.main(["--check"]) == 0
