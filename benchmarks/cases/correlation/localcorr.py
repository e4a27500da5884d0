"""localcorr's lookups of a whole pyramid: its kernel in CUDA, built with nvcc from its wheel, and its one in Triton."""

from __future__ import annotations

import ctypes
import importlib
import os
import subprocess
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.cases.correlation.contenders import Contender, Lookup, Problem, deliver, scale_levels
from benchmarks.harness import Unsupported
from fullfield._check import InputError

SOURCES = ("localcorr_cuda_pyramid_kernel.cu", "localcorr_cuda_pyramid_kernel.h")
_FOLDER = "localcorr/cuda_pyramid"
_MAX_RADIUS = 4
_MAX_LEVELS = 8


def compile_kernel(path: str | os.PathLike[str], note: Callable[[str], None]) -> ctypes.CDLL:
    """Compile the kernel of a wheel, or of a folder that holds the package, for the current GPU; or load a library.

    Raises:
        InputError: if a source is missing or does not compile, or a library does not load.
    """
    source = Path(path)
    if not torch.cuda.is_available():
        raise InputError("--localcorr: the kernel needs an NVIDIA GPU; leave the option out on this machine")
    if source.suffix == ".so":
        return _load_library(source)
    note(f"compiling localcorr's kernel from {source}, up to half an hour")
    with tempfile.TemporaryDirectory(prefix="fullfield-localcorr-") as folder:
        build = Path(folder)
        for name in SOURCES:
            (build / name).write_bytes(_read(source, f"{_FOLDER}/{name}"))
        library = build / "localcorr.so"
        major, minor = torch.cuda.get_device_capability()
        command = ["nvcc", "-O3", "-std=c++17", f"-arch=sm_{major}{minor}", "--shared", "-Xcompiler", "-fPIC"]
        try:
            subprocess.run([*command, "-o", library, build / SOURCES[0]], check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            lines = str(getattr(error, "stderr", "") or error).strip().splitlines()
            raise InputError(f"--localcorr {source}: the kernel does not compile ({lines[-1][:200]})") from error
        return ctypes.CDLL(str(library))


def _load_library(path: Path) -> ctypes.CDLL:
    """Return a library that was compiled before."""
    try:
        return ctypes.CDLL(str(path.resolve()))
    except OSError as error:
        raise InputError(f"--localcorr {path}: the library does not load ({error})") from error


def _read(source: Path, name: str) -> bytes:
    """Return a file of the package."""
    try:
        if source.is_dir():
            return (source / name).read_bytes()
        with zipfile.ZipFile(source) as wheel:
            return wheel.read(name)
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise InputError(f"--localcorr {source}: expected the wheel of localcorr, or a folder with {name}") from error


def contender(library: ctypes.CDLL) -> Contender:
    """Return localcorr's kernel, all levels in one launch: float16 for features and positions of float16, else float32.

    Its half precision takes positions in float16 too: they are right where the positions of the problem have been
    rounded to float16 for all.
    """

    def prepare(problem: Problem, fmap1: Tensor, fmap2: Tensor) -> Lookup:
        half = problem.dtype == torch.float16
        dtype = torch.float16 if half else torch.float32
        source, levels = scale_levels(problem, fmap1, fmap2, dtype)
        packed = torch.cat([level.flatten(1) for level in levels], 1)
        height, width = problem.size

        def lookup(coords: Tensor) -> Tensor:
            out = torch.empty(problem.out_shape, dtype=dtype, device=coords.device)
            at = coords.to(dtype).contiguous()
            pointers = [ctypes.c_void_p(each.data_ptr()) for each in (source, packed, at, out)]
            sizes = [problem.batch, height, width, problem.channels, problem.radius, problem.levels, 1]
            flags = [ctypes.c_bool(half), ctypes.c_bool(False)]  # dx is the slow axis
            stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
            launch = library.launchLocalCorrCudaPyramidForward
            launch.restype = ctypes.c_bool
            if not launch(*pointers, *map(ctypes.c_int, sizes), *flags, stream):
                raise RuntimeError("localcorr's kernel was not launched")
            return deliver(problem, out)

        return lookup

    return Contender("localcorr, compiled", prepare, _admit)


def triton_contender() -> Contender | None:
    """Return localcorr's block in Triton, as its users call it; None if the package cannot be imported."""
    try:
        blocks: Any = importlib.import_module("localcorr.blocks")
    except (ImportError, OSError, RuntimeError):
        return None

    def prepare(problem: Problem, fmap1: Tensor, fmap2: Tensor) -> Lookup:
        dtype = torch.float16 if problem.dtype == torch.float16 else torch.float32
        first, second = fmap1.to(dtype), fmap2.to(dtype)
        block = blocks.get_localcorr_block(
            first, second, num_levels=problem.levels, radius=problem.radius, corr_mode="localcorr_triton"
        )
        return lambda coords: deliver(problem, block(coords))

    return Contender("localcorr, Triton", prepare, _admit)


def _admit(problem: Problem) -> None:
    if problem.device.type != "cuda":
        raise Unsupported(f"runs on CUDA, the features are on {problem.device}")
    if problem.backward:
        raise Unsupported("its gradients were not connected")
    if problem.radius > _MAX_RADIUS or problem.levels > _MAX_LEVELS:
        raise Unsupported(f"takes a radius of {_MAX_RADIUS} and {_MAX_LEVELS} levels at most")
    if 0 in problem.request().sizes2[-1]:
        raise Unsupported("has no level of size zero")
