"""Frames and point clouds in, flow and clouds out: files of the field's formats as tensors.

Names are loaded on first use; docs/formats.md says what each format holds and which defaults apply.
"""

from typing import TYPE_CHECKING

from fullfield._lazy import create_lazy_all_getattr_and_dir

if TYPE_CHECKING:
    from fullfield.io.flow import FlowData as FlowData
    from fullfield.io.flow import FlowRangeError as FlowRangeError
    from fullfield.io.flow import read_flow as read_flow
    from fullfield.io.flow import write_flow as write_flow
    from fullfield.io.flow import write_st_map as write_st_map
    from fullfield.io.image import read_frame as read_frame
    from fullfield.io.image import read_frame_window as read_frame_window
    from fullfield.io.image import write_image as write_image
    from fullfield.io.oiio import read_metadata as read_metadata
    from fullfield.io.point_formats import PointCloud as PointCloud
    from fullfield.io.pointcloud import read_point_cloud as read_point_cloud
    from fullfield.io.pointcloud import write_point_cloud as write_point_cloud
    from fullfield.io.resizing import resize_flow as resize_flow
    from fullfield.io.vectors import FlowReadOptions as FlowReadOptions
    from fullfield.io.vectors import read_flow_layers as read_flow_layers
    from fullfield.io.vectors import write_flow_layers as write_flow_layers
    from fullfield.io.video import VideoWriter as VideoWriter
    from fullfield.io.video import open_video as open_video

__all__, __getattr__, __dir__ = create_lazy_all_getattr_and_dir(
    __name__,
    {
        "flow": "FlowData FlowRangeError read_flow write_flow write_st_map",
        "image": "read_frame_window read_frame write_image",
        "oiio": "read_metadata",
        "point_formats": "PointCloud",
        "pointcloud": "read_point_cloud write_point_cloud",
        "resizing": "resize_flow",
        "vectors": "FlowReadOptions read_flow_layers write_flow_layers",
        "video": "VideoWriter open_video",
    },
)
