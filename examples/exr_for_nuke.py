"""Film frames: scene-linear EXR in, EXR flow and an ST map out."""

import torch

from fullfield import estimate
from fullfield.io import read_flow, write_flow, write_image, write_st_map
from fullfield.testing import textured_scene

# Stand-ins for two plates. A float picture written to EXR becomes scene-linear light.
scene = textured_scene(180, 320, seed=1)
write_image("plate.0001.exr", scene.frame1)
write_image("plate.0002.exr", scene.frame2)

# EXR is taken as linear and encoded before matching; a log plate would say transfer="logc4".
forward = estimate("plate.0001.exr", "plate.0002.exr")
backward = estimate("plate.0002.exr", "plate.0001.exr")

write_flow("motion.0001.exr", forward.flow, backward=backward.flow, compression="zip")
write_st_map("stmap.0001.exr", forward.flow)

stored = read_flow("motion.0001.exr")
print(f"layer forward reads back to {float((stored.flow - forward.flow).abs().max()):.1e} px")
assert torch.allclose(stored.flow, forward.flow, atol=1e-3)
