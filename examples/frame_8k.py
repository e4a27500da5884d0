"""
An 8K frame, end to end
=======================

This example computes motion vectors, an ST map and a picture of the flow from two scene-linear EXR frames, at their own
size. This page was built with small frames; set ``FULLFIELD_EXAMPLE_WIDTH=8192`` for 8K frames, preferably on a GPU.
"""

# %%
# Write two EXR frames of a textured scene that moves.
import os

import torch

from fullfield import estimate
from fullfield.io import read_flow, read_frame_window, write_flow, write_image, write_st_map
from fullfield.testing import sample_textured_scene
from fullfield.viz import draw_overlay, flow_to_image, measure_max_motion

width = int(os.environ.get("FULLFIELD_EXAMPLE_WIDTH", "448"))
height = round(width * 0.419 / 8) * 8
device = "cuda" if torch.cuda.is_available() else "cpu"
scene = sample_textured_scene(height, width, seed=3, max_motion=width / 80)
write_image("frame.0001.exr", scene.frame1)
write_image("frame.0002.exr", scene.frame2)

# %%
# Estimate the flow. The bundled network ``fullfield-s`` starts frames above 800 rows at a quarter of their size, for
# motion that is too long at full size. ``refine`` refines the result to sub-pixel accuracy with TV-L1.
flow = estimate("frame.0001.exr", "frame.0002.exr", "fullfield-s", device=device, refine=True)
error = (flow.flow.cpu() - scene.flow).norm(dim=0)[scene.valid & ~scene.occluded]
print(f"{flow.width}×{flow.height}: mean error of visible points {float(error.mean()):.2f} px")

# %%
# Write what a compositor loads: vectors in half floats with the plate's window, and an ST map.
window = read_frame_window("frame.0001.exr")
write_flow("vectors.0001.exr", flow.flow.cpu(), compression="dwaa", dtype="half", window=window)
write_st_map("stmap.0001.exr", flow.flow.cpu(), window=window)
stored = read_flow("vectors.0001.exr", layer="forward").flow
print(f"rounding to half floats: {float((stored - flow.flow.cpu()).abs().max()):.3f} px at most")

# %%
# Draw the flow: hue is direction, and the pure colour is the longest motion.
write_image("flow.png", flow_to_image(stored))
write_image("overlay.png", draw_overlay(stored, scene.frame1, arrow_step=24))
print(f"colour scale: 0 to {measure_max_motion(stored):.1f} px")
