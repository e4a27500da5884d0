"""Plumbing shared by compiled kernels."""
