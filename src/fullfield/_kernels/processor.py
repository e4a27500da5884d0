"""Instruction sets of this processor."""

from __future__ import annotations

from llvmlite import binding


def has(feature: str) -> bool:
    """Return whether the processor has an instruction set, by LLVM's name such as ``"avx512f"``."""
    return bool(binding.get_host_cpu_features().get(feature, False))
