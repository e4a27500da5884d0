"""Convolution on native points beside other ways to compute it."""
