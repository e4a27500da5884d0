"""Launchers fill only fields that the kernels' structures declare: without a GPU nothing else would tell."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

OPS = Path(__file__).resolve().parents[2] / "src" / "fullfield" / "ops"
LAUNCHERS = [path for path in sorted(OPS.rglob("*.py")) if "parse_structures" in path.read_text("utf-8")]
STRUCTURE = re.compile(r"struct \w+ *\{(.*?)\n\};", re.DOTALL)
FIELD = re.compile(r"\b([A-Za-z_]\w*)\s*(?:\[[^\]]*\])?\s*[;,]")


def list_declared_fields() -> set[str]:
    """Return the fields of the structures of all CUDA sources."""
    bodies = [body for path in OPS.rglob("*.cu*") for body in STRUCTURE.findall(path.read_text("utf-8"))]
    return {name for body in bodies for name in FIELD.findall(body)}


@pytest.mark.unit
@pytest.mark.parametrize("path", LAUNCHERS, ids=lambda path: "-".join(path.relative_to(OPS).with_suffix("").parts))
def test_launchers_fill_declared_fields(path: Path) -> None:
    declared = list_declared_fields()
    stored = [
        node
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    ]
    # An underscore follows names that are keywords of Python.
    filled = [node for node in stored if ast.unparse(node.value).split(".")[-1] in ("p", "params")]
    assert [f"line {node.lineno}: {node.attr}" for node in filled if node.attr.rstrip("_") not in declared] == []


@pytest.mark.unit
def test_list_declared_fields_returns_known_fields() -> None:
    assert len(LAUNCHERS) >= 5
    assert {"products", "begin", "rows"} <= list_declared_fields()
