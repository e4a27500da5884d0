"""
Plates in, motion vectors out
=============================

Read scene-linear EXR frames; write EXR flow to the next and the previous frame, and an ST map.
"""

import torch

from fullfield import estimate
from fullfield.io import read_flow, read_frame_window, write_flow, write_image, write_st_map
from fullfield.testing import sample_textured_scene

# Three synthetic plates: one seed gives the same middle frame at any speed. A float picture is written to EXR as
# scene-linear light.
slow, fast = (sample_textured_scene(180, 320, seed=1, max_motion=motion) for motion in (2.0, 6.0))
write_image("plate.0001.exr", slow.frame2)
write_image("plate.0002.exr", fast.frame1)
write_image("plate.0003.exr", fast.frame2)

# EXR is read as linear and encoded before matching; for a log plate pass transfer="logc4".
# Both fields are on the pixels of plate 2, as Nuke expects for the layers of one file.
forward = estimate("plate.0002.exr", "plate.0003.exr")
backward = estimate("plate.0002.exr", "plate.0001.exr")

window = read_frame_window("plate.0002.exr")  # display window and pixel aspect
write_flow("motion.0002.exr", forward.flow, backward=backward.flow, compression="zip", window=window)
write_st_map("stmap.0002.exr", forward.flow, window=window)

for layer, flow in (("forward", forward.flow), ("backward", backward.flow)):
    stored = read_flow("motion.0002.exr", layer=layer)
    print(f"layer {layer} reads back to {float((stored.flow - flow).abs().max()):.1e} px")
    assert torch.allclose(stored.flow, flow, atol=1e-3)
