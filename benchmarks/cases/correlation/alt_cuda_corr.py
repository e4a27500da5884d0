"""RAFT's own CUDA extension for lookups on demand, compiled from a checkout of RAFT."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from fullfield._check import InputError

SOURCES = ("correlation.cpp", "correlation_kernel.cu")


def alt_cuda_corr_extension(folder: str | os.PathLike[str], note: Callable[[str], None]) -> Any:
    """Compile RAFT's CUDA extension from ``correlation.cpp`` and ``correlation_kernel.cu`` in ``folder``.

    A temporary copy of the source says ``x.is_cuda()`` where newer releases of PyTorch lack ``x.type().is_cuda()``.

    Raises:
        InputError: if a source is missing or does not compile.
    """
    sources = alt_cuda_corr_sources(folder)
    if not torch.cuda.is_available():
        raise InputError("--alt-cuda-corr: the extension needs an NVIDIA GPU; leave the option out on this machine")
    note(f"compiling alt_cuda_corr from {Path(folder)}, about a minute")
    with tempfile.TemporaryDirectory(prefix="fullfield-alt-cuda-corr-") as build:
        for name, text in sources.items():
            (Path(build) / name).write_text(text, encoding="utf-8")
        try:
            from torch.utils import cpp_extension

            return cpp_extension.load(
                name="fullfield_bench_alt_cuda_corr",
                sources=[str(Path(build) / name) for name in sources],
                build_directory=build,
            )
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
