"""RAFT's own CUDA extension for lookups on demand, compiled from a checkout of RAFT."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from fullfield._check import InputError
from fullfield._kernels.cache_folder import find_or_create_writable_folder_or_none
from fullfield.io.files import write_atomically

SOURCES = ("correlation.cpp", "correlation_kernel.cu")
NAME = "fullfield_bench_alt_cuda_corr"


def alt_cuda_corr_extension(folder: str | os.PathLike[str], note: Callable[[str], None]) -> Any:
    """Return RAFT's CUDA extension, compiled from ``correlation.cpp`` and ``correlation_kernel.cu`` in ``folder``.

    A temporary copy of the source says ``x.is_cuda()`` where newer releases of PyTorch lack ``x.type().is_cuda()``. The
    compiled library stays in fullfield's cache, by the sources' hash, PyTorch's version and the GPU's architecture.

    Raises:
        InputError: if a source is missing or does not compile.
    """
    sources = alt_cuda_corr_sources(folder)
    if not torch.cuda.is_available():
        raise InputError("--alt-cuda-corr: the extension needs an NVIDIA GPU; leave the option out on this machine")
    major, minor = torch.cuda.get_device_capability()
    version = f"{hash_alt_cuda_corr(folder)[:12]}-torch{torch.__version__}-sm{major}{minor}"
    cache = find_or_create_writable_folder_or_none(f"alt_cuda_corr-{version}")
    if cache is None:
        return _compile(sources, folder, note)[0]
    library = cache / f"{NAME}.so"
    if library.is_file():
        return _load_library(library)
    extension, compiled = _compile(sources, folder, note)
    with write_atomically(library) as temporary:
        temporary.write_bytes(compiled)
    return extension


def _load_library(path: Path) -> Any:
    """Return the module that a compiled library holds."""
    spec = importlib.util.spec_from_file_location(NAME, path)
    if spec is None or spec.loader is None:
        raise InputError(f"--alt-cuda-corr: {path} does not load; remove it")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _compile(sources: dict[str, str], folder: str | os.PathLike[str], note: Callable[[str], None]) -> tuple[Any, bytes]:
    """Return the compiled module, and its library's content."""
    note(f"compiling alt_cuda_corr from {Path(folder)}, about a minute")
    with tempfile.TemporaryDirectory(prefix="fullfield-alt-cuda-corr-") as build:
        for name, text in sources.items():
            (Path(build) / name).write_text(text, encoding="utf-8")
        try:
            from torch.utils import cpp_extension

            module = cpp_extension.load(
                name=NAME,
                sources=[str(Path(build) / name) for name in sources],
                build_directory=build,
            )
            return module, (Path(build) / f"{NAME}.so").read_bytes()
        except (RuntimeError, OSError, ImportError) as error:
            lines = str(error).splitlines() or [type(error).__name__]
            why = next((line.strip() for line in lines if "error" in line.lower() and "ninja" not in line), lines[0])
            raise InputError(
                f"--alt-cuda-corr {folder}: the extension does not compile ({why[:200]}); it needs nvcc, ninja and a "
                "C++ compiler for this PyTorch"
            ) from error


def alt_cuda_corr_sources(folder: str | os.PathLike[str]) -> dict[str, str]:
    """Return the extension's sources by name, adapted to the installed PyTorch."""
    root = Path(folder)
    if not (root / SOURCES[0]).is_file() and (root / "alt_cuda_corr").is_dir():
        root = root / "alt_cuda_corr"
    missing = [name for name in SOURCES if not (root / name).is_file()]
    if missing:
        raise InputError(
            f"--alt-cuda-corr {folder}: expected {' and '.join(SOURCES)}, as in the folder alt_cuda_corr of a checkout "
            f"of RAFT; {missing[0]} is missing"
        )
    return {
        name: re.sub(r"\.type\(\)\s*\.is_cuda\(\)", ".is_cuda()", (root / name).read_text("utf-8")) for name in SOURCES
    }


def hash_alt_cuda_corr(folder: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of the extension's adapted sources: which version of RAFT's a result is of."""
    sources = alt_cuda_corr_sources(folder)
    return hashlib.sha256("".join(sources[name] for name in SOURCES).encode()).hexdigest()
