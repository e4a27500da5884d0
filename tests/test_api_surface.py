"""The public names are those in public_names.txt, whose changes belong in the changelog."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path

import pytest

import fullfield

pytestmark = pytest.mark.unit

ROOT = Path(fullfield.__file__).parents[1]


def surface() -> dict[str, list[str]]:
    """Return the public names of every module: the indented lines of public_names.txt below its own."""
    text = Path(__file__).with_name("public_names.txt").read_text("utf-8")
    blocks = [block.split() for block in re.split(r"\n(?=\S)", text)]
    return {module: names for module, *names in blocks}


SURFACE = surface()
LAZY = [
    m
    for m in SURFACE
    if "= create_lazy_all_getattr_and_dir(" in (ROOT / m.replace(".", "/") / "__init__.py").read_text("utf-8")
]


@pytest.mark.parametrize("module", SURFACE)
def test_public_names_equal_stored_list(module: str) -> None:
    assert sorted(importlib.import_module(module).__all__) == sorted(SURFACE[module])


@pytest.mark.parametrize("module", SURFACE)
def test_public_names_resolve_and_are_documented(module: str) -> None:
    home = importlib.import_module(module)
    assert home.__doc__
    for name in home.__all__:
        value = getattr(home, name)
        if inspect.isfunction(value) or inspect.isclass(value):
            assert inspect.getdoc(value), f"{module}.{name} has no docstring"
            assert name in dir(home)


@pytest.mark.parametrize("module", LAZY)
def test_lazy_modules_match_imports_for_type_checkers(module: str) -> None:
    """Imports for type checkers must name the same modules as the lazy imports."""
    home = importlib.import_module(module)
    branches = (n for n in ast.parse(inspect.getsource(home)).body if isinstance(n, ast.If))
    block = next(n for n in branches if ast.unparse(n.test) == "TYPE_CHECKING")
    seen = {alias.asname: node.module for node in block.body for alias in node.names}  # type: ignore[attr-defined]
    assert sorted({*seen, *(["__version__"] if module == "fullfield" else [])}) == home.__all__
    for name, source in seen.items():
        assert getattr(importlib.import_module(source), name) is getattr(home, name)


def test_modules_raise_attribute_error_for_unknown_names() -> None:
    assert len(LAZY) >= 10
    for module in SURFACE:
        with pytest.raises(AttributeError, match="no_such_name"):
            _ = importlib.import_module(module).no_such_name


@pytest.mark.parametrize("module", LAZY)
def test_lazy_modules_suggest_nearest_public_name(module: str) -> None:
    home = importlib.import_module(module)
    name = max((name for name in home.__all__ if not name.startswith("_")), key=len)
    with pytest.raises(AttributeError, match=f"did you mean {name}"):
        getattr(home, f"{name}s")


# Their keywords were hidden in ``**parameters``, where neither completion nor mypy saw them.
FRONT_DOOR = {
    "estimate": 3,
    "estimate_batch": 3,
    "estimate_sequence": 2,
    "follow_frames": 3,
    "open_plates": 2,
    "register": 2,
}
"""Functions with many keywords, and the number of their other parameters."""


def test_public_functions_have_few_parameters() -> None:
    for module in SURFACE:
        home = importlib.import_module(module)
        for name in home.__all__:
            value = getattr(home, name)
            if inspect.isfunction(value):
                parameters = inspect.signature(value).parameters.values()
                kinds = [one.kind for one in parameters]
                if name in FRONT_DOOR:
                    assert kinds.count(inspect.Parameter.KEYWORD_ONLY) == len(parameters) - FRONT_DOOR[name]
                else:
                    assert len(parameters) <= 8, f"{module}.{name}"
                    assert inspect.Parameter.VAR_KEYWORD not in kinds, f"{module}.{name} hides its keywords"


def test_public_names_have_an_example_or_a_page() -> None:
    """Examples are in docstrings, in ``examples``, or on pages that are not generated."""
    root = ROOT.parent
    pages = [*root.glob("*.md"), *root.glob("docs/*.md"), *root.glob("docs/commands/*.md"), *ROOT.rglob("*.md")]
    words = set(re.findall(r"\w+", "".join(path.read_text("utf-8") for path in (*pages, *root.glob("examples/*.py")))))
    unseen = []
    for module in SURFACE:
        home = importlib.import_module(module)
        for name in set(home.__all__) - words - {"__version__"}:
            has_example = ">>>" in (inspect.getdoc(getattr(home, name)) or "")
            is_in_example = any(name in line for line in (home.__doc__ or "").splitlines() if ">>>" in line)
            if not has_example and not is_in_example:
                unseen.append(f"{module}.{name}")
    assert unseen == []
