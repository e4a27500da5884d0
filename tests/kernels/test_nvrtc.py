"""The GPU kernels as far as a machine without a GPU can tell: they compile, and within registers; the cache on disk."""

from __future__ import annotations

import ctypes
import re
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import assembled
import kept
import pytest
import torch
from assembled import compiled, said_of, understood

from benchmarks.cases.points import listing as points_listing
from benchmarks.cases.tvl1 import romera, tuning
from fullfield._kernels import cache_folder, nvrtc
from fullfield._kernels.nvrtc import Compiler, KernelError, Source
from fullfield.ops import launching
from fullfield.ops.correlation.cuda import config as shapes
from fullfield.ops.correlation.protocol import Request
from fullfield.ops.fused import cuda as fused
from fullfield.ops.neighbors import cuda as neighbors
from fullfield.ops.point_conv.cuda import pooling, triplets
from fullfield.ops.tvl1 import guided_cuda
from fullfield.ops.tvl1.config import TVL1Config
from fullfield.ops.tvl1.cuda import fused as tvl1_fused
from fullfield.ops.tvl1.cuda import passes as tvl1
from fullfield.ops.tvl1.cuda.pipeline import Shape
from fullfield.ops.tvl1.cuda.state import Level

needs_nvrtc = pytest.mark.skipif(nvrtc.why_not() is not None, reason=str(nvrtc.why_not()))
SHARED = {"sm_75": 64 << 10, "sm_80": 163 << 10, "sm_86": 99 << 10, "sm_87": 163 << 10, "sm_90a": 227 << 10}
ARCHS = ("sm_75", "sm_80", "sm_87", "sm_90a")
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
TRIVIAL = Source('extern "C" __global__ void nothing(int *to) { *to = VALUE; }', ("-DVALUE=1",))


def request_of(channels: int = 256, radius: int = 4, dtype: torch.dtype = torch.bfloat16, levels: int = 4) -> Request:
    sizes = tuple((64 >> level, 96 >> level) for level in range(levels))
    return Request(1, channels, (64, 96), sizes, radius, dtype, torch.device("cuda", 0), True, True)


def device_of(arch: str) -> launching.Device:
    return launching.Device(0, "", arch, 132, SHARED[arch])


def most(registers: int, arch: str) -> int:
    """Return the limit of registers: before sm_80 a multiprocessor runs 1024 threads, for which 64 suffice."""
    return max(registers, 64) if arch == "sm_75" else registers


def compiles(source: Source, arch: str) -> list[str]:
    """The kernels' names."""
    return [*said_of(source, arch).kernels]


def resources(source: Source, arch: str) -> dict[str, tuple[int, int]]:
    """Registers and spilled bytes of every kernel, as the assembler reports them."""
    return said_of(source, arch).kernels


def lookup_source(request: Request, arch: str, out: int = 0, channels_last: bool = False) -> Source:
    forward = shapes.forward_config(request, device_of(arch))
    config = shapes.lookup_config(forward, out, channels_last, SHARED[arch])
    assert config is not None
    assert shapes.lookup_shared(config, out, channels_last) <= SHARED[arch]
    return shapes.lookup_source(config, out, channels_last)


def gradient_sources(request: Request, arch: str, grad: int = 0) -> tuple[Source, Source]:
    """Of ``collect`` and of ``multiply_out``."""
    shared = SHARED[arch]
    config = shapes.gradient_config(shapes.forward_config(request, device_of(arch)))
    side, form = shapes.patch_side(config, shared), shapes.multiply_form(config, shared)
    assert side >= 2 * request.radius + 2
    assert config.channels % form[0] == 0
    assert shapes.collect_shared(side) <= shared
    assert shapes.multiply_shared(config, *form) <= shared
    return shapes.collect_source(config, grad, side), shapes.multiply_source(config, side, *form)


@needs_nvrtc
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_lookup_resources(arch: str, dtype: torch.dtype) -> None:
    registers, spilled = resources(lookup_source(request_of(dtype=dtype), arch), arch)["lookup"]
    # Hopper's blocks move registers between their warps at run time.
    assert registers <= {"sm_90a": 168}.get(arch, 255)
    assert spilled <= (0 if arch == "sm_90a" else 1024)


@needs_nvrtc
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_other_resources(arch: str, dtype: torch.dtype) -> None:
    request = request_of(dtype=dtype)
    forward = shapes.forward_config(request, device_of(arch))
    code = launching.CODES[dtype]
    prepared = resources(shapes.prepare_source(forward, code, shapes.is_scaled(request, forward), False), arch)
    assert set(prepared) == {"prepare", "prepare_deep", "magnitude"}
    assert all(registers <= 80 and spilled <= 16 for registers, spilled in prepared.values())
    collect, multiply = (resources(source, arch) for source in gradient_sources(request, arch))
    registers, spilled = collect["collect"]
    # Five blocks a multiprocessor; before sm_80 shared memory holds one.
    assert registers <= (104 if arch == "sm_75" else 102)
    assert spilled == 0
    registers, spilled = multiply["multiply_out"]
    assert registers <= (255 if forward.split or arch == "sm_75" else 128)  # two blocks, where they fit
    assert spilled <= 256
    registers, spilled = resources(shapes.coords_source(forward, 0), arch)["coords_gradient"]
    assert registers <= (72 if arch == "sm_75" else 64)
    assert spilled <= 64


@needs_nvrtc
def test_the_measure_sees_spills() -> None:
    many = "".join(f"float v{i} = from[{i} * n]; " for i in range(200))
    use = " + ".join(f"v{i} * v{199 - i} * s" for i in range(200))
    text = 'extern "C" __global__ void __launch_bounds__(1024, 2) spilling(volatile float *from, float *to, int n) {'
    text += f"{many} for (float s = 0.f; s < n; s++) to[(int)s] = {use}; }}"
    registers, spilled = compiled(Source(text), "sm_80").kernels["spilling"]
    assert registers <= 32
    assert spilled > 256


@needs_nvrtc
@pytest.mark.parametrize("arch", ARCHS)
def test_what_is_stored_is_what_the_compiler_says(arch: str) -> None:
    for source in (
        tvl1.pyramid_source(),
        shapes.coords_source(shapes.forward_config(request_of(), device_of(arch)), 0),
    ):
        assert said_of(source, arch) == compiled(source, arch)


@needs_nvrtc
def test_what_is_not_stored_is_compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(kept, "folder", lambda: tmp_path)
    monkeypatch.delenv(assembled.NOTES, raising=False)
    other = Source(TRIVIAL.text, ("-DVALUE=30",))
    assert said_of(other, "sm_80") == said_of(other, "sm_80") == compiled(other, "sm_80")
    assert [*compiled(other, "sm_80").kernels] == ["nothing"]
    assert len(list(tmp_path.iterdir())) == 1  # of this text, these options and this architecture
    said_of(Source(TRIVIAL.text, ("-DVALUE=31",)), "sm_80")
    said_of(other, "sm_90a")
    assert len(list(tmp_path.iterdir())) == 3
    with pytest.raises(KernelError, match="cannot compile for sm_80"):
        said_of(Source("nonsense"), "sm_80")


def test_logs_are_understood() -> None:
    log = "ptxas info    : Compiling entry function 'one' for 'sm_80'\nptxas         .     8 bytes stack frame, "
    log += "12 bytes spill stores, 4 bytes spill loads\nptxas info    : Used 40 registers, used 1 barriers"
    assert understood(log) == ({"one": (40, 16)}, False)
    assert understood(f"{log}\nwgmma is serialized").waits
    for wrong in (f"{log}\nptxas error   : no", log.replace("Used", "used")):
        with pytest.raises(ValueError, match="Compiling entry function 'one'"):
            understood(wrong)


# Everything a user may ask for compiles: radii, several blocks of channels, every result. Shared memory and Hopper
# decide what the source is, so sm_87 gets sm_80's: the largest patches and the smallest are asked of it.
VARIANTS = [
    (1, 1, torch.bfloat16, 0, False),
    (256, 8, torch.float16, 2, False),
    (600, 2, torch.float32, 1, False),
    (100, 5, torch.float32, 0, False),
    (128, 4, torch.bfloat16, 1, True),
]


def test_sources_follow_shared_memory_and_hopper() -> None:
    for channels, radius, dtype, out, channels_last in VARIANTS:
        request = request_of(channels, radius, dtype, levels=8)
        one, other = (lookup_source(request, arch, out, channels_last) for arch in ("sm_80", "sm_87"))
        assert one == other


@needs_nvrtc
@pytest.mark.parametrize(
    ("arch", "channels", "radius", "dtype", "out", "channels_last"),
    [
        (arch, *variant)
        for arch in SHARED
        for variant in VARIANTS[: 2 if arch == "sm_87" else None]
        if (arch, variant[1]) != ("sm_75", 8)  # refused
    ],
    ids=str,
)
def test_variants_compile(
    arch: str, channels: int, radius: int, dtype: torch.dtype, out: int, channels_last: bool
) -> None:
    request = request_of(channels, radius, dtype, levels=8)
    assert "lookup" in compiles(lookup_source(request, arch, out, channels_last), arch)
    collect, multiply = gradient_sources(request, arch, out)
    assert "collect" in compiles(collect, arch)
    assert "multiply_out" in compiles(multiply, arch)


@needs_nvrtc
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_passes_of_the_networks(arch: str, dtype: torch.dtype) -> None:
    passes = resources(fused.passes_source(dtype), arch)
    assert len(passes) == 10
    assert all(registers <= 64 and spilled == 0 for registers, spilled in passes.values())
    registers, spilled = resources(fused.depthwise_source(dtype, 384), arch)["depthwise_norm"]
    assert registers <= 64
    assert spilled <= (4096 if dtype == torch.float32 else 256)
    for factor, channels_last in ((8, True), (8, False), (3, True)):
        registers, spilled = resources(fused.convex_source(dtype, factor, channels_last), arch)["convex"]
        assert registers <= 168
        assert spilled == 0


@needs_nvrtc
@pytest.mark.parametrize("arch", ARCHS)
def test_passes_of_tvl1(arch: str) -> None:
    found = resources(tvl1.pyramid_source(), arch)
    assert set(found) == {"grey", "resample"}
    assert all(registers <= most(48, arch) and spilled == 0 for registers, spilled in found.values())
    for dtype in (torch.float32, torch.float16):
        found = resources(tvl1.warp_source(dtype), arch) | resources(tvl1.median_source(dtype), arch)
        assert set(found) == {"linearise", "median0", "median3", "median5"}
        assert all(registers <= 80 and spilled == 0 for registers, spilled in found.values())


@needs_nvrtc
@pytest.mark.parametrize("arch", ARCHS)
def test_guided_refinement(arch: str) -> None:
    for shape in guided_cuda.SHAPES:
        found = resources(guided_cuda.source(shape), arch)
        registers, spilled = found["guided_iterate"]
        assert registers * 32 * shape.warps * shape.blocks <= 65536
        assert spilled <= 16
        assert found["guided_median"][0] <= 128
        assert all(spilled == 0 for name, (_, spilled) in found.items() if name != "guided_iterate")


@needs_nvrtc
@pytest.mark.parametrize("arch", ARCHS)
def test_fused_warps_of_tvl1(arch: str) -> None:
    """Registers for the block's threads, and few spilled; where levels are smaller than a tile, on one GPU."""
    hopper = arch == ARCHS[-1]
    shapes = [shape for shape in tvl1_fused.SHAPES if hopper or shape.cluster == 1]
    for shape in shapes[:: 1 if hopper else 5]:
        for small in (False, True)[: 1 + (hopper and shape.part * shape.each <= 32)]:
            dtype = torch.float16 if small else torch.float32
            cut = tvl1_fused.Tiling(shape, 12, 40, 10, 3, 3, small)
            registers, spilled = resources(tvl1_fused.source(TVL1Config(), cut, dtype), arch)["fused_warp"]
            assert registers * 32 * shape.groups * shape.resident <= 65536
            assert spilled <= 256, (shape, small)
            assert shape.shared <= SHARED["sm_90a"]
    assert any(shape.shared <= SHARED[arch] for shape in tvl1_fused.SHAPES)


@needs_nvrtc
@pytest.mark.parametrize("arch", ARCHS)
def test_geometries_of_points(arch: str) -> None:
    sources = {neighbors.radius_source(): 64, neighbors.thin_source(): 56}
    sources |= {neighbors.tree_source(k): limit for k, limit in ((16, 56), (64, 64), (1024, 255))}
    sources |= {triplets.source(*where): 48 for where in product((False, True), repeat=2)}
    sources |= {pooling.source(dtype, dtype == torch.float32): 48 for dtype in (*DTYPES, torch.float64)}
    sources |= {points_listing.source(dtype): 128 for dtype in DTYPES}
    # 64 registers leave as many blocks of 256 threads on a multiprocessor as 56.
    for source, limit in sources.items():
        found = resources(source, arch)
        assert found
        # The sort of long rows is called, not inlined: what it needs is saved around the call.
        assert all(registers <= most(limit, arch) and spilled <= 80 for registers, spilled in found.values()), found


# Of every schedule what it begins with, on every GPU; what tuning may choose instead, on one.
ITERATIONS = [
    (arch, schedule, dtype, shape)
    for (schedule, dtype), candidates in tuning.CANDIDATES.items()
    for number, shape in enumerate(candidates)
    for arch in (ARCHS if number == 0 else ARCHS[-1:] if schedule == "register_pipeline" else ())
]


@needs_nvrtc
@pytest.mark.parametrize(("arch", "schedule", "dtype", "shape"), ITERATIONS, ids=str)
def test_iterations_of_tvl1(arch: str, schedule: str, dtype: torch.dtype, shape: Shape) -> None:
    """Registers for as many blocks as are to run at once, and none spilled."""
    device = launching.Device(0, "any", arch, 100, SHARED[arch])
    level = Level(1, 1080, 1920, dtype, torch.device("cpu"))
    for launch in romera.passes_of(schedule, level, romera.depth_of(schedule, shape), shape, device):
        registers, spilled = resources(launch.source, arch)[launch.name]
        blocks = shape.blocks if schedule == "register_pipeline" else 2
        assert registers * launch.threads * blocks <= 65536
        assert spilled == 0
        assert launch.shared <= SHARED[arch]


@needs_nvrtc
def test_the_kernels_include_nothing() -> None:
    modules = (shapes, fused, tvl1, romera, neighbors, triplets, points_listing, nvrtc)
    folders = tuple(Path(module.__file__).parent for module in modules)
    sources = sorted(path for folder in folders for path in folder.glob("*.cu*"))
    assert len(sources) >= 10
    assert not [path.name for path in sources if "#include <" in path.read_text("utf-8")]


@needs_nvrtc
def test_mistakes_are_told_with_the_compilers_words() -> None:
    with pytest.raises(KernelError, match=r"cannot compile for sm_80: .*fullfield.cu\(1\): error"):
        nvrtc.nvrtc().compile(Source("nonsense"), "sm_80")


@needs_nvrtc
def test_targets() -> None:
    compiler = nvrtc.nvrtc()
    assert compiler.target((9, 0)) == "sm_90a"
    assert compiler.target((8, 7)) == "sm_87"
    assert compiler.target((99, 0)) == f"compute_{max(compiler.archs)}"
    assert compiler.compile(TRIVIAL, compiler.target((99, 0)))[0].startswith(b"//")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FULLFIELD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("FULLFIELD_QUIET", raising=False)
    return tmp_path / "cache" / "nvrtc"


@needs_nvrtc
def test_code_is_kept_and_announced_once(cache: Path, capfd: pytest.CaptureFixture[str]) -> None:
    sources = [TRIVIAL, Source(TRIVIAL.text, ("-DVALUE=2",))]
    codes = Compiler("sm_80", "test kernels").compile(sources)
    said = capfd.readouterr().err
    assert said.startswith("fullfield: compiling test kernels for sm_80, once ...\nfullfield: compiled in ")
    assert codes[0] != codes[1]
    assert len(list(cache.iterdir())) == 2
    assert Compiler("sm_80", "test kernels").compile(sources) == codes
    assert capfd.readouterr().err == ""
    assert Compiler("sm_90a", "test kernels").compile(sources) != codes


@needs_nvrtc
def test_damaged_code_is_compiled_again(cache: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (code,) = Compiler("sm_80", "test kernels").compile([TRIVIAL])
    (kept,) = cache.iterdir()
    capfd.readouterr()
    for damage in (b"", kept.read_bytes()[:-1], b"\0" * 100):
        kept.write_bytes(damage)
        assert Compiler("sm_80", "test kernels").compile([TRIVIAL]) == [code]
        assert f"{kept}: damaged" in capfd.readouterr().err


@needs_nvrtc
def test_code_that_cannot_be_kept_is_named(cache: Path, capfd: pytest.CaptureFixture[str]) -> None:
    compiler = Compiler("sm_80", "test kernels")
    cache.rmdir()  # meanwhile
    assert compiler.compile([TRIVIAL])[0]
    assert f"{cache}/" in (said := capfd.readouterr().err)
    assert "cannot keep compiled kernels (No such file or directory)" in said


@needs_nvrtc
def test_many_share_a_cold_cache(cache: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        codes = list(pool.map(lambda _: Compiler("sm_80", "test kernels").compile([TRIVIAL]), range(8)))
    assert all(code == codes[0] for code in codes)
    assert len(list(cache.iterdir())) == 1


@needs_nvrtc
def test_nowhere_to_write_still_compiles(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], cache: Path
) -> None:
    monkeypatch.setattr(cache_folder, "usable", lambda _: False)
    assert Compiler("sm_80", "test kernels").compile([TRIVIAL])[0]
    assert "in every process: no cache folder can be written" in capfd.readouterr().err
    assert not cache.exists()


def test_absence_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "candidates", lambda: iter(("libnvrtc-of-nobody.so",)))
    monkeypatch.setattr(nvrtc, "_from_pathfinder", lambda: None)
    nvrtc._find.cache_clear()
    try:
        assert re.match(
            r"NVRTC for CUDA \d+ or older was not found \(pip install 'fullfield\[cuda13\]'", nvrtc.why_not() or ""
        )
    finally:
        nvrtc._find.cache_clear()


def test_places_of_wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NVIDIA's wheels for CUDA 13 and 12, and PyTorch's own folder, by the names of this system."""
    names = [nvrtc._library_names(major)[0] for major in (13, 12)]
    places = [tmp_path / "nvidia/cu13/lib" / names[0], tmp_path / "nvidia/cuda_nvrtc/lib" / names[1]]
    places.append(tmp_path / "torch/lib" / names[1])
    for place in places:
        place.parent.mkdir(parents=True)
        place.touch()
    monkeypatch.setattr(nvrtc, "_package_folders", lambda name: [tmp_path / name])
    for variable in ("CONDA_PREFIX", "CUDA_PATH", "CUDA_HOME"):
        monkeypatch.delenv(variable, raising=False)
    assert list(nvrtc.candidates()) == [*map(str, places), *names]


def test_launches_as_the_driver_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUlaunchConfig and CUlaunchAttribute as cuda.h lays them out; the context is made current where there is none."""
    seen: list[tuple[object, ...]] = []
    current: list[int] = []

    def launch(config: Any, handle: object, _arguments: object, _extra: object) -> int:
        if not current:
            return nvrtc._INVALID_CONTEXT
        at = ctypes.addressof(config._obj)
        attributes, count = ctypes.c_void_p.from_address(at + 40).value, ctypes.c_uint.from_address(at + 48).value
        early = None
        if attributes is not None:
            early = ctypes.c_int.from_address(attributes).value, ctypes.c_int.from_address(attributes + 8).value
        sizes = tuple((ctypes.c_uint * 7).from_address(at))
        seen.append((sizes, ctypes.c_void_p.from_address(at + 32).value, count, early, handle))
        return 0

    monkeypatch.setattr(nvrtc, "make_current", current.append)
    kernel = nvrtc.Kernel.__new__(nvrtc.Kernel)
    kernel._handle, kernel._launch = ctypes.c_void_p(5), launch
    kernel.launch((7, 2), 96, 1024, 3, 99, (ctypes.c_void_p * 1)(), True)
    kernel.launch((8, 1), 32, 0, 3, 2**40 + 1, (ctypes.c_void_p * 1)())
    assert seen == [
        ((7, 2, 1, 96, 1, 1, 1024), 99, 1, (6, 1), kernel._handle),
        ((8, 1, 1, 32, 1, 1, 0), 2**40 + 1, 0, None, kernel._handle),
    ]
    assert current == [3]
    assert ctypes.sizeof(nvrtc._Attribute) == 72
    assert ctypes.sizeof(nvrtc._Launch) == 56
