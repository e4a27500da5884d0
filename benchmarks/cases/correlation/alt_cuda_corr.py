"""RAFT's own CUDA extension, the lookup on demand that others measure against, compiled from a checkout
of RAFT and given to a model."""

from __future__ import annotations

import hashlib
import os
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from fullfield._check import InputError

SOURCES = ("correlation.cpp", "correlation_kernel.cu")
_NAME = "alt_cuda_corr"
_DIGITS = 12


def alt_cuda_corr_extension(folder: str | os.PathLike[str], note: Callable[[str], None]) -> Any:
    """RAFT's CUDA extension, compiled from ``correlation.cpp`` and ``correlation_kernel.cu`` in ``folder``.

    Newer releases of PyTorch have no ``x.type().is_cuda()``; a temporary copy of the source says ``x.is_cuda()``
    instead.

    Raises:
        InputError: if the sources are not there, or cannot be compiled here.
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
    """The extension's sources by name, fit for the present PyTorch."""
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


class Extension:
    """The compiled extension under the name that models know. Counts its lookups: some models fall back silently.

    Args:
        module: what was compiled, with ``forward`` and ``backward``.
        digest: of its sources.
    """

    def __init__(self, module: Any, digest: str) -> None:
        self._module, self.digest, self.calls = module, digest, 0

    @classmethod
    def of(cls, folder: str | os.PathLike[str]) -> Extension:
        """Compiled from ``folder``, about a minute. InputError where that fails, or there is no GPU."""
        sources = "".join(alt_cuda_corr_sources(folder).values())
        digest = hashlib.sha256(sources.encode()).hexdigest()[:_DIGITS]
        return cls(alt_cuda_corr_extension(folder, lambda _: None), digest)

    def forward(self, *arguments: Any) -> Any:
        """A lookup."""
        self.calls += 1
        return self._module.forward(*arguments)

    def backward(self, *arguments: Any) -> Any:
        """Its gradients."""
        return self._module.backward(*arguments)

    def give(self, model: Any, method: str) -> None:
        """Switch ``model`` to its lookup on demand, and that to this extension.

        The modules in the folder of the model's own get it; they would import it while they are imported.
        InputError for a model that has no such lookup.
        """
        if hasattr(model, "alternate_corr"):
            model.alternate_corr = True
        elif hasattr(model, "corr_mode"):
            model.corr_mode = "local"
        else:
            raise InputError(f"{_NAME}: {method} has no lookup on demand; leave it out")
        home = Path(str(sys.modules[type(model).__module__].__file__)).parent
        for module in list(sys.modules.values()):
            file = Path(getattr(module, "__file__", None) or ".")
            if file.suffix == ".py" and file.is_relative_to(home) and _NAME in file.read_text("utf-8"):
                module.__dict__[_NAME] = self
