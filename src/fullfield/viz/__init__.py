"""Pictures of flow and of aligned clouds, all uint8 ``[3, H, W]`` from tensors on the CPU.

Every function works through the rows in blocks, so that an 8K frame needs little more than its own size.
"""

from fullfield.viz.errors import error_colors, error_legend, error_map
from fullfield.viz.frames import frame_to_image, overlay, warp
from fullfield.viz.page import Shown, view_page
from fullfield.viz.points import alignment_legend, alignment_view
from fullfield.viz.sheets import sheet
from fullfield.viz.wheel import FlowColors, color_wheel, flow_scale, flow_to_image, wheel_legend

__all__ = [
    "FlowColors",
    "Shown",
    "alignment_legend",
    "alignment_view",
    "color_wheel",
    "error_colors",
    "error_legend",
    "error_map",
    "flow_scale",
    "flow_to_image",
    "frame_to_image",
    "overlay",
    "sheet",
    "view_page",
    "warp",
    "wheel_legend",
]
