"""Notes that were damaged, or that are no regular files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from fullfield._ledger.notes import read_json_object, write_json_file_atomically, write_json_file_if_absent
from fullfield._ledger.records import Journal, Records
from fullfield._ledger.settings import SettingsFile
from fullfield.io.files import write_atomically
from refusals import refuses

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("text", ["", "{", "[1]", "7", "null", '"x"', "[" * 100_000, "\xff"])
def test_read_notes_refuses_file_without_object(text: str, tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text(text, "latin-1")
    refuses(r"settings\.json: ", read_json_object, path)


def test_read_notes_returns_none_for_nonfinite_numbers(tmp_path: Path) -> None:
    path = tmp_path / "notes.json"
    path.write_text('{"a": 1e999, "b": NaN, "c": [-Infinity, 1.5]}')
    assert read_json_object(path) == {"a": None, "b": None, "c": [None, 1.5]}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes have no names here")
def test_read_notes_and_records_refuse_pipes(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "settings.json")
    refuses("expected a regular file", read_json_object, tmp_path / "settings.json")
    os.mkfifo(tmp_path / "a.jsonl")
    (tmp_path / "b.jsonl").mkdir()
    assert Records(tmp_path).find_records_of_current_file("x.exr") == []


@pytest.mark.parametrize(
    "changes",
    [
        {"stamp": [1, 2]},
        {"stamp": "abc"},
        {"stamp": ["1", "2", "3"]},
        {"stamp": None},
        {"checksum": ["a"]},
        {"name": ["frame.exr"]},
        {"provenance": ["settings"]},
        {"provenance": None},
    ],
)
def test_records_ignore_damaged_lines(changes: dict[str, Any], tmp_path: Path) -> None:
    frame, notes = tmp_path / "frame.exr", tmp_path / "notes"
    with (
        Journal(notes, "run").record_file_on_atomic_write(str(frame), {"settings": "a"}),
        write_atomically(frame) as temporary,
    ):
        temporary.write_bytes(b"frame")
    line = json.loads((notes / "run.jsonl").read_text())
    (notes / "other.jsonl").write_text(json.dumps({**line, "provenance": {"settings": "b"}, **changes}) + "\n")
    assert [record.provenance for record in Records(notes).find_records_of_current_file(str(frame))] == [
        {"settings": "a"}
    ]


@pytest.mark.parametrize("number", ["1e999", "-1e999", "NaN", "1.5", "true"])
def test_records_ignore_lines_with_invalid_sizes(number: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(
        f'{{"name": "x.exr", "provenance": {{}}, "checksum": "a", "stamp": [{number}, 1, 1]}}\n'
        f'{{"input": "x.exr", "checksum": "a", "stamp": [{number}, 1, 1]}}\n[1]\n"text"\n7\n'
    )
    assert Records(tmp_path).find_records_of_current_file("x.exr") == []


def settle(file: SettingsFile, content: dict[str, Any], results: list[str], **options: Any) -> dict[str, Any] | None:
    return file.write_or_check_and_return_previous(
        content, has_results=lambda: bool(results), advice="use another folder", **options
    )


def test_settings_file_refuses_change_while_results_exist(tmp_path: Path) -> None:
    file, results = SettingsFile(tmp_path / "run" / "settings.json", "the settings of a run"), list[str]()
    assert settle(file, {"a": 1}, results) is None
    assert settle(file, {"a": 2}, results) == {"a": 1}
    assert file.read_if_exists() == {"a": 2}
    results.append("x")
    assert settle(file, {"a": 2}, results) == {"a": 2}
    refuses(
        r"run: was begun with other settings \(a was 2, is 3\); use another folder", settle, file, {"a": 3}, results
    )
    settle(file, {"a": 3}, results, overwrite=True)
    assert file.read_if_exists() == {"a": 3}


def test_settings_file_refuses_results_without_settings(tmp_path: Path) -> None:
    file = SettingsFile(tmp_path / "settings.json", "the settings of a run")
    refuses(r"no settings\.json says how they were made", settle, file, {"a": 1}, ["x"])
    assert file.read_if_exists() is None
    settle(file, {"a": 1}, ["x"], overwrite=True)
    assert file.read_if_exists() == {"a": 1}


def test_settings_file_names_three_changes_method_first(tmp_path: Path) -> None:
    file = SettingsFile(tmp_path / "settings.json", "the settings of a run")
    settle(file, {"a": 1, "b": 1, "c": 1, "method": "x", "parameters": {"d": 1}}, [])
    changed = {"a": 2, "b": 2, "c": 2, "method": "y", "parameters": {"d": 2}}
    refuses(r"method was 'x', is 'y'; a was 1, is 2; b was 1, is 2; and 1 more\)", settle, file, changed, ["x"])


def test_write_notes_if_absent_keeps_first_settings(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    path = folder / "settings.json"
    written = [write_json_file_if_absent(path, {"number": number}) for number in range(3)]
    assert written == [True, False, False]
    assert read_json_object(path) == {"number": 0}
    write_json_file_atomically(path, {"number": float("inf")})
    assert read_json_object(path) == {"number": None}
    assert [entry.name for entry in folder.iterdir()] == ["settings.json"]


def test_write_notes_if_absent_works_without_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "link", refuse)
    path = tmp_path / "settings.json"
    assert [write_json_file_if_absent(path, {"number": number}) for number in range(2)] == [True, False]
    assert read_json_object(path) == {"number": 0}
    assert [entry.name for entry in tmp_path.iterdir()] == ["settings.json"]
