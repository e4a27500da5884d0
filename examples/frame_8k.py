"""
An 8K frame, end to end
=======================

From two scene-linear EXR frames to motion vectors, an ST map and a picture of the flow, at the frames' own size. The
page is built with small frames; ``FULLFIELD_EXAMPLE_WIDTH=8192`` gives the real ones, for which a
GPU is of use.
"""

# %%
# Two frames: a textured scene that moves, written as EXR, as a renderer or a camera's converter would write it.
import os

import torch

from fullfield import estimate
from fullfield.io import frame_window, read_flow, write_flow, write_image, write_st_map
from fullfield.testing import textured_scene
from fullfield.viz import flow_scale, flow_to_image, overlay

width = int(os.environ.get("FULLFIELD_EXAMPLE_WIDTH", "448"))
height = round(width * 0.419 / 8) * 8
device = "cuda" if torch.cuda.is_available() else "cpu"
scene = textured_scene(height, width, seed=3, max_motion=width / 80)
write_image("frame.0001.exr", scene.frame1)
write_image("frame.0002.exr", scene.frame2)

# %%
# The flow. ``fullfield-s`` comes with the package, and starts frames above 800 rows at a quarter of their size, for
# motion that is too long at full size; ``refine`` refines the result to sub-pixel accuracy with TV-L1.
flow = estimate("frame.0001.exr", "frame.0002.exr", "fullfield-s", device=device, refine=True)
error = (flow.flow.cpu() - scene.flow).norm(dim=0)[scene.valid & ~scene.occluded]
print(f"{flow.width}×{flow.height}: mean error {float(error.mean()):.2f} px where both frames show the point")

# %%
# What a compositor loads: vectors in half floats with the plate's window, and an ST map.
window = frame_window("frame.0001.exr")
write_flow("vectors.0001.exr", flow.flow.cpu(), compression="dwaa", dtype="half", window=window)
write_st_map("stmap.0001.exr", flow.flow.cpu(), window=window)
stored = read_flow("vectors.0001.exr", layer="forward").flow
print(f"half floats round by {float((stored - flow.flow.cpu()).abs().max()):.3f} px at most")

# %%
# And a look at it: hue is direction, the full colour is the longest motion.
write_image("flow.png", flow_to_image(stored))
write_image("overlay.png", overlay(stored, scene.frame1, arrows=24))
print(f"full colour: {flow_scale(stored):.1f} px")
