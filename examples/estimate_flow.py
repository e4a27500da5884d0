"""
Flow between two frames
=======================

Estimate the flow between two frames, draw it and save it.
"""

import sys
from pathlib import Path

import fullfield
from fullfield.io import read_frame, write_image
from fullfield.viz import draw_overlay, flow_to_image

frames = Path(sys.argv[0]).parent / "scene" / "own" / "frames"  # rendered with known flow
first, second = frames / "frame_0002.png", frames / "frame_0001.png"

flow = fullfield.estimate(first, second)
u, v = flow.flow
print(f"{flow.width}×{flow.height} in {flow.seconds:.2f} s, mean motion ({u.mean():.2f}, {v.mean():.2f}) px")

flow.save("flow.flo")
write_image("flow.png", flow_to_image(flow.flow))
write_image("overlay.png", draw_overlay(flow.flow, read_frame(first), arrow_step=24))
