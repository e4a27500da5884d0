"""
A sequence with one solver
==========================

Use one solver for all pairs, and start each pair from the previous flow.
"""

import time

import torch

from fullfield.metrics import epe
from fullfield.ops.tvl1 import TVL1Config, TVL1Solver
from fullfield.testing import sample_textured_scene

scene = sample_textured_scene(240, 432, seed=1)
pairs = [(scene.frame1, scene.frame2)] * 4  # a real sequence has different pairs

solver = TVL1Solver(240, 432, TVL1Config.from_preset("fast"))  # allocates buffers and tables once
previous = None
for number, (first, second) in enumerate(pairs):
    start = time.perf_counter()
    previous = solver(first[None], second[None], initial_flow=previous)
    seconds = time.perf_counter() - start
    error = epe(previous[0], scene.flow, scene.valid & ~scene.occluded)
    print(f"pair {number}: {1000 * seconds:.0f} ms, error {error:.3f} px")

assert torch.isfinite(previous).all()
