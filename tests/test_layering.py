"""Who may import whom; DESIGN.md gives the reasons."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import fullfield

pytestmark = pytest.mark.unit

ROOT = Path(fullfield.__file__).parent
# Outside the wheel; they may import all of fullfield.
OUTSIDE = [Path(__file__).resolve().parent.parent / name for name in ("benchmarks", "tools")]
SOURCES = [path for folder in (ROOT, *OUTSIDE) for path in folder.rglob("*.py")]
THIRD = {"torch", "numpy"}
# Room -> rooms and third parties it may import at module level; inside functions the second set as well.
RULES: dict[str, tuple[set[str], set[str]]] = {
    "__init__": (set(), {"_check", "estimators", "integrations", "sequences"}),
    "__main__": ({"cli"}, set()),
    "_check": (set(), {"torch"}),
    "_config": ({"_check"}, set()),
    "_install": (set(), set()),
    "_lazy": (set(), {"_check"}),
    "_read_ahead": (set(), set()),
    "_switch": (set(), set()),
    "_ledger": ({"_check", "io"}, set()),
    "_kernels": ({"numba", "llvmlite"}, {"numba", "llvmlite"}),
    "ops": ({"_kernels", "_check", "numba", "llvmlite", *THIRD}, set()),
    "nn": ({"ops", "_check", *THIRD}, set()),
    "models": ({"nn", "ops", "_kernels", "_check", *THIRD}, {"io", "onnx", "safetensors"}),
    "estimators": ({"models", "ops", "_check", *THIRD}, {"io", "integrations", "ptlflow"}),
    "integrations": ({"nn", "ops", "_check", *THIRD}, set()),
    "io": ({"_check", *THIRD}, {"OpenImageIO", "h5py", "PIL", "laspy", "av", "cv2"}),
    "metrics": ({"_check", "torch"}, set()),
    "datasets": ({"io", "metrics", "_check", *THIRD}, set()),
    "evaluation": (
        {"datasets", "estimators", "ops", "metrics", "io", "_check", "_ledger", *THIRD},
        {"registration"},
    ),
    "sequences": ({"estimators", "models", "ops", "io", "viz", "_check", "_ledger", *THIRD}, {"ray"}),
    "registration": (
        {"models", "ops", "io", "_kernels", "_check", "numba", *THIRD},
        {"small_gicp", "safetensors", "scipy"},
    ),
    "training": (
        {"registration", "models", "ops", "_kernels", "datasets", "metrics", "io", "_check", "_ledger", *THIRD},
        {"safetensors", "matplotlib", "PIL"},
    ),
    "viz": ({"_check", *THIRD}, {"PIL", "matplotlib", "cv2"}),
    "testing": ({"ops", "_check", *THIRD}, set()),
    "cli": (
        {"_check"},
        {
            "datasets",
            "estimators",
            "evaluation",
            "_ledger",
            "models",
            "registration",
            "sequences",
            "ops",
            "metrics",
            "io",
            "viz",
            "testing",
            "training",
            "_kernels",
            "numba",
            "llvmlite",
            "OpenImageIO",
            "h5py",
            "PIL",
            *THIRD,
        },
    ),
}
# Light on purpose (test_cold_import holds them to it): the command line's parsers are built from their constants.
LIGHT = {
    "fullfield.ops.tvl1.config",
    "fullfield.io",
    "fullfield.io.files",
    "fullfield.io.names",
    "fullfield.io.windows",
    "fullfield.estimators.network_config",
    "fullfield.estimators.registry",
    "fullfield.models.raft.config",
    "fullfield.models.sea_raft.config",
    "fullfield.models.weights",
    "fullfield.training.flow.config",
    "fullfield.sequences.names",
    "fullfield._ledger.records",
    "fullfield._ledger.versions",
}
STANDARD = set(__import__("sys").stdlib_module_names)


def list_imports(tree: ast.Module) -> list[tuple[str, bool, int]]:
    """Return (module, is inside of a function or TYPE_CHECKING, line) for every import statement."""
    found: list[tuple[str, bool, int]] = []

    def visit(node: ast.AST, deferred: bool) -> None:
        for child in ast.iter_child_nodes(node):
            inner = deferred or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef))
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                inner = True
            if isinstance(child, ast.Import):
                found.extend((alias.name, deferred, child.lineno) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, "imports are absolute"
                found.append((child.module or "", deferred, child.lineno))
            visit(child, inner)

    visit(tree, False)
    return found


def get_package(module: str) -> str:
    parts = module.split(".")
    if parts[0] != "fullfield":
        return parts[0]
    return parts[1] if len(parts) > 1 else "__init__"


def list_violations(path: Path, source: str) -> list[str]:
    package = path.relative_to(ROOT).with_suffix("").parts[0]
    if package not in RULES:
        return [f"{package}: a package without rules; add it to RULES and DESIGN.md"]
    eager, lazy = RULES[package]
    found = []
    for module, deferred, line in list_imports(ast.parse(source)):
        target = get_package(module)
        own = module.split(".")[0] == "fullfield"
        if (
            target in (package, "_config", "_install", "_lazy", "_read_ahead", "_switch")
            or module == "fullfield"
            or (not own and target in STANDARD)
        ):
            continue
        if package == "cli" and module in LIGHT:
            continue
        allowed = eager | lazy if deferred else eager
        if target not in allowed:
            where = "" if deferred else " at module level"
            found.append(f"{path.relative_to(ROOT)}:{line}: {package} may not import {module}{where}")
    return found


def read_modules(files: Sequence[Path]) -> dict[str, str]:
    """Return the source of every module by its dotted name; that of a package is its ``__init__``."""
    dotted = (".".join(p.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__") for p in files)
    return dict(zip(dotted, (p.read_text("utf-8") for p in files), strict=True))


def find_import_cycle(sources: Mapping[str, str]) -> list[str]:
    """Return modules that import one another in a cycle, at module level or in functions, or an empty list."""
    graph: dict[str, set[str]] = {}
    for module, source in sources.items():
        taken = graph[module] = set[str]()
        todo: list[ast.AST] = [ast.parse(source)]
        while todo:
            node = todo.pop()
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                continue
            todo += ast.iter_child_nodes(node)
            if isinstance(node, ast.Import):
                taken |= {alias.name for alias in node.names} & set(sources)
            elif isinstance(node, ast.ImportFrom):
                home = node.module or ""
                names = {f"{home}.{alias.name}" for alias in node.names}
                taken |= (names | ({home} if names - set(sources) else set())) & set(sources)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_imports_have_no_cycles() -> None:
    assert not find_import_cycle(read_modules(sorted(ROOT.rglob("*.py"))))


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_follow_the_layers(path: Path) -> None:
    assert not list_violations(path, path.read_text("utf-8"))


def test_backends_import_no_other_backend() -> None:
    flow = ROOT / "training" / "flow"
    operators = [p for p in (ROOT / "ops").iterdir() if p.is_dir() and p.name != "__pycache__"]
    for operator in (*operators, flow / "layered", flow / "convex_loss"):
        found = {p.stem for p in operator.iterdir()} & {"reference", "cpu", "cuda", "dense", "triton"}
        for backend in found:
            files = [operator / f"{backend}.py", *(operator / backend).glob("*.py")]
            package = ".".join(("fullfield", *operator.relative_to(ROOT).parts))
            others = {f"{package}.{other}" for other in found - {backend}}
            for file in (f for f in files if f.exists()):
                tree = ast.parse(file.read_text("utf-8"))
                assert not others & {module for module, _, _ in list_imports(tree)}, f"{operator.name}/{file.name}"


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*_kernels.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_compiled_kernels_are_attributes_of_their_module(path: Path) -> None:
    """Callers look them up by the names in ``ENTRY_POINTS``."""
    module = importlib.import_module(next(iter(read_modules([path]))))
    assert [name for name in getattr(module, "ENTRY_POINTS", ()) if not hasattr(module, name)] == []


def test_packages_are_neither_empty_nor_named_utils() -> None:
    for folder in (p for p in ROOT.rglob("*") if p.is_dir() and p.name != "__pycache__"):
        if all(p.name == "__pycache__" for p in folder.iterdir()):  # left behind by a package of that name
            continue
        assert any(len(p.read_text("utf-8").splitlines()) > 1 for p in folder.rglob("*.py")), f"{folder} is empty"
    assert not [p for p in SOURCES if p.stem in ("utils", "helpers", "common", "misc")]


def test_test_files_have_unique_names() -> None:
    """Pytest imports test files by their file name because their folders are no packages."""
    names = [path.name for path in Path(__file__).parent.rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))


def test_files_are_below_600_lines() -> None:
    long = {str(p): n for p in SOURCES if (n := len(p.read_text("utf-8").splitlines())) > 600}
    assert not long
