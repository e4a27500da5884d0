"""Parameters of kernels, read from the sources, against compilers that read them too."""

from __future__ import annotations

import contextlib
import ctypes
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import emulator
import pytest
from test_resources import needs_nvrtc

import fullfield
from fullfield._kernels import nvrtc
from fullfield._kernels.nvrtc import KernelSource
from fullfield._kernels.structures import CStructures
from fullfield.ops import _launching

ROOM = Path(fullfield.__file__).parent
TYPES = """
typedef unsigned char u8; typedef unsigned short u16; typedef unsigned u32; typedef unsigned long long u64;
typedef long long i64;
typedef struct { int x; } Work, Value, Learned, T, word, grad_t, src_t;
#ifdef __CUDACC_RTC__
#define OFFSET(structure, field) __INTADDR__(&((structure *)0)->field)
#else
#define OFFSET(structure, field) __builtin_offsetof(structure, field)
typedef struct { int x; } float2, int4, uint4, float4;
#endif
"""


def declarations() -> Iterator[tuple[str, dict[str, type[ctypes.Structure]]]]:
    """Yield the text of every source with what its folder shares, and those of its structures that launches fill."""
    for path in sorted(ROOM.rglob("*.cu*")):
        common = path.with_name("common.cuh")
        text = _launching.read_source(*dict.fromkeys(part for part in (common, path) if part.exists()))
        declared, found = CStructures(text), {}
        for name in re.findall(r"^struct (\w+) \{", text, re.MULTILINE):
            with contextlib.suppress(ValueError):  # a structure of the GPU's own types
                found[name] = declared[name]
        yield text, found


def source() -> str:
    """Every declaration in a namespace of its own, and what ctypes says of it as assertions."""
    parts = [TYPES]
    for number, (text, found) in enumerate(declarations()):
        parts += [f"namespace n{number} {{", *re.findall(r"^#define \w+ +\d+.*$", text, re.MULTILINE)]
        for name, body in re.findall(r"^struct (\w+) (\{.*?\};)", text, re.MULTILINE | re.DOTALL):
            if name not in found:
                continue
            parts += [
                f"struct {name} {body}",
                f'static_assert(sizeof({name}) == {ctypes.sizeof(found[name])}, "{name}");',
            ]
            for field, _ in found[name]._fields_:
                at = f"OFFSET({name}, {field.rstrip('_')}) == {getattr(found[name], field).offset}"
                parts.append(f'static_assert({at}, "{name}.{field}");')
        parts.append("}")
    return "\n".join(parts) + "\n"


def test_structures_cover_every_kernel() -> None:
    known = {name for _, found in declarations() for name in found}
    taken = set()
    for path in ROOM.rglob("*.cu"):
        kernels = re.findall(r"__global__ void [^{]*\{", path.read_text("utf-8"))
        taken |= {re.findall(r"\(const (?:__grid_constant__ )?(\w+) ", kernel)[0] for kernel in kernels}
    assert len(known) > 30
    assert taken - known == {"RadiusBatch", "TripletBatch"}, "those of batches.cuh"
    batch = _launching.build_batch_structure(
        CStructures(_launching.read_source(ROOM / "ops/neighbors/cuda/radius.cu"))["RadiusParams"]
    )
    assert ctypes.sizeof(batch) == 16 * 136 + 4 * 17 + 4


@pytest.mark.skipif(emulator.WHY_NOT is not None, reason=str(emulator.WHY_NOT))
def test_structures_match_host_compiler_layout() -> None:
    def complaints(text: str) -> str:
        command = [str(emulator.GXX), "-std=c++17", "-w", "-fsyntax-only", "-x", "c++", "-"]
        return subprocess.run(command, input=text, capture_output=True, text=True, check=False).stderr

    assert not complaints(source())
    wrong = source().replace("sizeof(GeluParams) == 16", "sizeof(GeluParams) == 12")
    assert "GeluParams" in complaints(wrong), "or nothing is compared"


@needs_nvrtc
def test_structures_match_gpu_compiler_layout() -> None:
    nvrtc.load_nvrtc().compile(KernelSource(source()), "sm_80")


def test_structures_parse_declarations() -> None:
    text = """
    #define MOST 3  // of something
    struct Inner { int one; const float *const *two; };
    struct Outer {
        Inner inner[2];             // with a ; in it
        unsigned char a, *b;        /* and
                                       another */
        const long long from[MOST + 1], n;
        unsigned flags[2][MOST];
        T item;
    };
    struct Odd { int (*call)(int); };
    struct Unknown { half value; };
    struct Twice { int a; };
    struct Twice { int b; };
    """
    declared = CStructures(text, T=ctypes.c_double)
    outer = declared["Outer"]
    assert declared["Outer"] is outer
    assert dict(outer._fields_)["inner"]._type_ is declared["Inner"]
    assert [name for name, _ in outer._fields_] == ["inner", "a", "b", "from_", "n", "flags", "item"]
    kinds = dict(outer._fields_)
    assert (kinds["a"], kinds["b"], kinds["item"]) == (ctypes.c_ubyte, ctypes.c_void_p, ctypes.c_double)
    assert ctypes.sizeof(kinds["from_"]) == 4 * 8
    assert (kinds["flags"]._length_, kinds["flags"]._type_._length_) == (2, 3)
    assert (declared.evaluate_integer_sum("MOST"), declared.evaluate_integer_sum("2 + MOST")) == (3, 5)
    for name, words in (
        ("Odd", r"Odd: cannot read the declaration 'int \(\*call\)\(int\)'"),
        ("Unknown", "half: expected one declaration, got 0"),
        ("Twice", "Twice: expected one declaration, got 2"),
    ):
        with pytest.raises(ValueError, match=words):
            declared[name]
