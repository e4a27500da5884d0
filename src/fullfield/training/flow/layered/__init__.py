"""Renderer of layered scenes: both frames and their exact flow in one pass; reference in PyTorch, and CUDA."""

from fullfield.training.flow.layered.api import render_pairs
from fullfield.training.flow.layered.scene import INFINITE, MESH, SQUARE, LayeredScenes, PictureAtlas, RenderedPairs

__all__ = ["INFINITE", "MESH", "SQUARE", "LayeredScenes", "PictureAtlas", "RenderedPairs", "render_pairs"]
