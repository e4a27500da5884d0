"""Results of commands that run in this process, and import of scripts of the repository."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent


class CommandResult(NamedTuple):
    """Exit code and output of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """Parse the printed object; raise AssertionError for NaN and infinity."""

        def refuse(constant: str) -> None:
            raise AssertionError(f"{constant} is no JSON")

        report: dict[str, Any] = json.loads(self.out, parse_constant=refuse)
        return report

    def get_refusal(self) -> str:
        """Check that the command refused its arguments; return its line of error."""
        assert self.code == 2
        assert self.out == ""
        assert self.err.startswith("fullfield: error: ")
        assert self.err.count("\n") == 1
        return self.err


def load_file(name: str) -> ModuleType:
    """Import a file of the repository that is in no package."""
    path = ROOT / name
    spec = importlib.util.spec_from_file_location(path.stem if path.stem != "__init__" else path.parent.name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
