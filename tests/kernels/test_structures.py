"""Parameters of kernels, read from the sources, against compilers that read them too."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path

import emulator
import pytest
from test_nvrtc import needs_nvrtc

import fullfield
from fullfield._kernels import nvrtc
from fullfield._kernels.nvrtc import Source
from fullfield._kernels.structures import Structures
from fullfield.ops import launching

ROOM = Path(fullfield.__file__).parent
# Structures that launches fill, by the sources that declare them; bytes as the GPU's compiler counts them.
SIZES = {
    "ops/fused/passes.cu": {
        "CellsParams": 128, "AffineParams": 72, "MomentsParams": 64, "PackParams": 128, "PatchesParams": 40,
        "GateParams": 144, "StepParams": 48, "GeluParams": 16,
    },
    "ops/fused/depthwise.cu": {"DepthwiseParams": 48},
    "ops/fused/convex.cu": {"ConvexParams": 152},
    "ops/fused/convex_gradients.cu": {"ConvexGradientParams": 96},
    "ops/tvl1/cuda/pyramid.cu": {"GreyParams": 160, "ResampleParams": 160},
    "ops/tvl1/cuda/warp.cu": {"WarpParams": 96},
    "ops/tvl1/cuda/median.cu": {"MedianParams": 88},
    "ops/tvl1/cuda/fused_warp.cu": {"FusedParams": 176},
    "ops/tvl1/cuda/iterate_registers.cu": {"IterateParams": 104},
    "ops/tvl1/cuda/guided.cu": {"GuidedInputs": 48, "GuidedParams": 296},
    "ops/correlation/cuda/common.cuh ops/correlation/cuda/gradients.cuh": {
        "Params": 320, "GradientParams": 560,
    },
    "ops/correlation/cuda/common.cuh ops/correlation/cuda/coords_gradient.cu": {"CoordsParams": 368},
    "ops/correlation/cuda/common.cuh ops/correlation/cuda/prepare.cu": {"Source": 48, "PrepareParams": 296},
    "ops/point_conv/cuda/common.cuh ops/point_conv/cuda/multiply.cuh": {
        "Triplets": 40, "MagnitudeParams": 24, "PackParams": 64, "MultiplyParams": 128,
    },
    "ops/point_conv/cuda/common.cuh ops/point_conv/cuda/outer.cuh": {"OuterParams": 128, "SharesParams": 56},
    "ops/point_conv/cuda/pooling.cu": {"PoolParams": 56},
    "ops/point_conv/cuda/triplets.cu": {"TripletParams": 136},
    "ops/neighbors/cuda/radius.cu": {"RadiusParams": 136},
    "ops/neighbors/cuda/knn.cu": {"TreeParams": 256},
    "ops/neighbors/cuda/thin.cu": {"ThinParams": 120},
    "ops/point_norm/norm.cu": {"NormParams": 952},
    "ops/convex_loss/loss.cu": {"LossParams": 120},
    "ops/matching/positions.cu": {"PositionParams": 96},
    "ops/layered/render.cu": {"LayeredParams": 176},
    "ops/spatial_correlation/cuda/common.cuh ops/spatial_correlation/cuda/forward.cu": {
        "Axis": 36, "ForwardParams": 112,
    },
    "ops/spatial_correlation/cuda/common.cuh ops/spatial_correlation/cuda/forward_half.cu": {
        "Axis": 36, "ForwardParams": 112,
    },
    "ops/spatial_correlation/cuda/common.cuh ops/spatial_correlation/cuda/backward.cu": {
        "Axis": 36, "BackwardParams": 112,
    },
}  # fmt: skip
TYPES = """
typedef unsigned char u8; typedef unsigned short u16; typedef unsigned u32; typedef unsigned long long u64;
typedef long long i64;
typedef struct { int x; } Work, Value, Learned, T, word, grad_t, src_t;
#ifdef __CUDACC_RTC__
#define OFFSET(structure, field) __INTADDR__(&((structure *)0)->field)
#else
#define OFFSET(structure, field) __builtin_offsetof(structure, field)
typedef struct { int x; } int4, uint4, float4;
#endif
"""


def text_of(files: str) -> str:
    return launching.read_source(*(ROOM / file for file in files.split()))


def source() -> str:
    """Every declaration in a namespace of its own, and what ctypes says of it as assertions."""
    parts = [TYPES]
    for number, (files, sizes) in enumerate(SIZES.items()):
        text, declared = text_of(files), Structures(text_of(files))
        parts += [f"namespace n{number} {{", *re.findall(r"^#define \w+ +\d+.*$", text, re.MULTILINE)]
        wanted = {
            *sizes,
            *(["Targets"] if "Targets {" in text else []),
            *(["Params"] if "Params p;" in text else []),
        }
        for name, body in re.findall(r"^struct (\w+) (\{.*?\};)", text, re.MULTILINE | re.DOTALL):
            if name in {*wanted, "Triplets"}:
                parts.append(f"struct {name} {body}")
        for name in sizes:
            made = declared[name]
            parts.append(f'static_assert(sizeof({name}) == {ctypes.sizeof(made)}, "{name}");')
            for field, _ in made._fields_:
                at = f"OFFSET({name}, {field.rstrip('_')}) == {getattr(made, field).offset}"
                parts.append(f'static_assert({at}, "{name}.{field}");')
        parts.append("}")
    return "\n".join(parts) + "\n"


def test_every_structure_has_the_size_that_was_seen_on_a_gpu() -> None:
    for files, sizes in SIZES.items():
        declared = Structures(text_of(files))
        assert {name: ctypes.sizeof(declared[name]) for name in sizes} == sizes
    batch = launching.batch(Structures(text_of("ops/neighbors/cuda/radius.cu"))["RadiusParams"])
    assert ctypes.sizeof(batch) == 16 * 136 + 4 * 17 + 4


def test_every_kernels_structure_is_looked_at() -> None:
    found = set()
    for path in ROOM.rglob("*.cu"):
        kernels = re.findall(r"__global__ void [^{]*\{", path.read_text("utf-8"))
        found |= {re.findall(r"\(const (?:__grid_constant__ )?(\w+) ", kernel)[0] for kernel in kernels}
    known = {name for sizes in SIZES.values() for name in sizes}
    assert found - known == {"RadiusBatch", "TripletBatch"}, "those of batches.cuh"


@pytest.mark.skipif(emulator.WHY_NOT is not None, reason=str(emulator.WHY_NOT))
def test_the_hosts_compiler_lays_them_out_alike() -> None:
    def complaints(text: str) -> str:
        command = [str(emulator.GXX), "-std=c++17", "-fsyntax-only", "-x", "c++", "-"]
        return subprocess.run(command, input=text, capture_output=True, text=True, check=False).stderr

    assert not complaints(source())
    wrong = source().replace("sizeof(GeluParams) == 16", "sizeof(GeluParams) == 12")
    assert "GeluParams" in complaints(wrong), "or nothing is compared"


@needs_nvrtc
def test_the_gpus_compiler_lays_them_out_alike() -> None:
    nvrtc.nvrtc().compile(Source(source()), "sm_80")


def test_declarations() -> None:
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
    declared = Structures(text, T=ctypes.c_double)
    outer = declared["Outer"]
    assert declared["Outer"] is outer
    assert dict(outer._fields_)["inner"]._type_ is declared["Inner"]
    assert [name for name, _ in outer._fields_] == ["inner", "a", "b", "from_", "n", "flags", "item"]
    kinds = dict(outer._fields_)
    assert (kinds["a"], kinds["b"], kinds["item"]) == (ctypes.c_ubyte, ctypes.c_void_p, ctypes.c_double)
    assert ctypes.sizeof(kinds["from_"]) == 4 * 8
    assert (kinds["flags"]._length_, kinds["flags"]._type_._length_) == (2, 3)
    assert (declared.number("MOST"), declared.number("2 + MOST")) == (3, 5)
    for name, words in (
        ("Odd", r"Odd: cannot read the declaration 'int \(\*call\)\(int\)'"),
        ("Unknown", "half: expected one declaration, got 0"),
        ("Twice", "Twice: expected one declaration, got 2"),
    ):
        with pytest.raises(ValueError, match=words):
            declared[name]
