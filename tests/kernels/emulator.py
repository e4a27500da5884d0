"""Runs the project's CUDA kernels on a CPU: a machine without a GPU can tell whether they compute the right thing.

g++ compiles the kernels' own sources, with the macros that NVRTC gets, against ``cuda_on_cpu.hpp``. Inline PTX becomes
calls of functions that do what the instruction is documented to do; one that is not known is an error. The launchers
run as they are: they pack their structures, which the kernels then read. Memory that nobody wrote is NaN, and writing
beside an array that was allocated here is found.

What this cannot tell: races that need two warps at the same time (threads take turns where they wait, in two opposite
orders), the memory model, what tensor cores lose by truncating, that wgmma and bulk copies take their time, Hopper's
tensor copy, resources, reading beside an array further than its poisoned margin, and speed.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from kept import kept
from torch import Tensor

from fullfield._kernels.nvrtc import KernelSource
from fullfield.ops import _launching
from fullfield.ops._launching import GpuProperties

HEADER = Path(__file__).with_name("cuda_on_cpu.hpp")
MACHINE = Path(__file__).with_name("cuda_machine.cpp")
GXX = shutil.which("g++") if sys.platform == "linux" else None
WHY_NOT = None if GXX else "g++ on Linux, which compiles the kernels for this machine, is absent"
TURING = GpuProperties(0, "emulated", "sm_75", 3, 64 << 10)
AMPERE = GpuProperties(0, "emulated", "sm_80", 3, 163 << 10)
HOPPER = GpuProperties(0, "emulated", "sm_90a", 3, 227 << 10)
# Products are vectors of eight. Not -mfma: sums would be rounded otherwise.
_CPU = Path("/proc/cpuinfo")
_WIDE = ("-mavx2",) if GXX and _CPU.exists() and " avx2 " in _CPU.read_text("utf-8") else ()
# -Og compiles in half of the time of -O1; what runs long is in the machine, which is compiled once.
_FLAGS = ("-std=c++17", "-fPIC", "-shared", "-w", "-fno-strict-aliasing", "-fvisibility=hidden", *_WIDE)
FLAGS = ("-Og", *_FLAGS)

_MMA = "mma.sync.aligned.m16n8k16.row.col.f32.{0}.{0}.f32 {{%0,%1,%2,%3}}, {{%4,%5,%6,%7}}, {{%8,%9}}, {{%0,%1,%2,%3}};"
_MMA8 = "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
_STORE_IF = "{{\n.reg .pred p;\nsetp.ne.u32 p, %2, 0;\n@p st.global.cs.{0} [%0], %1;\n}}"
_MATRICES = "ldmatrix.sync.aligned.m8n8.{} {{%0, %1, %2, %3}}, [%4];"
_GATHER = "{{\n.reg .pred p;\nsetp.ne.u32 p, %5, 0;\n@p ld.global.nc.{0}v4.u32 {{%0, %1, %2, %3}}, [%4];\n}}"
_WAIT = "{{\n.reg .pred p;\nmbarrier.{}_wait.parity.shared.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}}"
_ASYNC = "st.async.shared::cluster.mbarrier::complete_tx::bytes{} [%0], {}, [{}];"
_POLICY = "createpolicy.fractional.L2::{}.b64 %0, 1.0;"
PTX = {
    "": "ptx_nothing",
    "mov.u32 %0, %%laneid;": "ptx_laneid",
    "cvt.rn.f16.f32 %0, %1;": "ptx_to_f16",
    "cvt.f32.f16 %0, %1;": "ptx_from_f16",
    "cvt.rn.bf16.f32 %0, %1;": "ptx_to_bf16",
    "cvt.rn.f16x2.f32 %0, %1, %2;": "ptx_pair_f16",
    "cvt.rn.bf16x2.f32 %0, %1, %2;": "ptx_pair_bf16",
    "st.global.cs.f32 [%0], %1;": "ptx_store",
    "st.global.cs.u16 [%0], %1;": "ptx_store",
    _STORE_IF.format("f32"): "ptx_store_if",
    _STORE_IF.format("f32").replace("cs.f32", "b32"): "ptx_store_if",
    "{\n.reg .pred p;\nsetp.ne.u32 p, %3, 0;\n@p st.global.v2.b32 [%0], {%1, %2};\n}": "ptx_store8_if",
    _STORE_IF.format("u16"): "ptx_store_if",
    _MMA.format("f16"): "ptx_mma_f16",
    _MMA.format("bf16"): "ptx_mma_bf16",
    _POLICY.format("evict_first"): "ptx_policy",
    _POLICY.format("evict_normal"): "ptx_policy",
    "ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;": "ptx_load4",
    _GATHER.format(""): "ptx_gather",
    _GATHER.format("L1::no_allocate."): "ptx_gather",
    "prefetch.global.L1 [%0];": "ptx_nothing",
    _MMA8: "ptx_mma8_f16",
    "cp.async.cg.shared.global [%0], [%1], 16, %2;": "ptx_copy16",
    "cp.async.cg.shared.global [%0], [%1], 16;": "ptx_copy16",
    "{\n.reg .pred p;\nsetp.lt.s32 p, %2, 0;\ncp.async.ca.shared.global [%0], [%1], 16, p;\n}": "ptx_copy16_of",
    "cp.async.ca.shared.global [%0], [%1], 4, %2;": "ptx_copy4",
    "cp.async.ca.shared.global [%0], [%1], 8, %2;": "ptx_copy8",
    "cp.async.wait_group %0;": "ptx_wait_for",
    "cp.async.commit_group;\ncp.async.wait_group 0;": "ptx_copies",
    "cp.async.wait_all;": "ptx_copies",
    "cp.async.commit_group;": "ptx_commit",
    "ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];": "ptx_matrices2",
    _MATRICES.format("x4.shared.b16"): "ptx_matrices4",
    _MATRICES.format("x4.trans.shared.b16"): "ptx_matrices4_transposed",
    "ld.shared.v2.f32 {%0, %1}, [%2];": "ptx_shared_load2",
    "st.shared.b32 [%0], %1;": "ptx_shared_store",
    "st.shared.v2.b32 [%0], {%1, %2};": "ptx_shared_store",
    "st.shared.v4.b32 [%0], {%1, %2, %3, %4};": "ptx_shared_store",
    "sqrt.approx.ftz.f32 %0, %1;": "ptx_root",
    "rcp.approx.ftz.f32 %0, %1;": "ptx_reciprocal",
    "rsqrt.approx.ftz.f32 %0, %1;": "ptx_reciprocal_root",
    "mul.sat.f32 %0, %1, %2;": "ptx_mul_to_one",
    "add.f16x2 %0, %1, %2;": "ptx_add_halves",
    "add.rn.bf16x2 %0, %1, %2;": "ptx_add_bf16",
    "sub.f16x2 %0, %1, %2;": "ptx_sub_halves",
    "mul.f16x2 %0, %1, %2;": "ptx_mul_halves",
    "mul.sat.f16x2 %0, %1, %2;": "ptx_mul_halves_to_one",
    "min.f16x2 %0, %1, %2;": "ptx_min_halves",
    "max.f16x2 %0, %1, %2;": "ptx_max_halves",
    "neg.f16x2 %0, %1;": "ptx_neg_halves",
    "abs.f16x2 %0, %1;": "ptx_abs_halves",
    "fma.rn.f16x2 %0, %1, %2, %3;": "ptx_fma_halves",
    "fma.rn.sat.f16x2 %0, %1, %2, %3;": "ptx_fma_halves_to_one",
    "bar.sync %0, 128;": "ptx_meet_at",
    "mapa.shared::cluster.u32 %0, %1, %2;": "ptx_in_part",
    "st.shared::cluster.f32 [%0], %1;": "ptx_give",
    "st.shared::cluster.v2.f32 [%0], {%1, %2};": "ptx_give",
    "st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};": "ptx_give",
    _ASYNC.format(".f32", "%1", "%2"): "ptx_send",
    _ASYNC.format(".v2.f32", "{%1, %2}", "%3"): "ptx_send",
    _ASYNC.format(".v4.f32", "{%1, %2, %3, %4}", "%5"): "ptx_send",
    "barrier.cluster.arrive.release.aligned;": "ptx_cluster_arrive",
    "barrier.cluster.wait.acquire.aligned;": "ptx_cluster_wait",
    "and.b32 %0, %1, %2;": "ptx_kept_if",
    "{\n.reg .pred p;\nsetp.ne.u32 p, %2, 0;\n@p ld.global.nc.u32 %0, [%1];\n}": "ptx_word",
    "{\n.reg .pred p;\nsetp.ne.u32 p, %2, 0;\n@p ld.global.nc.u8 %0, [%1];\n}": "ptx_byte",
    "atom.shared.inc.u32 %0, [%1], %2;": "ptx_count_up",
    "mbarrier.init.shared.b64 [%0], %1;": "ptx_barrier_init",
    "fence.mbarrier_init.release.cluster;": "ptx_nothing",
    "mbarrier.arrive.shared.b64 _, [%0];": "ptx_barrier_arrive",
    "mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;": "ptx_barrier_expect",
    _WAIT.format("try"): "ptx_barrier_try",
    _WAIT.format("test"): "ptx_barrier_try",
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];": "ptx_copy_bulk",
    "wgmma.fence.sync.aligned;": "ptx_nothing",
    "wgmma.commit_group.sync.aligned;": "ptx_nothing",
    "wgmma.wait_group.sync.aligned 0;": "ptx_nothing",
    "fence.proxy.async.shared::cta;": "ptx_nothing",
    "griddepcontrol.launch_dependents;": "ptx_nothing",
    "griddepcontrol.wait;": "ptx_nothing",
    "setmaxnreg.dec.sync.aligned.u32 24;": "ptx_nothing",
    "setmaxnreg.dec.sync.aligned.u32 %0;": "ptx_nothing",
    "setmaxnreg.inc.sync.aligned.u32 %0;": "ptx_nothing",
}
_WGMMA_SHARED = re.compile(
    r"\{\n\.reg \.b64 x, y;\nmov\.b64 x, \{%\d+, 0x40000040\};\nmov\.b64 y, \{%\d+, 0x40000040\};\n"
    r"wgmma\.mma_async\.sync\.aligned\.m64n\d+k16\.f32\.(bf16|f16)\.\1 \{[%\d, ]*\}, x, y, 1, 1, 1, 1, 1;\n\}"
)
_WGMMA = re.compile(
    r"\{\n\.reg \.pred p;\n\.reg \.b64 at;\nsetp\.ne\.b32 p, %\d+, 0;\nmov\.b64 at, \{%\d+, 0x8\};\n"
    r"wgmma\.mma_async\.sync\.aligned\.m64n\d+k16\.f32\.(bf16|f16)\.\1 \{[%\d, ]*\}, \{[%\d, ]*\}, at, p, 1, 1, 0;\n\}"
)

_KERNEL = re.compile(
    r'extern "C" __global__ void (?:__launch_bounds__\(((?:[^(){]|\([^(){]*\))*)\) )?'
    r"(?:__cluster_dims__\((\d), 1, 1\) )?(\w+)"
    r"\(const (?:__grid_constant__ )?(\w+) \w+\)"
)
_DYNAMIC = re.compile(r"extern __shared__ (?:__align__\(\d+\) )?(\w+) (\w+)\[\];")
# Rows of blocks, which run one after the other, and what kernels of such grids call. Not in the header, of which every
# other kernel would be compiled anew.
_ROWS = """
CUDA_EXPORT unsigned cuda_row = 0;
template <class Value> static inline Value __ldg(const Value *at) { return *at; }
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float __fdividef(float a, float b) { return a / b; }
static inline float erff(float x) { return __builtin_erff(x); }
static inline double sqrt(double x) { return __builtin_sqrt(x); }
"""
# Polling of memory that another block writes.
_POLL = re.compile(r"(while \((?:\*\w+ != [\w.]+|\(\*\w+ >> 5 & 1\) == \w+)\) \{)\s*\}")


class Emulated(RuntimeError):
    """A kernel did what no GPU defines the result of, or the emulator does not know it."""


# ---- translation


def _closing(text: str, start: int) -> int:
    """Where the parenthesis that opens at ``start`` closes."""
    depth, quoted, at = 0, False, start
    while True:
        letter = text[at]
        if quoted:
            at += letter == "\\"
            quoted = letter != '"'
        elif letter == '"':
            quoted = True
        elif letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
            if depth == 0:
                return at
        at += 1


def _split(text: str, separator: str) -> list[str]:
    """At separators outside of parentheses and strings."""
    pieces, begin, at = [], 0, 0
    while at < len(text):
        if text[at] in "([{":
            at = _closing(text, at)
        elif text[at] == '"':
            at += 1
            while text[at] != '"':
                at += 1 + (text[at] == "\\")
        elif text[at] == separator:
            pieces.append(text[begin:at])
            begin = at + 1
        at += 1
    return [*pieces, text[begin:]]


def _call(statement: str) -> str:
    """What takes the place of ``asm(statement)``."""
    template, *operands = _split(statement, ":")
    literals = re.findall(r'"((?:[^"\\]|\\.)*)"', template)
    words = "".join(literals).replace("\\n", "\n")
    function = PTX.get(words)
    for pattern, name in ((_WGMMA, "ptx_wgmma"), (_WGMMA_SHARED, "ptx_wgmma_shared")):
        if actual := pattern.fullmatch(words):
            function = f"{name}<{str(actual[1] == 'bf16').lower()}>"
    if function is None:
        raise Emulated(f"the emulator does not know the PTX {words!r}")
    inputs = []
    for group in operands[:2]:
        for operand in _split(group, ","):
            if operand.strip():
                opening = operand.index("(", operand.rindex('"', 0, operand.index("(")))
                inputs.append(operand[opening + 1 : _closing(operand, opening)])
    return f"{function}({', '.join(inputs)})"


def translated(text: str) -> str:
    """Preprocessed CUDA source as C++ for ``cuda_on_cpu.hpp``."""
    replaced_text, at = [], 0
    for actual in re.finditer(r"\basm\s*(?:volatile\s*)?(?=\()", text):
        end = _closing(text, actual.end())
        replaced_text += [text[at : actual.start()], _call(text[actual.end() + 1 : end])]
        at = end + 1
    text = "".join([*replaced_text, text[at:]])
    text = _DYNAMIC.sub(r"\1 *\2 = (\1 *)cuda::self->block->shared;", text)
    text = _POLL.sub(r"\1 SPIN; }", text)
    loops = [_closing(text, actual.end() - 1) for actual in re.finditer(r"\bwhile \(", text)]
    if any(re.match(r"\s*(?:\{\s*\}|;)", text[end + 1 :]) for end in loops):
        raise Emulated("the emulator does not know what a kernel waits for in a loop without a body")
    entries = [
        f'{{"{name}", sizeof({parameters}), ({(bounds or "1024").split(",")[0]}), {cluster or 1}, '
        f"[](const void *p) {{ {name}(*(const {parameters} *)p); }}}}"
        for bounds, cluster, name, parameters in _KERNEL.findall(text)
    ]
    if not entries or text.count("__global__") != len(entries):
        raise Emulated("the emulator does not understand how a kernel is declared")
    table = f"const cuda::Entry cuda_entries[] = {{\n{', '.join(entries)}}};\n"
    if "blockIdx.y" in text:
        text = _ROWS + text.replace("blockIdx.y", "cuda_row")
    return f'#include "{HEADER.name}"\n{text}\n{table}const int cuda_entry_count = {len(entries)};\n'


# ---- running


class Kernel:
    """Takes the place of ``nvrtc.Kernel``."""

    def __init__(self, emulator: Emulator, library: ctypes.CDLL, index: int, name: str) -> None:
        self._emulator, self._library, self._index, self.name = emulator, library, index, name
        self.parameters: int = library.cuda_parameters(index)
        """Bytes of the structure that it takes."""
        self._allowed = 48 << 10
        self._row = ctypes.c_uint.in_dll(library, "cuda_row") if hasattr(library, "cuda_row") else None

    def raise_shared_memory_limit(self, _device: int, size: int) -> None:
        self._allowed = max(self._allowed, size)

    def launch(
        self,
        grid: tuple[int, int],
        threads: int,
        shared: int,
        _device: int,
        _stream: int,
        arguments: ctypes.Array[ctypes.c_void_p],
        _early: bool = False,
    ) -> None:
        if shared > min(self._allowed, self._emulator.shared):
            raise Emulated(f"{self.name}: {shared} bytes of shared memory, allowed {self._allowed}")
        if grid[1] > 1 and self._row is None:
            raise Emulated(f"{self.name}: does not look at blockIdx.y")
        emulator = self._emulator
        emulator.launched[self.name] = emulator.launched.get(self.name, 0) + 1
        for row in range(grid[1]):
            if self._row is not None:
                self._row.value = row
            wrong = self._library.cuda_launch(
                self._index, grid[0], threads, shared, arguments, emulator.schedule, emulator.resident
            )
            if wrong:
                raise Emulated(f"{self.name}: {wrong.decode()}")


def _gxx(arguments: list[str], text: str) -> str:
    if GXX is None:
        raise Emulated(str(WHY_NOT))
    process = subprocess.run([GXX, *arguments], input=text, capture_output=True, text=True, check=False)
    if process.returncode:
        raise Emulated(f"g++ cannot compile a kernel: {process.stderr[:2000]}")
    return process.stdout


@functools.cache
def _version() -> tuple[str, str]:
    """Of the compiler and of the header."""
    return _gxx(["--version"], ""), HEADER.read_text("utf-8")


@functools.cache
def _machine() -> ctypes.CDLL:
    """What the kernels' libraries find their functions in."""
    arguments = ["-O2", *_FLAGS, str(MACHINE), "-o"]
    place = kept((_version(), arguments, MACHINE.read_text("utf-8")), lambda place: _gxx([*arguments, str(place)], ""))
    return ctypes.CDLL(str(place), mode=ctypes.RTLD_GLOBAL)


class Emulator:
    """Takes the place of ``nvrtc.LibraryCache``.

    ``schedule``: bit 0: the last threads first; bit 1: asynchronous copies as late as possible; bit 2: the last blocks
    first, where there are no clusters. ``resident``: blocks
    that take turns, at most 8, for kernels without static shared memory. ``flags``: of g++.
    """

    def __init__(self, shared: int, schedule: int = 0, resident: int = 4, flags: tuple[str, ...] = FLAGS) -> None:
        self.shared, self.schedule, self.resident = shared, schedule, resident
        self.flags = flags
        self.launched: dict[str, int] = {}
        self._loaded: dict[KernelSource, dict[str, Kernel]] = {}

    def load(self, sources: Sequence[KernelSource], arch: str, _device: int) -> list[dict[str, Kernel]]:
        number = "".join(filter(str.isdecimal, arch))
        sources = [source._replace(options=(*source.options, f"-D__CUDA_ARCH__={number}0")) for source in sources]
        missing = [source for source in dict.fromkeys(sources) if source not in self._loaded]
        with ThreadPoolExecutor(2) as pool:
            for source, place in zip(missing, pool.map(self._compiled, missing), strict=True):
                self._loaded[source] = self._open(place)
        return [self._loaded[source] for source in sources]

    @property
    def loaded(self) -> list[dict[str, Kernel]]:
        return [*self._loaded.values()]

    def _compiled(self, source: KernelSource) -> Path:
        preprocessed = _gxx(["-E", "-P", "-x", "c++", "-std=c++17", *source.options, "-"], source.text)
        text = translated(preprocessed)
        arguments = [*self.flags, f"-I{HEADER.parent}", "-x", "c++", "-", "-o"]
        return kept((_version(), self.flags, text), lambda place: _gxx([*arguments, str(place)], text))

    def _open(self, place: Path) -> dict[str, Kernel]:
        _machine()
        library = ctypes.CDLL(str(place))
        library.cuda_launch.restype = ctypes.c_char_p
        library.cuda_launch.argtypes = [ctypes.c_int] * 4 + [ctypes.c_void_p] + [ctypes.c_int] * 2
        library.cuda_name.restype = ctypes.c_char_p
        names = [library.cuda_name(index).decode() for index in range(library.cuda_count())]
        return {name: Kernel(self, library, index, name) for index, name in enumerate(names)}

    def installed(self, patch: pytest.MonkeyPatch, gpu: GpuProperties, *modules: Any) -> None:
        """Replace the modules' libraries, streams and devices, and every device by ``gpu``."""
        fakes = {"LIBRARIES": self, "raw_stream": lambda _: 0, "current_device": lambda: gpu.index}
        for module in modules:
            for name in fakes.keys() & vars(module).keys():
                patch.setattr(module, name, fakes[name])
        for name, fake in (("get_gpu_properties", gpu), ("get_device_gpu_properties", gpu), ("raw_stream", 0)):
            patch.setattr(_launching, name, lambda _, fake=fake: fake)
        patch.setattr(_launching, "current_device", lambda: gpu.index)
        patch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Inside, blocks and threads run as at first, on one thread, and in memory that is watched."""
        self.schedule, self.resident = 0, 4
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with Memory().watched():
                yield
        finally:
            torch.set_num_threads(threads)


@functools.cache
def _machine_of(shared: int, flags: tuple[str, ...]) -> Emulator:
    """Return the emulator whose compiled kernels all tests of this process share."""
    return Emulator(shared, flags=flags)


@pytest.fixture
def emulate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Emulator]]:
    """``emulate(*modules, gpu=AMPERE)`` runs the CUDA kernels of these modules on the CPU until the end of the test.

    ``serve``: every operator takes tensors of the CPU for those of a GPU.
    """
    with contextlib.ExitStack() as stack:

        def start(
            *modules: Any, gpu: GpuProperties = AMPERE, flags: tuple[str, ...] = FLAGS, serve: bool = False
        ) -> Emulator:
            if WHY_NOT is not None:
                pytest.skip(WHY_NOT)
            machine = _machine_of(gpu.shared, flags)
            machine.installed(monkeypatch, gpu, *modules)
            if serve:
                monkeypatch.setattr(_launching, "explain_unsupported_device", lambda _: None)
            machine.launched.clear()
            stack.enter_context(machine.used())
            return machine

        yield start


# ---- memory

BESIDE = 512  # elements
_POISON = 0xFF


class Memory:
    """Allocations that are poisoned and watched."""

    def __init__(self) -> None:
        self._made: list[tuple[Tensor, int, int]] = []

    def _like(self, plain: Tensor, zero: bool) -> Tensor:
        size = (plain.numel() + 2 * BESIDE) * plain.element_size()
        whole = torch.full((size,), _POISON, dtype=torch.uint8).view(plain.dtype)
        inner = whole.as_strided(plain.shape, plain.stride(), BESIDE)
        self._made.append((whole, BESIDE, plain.numel()))
        return inner.zero_() if zero else inner

    def check(self) -> None:
        """
        Raises:
            Emulated: if something was written beside an allocation.
        """
        for whole, begin, size in self._made:
            beside = torch.cat((whole[:begin], whole[begin + size :])).view(torch.uint8)
            if not bool((beside == _POISON).all()):
                raise Emulated(f"written beside an array of {size} elements of {whole.dtype}")

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Inside, ``torch.empty``, ``new_empty`` and ``new_zeros`` make such allocations; checked at the end."""

        def watching(make: Callable[..., Tensor], zero: bool) -> Callable[..., Tensor]:
            def made(*arguments: Any, **options: Any) -> Tensor:
                plain = make(*arguments, **options)
                return self._like(plain, zero) if plain.device.type == "cpu" else plain

            return made

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.Tensor, "new_empty", watching(torch.Tensor.new_empty, False))
            patch.setattr(torch.Tensor, "new_zeros", watching(torch.Tensor.new_zeros, True))
            patch.setattr(torch, "empty", watching(torch.empty, False))
            yield
        self.check()
