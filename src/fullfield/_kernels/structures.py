"""Parameters of kernels as ctypes structures, read from their declarations in the CUDA sources."""

from __future__ import annotations

import ctypes
import keyword
import re
from typing import Any

_TYPES: dict[str, Any] = {
    "u8": ctypes.c_ubyte, "unsigned char": ctypes.c_ubyte, "u16": ctypes.c_ushort,
    "int": ctypes.c_int, "u32": ctypes.c_uint, "unsigned": ctypes.c_uint,
    "i64": ctypes.c_longlong, "long long": ctypes.c_longlong, "u64": ctypes.c_ulonglong,
    "float": ctypes.c_float, "double": ctypes.c_double,
}  # fmt: skip
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_NUMBER = re.compile(r"^[ \t]*#define (\w+) +(\d+)\s*$", re.MULTILINE)
_STRUCTURE = re.compile(r"\bstruct (\w+) \{([^{}]*)\};")
_FIRST = re.compile(r"(\w+(?: \w+)*?)([ *]+)(\w+)((?:\[[^]]+\])*)")
_NEXT = re.compile(r"()( *\**)(\w+)((?:\[[^]]+\])*)")


class CStructures:
    """Declarations of some sources: ``structures["GreyParams"]`` is a ctypes structure.

    Fields are numbers, pointers, other structures of these sources and arrays of them, whose lengths are integers or
    ``#define``d as integers. A field whose name is a keyword of Python gets a trailing ``_``.

    Args:
        text: the sources, one after the other.
        **known: types by name that are not declared in the sources, such as a template's.
    """

    def __init__(self, text: str, **known: Any) -> None:
        text = _COMMENT.sub("", text)
        self._numbers = dict(_NUMBER.findall(text))
        self._bodies: dict[str, list[str]] = {}
        for name, body in _STRUCTURE.findall(text):
            self._bodies.setdefault(name, []).append(body)
        self._created: dict[str, Any] = {**_TYPES, **known}

    def evaluate_integer_sum(self, expression: str) -> int:
        """Return the value of an integer, a name that is defined as one, or a sum of these."""
        return sum(int(self._numbers.get(term.strip(), term)) for term in expression.split("+"))

    def __getitem__(self, name: str) -> Any:
        """Return the ctypes structure called ``name``.

        Raises:
            ValueError: if it is not declared exactly once, or has a field that is not supported.
        """
        if name not in self._created:
            body = self._bodies.get(name, [])
            if len(body) != 1:
                raise ValueError(f"{name}: expected one declaration, got {len(body)}")
            fields = [field for line in body[0].split(";") if line.strip() for field in self._parse_fields(name, line)]
            self._created[name] = type(name, (ctypes.Structure,), {"__slots__": (), "_fields_": fields})
        return self._created[name]

    def _parse_fields(self, structure: str, line: str) -> list[tuple[str, Any]]:
        """Return the fields of a line such as ``type one, *two, three[4]``."""
        fields, kind = [], ""
        for number, words in enumerate(" ".join(line.replace("const", " ").split()).split(",")):
            match = (_NEXT if number else _FIRST).fullmatch(words)
            if match is None:
                raise ValueError(f"{structure}: cannot read the declaration {line.strip()!r}")
            kind = match[1] or kind
            field_type: Any = ctypes.c_void_p if "*" in match[2] else self[kind]
            for length in reversed(re.findall(r"\[([^]]+)\]", match[4])):
                field_type = field_type * self.evaluate_integer_sum(length)
            fields.append((match[3] + "_" * keyword.iskeyword(match[3]), field_type))
        return fields
