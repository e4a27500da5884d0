"""Pictures of flow and of aligned clouds, all uint8 ``[3, H, W]`` from tensors on the CPU.

Functions of flow and frames work through the rows in blocks, so that an 8K frame needs little more than its own size.
Names are loaded on first use.
"""

from typing import TYPE_CHECKING

from fullfield._lazy import create_lazy_all_getattr_and_dir

if TYPE_CHECKING:
    from fullfield.viz.errors import draw_error_map as draw_error_map
    from fullfield.viz.frames import draw_overlay as draw_overlay
    from fullfield.viz.frames import frame_to_image as frame_to_image
    from fullfield.viz.points import draw_alignment as draw_alignment
    from fullfield.viz.sheets import draw_sheet as draw_sheet
    from fullfield.viz.wheel import draw_wheel_legend as draw_wheel_legend
    from fullfield.viz.wheel import flow_to_image as flow_to_image
    from fullfield.viz.wheel import measure_max_motion as measure_max_motion

__all__, __getattr__, __dir__ = create_lazy_all_getattr_and_dir(
    __name__,
    {
        "errors": "draw_error_map",
        "frames": "draw_overlay frame_to_image",
        "points": "draw_alignment",
        "sheets": "draw_sheet",
        "wheel": "draw_wheel_legend flow_to_image measure_max_motion",
    },
)
