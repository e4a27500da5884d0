"""Comparison of two versions of source files: whether a change can alter what a program does or how long it takes.

Comments, docstrings, layout, messages of errors, help texts of options and consistent new names cannot. Everything else
counts as a change, also what happens to make none, such as a function that moved to another file.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

SUFFIXES = (".py", ".cu", ".cuh", ".safetensors")
"""Files that decide a result; pages in the same folders do not."""

Token = tuple[bool, str]
"""Whether the token is an identifier, and its text."""


@dataclass(frozen=True)
class Code:
    """A source file without what cannot alter results."""

    tokens: tuple[Token, ...]
    declared: frozenset[str]
    """Identifiers that the file itself declares, and so may rename."""
    parameters: tuple[tuple[str, ...], ...] = ()
    """Names of the parameters of each function."""
    imports: frozenset[tuple[str, str, str]] = frozenset()
    """Module, name and name here of everything that is imported."""


IsRenamed = Callable[[str, str, str], bool]
"""Whether a module of ours, by its name, has a thing called by the second name in place of the first.

Without a module: whether our whole package declares the second name in place of the first.
"""


def is_same_code(old: Mapping[str, bytes], new: Mapping[str, bytes], is_renamed: IsRenamed = lambda *_: False) -> bool:
    """Return whether two sets of files, by path, are the same code up to new names of their own identifiers.

    ``is_renamed`` judges names that modules outside of the sets declare.
    """
    changed = [path for path in old.keys() & new.keys() if old[path] != new[path]]
    if not changed and old.keys() == new.keys():
        return True
    # Most changes are more than new names: nothing else has to be parsed then.
    if not all(_has_same_shape(parse_code(path, old[path]), parse_code(path, new[path])) for path in changed):
        return False
    before = {path: parse_code(path, content) for path, content in old.items()}
    after = {path: parse_code(path, content) for path, content in new.items()}
    pairs = [(before.pop(path), after.pop(path)) for path in [*before] if path in after]
    moved = list(after.values())
    for code in before.values():  # files whose path changed
        match = next((other for other in moved if other.tokens == code.tokens), None)
        if match is None:
            return False
        moved.remove(match)
        pairs.append((code, match))
    return not moved and _is_renaming(pairs, is_renamed)


def _has_same_shape(old: Code, new: Code) -> bool:
    """Return whether two files differ in identifiers alone."""
    return len(old.tokens) == len(new.tokens) and all(
        is_name == is_other_name and (is_name or text == other)
        for (is_name, text), (is_other_name, other) in zip(old.tokens, new.tokens, strict=True)
    )


def _is_renaming(pairs: Iterable[tuple[Code, Code]], is_renamed: IsRenamed) -> bool:
    """Return whether one renaming of declared identifiers makes every first file its second one.

    An old name has to disappear from all files and a new one to be absent before. So no two names are exchanged, and
    no function of a library replaces another.
    """
    pairs = list(pairs)
    old_names = {text for code, _ in pairs for is_name, text in code.tokens if is_name}
    new_names = {text for _, code in pairs for is_name, text in code.tokens if is_name}
    old_declared = frozenset[str]().union(*(code.declared for code, _ in pairs))
    new_declared = frozenset[str]().union(*(code.declared for _, code in pairs))
    renamed: dict[str, str] = {}
    for old, new in pairs:
        if len(old.tokens) != len(new.tokens) or not _renames_parameters(old, new):
            return False
        for (is_name, text), (is_other_name, other) in zip(old.tokens, new.tokens, strict=True):
            if is_name != is_other_name:
                return False
            if text == other:
                continue
            if not is_name or text in new_names or other in old_names or renamed.get(text, other) != other:
                return False
            is_own = text in old_declared and other in new_declared
            if text not in renamed and not is_own and not is_renamed("", text, other):
                return False
            renamed[text] = other
    if len(set(renamed.values())) < len(renamed):
        return False
    return all(_imports_same(old, new, renamed, is_renamed) for old, new in pairs)


def _imports_same(old: Code, new: Code, renamed: Mapping[str, str], is_renamed: IsRenamed) -> bool:
    """Return whether two files import the same things, up to names that are new everywhere."""
    waiting = set(new.imports)
    for module, name, bound in old.imports:
        now = (module, name, bound)
        if now not in waiting:
            now = (module, renamed.get(name, name), renamed.get(bound, bound))
            if now not in waiting or not is_renamed(module, name, now[1]):
                return False
        waiting.remove(now)
    return not waiting


def _renames_parameters(old: Code, new: Code) -> bool:
    """Return whether no function gives the name of one parameter to another, which calls by name would notice."""
    for before, after in zip(old.parameters, new.parameters, strict=True):
        if before != after and set(before) & set(after) != {a for a, b in zip(before, after, strict=True) if a == b}:
            return False
    return True


@cache
def parse_code(path: str, content: bytes) -> Code:
    """Return the code of a file of one of the :data:`SUFFIXES`."""
    if path.endswith(".py"):
        return _parse_python(content.decode("utf-8"))
    if path.endswith((".cu", ".cuh")):
        return _parse_cuda(content.decode("utf-8"))
    return Code(((False, content.hex()),), frozenset())


# ---- Python


def _parse_python(text: str) -> Code:
    tree = _Essence().visit(ast.parse(text))
    functions = (node for node in ast.walk(tree) if isinstance(node, _FUNCTIONS) and not isinstance(node, ast.Lambda))
    parameters = tuple(tuple(_parameters(node)) for node in functions)
    imports = frozenset(_imported(ast.parse(text)))
    declared = {*_declared_names(tree), *(bound for module, _, bound in imports if module.startswith("fullfield"))}
    return Code(tuple(_emit(tree, {})), frozenset(declared), parameters, imports)


def _imported(tree: ast.AST) -> Iterator[tuple[str, str, str]]:
    """Yield what a module imports when it runs."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from ((alias.name, "", alias.asname or alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield from ((module, alias.name, alias.asname or alias.name) for alias in node.names)
        elif not _is_idle(node):
            waiting += ast.iter_child_nodes(node)


def top_level_names(content: bytes) -> set[str]:
    """Return the names that a module of Python gives, its imports among them."""
    tree = ast.parse(content)
    assigned = (each for node in tree.body for each in ast.walk(node) if isinstance(node, ast.Assign | ast.AnnAssign))
    stored = {each.id for each in assigned if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    return stored | defined | {bound for _, _, bound in _imported(tree)}


def declared_names(content: bytes) -> set[str]:
    """Return the names that a module of Python declares anywhere in it."""
    return set(_declared_names(ast.parse(content)))


class _Essence(ast.NodeTransformer):
    """Removal of docstrings, annotations, messages of errors, help texts, and imports."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Visit the children, then drop the statements that do nothing."""
        super().generic_visit(node)
        for field in ("body", "orelse", "finalbody"):
            if isinstance(statements := getattr(node, field, None), list):
                kept = [each for each in statements if not isinstance(each, ast.Import | ast.ImportFrom)]
                setattr(node, field, [each for each in kept if not _is_idle(each)])
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        """Drop the annotation."""
        node.annotation = _effective(node.annotation)
        return self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Drop the annotation of what is returned."""
        node.returns = None
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        """Drop the annotation."""
        node.annotation = _effective(node.annotation) or ast.Constant(None)
        return self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        """Drop the message."""
        if isinstance(node.exc, ast.Call):
            node.exc = node.exc.func
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Drop the words of checks and help texts.

        ``require(condition, words ...)``, ``check_tensor(tensor, word, ...)``, ``create_field(default, help, ...)``
        """
        checked = ast.unparse(node.func).split(".")[-1]
        if checked == "require":
            node.args, node.keywords = node.args[:1], []
        elif checked in ("check_tensor", "create_field"):
            del node.args[1:2]
        return self.generic_visit(node)

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        """Drop the message."""
        node.msg = None
        return self.generic_visit(node)


def _effective(annotation: ast.expr | None) -> ast.expr | None:
    """Return an annotation that a compiler or ``dataclass`` reads; None for any other."""
    if annotation is not None and re.search(r"constexpr|ClassVar|InitVar|KW_ONLY", ast.unparse(annotation)):
        return annotation
    return None


def _is_idle(node: ast.AST) -> bool:
    """Return whether a statement does nothing when the program runs."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    if isinstance(node, ast.If):
        return ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING") and not node.orelse
    return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"


_IDENTIFIERS = {
    (ast.Name, "id"),
    (ast.arg, "arg"),
    (ast.Attribute, "attr"),
    (ast.keyword, "arg"),
    (ast.FunctionDef, "name"),
    (ast.ClassDef, "name"),
}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def _emit(node: ast.AST, local_names: dict[str, str]) -> Iterator[Token]:
    """Yield the tokens of a tree; local variables get the order of their first appearance as names."""
    yield False, type(node).__name__
    inner = local_names
    if isinstance(node, _FUNCTIONS):
        own = dict.fromkeys([*_parameters(node), *_local_variables(node)])
        depth = len(local_names)
        inner = {**local_names, **{name: f"local {depth} {index}" for index, name in enumerate(own)}}
    for field, value in ast.iter_fields(node):
        if field in ("ctx", "type_comment", "kind"):
            continue
        values = value if isinstance(value, list) else [value]
        yield False, f"{field} {len(values)}"
        is_identifier = (type(node), field) in _IDENTIFIERS
        for each in values:
            if isinstance(each, ast.AST):
                yield from _emit(each, inner)
            elif is_identifier and each in local_names and not isinstance(node, ast.Attribute | ast.keyword):
                yield False, local_names[each]
            elif is_identifier and each is not None:
                yield True, each
            else:
                yield False, repr(each)


def _parameters(function: ast.AST) -> list[str]:
    arguments = function.args  # type: ignore[attr-defined]
    several = [arguments.vararg, arguments.kwarg]
    listed = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *(each for each in several if each)]
    return [each.arg for each in listed]


def _local_variables(function: ast.AST) -> list[str]:
    """Return the variables that a function itself assigns, in their order."""
    names: list[str] = []
    shared: set[str] = set()
    waiting = list(ast.iter_child_nodes(function))
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.append(node.id)
        elif isinstance(node, ast.FunctionDef):
            names.append(node.name)
        elif isinstance(node, ast.Global | ast.Nonlocal):
            shared |= set(node.names)
        if not isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            waiting[:0] = ast.iter_child_nodes(node)
    return [name for name in dict.fromkeys(names) if name not in shared]


def _declared_names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            yield node.attr


# ---- CUDA

_CUDA = re.compile(
    r"//[^\n]*|/\*.*?\*/|(?P<string>\"(?:\\.|[^\"\\])*\")|(?P<letter>'(?:\\.|[^'\\])+')|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<number>\.?\d(?:[\w.']|(?<=[eEpP])[+-])*)|(?P<line>\n)|(?P<mark>[^\s\w])",
    re.DOTALL,
)
# fmt: off
_BUILT_IN = {
    "alignas", "alignof", "asm", "auto", "bool", "break", "case", "catch", "char", "class", "const",
    "constexpr", "continue", "default", "define", "defined", "decltype", "delete", "do", "double", "elif",
    "else", "endif", "enum", "error", "extern", "false", "float", "for", "friend", "goto", "if", "ifdef",
    "ifndef", "include", "inline", "int", "long", "mutable", "namespace", "new", "noexcept", "nullptr",
    "operator", "pragma", "private", "protected", "public", "register", "return", "short", "signed", "sizeof",
    "static", "static_assert", "struct", "switch", "template", "this", "throw", "true", "try", "typedef",
    "typename", "undef", "union", "unroll", "unsigned", "using", "virtual", "void", "volatile", "while",
}
# fmt: on
_TYPES = ("auto", "bool", "char", "double", "float", "int", "long", "short", "unsigned", "void")


def _parse_cuda(text: str) -> Code:
    tokens: list[Token] = []
    is_directive: list[bool] = []
    inside, starts_line = False, True
    for match in _CUDA.finditer(text.replace("\\\n", " ")):
        kind = match.lastgroup
        if kind is None:  # a comment
            continue
        if kind == "line":
            if inside:
                tokens.append((False, "\n"))
                is_directive.append(True)
            inside, starts_line = False, True
            continue
        inside = inside or (match[0] == "#" and starts_line)
        starts_line = False
        tokens.append((kind == "name" and match[0] not in _BUILT_IN, match[0]))
        is_directive.append(inside)
    return _number_locals(tokens, is_directive)


def _is_declared(tokens: list[Token], index: int) -> bool:
    """Return whether the identifier at ``index`` follows a type, as in a declaration."""
    is_name, _ = tokens[index]
    if not is_name or not 0 < index < len(tokens) - 1 or tokens[index + 1][1] not in "=;,)[({:":
        return False
    is_type, before = tokens[index - 1]
    if before in "*&" and index > 1:
        return tokens[index - 2][1] in _TYPES
    return before in _TYPES or before == "__restrict__" or (is_type and not before.startswith("__"))


def _number_locals(tokens: list[Token], is_directive: list[bool]) -> Code:
    """Return the code whose functions' own variables have the order of their first appearance as names."""
    functions = list(_functions(tokens, is_directive))
    local_spans = [False] * len(tokens)
    for start, body, end in functions:
        depth = 0
        for index in range(start, end):
            text = tokens[index][1]
            depth += (text in "(<" and index < body) - (text in ")>" and index < body)
            local_spans[index] = not is_directive[index] and (index >= body or depth > 0)
    declared = {index for index in range(len(tokens)) if _is_declared(tokens, index)}
    shared = {tokens[index][1] for index in declared if not local_spans[index]}
    shared |= {text for index, (is_name, text) in enumerate(tokens) if is_name and is_directive[index]}
    result = list(tokens)
    for start, _, end in functions:
        own = dict.fromkeys(tokens[index][1] for index in range(start, end) if index in declared and local_spans[index])
        numbers = {name: f"local {index}" for index, name in enumerate(name for name in own if name not in shared)}
        for index in range(start, end):
            is_name, text = tokens[index]
            before = "".join(each for _, each in tokens[max(index - 2, 0) : index])
            is_member = before.endswith((".", "->", "::"))
            if is_name and text in numbers and not is_member:
                result[index] = (False, numbers[text])
    followed = list(pairwise(tokens))
    declared_names = {tokens[index][1] for index in declared}
    declared_names |= {name for (_, text), (_, name) in followed if text in ("define", "struct", "class", "enum")}
    set_from_outside = {name for (_, text), (_, name) in followed if text in ("ifdef", "ifndef", "defined")}
    return Code(tuple(result), frozenset(declared_names - set_from_outside))


def _functions(tokens: list[Token], is_directive: list[bool]) -> Iterator[tuple[int, int, int]]:
    """Yield for each function outside classes where its declaration, its body and what follows begin."""
    start, index = 0, 0
    while index < len(tokens):
        text = tokens[index][1]
        if is_directive[index] or text in (";", "}"):
            start = index + 1
        elif text == "{":
            head = [each for _, each in tokens[start:index]]
            if "namespace" in head or (head[:1] == ["extern"] and len(head) == 2):
                start = index + 1
            else:
                end = _closing(tokens, index)
                if head and head[-1] == ")" and "=" not in head:
                    yield start, index, end
                start, index = end, end - 1
        index += 1


def _closing(tokens: list[Token], opening: int) -> int:
    """Return the index behind the brace that closes the one at ``opening``."""
    depth = 0
    for index in range(opening, len(tokens)):
        depth += (tokens[index][1] == "{") - (tokens[index][1] == "}")
        if depth == 0:
            return index + 1
    return len(tokens)
