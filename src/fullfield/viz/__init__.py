"""Pictures of flow and of aligned clouds, all uint8 ``[3, H, W]`` from tensors on the CPU.

Every function works through the rows in blocks, so that an 8K frame needs little more than its own size.
Names are loaded on first use.
"""

from typing import TYPE_CHECKING

from fullfield._lazy import create_lazy_attributes

if TYPE_CHECKING:
    from fullfield.viz.errors import error_map as error_map
    from fullfield.viz.frames import frame_to_image as frame_to_image
    from fullfield.viz.frames import overlay as overlay
    from fullfield.viz.points import alignment_view as alignment_view
    from fullfield.viz.sheets import sheet as sheet
    from fullfield.viz.wheel import flow_scale as flow_scale
    from fullfield.viz.wheel import flow_to_image as flow_to_image
    from fullfield.viz.wheel import wheel_legend as wheel_legend

__all__, __getattr__, __dir__ = create_lazy_attributes(
    __name__,
    {
        "errors": "error_map",
        "frames": "frame_to_image overlay",
        "points": "alignment_view",
        "sheets": "sheet",
        "wheel": "flow_scale flow_to_image wheel_legend",
    },
)
