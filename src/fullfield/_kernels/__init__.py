"""Compilation, caches, launches and threads of kernels."""
