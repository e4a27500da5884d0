"""What this processor has."""

from __future__ import annotations

from llvmlite import binding


def has(feature: str) -> bool:
    """Whether it has an instruction set, by LLVM's name for it, such as ``"avx512f"``."""
    return bool(binding.get_host_cpu_features().get(feature, False))
