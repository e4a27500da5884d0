"""Command lines that are run in this process, and scripts that are loaded into it."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent


class Ran(NamedTuple):
    """Exit code and output of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The object that it printed; AssertionError for NaN and infinity."""

        def refuse(constant: str) -> None:
            raise AssertionError(f"{constant} is no JSON")

        found: dict[str, Any] = json.loads(self.out, parse_constant=refuse)
        return found

    def refusal(self) -> str:
        """Return the one line of a command that failed as a user's mistake."""
        assert self.code == 2
        assert self.out == ""
        assert self.err.startswith("fullfield: error: ")
        assert self.err.count("\n") == 1
        return self.err


def loaded(place: str) -> ModuleType:
    """Import a file of the repository, which is in no package."""
    path = ROOT / place
    spec = importlib.util.spec_from_file_location(path.stem if path.stem != "__init__" else path.parent.name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
