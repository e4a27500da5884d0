"""CUDA C++ that is compiled with NVRTC at run time, cached on disk, and launched through the driver.

Both libraries are called through ctypes, not cuda-core. So only the NVRTC of PyTorch's wheels has to be installed, and
a launch takes arguments that were prepared once. This module does not import PyTorch: devices are ordinals, streams and
pointers are integers.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib
import importlib.util
import os
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from fullfield._kernels import Missing
from fullfield._kernels.cache_folder import (
    announce_and_time_compilation,
    find_or_create_writable_folder_or_none,
    list_trusted_folders_before_writable,
    log_warning_or_print_unless_quiet,
)

WINDOWS = sys.platform == "win32"
MAJORS = (13, 12)  # CUDA majors whose NVRTC is looked for, newest first
OPTIONS = ("--std=c++17", "--device-as-default-execution-space")
_HINT = "pip install 'fullfield[cuda13]' or, for CUDA 12, 'fullfield[cuda12]'"
_INVALID_CONTEXT = 201
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_EARLY = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION


class KernelError(RuntimeError):
    """Error of NVRTC or of the CUDA driver."""


class KernelSource(NamedTuple):
    """Translation unit and its options, such as ``-DRADIUS=4``."""

    text: str
    options: tuple[str, ...] = ()

    @classmethod
    def with_macros(cls, text: str, *options: str, **macros: int | str) -> KernelSource:
        """Return a source with further options and then these macros; True is 1 and False is 0."""
        return cls(text, (*options, *(f"-D{k}={int(v) if isinstance(v, bool) else v}" for k, v in macros.items())))


def generate_wgmma_source(columns: int, uses_bfloat16: bool, b_descriptor_high: int) -> str:
    """Return ``wgmma_rs``: m64nNk16, A in registers; ``b_descriptor_high`` is the upper half of B's descriptor."""
    n = columns // 2
    kind = "bf16" if uses_bfloat16 else "f16"
    d = ", ".join(f"%{i}" for i in range(n))
    operands = ", ".join(f'"+f"(d[{i}])' for i in range(n))
    return "\n".join(
        (
            "static __device__ __forceinline__ void",
            f"wgmma_rs(float (&d)[{n}], u32 a0, u32 a1, u32 a2, u32 a3, u32 b, int add) {{",
            r'    asm volatile("{\n.reg .pred p;\n.reg .b64 at;\n"',
            rf'        "setp.ne.b32 p, %{n + 5}, 0;\nmov.b64 at, {{%{n + 4}, {b_descriptor_high:#x}}};\n"',
            f'        "wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{kind}.{kind} {{{d}}}, "',
            rf'        "{{%{n}, %{n + 1}, %{n + 2}, %{n + 3}}}, at, p, 1, 1, 0;\n}}"',
            f'        : {operands} : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b), "r"(add));',
            "}\n",
        )
    )


# ---- finding the libraries


def _list_nvrtc_file_names(cuda_major: int) -> tuple[str, ...]:
    return (f"nvrtc64_{cuda_major}0_0.dll",) if WINDOWS else (f"libnvrtc.so.{cuda_major}",)


def _find_package_folders(name: str) -> list[Path]:
    """Return the folders of a package without importing it."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return []
    return [Path(folder) for folder in spec.submodule_search_locations or ()] if spec is not None else []


def _iterate_candidate_nvrtc_folders(cuda_major: int) -> Iterator[Path]:
    """Yield the folders of NVIDIA's wheels, PyTorch's wheels, conda and toolkits."""
    for root in _find_package_folders("nvidia"):
        for package in (f"cu{cuda_major}", "cuda_nvrtc"):
            yield from (root / package / subfolder for subfolder in ("lib", "bin/x86_64", "bin", "lib/x64"))
    for root in _find_package_folders("torch"):
        yield root / "lib"
    for variable in ("CONDA_PREFIX", "CUDA_PATH", "CUDA_HOME"):
        if os.environ.get(variable):
            root = Path(os.environ[variable])
            yield from (root / subfolder for subfolder in ("lib", "lib64", "bin", "bin/x64", "Library/bin"))


def iterate_candidate_nvrtc_libraries() -> Iterator[str]:
    """Yield existing paths of NVRTC, then names for the system's loader, the newest CUDA major first."""
    for major in MAJORS:
        for name in _list_nvrtc_file_names(major):
            for folder in _iterate_candidate_nvrtc_folders(major):
                if (folder / name).is_file():
                    yield str(folder / name)
    for major in MAJORS:
        yield from _list_nvrtc_file_names(major)


def _open_nvrtc_with_builtins_or_none(path: str) -> ctypes.CDLL | None:
    """Open the library after the one with its built-in functions, which it would search by name only."""
    folder = Path(path).parent
    try:
        if Path(path).is_absolute():
            if WINDOWS:
                os.add_dll_directory(str(folder))  # type: ignore[attr-defined, unused-ignore]
            else:
                number = path.rpartition(".")[2]
                for builtins in sorted(folder.glob(f"libnvrtc-builtins.so.{number}.*")):
                    ctypes.CDLL(str(builtins))
        return ctypes.CDLL(path)
    except OSError:
        return None


def _open_nvrtc_by_pathfinder_or_none() -> ctypes.CDLL | None:
    """Open the library that cuda-core finds, if that is installed."""
    try:
        pathfinder = importlib.import_module("cuda.pathfinder")
        return _open_nvrtc_with_builtins_or_none(pathfinder.load_nvidia_dynamic_lib("nvrtc").abs_path)
    except (ImportError, RuntimeError, OSError):
        return None


class Nvrtc:
    """Library of the compiler, with its version."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.raise_on_nvrtc_error(library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
        self.version = (major.value, minor.value)
        count = ctypes.c_int()
        self.raise_on_nvrtc_error(library.nvrtcGetNumSupportedArchs(ctypes.byref(count)))
        archs = (ctypes.c_int * count.value)()
        self.raise_on_nvrtc_error(library.nvrtcGetSupportedArchs(archs))
        self.archs = tuple(archs)

    def raise_on_nvrtc_error(self, code: int) -> None:
        if code:
            text = self.library.nvrtcGetErrorString
            text.restype = ctypes.c_char_p
            raise KernelError(f"NVRTC: {text(code).decode()}")

    def compile(self, source: KernelSource, arch: str) -> tuple[bytes, str]:
        """Return machine code (for ``compute_…`` PTX) and the compiler's messages."""
        lib, program = self.library, ctypes.c_void_p()
        self.raise_on_nvrtc_error(
            lib.nvrtcCreateProgram(ctypes.byref(program), source.text.encode(), b"fullfield.cu", 0, None, None)
        )
        try:
            flags = [f"--gpu-architecture={arch}", *OPTIONS, *source.options]
            array = (ctypes.c_char_p * len(flags))(*[flag.encode() for flag in flags])
            failed = lib.nvrtcCompileProgram(program, len(flags), array)
            log = self._read_program_output(program, "ProgramLog").rstrip(b"\0").decode(errors="replace").strip()
            if failed:
                raise KernelError(f"NVRTC {self.version[0]}.{self.version[1]} cannot compile for {arch}: {log}")
            return self._read_program_output(program, "PTX" if arch.startswith("compute") else "CUBIN"), log
        finally:
            lib.nvrtcDestroyProgram(ctypes.byref(program))

    def _read_program_output(self, program: ctypes.c_void_p, output_name: str) -> bytes:
        size = ctypes.c_size_t()
        self.raise_on_nvrtc_error(getattr(self.library, f"nvrtcGet{output_name}Size")(program, ctypes.byref(size)))
        buffer = ctypes.create_string_buffer(size.value)
        self.raise_on_nvrtc_error(getattr(self.library, f"nvrtcGet{output_name}")(program, buffer))
        return buffer.raw

    def choose_compilation_target(self, capability: tuple[int, int]) -> str:
        """Return the target to compile for: the device, Hopper with its own instructions, or PTX if it is too new."""
        number = capability[0] * 10 + capability[1]
        if number in self.archs:
            return "sm_90a" if number == 90 else f"sm_{number}"
        return f"compute_{max(arch for arch in self.archs if arch < number)}"


@functools.cache
def _load_newest_nvrtc_or_none(max_cuda_major: int) -> Nvrtc | None:
    for path in iterate_candidate_nvrtc_libraries():
        library = _open_nvrtc_with_builtins_or_none(path)
        if library is not None:
            loaded = Nvrtc(library)
            if loaded.version[0] <= max_cuda_major:
                return loaded
    library = _open_nvrtc_by_pathfinder_or_none()
    last = Nvrtc(library) if library is not None else None
    return last if last is not None and last.version[0] <= max_cuda_major else None


def load_nvrtc() -> Nvrtc:
    """Return the newest NVRTC whose code the driver can run; KernelError if there is none."""
    newest = _get_driver_cuda_major_or_newest()
    loaded = _load_newest_nvrtc_or_none(newest)
    if loaded is None:
        raise KernelError(f"NVRTC for CUDA {newest} or older was not found ({_HINT})")
    return loaded


def explain_missing_nvrtc() -> Missing | None:
    """Return None if kernels can be compiled, else what has to be installed."""
    try:
        load_nvrtc()
    except KernelError as error:
        return Missing(error)
    return None


# ---- compiling


class Compiler:
    """Compiler of sources that are not cached on disk: parallel, announced, and safe with any number of processes."""

    def __init__(self, arch: str, label: str) -> None:
        self.arch = arch
        self.label = label
        self.folder = find_or_create_writable_folder_or_none("nvrtc")
        self._read_only_folders = list_trusted_folders_before_writable("nvrtc", self.folder)

    def compile(self, sources: Sequence[KernelSource]) -> list[bytes]:
        """Return the machine code of every source."""
        images = [self._read_cached_code_or_none(source) for source in sources]
        missing = [index for index, code in enumerate(images) if code is None]
        if missing:
            compiler = load_nvrtc()
            with (
                announce_and_time_compilation(self.label, self.arch, self.folder),
                ThreadPoolExecutor(min(len(missing), os.cpu_count() or 1)) as pool,
            ):
                codes = pool.map(lambda index: compiler.compile(sources[index], self.arch)[0], missing)
                for index, code in zip(missing, codes, strict=True):
                    images[index] = code
                    self._try_write_cached_code(sources[index], code)
        return [code for code in images if code is not None]

    def _get_cached_path(self, folder: Path, source: KernelSource) -> Path:
        key = (source.text, source.options, OPTIONS, self.arch, load_nvrtc().version)
        return folder / f"{hashlib.sha256(repr(key).encode()).hexdigest()[:40]}.bin"

    def _read_cached_code_or_none(self, source: KernelSource) -> bytes | None:
        folders = self._read_only_folders if self.folder is None else [*self._read_only_folders, self.folder]
        for folder in folders:
            path = self._get_cached_path(folder, source)
            try:
                image = path.read_bytes()
            except OSError:
                continue
            if image[:32] == hashlib.sha256(image[32:]).digest():
                return image[32:]
            log_warning_or_print_unless_quiet(f"{path}: damaged; its kernels are compiled again")
        return None

    def _try_write_cached_code(self, source: KernelSource, code: bytes) -> None:
        """Write the code to disk atomically; a full disk only means that it is compiled again."""
        if self.folder is None:
            return
        path = self._get_cached_path(self.folder, source)
        try:
            handle, temporary = tempfile.mkstemp(dir=self.folder, suffix=".tmp")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(hashlib.sha256(code).digest() + code)
                Path(temporary).chmod(0o644)  # readable by the user of a container that root filled
                Path(temporary).replace(path)
            except OSError:
                Path(temporary).unlink(missing_ok=True)
                raise
        except OSError as error:
            log_warning_or_print_unless_quiet(f"{path}: cannot keep compiled kernels ({error.strerror or error})")


# ---- the driver


@functools.cache
def load_cuda_driver() -> ctypes.CDLL:
    """Return the CUDA driver's library; KernelError if no NVIDIA driver is installed."""
    try:
        library = ctypes.CDLL("nvcuda.dll" if WINDOWS else "libcuda.so.1")
    except OSError as error:
        raise KernelError("no NVIDIA driver is installed") from error
    pointer = ctypes.c_void_p
    library.cuStreamIsCapturing.argtypes = [pointer, pointer]
    library.cuStreamGetCaptureInfo_v2.argtypes = [pointer] * 6
    return library


def _get_driver_cuda_major_or_newest() -> int:
    """Return the newest CUDA major that the driver runs; without a driver any, because compiling needs none."""
    version = ctypes.c_int()
    try:
        raise_on_driver_error(load_cuda_driver().cuDriverGetVersion(ctypes.byref(version)))
    except KernelError:
        return MAJORS[0]
    return version.value // 1000


def raise_on_driver_error(code: int) -> None:
    """Check the ``code`` that a driver call returned; KernelError if it is not zero."""
    if code:
        text = ctypes.c_char_p()
        load_cuda_driver().cuGetErrorString(code, ctypes.byref(text))
        raise KernelError(f"CUDA driver: {(text.value or b'unknown error').decode()} ({code})")


def ensure_current_cuda_context(device: int) -> None:
    """Set the device's primary context for this thread, if it has none yet."""
    context = ctypes.c_void_p()
    raise_on_driver_error(load_cuda_driver().cuCtxGetCurrent(ctypes.byref(context)))
    if not context.value:
        raise_on_driver_error(load_cuda_driver().cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
        raise_on_driver_error(load_cuda_driver().cuCtxSetCurrent(context))


def get_graph_capture_id_or_zero(stream: int) -> int:
    """Return the number of the graph that ``stream`` is captured into; 0 if it is not captured."""
    status, number = ctypes.c_int(), ctypes.c_uint64()
    raise_on_driver_error(load_cuda_driver().cuStreamIsCapturing(stream, ctypes.byref(status)))
    if not status.value:
        return 0
    info = load_cuda_driver().cuStreamGetCaptureInfo_v2
    raise_on_driver_error(info(stream, ctypes.byref(status), ctypes.byref(number), None, None, None))
    return number.value


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute."""

    _fields_ = (("id", ctypes.c_int), ("unused", ctypes.c_int), ("value", ctypes.c_int * 16))


class _Launch(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        *((f"{prefix}_{axis}", ctypes.c_uint) for prefix in ("grid", "block") for axis in "xyz"),
        ("shared", ctypes.c_uint), ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p), ("count", ctypes.c_uint),
    )  # fmt: skip


class Kernel:
    """Kernel of a library."""

    __slots__ = ("_handle", "_launch", "_shared")

    def __init__(self, library: Library, name: str) -> None:
        self._handle = ctypes.c_void_p()
        raise_on_driver_error(
            load_cuda_driver().cuLibraryGetKernel(ctypes.byref(self._handle), library.handle, name.encode())
        )
        self._launch = load_cuda_driver().cuLaunchKernelEx
        self._shared: dict[int, int] = {}

    def raise_shared_memory_limit(self, device: int, shared_bytes: int) -> None:
        """Raise the limit of dynamic shared memory; needed above 48 KiB."""
        if self._shared.get(device, 48 << 10) < shared_bytes:
            ensure_current_cuda_context(device)
            raise_on_driver_error(
                load_cuda_driver().cuKernelSetAttribute(_MAX_DYNAMIC_SHARED, shared_bytes, self._handle, device)
            )
            self._shared[device] = shared_bytes

    def launch(
        self,
        grid: tuple[int, int],
        threads: int,
        shared_bytes: int,
        device: int,
        stream: int,
        arguments: ctypes.Array[ctypes.c_void_p],  # addresses; the values are copied before this returns
        overlaps_previous: bool = False,  # from sm_90 on: may begin before the previous kernel ends, and waits itself
    ) -> None:
        """Launch the kernel on a stream."""
        # Not cuLaunchKernel, because ctypes takes time for each of its eleven arguments.
        how = _Launch(grid[0], grid[1], 1, threads, 1, 1, shared_bytes, stream)
        if overlaps_previous:
            attribute = _Attribute(id=_EARLY)
            attribute.value[0] = 1
            how.attributes, how.count = ctypes.addressof(attribute), 1
        code = self._launch(ctypes.byref(how), self._handle, arguments, None)
        if code == _INVALID_CONTEXT:
            ensure_current_cuda_context(device)
            code = self._launch(ctypes.byref(how), self._handle, arguments, None)
        if code:
            raise_on_driver_error(code)


class Library:
    """Loaded machine code, for every device of its architecture."""

    def __init__(self, code: bytes, device: int) -> None:
        ensure_current_cuda_context(device)
        self.handle = ctypes.c_void_p()
        self._code = code
        raise_on_driver_error(
            load_cuda_driver().cuLibraryLoadData(ctypes.byref(self.handle), code, None, None, 0, None, None, 0)
        )
        self._kernels: dict[str, Kernel] = {}

    def __getitem__(self, name: str) -> Kernel:
        kernel = self._kernels.get(name)
        if kernel is None:
            kernel = self._kernels[name] = Kernel(self, name)
        return kernel


class LibraryCache:
    """Compiled sources of one operator, loaded once per architecture and process."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._loaded: dict[tuple[KernelSource, str], Library] = {}
        self._lock = threading.Lock()

    def load(self, sources: Sequence[KernelSource], arch: str, device: int) -> list[Library]:
        """Return the libraries of the sources, compiled and loaded if necessary."""
        with self._lock:
            missing = [source for source in dict.fromkeys(sources) if (source, arch) not in self._loaded]
            if missing:
                for source, code in zip(missing, Compiler(arch, self._label).compile(missing), strict=True):
                    self._loaded[source, arch] = Library(code, device)
            return [self._loaded[source, arch] for source in sources]


def write_tensor_map_to_address(
    address: int, data_address: int, sizes: Sequence[int], box_sizes: Sequence[int]
) -> None:
    """Write the tensor map of a contiguous array of 16-bit elements to ``address`` (64-byte aligned, 128 bytes).

    ``sizes`` and ``box_sizes`` innermost first; 128-byte swizzle, zeros outside. For copies of boxes on sm_90 and up.
    """
    rank, step, strides = len(sizes), 2, []
    for size in sizes[:-1]:
        step *= size
        strides.append(step)
    u64, u32 = ctypes.c_uint64, ctypes.c_uint32
    bfloat16, swizzle_128, promote_128 = 9, 3, 2
    raise_on_driver_error(
        load_cuda_driver().cuTensorMapEncodeTiled(
            ctypes.c_void_p(address), bfloat16, rank, ctypes.c_void_p(data_address), (u64 * rank)(*sizes),
            (u64 * max(1, rank - 1))(*strides), (u32 * rank)(*box_sizes), (u32 * rank)(*[1] * rank),
            0, swizzle_128, promote_128, 0,
        )
    )  # fmt: skip
